"""`Settings`: everything that determines a run, as data.

Each setting is declared once, with its description, its check, and the commands that have it as an
option. The command line and the table in docs/runs.md are generated from these declarations.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from nres.checks import positive_number
from nres.estimators.evolution import SHAPINGS
from nres.runs.declarations import (
    Declaration,
    count,
    json_object,
    of_type,
    one_of,
    rate,
    schedule,
    seed_number,
    setting,
    text,
)
from nres.runs.methods import LAWS, METHODS, OPTIMIZERS
from nres.runs.names import SettingsError, unknown
from nres.runs.rates import whole_rate
from nres.runs.upgrading import upgraded
from nres.workers import EVEN, INDEPENDENT

# Panels under which `--help` lists the options.
EVERYDAY, SYSTEM, ESTIMATOR = "Everyday options", "System", "Estimator"
OPTIMIZATION = "Optimization"
METRICS, CHECKPOINTS, MACHINES = "Evaluation and metrics", "Checkpoints", "Devices and machines"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run; `resolve` fills in those that are not given.

    Each setting is checked when it is set, so that mistakes show before anything is computed.

    ```python
    settings = nres.runs.resolve("lorenz", "nres", updates=500)
    settings.workers, settings.lr, settings.to_json()
    ```
    """

    system: str = setting(
        "A name from `nres list`, file.py:Class, module:Class, or an environment, as gym:ENV-ID.",
        text,
        panel=EVERYDAY,
        commands=(),
    )
    options: dict[str, Any] = setting(  # noqa: RUF009, it makes a field
        "Pass an argument to the system, for example horizon=500; may be repeated.",
        json_object,
        panel=SYSTEM,
        commands=(),
    )
    method: str = setting(
        "Estimate gradients with this method; `nres list` describes the methods.",
        one_of(METHODS),
        panel=EVERYDAY,
        metavar="NAME",
        commands=(),
        determines=True,
    )
    updates: int = setting(
        "Make N updates in total.",
        count,
        panel=EVERYDAY,
        metavar="N",
        default_text="from the preset, else 1000",
        commands=("train", "compare", "resume"),
    )
    lr: str = setting(
        "Set the learning rate: 1e-3, or 1e-3,1000:1e-4 to change it at update 1000, or "
        "cosine:1e-3:1e-5 to lower it over the run.",
        rate,
        panel=EVERYDAY,
        metavar="SCHEDULE",
        default_text="from the preset, else required",
        commands=("train", "compare"),
        determines=True,
    )
    seed: int = setting(
        "Derive all randomness from this seed.",
        seed_number,
        default=0,
        panel=EVERYDAY,
        metavar="SEED",
        determines=True,
    )
    workers: int = setting(
        "Run N workers in parallel.",
        count,
        panel=ESTIMATOR,
        metavar="N",
        default_text="from the preset, else 100",
        commands=("train", "compare"),
        determines=True,
    )
    window: int | None = setting(
        "Unroll W steps per update.",
        count,
        default=None,
        panel=ESTIMATOR,
        metavar="W",
        default_text="from the preset, else a tenth of the horizon",
        determines=True,
    )
    sigma: str | None = setting(
        "Scale the noise: 0.1, or 0.1,1000:0.05 to change it at update 1000.",
        schedule,
        default=None,
        panel=ESTIMATOR,
        metavar="SCHEDULE",
        default_text="from the preset, else required",
        commands=("train", "compare"),
        determines=True,
    )
    adapt_sigma: bool = setting(
        "Adapt sigma during the run so that the smoothed loss falls, within a tenth and ten times "
        "its first value.",
        of_type(bool, "true or false"),
        default=False,
        panel=ESTIMATOR,
        commands=("train", "compare"),
        determines=True,
    )
    period: int | None = setting(
        "Draw new noise every K steps; for gpes and dodge.",
        count,
        default=None,
        panel=ESTIMATOR,
        metavar="K",
        default_text="from the preset, else four windows (gpes) or the episode (dodge)",
        determines=True,
    )
    noise: str | None = setting(
        "Draw independent noises, orthogonal ones where that pays, or matrices of low rank.",
        one_of(LAWS),
        default=None,
        panel=ESTIMATOR,
        default_text="from the preset, else orthogonal",
        choices=tuple(LAWS),
        commands=("train", "compare"),
        determines=True,
    )
    phases: str | None = setting(
        "Spread the workers evenly over the episode at the start, or place them independently.",
        one_of(dict.fromkeys((EVEN, INDEPENDENT))),
        default=None,
        panel=ESTIMATOR,
        default_text=EVEN,
        choices=(EVEN, INDEPENDENT),
        commands=("train", "compare"),
        determines=True,
    )
    shaping: str | None = setting(
        "Divide gradients by the size of the loss differences, or use only their signs.",
        one_of(dict.fromkeys(SHAPINGS)),
        default=None,
        panel=ESTIMATOR,
        default_text=SHAPINGS[0],
        choices=SHAPINGS,
        determines=True,
    )
    regenerate_noise: bool = setting(
        "Regenerate each worker's noise in every window instead of keeping it in memory.",
        of_type(bool, "true or false"),
        default=False,
        panel=ESTIMATOR,
        default_text="from the preset, else off",
    )
    optimizer: str = setting(
        f"Follow the gradients with this optax optimizer: {', '.join(OPTIMIZERS)}.",
        one_of(OPTIMIZERS),
        panel=OPTIMIZATION,
        metavar="NAME",
        default_text="from the preset, else adam",
        choices=tuple(OPTIMIZERS),
        commands=("train", "compare"),
        determines=True,
    )
    warmup: int | None = setting(
        "Raise the learning rate linearly from zero over the first N updates.",
        count,
        default=None,
        panel=OPTIMIZATION,
        metavar="N",
        default_text="off",
        commands=("train", "compare"),
        determines=True,
    )
    clip: float | None = setting(
        "Scale gradients down to this global norm if theirs is larger.",
        positive_number,
        default=None,
        panel=OPTIMIZATION,
        metavar="NORM",
        default_text="off",
        commands=("train", "compare"),
        determines=True,
    )
    budget_seconds: float | None = setting(
        "Stop each run after N seconds of training, instead of after --updates.",
        positive_number,
        default=None,
        panel=OPTIMIZATION,
        metavar="SECONDS",
        default_text="no limit",
        commands=("compare",),
    )
    start_seed: int | None = setting(
        "Draw the initial parameters from a seed of their own.",
        seed_number,
        default=None,
        panel=OPTIMIZATION,
        metavar="SEED",
        default_text="that of the paper, else the same as --seed",
        determines=True,
    )
    start_from: str | None = setting(
        "Start from the parameters of another run or of an .npz file.",
        text,
        default=None,
        panel=OPTIMIZATION,
        flag="--from",
        metavar="PATH",
        default_text="drawn from the seed",
    )
    eval_every: int = setting(
        "Evaluate every N updates.",
        count,
        panel=METRICS,
        metavar="N",
        default_text="about 40 evaluations, or fewer if they are costly",
    )
    stop_after: int | None = setting(
        "Stop early when N evaluations in a row bring no improvement.",
        count,
        default=None,
        panel=METRICS,
        metavar="N",
        default_text="off",
        commands=("train", "resume"),
    )
    auto_stop: str | None = setting(
        "Stop early when the signal in the gradients has sunk into noise, or the loss has risen "
        "far above its start.",
        one_of(dict.fromkeys(("on", "off"))),
        default=None,
        panel=METRICS,
        default_text="off",
        choices=("on", "off"),
        commands=("train", "resume"),
    )
    log_every: int = setting(
        "Write an entry of the metrics every N updates.",
        count,
        panel=METRICS,
        metavar="N",
        default_text="about 1000 entries",
    )
    checkpoint_seconds: float = setting(
        "Save a checkpoint every N seconds.",
        positive_number,
        default=60.0,
        panel=CHECKPOINTS,
        metavar="N",
    )
    checkpoint_every: int | None = setting(
        "Also save a checkpoint every N updates.",
        count,
        default=None,
        panel=CHECKPOINTS,
        metavar="N",
        default_text="off",
    )
    keep_every: int | None = setting(
        "Never delete the checkpoint of every Nth update; N is a multiple of --eval-every.",
        count,
        default=None,
        panel=CHECKPOINTS,
        metavar="N",
        default_text="keep the newest three",
    )
    devices: int | None = setting(
        "Share the workers among N devices, or among all of them.",
        count,
        default=None,
        panel=MACHINES,
        metavar="N|all",
        default_text="1; all on several hosts",
        commands=("train", "resume"),
        typed=str,
    )
    ray: str | None = setting(
        "Share the workers among the actors of a Ray cluster: local, auto or HOST:PORT.",
        text,
        default=None,
        panel=MACHINES,
        metavar="ADDRESS",
        default_text="no cluster",
        commands=("train", "resume"),
    )
    actors: int | None = setting(
        "Start N actors.",
        count,
        default=None,
        panel=MACHINES,
        metavar="N",
        default_text="one per processor",
        commands=("train", "resume"),
    )
    allow_stale: bool = setting(
        "Do not wait for the slower half of the actors.",
        of_type(bool, "true or false"),
        default=False,
        panel=MACHINES,
        commands=("train", "resume"),
    )

    def __post_init__(self) -> None:
        for name in DECLARATIONS:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        limits = ("updates", "warmup", "budget_seconds")
        rate = whole_rate(self.lr, **{name: getattr(self, name) for name in limits})
        object.__setattr__(self, "lr", rate)
        if self.keep_every is not None and self.budget_seconds is not None:
            raise SettingsError("keep_every cannot be combined with budget_seconds: give updates.")
        if self.keep_every is not None and self.keep_every % self.eval_every:
            raise SettingsError(
                f"keep_every must be a multiple of eval_every, {self.eval_every}; got "
                f"{self.keep_every}."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the settings by name, as in `config.json`."""
        return dataclasses.asdict(self)

    def determining(self) -> dict[str, Any]:
        """Return the settings that the final parameters depend on, besides the system itself."""
        return {n: getattr(self, n) for n, declared in DECLARATIONS.items() if declared.determines}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        """Read the settings of a run, which an earlier version may have written."""
        if not isinstance(values, dict):
            raise SettingsError("the settings are not a JSON object.")
        values = upgraded(values)
        missing = [name for name in DECLARATIONS if not has_default(name) and name not in values]
        if missing or not values.keys() <= DECLARATIONS.keys():
            strange = sorted(values.keys() - DECLARATIONS.keys())
            raise SettingsError(
                "the settings are from another version of nres: "
                f"{missing} are missing, {strange} are unknown."
            )
        return cls(**values)


_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
_TYPES = typing.get_type_hints(Settings)
DECLARATIONS: Mapping[str, Declaration] = types.MappingProxyType(
    {name: field.metadata["declaration"] for name, field in _FIELDS.items()}
)


def has_default(name: str) -> bool:
    """Return whether a setting has a default of its own, so that `resolve` need not fill it in."""
    return _FIELDS[name].default is not dataclasses.MISSING


def default_of(name: str) -> Any:
    """Return the default of a setting, or `None` if `resolve` fills it in."""
    return _FIELDS[name].default if has_default(name) else None


def type_of(name: str) -> type:
    """Return the type of a setting's values other than `None`."""
    hint = _TYPES[name]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return kinds[0]


def checked(name: str, value: Any) -> Any:
    """Return the value of a setting in its canonical form, or raise a `SettingsError`."""
    if name not in DECLARATIONS:
        raise SettingsError(unknown("setting", name, DECLARATIONS))
    if value is None and isinstance(_TYPES[name], types.UnionType):
        return None
    try:
        return DECLARATIONS[name].check(name, value)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
