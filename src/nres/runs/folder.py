"""`Run`: the folder of a run, created, opened and read back."""

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nres
from nres import hosts
from nres.checkpoint import Checkpoints
from nres.estimators.base import blank_state
from nres.files import write_json
from nres.pools.jax import JaxPool, as_pool
from nres.runs.metrics import read_metrics
from nres.runs.names import SettingsError
from nres.runs.settings import Problem, Settings, build
from nres.system import Theta

_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "orbax-checkpoint", "mujoco")


class RunError(RuntimeError):
    """A run that cannot be created, opened or continued."""


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

    @classmethod
    def create(cls, path: str | Path, settings: Settings, problem: Problem) -> "Run":
        """A new folder with `config.json`. Nothing that exists is touched.

        Of several processes that compute the run together the first has the folder.
        """
        path = Path(path)
        trace = fingerprint(settings, problem)
        hosts.check_same(settings.to_json() | {"the code of the system": trace})
        if not hosts.first():
            return cls(path, hosts.from_first(None))
        # What a process that was killed did not finish writing is nothing.
        if path.exists() and (
            not path.is_dir() or any(".partial" not in file.name for file in path.iterdir())
        ):
            if (path / "config.json").exists():
                raise RunError(
                    f"{path} holds a run already: choose another folder, or go on with that one: "
                    f"nres resume {path}"
                )
            raise RunError(f"{path} exists and is not an empty folder: choose another one.")
        config = {
            "settings": settings.to_json(),
            "fingerprint": trace,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "versions": versions(),
            "device": device(),
            "git": _git(),
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "config.json", config)
        except OSError as error:
            raise RunError(f"{path} cannot be written to: {error.strerror}.") from error
        return cls(path, hosts.from_first(config))

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """The run in a folder."""
        path = Path(path)
        if not hosts.first():
            return cls(path, hosts.from_first(None))
        file = path / "config.json"
        if not file.is_file():
            raise RunError(f"{path} holds no run: there is no {file}.")
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            Settings.from_json(config["settings"])
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise RunError(f"{file} is not the config of a run: {error!r}.") from error
        except SettingsError as error:
            raise RunError(f"{file}: {error}") from error
        return cls(path, hosts.from_first(config))

    @property
    def settings(self) -> Settings:
        return Settings.from_json(self.config["settings"])

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """All entries of `metrics.jsonl`, as one array a column."""
        return read_metrics(self.metrics_file)

    @cached_property
    def problem(self) -> Problem:
        """System, estimator and optimizer, made anew, to look at: on one device of this machine.

        Refused if they are not what they were.
        """
        return self._made(dataclasses.replace(self.settings, devices=None, ray=None))

    def spread(self) -> Problem:
        """The same, to go on with: on all the devices or actors that the run is to use."""
        settings = self.settings
        alone = settings.devices is None and settings.ray is None
        return self.problem if alone else self._made(settings)

    def _made(self, settings: Settings) -> Problem:
        problem = build(settings)
        old, new = self.config["fingerprint"], fingerprint(settings, problem)
        if old["jax"] == new["jax"] and old != new:
            raise RunError(
                f"{settings.system} has changed since {self.path} was begun, so the run "
                "cannot be continued as if it had not. Undo the change, or begin a new run."
            )
        return problem

    def theta(self) -> Theta:
        """The parameters in the newest checkpoint."""
        return self.newest()[1]

    def updates_made(self) -> int:
        """How many updates the newest checkpoint stands for, or none."""
        with Checkpoints(self.path / "checkpoints", write=False) as checkpoints:
            return max(checkpoints.updates(), default=0)

    def newest(self) -> tuple[int, Theta]:
        """How many updates the newest checkpoint stands for, and its parameters."""
        return self._thetas(lambda updates: updates[-1:])[0]

    def trajectory(self) -> dict[int, Theta]:
        """Parameters along the way, by updates made: of all checkpoints that were to be kept.

        If none were, of those that there are.
        """
        every = self.settings.keep_every
        return dict(
            self._thetas(lambda updates: [u for u in updates if not every or u % every == 0])
        )

    def _thetas(self, choose: Callable[[list[int]], list[int]]) -> list[tuple[int, Theta]]:
        with Checkpoints(self.path / "checkpoints", write=False) as checkpoints:
            updates = choose(checkpoints.updates())
            if not updates:
                raise RunError(f"{self.path} has no such checkpoint yet.")
            template = checkpoint_template(self.problem)
            return [(u, checkpoints.restore(u, template)[0]["theta"]) for u in updates]

    def changed(self, **settings: Any) -> "Run":
        """The same run with other settings: how many updates to make, on how many devices."""
        config = self.config | {"settings": self.config["settings"] | settings}
        if hosts.first():
            write_json(self.path / "config.json", config)
        return Run(self.path, config)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While this is held, nobody else may work on the run."""
        if not hosts.first():
            yield
            return
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"another process is working on {self.path}.") from None
            yield


def checkpoint_template(problem: Problem) -> dict[str, Any]:
    """What a checkpoint of the problem looks like, without unrolling anything."""
    estimator, theta = problem.estimator, problem.theta
    if isinstance(estimator.pool, JaxPool):
        state = jax.eval_shape(estimator.init, theta, problem.key)
    else:  # only the simulator knows what its states look like
        state = blank_state(estimator, theta, problem.key)
    optimizer = jax.eval_shape(problem.optimizer.init, theta)
    return {"theta": theta, "optimizer": optimizer, "estimator": state}


def fingerprint(settings: Settings, problem: Problem) -> dict[str, str]:
    """What tells a system from a changed one.

    Of a JAX system: what it computes, and with which numbers. Of any other: its options, and the
    file it comes from.
    """
    digest = hashlib.sha256()
    pool = as_pool(problem.system)
    shapes = [(str(x.dtype), x.shape) for x in jax.tree.leaves(problem.theta)]
    digest.update(f"{type(pool).__qualname__} {pool.horizon} {shapes}".encode())
    file = settings.system.rpartition(":")[0]
    if not isinstance(pool, JaxPool):
        digest.update(json.dumps(settings.options, sort_keys=True).encode())
        if file.endswith(".py"):
            digest.update(Path(file).read_bytes())
    else:
        system = pool.system
        key, t = jax.random.key(0), np.int32(0)
        state = jax.eval_shape(system.init, problem.theta, key)
        for jaxpr in (
            jax.make_jaxpr(system.init)(problem.theta, key),
            jax.make_jaxpr(system.step)(state, problem.theta, t, key),
        ):
            digest.update(str(jaxpr).encode())
            for constant in jaxpr.consts:
                digest.update(np.asarray(constant).tobytes())
    # Another version of JAX may write the same system differently, and a system may compute the
    # same in another way on another kind of device.
    where = f"{jax.__version__} on {jax.default_backend()}"
    return {"jax": where, "sha256": digest.hexdigest()}


def new_path(system: str, what: str) -> Path:
    """Where a run goes if nobody says otherwise: `runs/SYSTEM-METHOD-TIME`."""
    name = system.rpartition(":")[2].lower()
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{name}-{what}-{time}"
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{what}-{time}-{number}")
        number += 1
    return path


def versions() -> dict[str, str]:
    """What results depend on, by package."""
    # Of the source that runs, installed or not.
    found = {"python": platform.python_version(), "nres": nres.__version__}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def device() -> dict[str, Any]:
    """What this process computes on."""
    devices = jax.devices()
    return {
        "backend": jax.default_backend(),
        "kind": devices[0].device_kind,
        "count": len(devices),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }


def _git() -> dict[str, Any] | None:
    """The commit that is checked out where the run was begun, if any."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
