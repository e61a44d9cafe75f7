"""`Run`: a run and its folder."""

import contextlib
import dataclasses
import datetime
import functools
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres import multihost, weights
from nres.checkpoint import CheckpointError, Checkpoints
from nres.estimators.base import Estimator
from nres.estimators.computing import blank_state
from nres.estimators.values import EstimatorState
from nres.execution import choose
from nres.files import create_json, read_plain, write_json
from nres.measured import learned
from nres.runs.components import Components, build, make_estimator
from nres.runs.fingerprint import fingerprint, is_same
from nres.runs.machine import device, git_commit, versions
from nres.runs.metrics import read_metrics
from nres.runs.names import SettingsError
from nres.runs.placement import unplaced
from nres.runs.settings import Settings
from nres.runs.trust import foreign_cluster, foreign_code, refusal, remember
from nres.system import Theta
from nres.weights import Archive, named_arrays
from nres.workers import Steps

# The largest config that nres reads, in bytes.
LARGEST_CONFIG = 10_000_000

# The parameters of the best evaluation so far, below the folder of a run.
BEST = "checkpoints/best.npz"
# The reasons to end a run before its last update that its config records.
EARLY_ENDS = ("diverged", "stopped_early")
# The number of attempts to read checkpoints that a running process may replace.
ATTEMPTS = 5


class RunError(RuntimeError):
    """A run cannot be created, opened or resumed."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run and its folder.

    ```python
    run = nres.runs.Run.open("runs/lorenz-nres-20260101-120000")
    run.settings, run.metrics["loss"], run.theta()
    ```
    """

    path: Path
    config: dict[str, Any]
    trusted: bool = False
    """True to trust the code and the cluster in the config, wherever the folder comes from."""

    @classmethod
    def create(
        cls,
        path: str | Path,
        settings: Settings,
        components: Components,
        *,
        tuning: dict[str, Any] | None = None,
    ) -> "Run":
        """Create a new folder with `config.json`, without changing any existing file.

        If several processes try to create a run in the same folder, exactly one succeeds. If
        several processes compute the run together, the first creates the folder.

        Args:
            path: The folder.
            settings: The settings of the run.
            components: Its components.
            tuning: The record of `tune_settings`, if it chose the settings.

        Raises:
            RunError: The folder is not empty or not writable.
        """
        path = Path(path)
        remember(foreign_code(settings.system, settings.options) + foreign_cluster(settings.ray))
        trace = fingerprint(settings, components)
        multihost.check_same(settings.to_json() | {"the code of the system": trace})
        if not multihost.is_primary():
            return cls(path, multihost.from_primary(None))
        taken = RunError(
            f"{path} holds a run already: choose another folder, or resume that run: "
            f"nres resume {path}"
        )
        if (path / "config.json").exists():
            raise taken
        if path.exists() and (not path.is_dir() or not all(map(_is_leftover, path.iterdir()))):
            raise RunError(f"{path} exists and is not an empty folder: choose another one.")
        Checkpoints.check_folder(path)
        config: dict[str, Any] = {
            "settings": settings.to_json(),
            "fingerprint": trace,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "versions": versions(),
            "device": device(),
            "git": git_commit(),
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            if tuning is not None:
                config["tuning"] = tuning
            if settings.start_from is not None or tuning is not None:
                config["start"] = _start_name(components.theta)
                weights.save(path / config["start"], components.theta)
            create_json(path / "config.json", config)
        except FileExistsError:
            raise taken from None
        except OSError as error:
            raise RunError(f"{path} is not writable: {error.strerror}.") from error
        return cls(path, multihost.from_primary(config))

    @classmethod
    def open(cls, path: str | Path, *, trust_code: bool = False) -> "Run":
        """Open the run in a folder, without running any code that its config names.

        Args:
            path: The folder.
            trust_code: Let it run the code, and use the Ray cluster, that the config names, even if
                you have not named them on this machine (see `nres.runs.trust`).

        Returns:
            The run.

        Raises:
            RunError: The folder holds no run, or its config cannot be read.
        """
        path = Path(path)
        if not multihost.is_primary():
            return cls(path, multihost.from_primary(None), trust_code)
        file = path / "config.json"
        if not file.exists() and not file.is_symlink():
            raise RunError(f"{path} holds no run: there is no {file}.")
        try:
            config = json.loads(read_plain(file, LARGEST_CONFIG).decode())
            if not isinstance(config, dict):
                raise TypeError("it is not a JSON object")
            Settings.from_json(config["settings"])
        except SettingsError as error:
            made_by = config.get("versions", {}).get("nres", "an unknown version")
            raise RunError(f"{file}: {error} It was written by nres {made_by}.") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{file} is not the config of a run: {error!r}.") from error
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}.") from error
        return cls(path, multihost.from_primary(config), trust_code)

    @property
    def settings(self) -> Settings:
        return Settings.from_json(self.config["settings"])

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The entries of `metrics.jsonl`, one array per column."""
        return read_metrics(self.metrics_file)

    @property
    def tuning_steps(self) -> Steps:
        """The number of unroll steps of the trials that chose the settings; 0 if there were none.

        Raises:
            RunError: The config is damaged.
        """
        try:
            return Steps(*map(int, self.config.get("tuning", {"steps": (0, 0)})["steps"]))
        except (LookupError, TypeError, ValueError) as error:
            raise RunError(f"{self.path / 'config.json'}: tuning is damaged: {error!r}.") from error

    @property
    def ended_early(self) -> str | None:
        """The recorded reason why the run ended before its last update, if there is one."""
        found = (why.replace("_", " ") for why in EARLY_ENDS if self.config.get(why) is True)
        return next(found, None)

    @cached_property
    def components(self) -> Components:
        """The system, estimator and optimizer, on one device of this machine.

        Raises:
            RunError: The system has changed, or its code is not trusted.
        """
        return self._build(unplaced(self.settings))

    def build(self, settings: Settings | None = None) -> Components:
        """Build the components of this run, with its workers in their place.

        Args:
            settings: Settings that move the run elsewhere; by default its own.
        """
        settings = settings or self.settings
        if settings.ray != self.settings.ray:  # the caller names another cluster
            remember(foreign_cluster(settings.ray))
        return self.components if settings == unplaced(self.settings) else self._build(settings)

    def _build(self, settings: Settings) -> Components:
        words = refusal(self.path, settings.system, settings.options, settings.ray)
        if words is not None and not self.trusted:
            raise RunError(words)
        components = self._with_start(build(settings))
        if not is_same(self.config.get("fingerprint"), settings, components):
            raise RunError(
                f"{settings.system} has changed since {self.path} was started, so the run cannot "
                "be resumed. Undo the change, or start a new run from its parameters: "
                f"nres train ... --from {self.path}"
            )
        return components

    def _with_start(self, components: Components) -> Components:
        """Return the components with the initial parameters of the run, if it was given any."""
        name = self.config.get("start")
        if name is None:
            return components
        if not isinstance(name, str) or Path(name).name != name:
            raise RunError(f"{self.path / 'config.json'}: start must be the name of a file.")
        theta = shared_theta(self.path / name, components.theta)
        return dataclasses.replace(components, theta=theta)

    def theta(self, *, best: bool = False) -> Theta:
        """Return the parameters in the newest checkpoint, or those of the best evaluation."""
        return self.newest(best=best)[1]

    def updates_made(self) -> int:
        """Return the number of updates until the newest checkpoint; 0 if there is none."""
        with Checkpoints(self.path / "checkpoints", write=False) as checkpoints:
            return max(checkpoints.updates(), default=0)

    def newest(self, *, best: bool = False) -> tuple[int, Theta]:
        """Return the number of updates and the parameters of the newest or the best checkpoint."""
        if not best:
            return self._thetas(lambda updates: updates[-1:])[0]
        if not (self.path / BEST).exists():
            raise RunError(f"{self.path} has no best parameters: it has no evaluation yet.")
        with Archive(self.path / BEST, follow=False) as archive:
            return int(archive.read("update", 8)), archive.theta(self.components.theta)

    def trajectory(self) -> dict[int, Theta]:
        """Return the parameters of the checkpoints that `keep_every` kept, by number of updates.

        Without `keep_every`, return the parameters of all existing checkpoints.
        """
        every = self.settings.keep_every
        return dict(
            self._thetas(lambda updates: [u for u in updates if not every or u % every == 0])
        )

    def _thetas(self, choose: Callable[[list[int]], list[int]]) -> list[tuple[int, Theta]]:
        like, folder = self.components.theta, self.path / "checkpoints"
        for attempt in range(ATTEMPTS):
            updates: list[int] = []
            try:
                with Checkpoints(folder, write=False) as checkpoints:
                    updates = choose(checkpoints.updates())
                    if not updates:
                        raise RunError(f"{self.path} has no checkpoint yet.")
                    return [
                        (u, checkpoints.restore(u, {"theta": like}, partial=True)[0]["theta"])
                        for u in updates
                    ]
            except CheckpointError:
                # A running process may have replaced it by a newer one.
                time.sleep(0.2 * attempt)
                if attempt > 0 and all((folder / str(u)).exists() for u in updates):
                    raise
        raise RunError(
            f"the checkpoints of {self.path} are replaced faster than they can be read: try again "
            "when the run has ended."
        )

    def marked(self, **reasons: bool) -> "Run":
        """Record in the config which of `EARLY_ENDS` applies; call it while `locked`."""
        return self._with_config({**self.config, **reasons})

    def changed(self, **settings: Any) -> "Run":
        """Change settings in the config; call it while `locked`."""
        return self._with_config({**self.config, "settings": self.config["settings"] | settings})

    def _with_config(self, config: dict[str, Any]) -> "Run":
        if multihost.is_primary():
            write_json(self.path / "config.json", config)
        return dataclasses.replace(self, config=config)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the run.

        Raises:
            RunError: Another process is writing to it.
        """
        if not multihost.is_primary():
            yield
            return
        import filelock  # imported here, since only writing needs it

        lock = filelock.FileLock(self.path / ".lock", blocking=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise RunError(
                f"another process is working on {self.path}: wait for it, or stop it."
            ) from None
        except OSError as error:
            raise RunError(f"{self.path} cannot be locked: {error}.") from error
        try:
            yield
        finally:
            lock.release()


def checkpoint_template(settings: Settings, components: Components) -> dict[str, Any]:
    """Return the shapes of a checkpoint of a run, without unrolling anything.

    They do not depend on the placement, so this uses an estimator on one device.
    """
    estimator, theta = make_estimator(settings, components.system), components.theta
    state = choose(estimator, _blank_shapes, blank_state)(estimator, theta, components.key)
    optimizer = jax.eval_shape(components.optimizer.init, learned(theta))
    return {"theta": theta, "optimizer": optimizer, "estimator": state}


def _blank_shapes(estimator: Estimator, theta: Theta, key: jax.Array) -> EstimatorState:
    return jax.eval_shape(functools.partial(blank_state, estimator), theta, key)


def new_path(system: str, what: str) -> Path:
    """Create an empty folder for a run that was not given one: `runs/SYSTEM-METHOD-TIME`.

    No two processes get the same folder.
    """
    name = system.rpartition(":")[2].lower().replace("/", "-")
    when = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{name}-{what}-{when}"
    number = 2
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            path = path.with_name(f"{name}-{what}-{when}-{number}")
            number += 1
        except OSError as error:
            raise RunError(
                f"{path} cannot be created: {error.strerror}. Choose a folder with --out."
            ) from error
        else:
            return path


def shared_theta(path: Path, like: Theta) -> Theta:
    """Read parameters from a file of a run's folder, which only the first process needs."""
    theta = weights.load(path, like, follow=False) if multihost.is_primary() else like
    leaves, structure = jax.tree.flatten(theta)
    told = multihost.arrays_from_primary([np.asarray(leaf) for leaf in leaves])
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in told])


def _is_leftover(file: Path) -> bool:
    """Return whether a file is left over from a process killed while creating a run."""
    return ".partial" in file.name or (file.name.startswith("start-") and file.suffix == ".npz")


def _start_name(theta: Theta) -> str:
    """Return a file name that depends on the content: two processes may try to create the run."""
    content = b"".join(np.ascontiguousarray(x).tobytes() for x in named_arrays(theta).values())
    return f"start-{zlib.crc32(content):08x}.npz"
