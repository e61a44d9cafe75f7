"""What a run is to do, as data: enough to repeat it, and checked before anything is computed."""

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

import jax
import optax

from nres.checks import positive_number, whole_number
from nres.estimators import Estimator
from nres.evaluation import evaluate
from nres.pools.base import Pool
from nres.runs.methods import METHODS, OPTIMIZERS, MethodInfo
from nres.runs.names import SettingsError, described, full_name, load_system, unknown
from nres.runs.places import check_places, on_devices, on_ray
from nres.runs.registry import SYSTEMS, Preset
from nres.schedule import Piecewise
from nres.system import System, Theta, horizon_of

# What runs are measured with: the same for all of them, so that they can be compared.
EVAL_KEY = 2023
# The number of episodes in an evaluation, where a system has no metrics of its own.
EPISODES = 100
# By default a run is evaluated so often, unless that costs more than this share of its training.
EVALUATIONS = 40
EVALUATION_SHARE = 0.15

_COUNTS = (
    "workers",
    "window",
    "period",
    "updates",
    "log_every",
    "eval_every",
    "checkpoint_every",
    "keep_every",
    "devices",
    "actors",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run is to do. `resolve` makes it from a few of its fields and a preset."""

    system: str
    """A known name, `path/to/file.py:ClassName`, `module:ClassName` or `gym:ENV-ID`."""
    options: dict[str, Any]
    """What the system is constructed with."""
    method: str
    workers: int
    window: int | None
    sigma: str | None
    period: int | None
    noise: str | None
    optimizer: str
    lr: str
    updates: int
    seed: int
    log_every: int
    """Updates an entry of the metrics stands for."""
    eval_every: int
    checkpoint_seconds: float
    """Seconds from one checkpoint to the next."""
    checkpoint_every: int | None
    """The same in updates, where seconds do not do."""
    budget_seconds: float | None = None
    """Seconds of training after which the run ends, whatever `updates` says."""
    devices: int | None = None
    """How many devices share the workers; one, whichever JAX chooses, if none is said."""
    ray: str | None = None
    """The Ray cluster whose actors share the workers: `local`, `auto` or its address."""
    actors: int | None = None
    """How many; as many as there are processors, if not said."""
    allow_stale: bool = False
    """Whether not to wait for the slowest actors."""
    keep_every: int | None = None
    """Updates from one checkpoint that is kept for good to the next; a multiple of `eval_every`."""
    start_seed: int | None = None
    """Seed of the parameters to begin with, where runs that differ in `seed` are to share them."""
    start_from: str | None = None
    """The run or file that the parameters to begin with were taken from, if from any."""

    def __post_init__(self) -> None:
        _check_types(self)
        if self.method not in METHODS:
            raise SettingsError(unknown("method", self.method, METHODS))
        if self.optimizer not in OPTIMIZERS:
            raise SettingsError(unknown("optimizer", self.optimizer, OPTIMIZERS))
        for name in _COUNTS:
            _checked(whole_number, name, getattr(self, name))
        for name in ("checkpoint_seconds", "budget_seconds"):
            _checked(positive_number, name, getattr(self, name))
        for name in ("seed", "start_seed"):
            _checked(whole_number, name, getattr(self, name), -(2**63), 2**63 - 1)
        for name in ("lr", "sigma"):
            _schedule(name, getattr(self, name))
        if self.keep_every is not None and self.budget_seconds is not None:
            raise SettingsError("keep_every goes with a number of updates, not with seconds.")
        if self.keep_every is not None and self.keep_every % self.eval_every:
            raise SettingsError(
                f"keep_every must be a multiple of eval_every, {self.eval_every}; got "
                f"{self.keep_every}."
            )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def determining(self) -> dict[str, Any]:
        """The settings that a run's parameters follow from, besides the system itself."""
        names = "method workers window sigma period noise optimizer lr seed start_seed"
        return {name: getattr(self, name) for name in names.split()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        if not isinstance(values, dict):
            raise SettingsError("the settings are not a JSON object.")
        known = {field.name for field in dataclasses.fields(cls)}
        missing = [
            field.name
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING and field.name not in values
        ]
        if missing or not values.keys() <= known:
            strange = sorted(values.keys() - known)
            raise SettingsError(
                f"settings of another version of nres: without {missing}, unknown {strange}."
            )
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What settings describe, made."""

    system: System | Pool
    estimator: Estimator
    optimizer: optax.GradientTransformation
    theta: Theta
    key: jax.Array
    measure: Callable[[Theta], dict[str, jax.Array]]
    """What progress is measured by; the first number is the one to compare, less is better."""


def resolve(system: str, method: str, **given: Any) -> Settings:
    """Settings for a run: what is given, then the preset, then what suits most.

    ```python
    settings = nres.runs.resolve("lorenz", "nres", updates=500, seed=1)
    ```
    """
    given = {name: value for name, value in given.items() if value is not None}
    if method not in METHODS:
        raise SettingsError(unknown("method", method, METHODS))
    system = full_name(system)
    if given.get("optimizer", "sgd") not in OPTIMIZERS:
        raise SettingsError(unknown("optimizer", given["optimizer"], OPTIMIZERS))
    for name in (*_COUNTS, "seed", "start_seed"):
        least = 1 if name in _COUNTS else -(2**63)
        if name in given:
            given[name] = _checked(whole_number, name, given[name], least, 2**63 - 1)
    takes = METHODS[method].takes
    for name in ("workers", "window", "sigma", "period", "noise"):
        if name in given and name not in takes:
            raise SettingsError(f"{method} has no {name}; it takes {', '.join(takes)}.")
    known = SYSTEMS.get(system)
    preset = None if known is None else known.presets.get(method)
    if known is not None:
        given["options"] = {**known.options, **given.get("options", {})}
    filled = dataclasses.asdict(preset) if preset else _without_preset(system, method, given)
    filled = {k: v for k, v in filled.items() if k in takes or k in ("lr", "optimizer", "updates")}
    filled |= given
    updates, keep_every = filled["updates"], filled.get("keep_every")
    if "eval_every" not in filled:
        made = load_system(system, filled.get("options", {}))
        filled["eval_every"] = _eval_every(made, METHODS[method], filled)
    settings = Settings(
        system=system,
        options=filled.get("options", {}),
        method=method,
        workers=filled["workers"],
        window=filled.get("window"),
        sigma=_schedule("sigma", filled.get("sigma")),
        period=filled.get("period"),
        noise=filled.get("noise"),
        optimizer=filled["optimizer"],
        lr=str(_schedule("lr", filled["lr"])),
        updates=updates,
        seed=filled.get("seed", 0),
        log_every=filled.get("log_every", max(1, updates // 1000)),
        eval_every=filled["eval_every"],
        checkpoint_seconds=filled.get("checkpoint_seconds", 60.0),
        checkpoint_every=filled.get("checkpoint_every"),
        budget_seconds=filled.get("budget_seconds"),
        devices=filled.get("devices"),
        ray=filled.get("ray"),
        actors=filled.get("actors"),
        allow_stale=filled.get("allow_stale", False),
        keep_every=keep_every,
        start_seed=filled.get("start_seed"),
        start_from=filled.get("start_from"),
    )
    check_places(settings)
    return settings


def _check_types(settings: Settings) -> None:
    """Refuse values of another type than the field is declared with: a config is only a file."""
    for name, hint in typing.get_type_hints(Settings).items():
        value = getattr(settings, name)
        if not any(_has_type(value, kind) for kind in _kinds(hint)):
            raise SettingsError(f"{name} must be {_type_name(hint)}, got {value!r}.")


def _has_type(value: Any, kind: Any) -> bool:
    if isinstance(value, bool) and kind is not bool:
        return False
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(_kinds(hint)[0], "a JSON object")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The classes that a declared type allows."""
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)
    return (typing.get_origin(hint) or hint,)


def _checked(check: Callable[..., Any], name: str, value: Any, *bounds: Any) -> Any:
    """The value if it passes a check of `nres.checks`, or if there is none."""
    try:
        return None if value is None else check(name, value, *bounds)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _eval_every(system: Any, info: MethodInfo, filled: dict[str, Any]) -> int:
    """The number of updates from one evaluation to the next.

    At most forty evaluations in all, and as many as cost about 15 % of the unroll steps of the
    training; one of them wherever a checkpoint is kept.
    """
    updates, keep_every = filled["updates"], filled.get("keep_every")
    try:
        horizon = horizon_of(system)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
    window = min(filled.get("window") or horizon, horizon)
    training = updates * info.members * filled["workers"] * window
    # One comes before the first update.
    affordable = EVALUATION_SHARE * training / evaluation_steps(system) - 1
    every = max(1, updates // max(1, min(EVALUATIONS, round(affordable))))
    if not keep_every:
        return every
    fitting = max(1, keep_every // max(1, round(keep_every / every)))
    return keep_every if keep_every % fitting else fitting


def _without_preset(system: str, method: str, given: dict[str, Any]) -> dict[str, Any]:
    """What suits most, where no paper says better."""
    needed = {"lr"} | ({"sigma"} & set(METHODS[method].takes))
    missing = sorted(needed - given.keys())
    if missing:
        raise SettingsError(
            f"there is no preset for {method} on {system}: give "
            + " and ".join(f"--{name}" for name in missing)
            + "."
        )
    horizon = _horizon(system, given.get("options", {}))
    window = max(1, horizon // 10)
    common = Preset(
        lr="", workers=100, window=window, period=4 * window, optimizer="adam", updates=1000
    )
    return dataclasses.asdict(common)


def evaluation_steps(system: Any) -> int:
    """The number of unroll steps that one evaluation of a system takes, as far as is known."""
    return system.metrics_steps or EPISODES * system.horizon


def _horizon(system: str, options: dict[str, Any]) -> int:
    try:
        return horizon_of(load_system(system, options))
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _schedule(name: str, value: str | float | int | None) -> str | None:
    if value is None:
        return None
    try:
        return str(Piecewise.parse(value))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error


def _number(text: str) -> float | Piecewise:
    schedule = Piecewise.parse(text)
    return schedule if schedule.changes else schedule.first


def build(settings: Settings) -> Problem:
    """Make what the settings describe; nothing is compiled or unrolled yet."""
    system = load_system(settings.system, settings.options)
    info = METHODS[settings.method]
    values = {name: getattr(settings, name) for name in info.takes}
    values = {name: value for name, value in values.items() if value is not None}
    if "sigma" in values:
        values["sigma"] = _number(values["sigma"])
    if "noise" in values:
        values["store_noise"] = values.pop("noise") == "keep"
    estimator = _estimator(settings, system, values)
    start, train = jax.random.split(jax.random.key(settings.seed))
    if settings.start_seed is not None:
        start, _ = jax.random.split(jax.random.key(settings.start_seed))
    if system.initial_theta is None:
        raise SettingsError(
            f"{settings.system} does not say where to start: give it a method "
            "`initial_theta(self, key)` that returns the parameters to begin with."
        )
    try:
        theta = estimator.check(system.initial_theta(start))
    except MemoryError:
        raise
    except Exception as error:  # of the user's code, which is run here for the first time
        raise SettingsError(f"{settings.system}: {described(error, settings.system)}") from error

    def measure(theta):
        key = jax.random.key(EVAL_KEY)
        if system.metrics is not None:
            return system.metrics(theta, key)
        return {"loss": evaluate(system, theta, key, episodes=EPISODES).loss}

    optimizer = OPTIMIZERS[settings.optimizer](_number(settings.lr))
    # Last, when all else has been checked: actors take seconds to start.
    if settings.devices is not None:
        placement = on_devices(system, settings.system, settings.devices)
        estimator = _estimator(settings, system, values | {"placement": placement})
    elif settings.ray is not None:
        actors = on_ray(system, settings)
        try:
            estimator = _estimator(settings, system, values | {"placement": actors})
        except SettingsError:
            actors.close()
            raise
    return Problem(system, estimator, optimizer, theta, train, measure)


def _estimator(settings: Settings, pool: System | Pool, values: dict[str, Any]) -> Estimator:
    try:
        return METHODS[settings.method].estimator(pool, **values)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise SettingsError(f"{settings.method} on {settings.system}: {error}") from error
