"""`Settings`: everything that a run is made from, as data, each setting declared once.

A declaration holds the description, the check, and the commands that have the setting as an
option; the command line and the table in docs/runs.md follow from it.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from nres.checks import positive_number
from nres.runs.declarations import (
    Declaration,
    count,
    json_object,
    of_type,
    one_of,
    schedule,
    seed_number,
    setting,
    text,
)
from nres.runs.methods import METHODS, OPTIMIZERS
from nres.runs.names import SettingsError, unknown

# Headings under which `--help` lists the options.
METHOD, OPTIMIZER = "Method", "Optimizer"
SAVING, PLACEMENT = "Evaluation and checkpoints", "Where it runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run; `resolve` fills in those that are not given.

    All are checked when they are set, so that a mistake shows before anything is computed.

    ```python
    settings = nres.runs.resolve("lorenz", "nres", updates=500)
    settings.workers, settings.lr, settings.to_json()
    ```
    """

    system: str = setting(
        "A name from `nres list`, file.py:Class, module:Class or gym:ENV-ID.", text, commands=()
    )
    options: dict[str, Any] = setting(  # noqa: RUF009, it makes a field
        "Construct the system with this argument, for example horizon=500.",
        json_object,
        commands=(),
    )
    method: str = setting(
        "Estimate gradients with this method; `nres list` describes all of them.",
        one_of(METHODS),
        panel=METHOD,
        commands=(),
        determines=True,
    )
    workers: int = setting(
        "Run N workers side by side.",
        count,
        panel=METHOD,
        metavar="N",
        commands=("train", "compare"),
        determines=True,
    )
    window: int | None = setting(
        "Unroll W steps per update.",
        count,
        default=None,
        panel=METHOD,
        metavar="W",
        determines=True,
    )
    sigma: str | None = setting(
        "Scale the noise: 0.1, or 0.1,1000:0.05 to change it at update 1000.",
        schedule,
        default=None,
        panel=METHOD,
        metavar="SCHEDULE",
        commands=("train", "compare"),
        determines=True,
    )
    period: int | None = setting(
        "Draw new noise every K steps.",
        count,
        default=None,
        panel=METHOD,
        metavar="K",
        determines=True,
    )
    noise: str | None = setting(
        "Store the noise of an episode, or draw it again in every window: keep or regenerate.",
        one_of({"keep": None, "regenerate": None}),
        default=None,
        panel=METHOD,
        determines=True,
    )
    optimizer: str = setting(
        f"Follow the gradients with this optimizer of optax: {', '.join(OPTIMIZERS)}.",
        one_of(OPTIMIZERS),
        panel=OPTIMIZER,
        metavar="NAME",
        commands=("train", "compare"),
        determines=True,
    )
    lr: str = setting(
        "Set the learning rate: 1e-3, or 1e-3,1000:1e-4 to change it at update 1000.",
        schedule,
        panel=OPTIMIZER,
        metavar="SCHEDULE",
        commands=("train", "compare"),
        determines=True,
    )
    updates: int = setting(
        "Make N updates in total.",
        count,
        panel=OPTIMIZER,
        metavar="N",
        commands=("train", "compare", "resume"),
    )
    budget_seconds: float | None = setting(
        "Stop after so many seconds of training, however many updates that is.",
        positive_number,
        default=None,
        panel=OPTIMIZER,
        metavar="SECONDS",
        commands=("compare",),
    )
    seed: int = setting(
        "Derive all randomness from this seed.",
        seed_number,
        default=0,
        panel=OPTIMIZER,
        metavar="SEED",
        determines=True,
    )
    start_seed: int | None = setting(
        "Draw the initial parameters from this seed instead.",
        seed_number,
        default=None,
        panel=OPTIMIZER,
        metavar="SEED",
        determines=True,
    )
    start_from: str | None = setting(
        "Begin with the parameters of another run, or of an .npz file.",
        text,
        default=None,
        panel=OPTIMIZER,
        flag="--from",
        metavar="PATH",
    )
    eval_every: int = setting(
        "Evaluate every N updates; by default up to 40 times, if that costs little.",
        count,
        panel=SAVING,
        metavar="N",
    )
    log_every: int = setting(
        "Write an entry of the metrics every N updates; by default 1000 entries in all.",
        count,
        panel=SAVING,
        metavar="N",
    )
    checkpoint_every: int | None = setting(
        "Save a checkpoint every N updates, too.",
        count,
        default=None,
        panel=SAVING,
        metavar="N",
    )
    checkpoint_seconds: float = setting(
        "Save a checkpoint every so many seconds.",
        positive_number,
        default=60.0,
        panel=SAVING,
        metavar="SECONDS",
    )
    keep_every: int | None = setting(
        "Keep a checkpoint for good every N updates, a multiple of --eval-every.",
        count,
        default=None,
        panel=SAVING,
        metavar="N",
    )
    devices: int | None = setting(
        "Share the workers among this number of devices, or among all of them.",
        count,
        default=None,
        panel=PLACEMENT,
        metavar="N|all",
        commands=("train", "resume"),
        typed=str,
    )
    ray: str | None = setting(
        "Share the workers among the actors of a Ray cluster: local, auto or HOST:PORT.",
        text,
        default=None,
        panel=PLACEMENT,
        metavar="ADDRESS",
        commands=("train", "resume"),
    )
    actors: int | None = setting(
        "Start N actors; by default one per processor.",
        count,
        default=None,
        panel=PLACEMENT,
        metavar="N",
        commands=("train", "resume"),
    )
    allow_stale: bool = setting(
        "Do not wait for the slowest half of the actors.",
        of_type(bool, "true or false"),
        default=False,
        panel=PLACEMENT,
        commands=("train", "resume"),
    )

    def __post_init__(self) -> None:
        for name in DECLARATIONS:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        if self.keep_every is not None and self.budget_seconds is not None:
            raise SettingsError("keep_every goes with a number of updates, not with seconds.")
        if self.keep_every is not None and self.keep_every % self.eval_every:
            raise SettingsError(
                f"keep_every must be a multiple of eval_every, {self.eval_every}; got "
                f"{self.keep_every}."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the settings by name, as `config.json` has them."""
        return dataclasses.asdict(self)

    def determining(self) -> dict[str, Any]:
        """Return the settings that a run's parameters follow from, besides the system itself."""
        return {n: getattr(self, n) for n, declared in DECLARATIONS.items() if declared.determines}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        """Read the settings of a run, which may be of an earlier version."""
        if not isinstance(values, dict):
            raise SettingsError("the settings are not a JSON object.")
        missing = [name for name in DECLARATIONS if not has_default(name) and name not in values]
        if missing or not values.keys() <= DECLARATIONS.keys():
            strange = sorted(values.keys() - DECLARATIONS.keys())
            raise SettingsError(
                f"settings of another version of nres: without {missing}, unknown {strange}."
            )
        return cls(**values)


_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
_TYPES = typing.get_type_hints(Settings)
DECLARATIONS: Mapping[str, Declaration] = types.MappingProxyType(
    {name: field.metadata["declaration"] for name, field in _FIELDS.items()}
)


def has_default(name: str) -> bool:
    """Tell if a setting has a default of its own, so that `resolve` need not fill it."""
    return _FIELDS[name].default is not dataclasses.MISSING


def default_of(name: str) -> Any:
    """Return the default of a setting, or `None` if `resolve` fills it."""
    return _FIELDS[name].default if has_default(name) else None


def type_of(name: str) -> type:
    """Return the type of a setting's values, `None` apart."""
    hint = _TYPES[name]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return kinds[0]


def checked(name: str, value: Any) -> Any:
    """Return the value of a setting in its usual form, or raise a `SettingsError`."""
    if name not in DECLARATIONS:
        raise SettingsError(unknown("setting", name, DECLARATIONS))
    if value is None and isinstance(_TYPES[name], types.UnionType):
        return None
    try:
        return DECLARATIONS[name].check(name, value)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
