"""`resolve`: fill in the settings that are not given, from presets and defaults."""

import dataclasses
from typing import Any

from nres.runs.components import evaluation_steps
from nres.runs.known import Preset
from nres.runs.methods import ESTIMATOR_SETTINGS, METHODS
from nres.runs.names import SettingsError, full_name, load_system
from nres.runs.placement import device_count
from nres.runs.registry import SYSTEMS
from nres.runs.settings import Settings, checked
from nres.system import horizon_of
from nres.workers import EVEN

# The default number of evaluations, unless they cost more than this share of the training.
EVALUATIONS = 40
EVALUATION_SHARE = 0.15
# The law of the noise and the starting points of workers.
DEFAULTS = {"noise": "orthogonal", "phases": EVEN}
# The default number of entries in the metrics.
ENTRIES = 1000


def resolve(system: str, method: str, **given: Any) -> Settings:
    """Make settings from the given values, then from the preset, then from the defaults.

    ```python
    settings = nres.runs.resolve("lorenz", "nres", updates=500, seed=1)
    ```

    Args:
        system: A name from `nres list`, file.py:Class, module:Class, or an environment: gym:ENV-ID,
            brax:ENV, playground:ENV or gymnax:ENV.
        method: The name of a method, for example `"nres"`.
        given: Other settings by name. `None` counts as not given; `devices` may be `"all"`.

    Returns:
        The complete settings.

    Raises:
        SettingsError: A setting is unknown, wrong or missing.
    """
    given["devices"] = device_count(given.get("devices"))
    given = {name: checked(name, value) for name, value in given.items() if value is not None}
    accepts = METHODS[checked("method", method)].accepts
    for name in given:
        if name in ESTIMATOR_SETTINGS and name not in accepts:
            raise SettingsError(
                f"{method} does not accept {name}; it accepts {', '.join(accepts)}."
            )
    system = full_name(system)
    known = SYSTEMS.get(system)
    usual = {} if known is None else known.options
    given["options"] = {**usual, **given.get("options", {})}
    preset = None if known is None else known.presets.get(method)
    if preset is None:
        preset = _usual(system, method, given)
    if known is not None and known.start_seed is not None:
        given.setdefault("start_seed", known.start_seed)
    filled = {
        name: value
        for name, value in dataclasses.asdict(preset).items()
        if name in accepts or name not in ESTIMATOR_SETTINGS
    } | given
    # Recorded, so that a run stays as it is if a later version has other defaults.
    for name, usual_value in DEFAULTS.items():
        if name in accepts and filled.get(name) is None:
            filled[name] = usual_value
    if "log_every" not in filled:
        filled["log_every"] = max(1, filled["updates"] // ENTRIES)
    if "eval_every" not in filled:
        filled["eval_every"] = _eval_every(system, method, filled)
    settings = Settings(system=system, method=method, **filled)
    # Not a check of `Settings`: a run that is resumed may end during its warm-up.
    if settings.budget_seconds is None and (settings.warmup or 0) >= settings.updates:
        raise SettingsError(
            f"warmup must be smaller than the number of updates, {settings.updates}; got "
            f"{settings.warmup}."
        )
    return settings


def _usual(system: str, method: str, given: dict[str, Any]) -> Preset:
    """Return default settings, for a system and a method without a preset."""
    needed = {"lr"} | ({"sigma"} & set(METHODS[method].accepts))
    missing = sorted(needed - given.keys())
    if missing:
        raise SettingsError(
            f"there is no preset for {method} on {system}: give "
            + " and ".join(f"--{name}" for name in missing)
            + "."
        )
    _, horizon = _loaded(system, given["options"])
    window = given.get("window", max(1, horizon // 10))
    return Preset(
        lr=given["lr"],
        workers=100,
        window=window,
        period=4 * window if method == "gpes" else None,
        optimizer="adam",
        updates=1000,
    )


def _eval_every(name: str, method: str, filled: dict[str, Any]) -> int:
    """Return the default number of updates between two evaluations.

    It allows at most 40 evaluations, which cost about 15 % of the unroll steps of the training.
    If checkpoints are kept, each of them coincides with an evaluation.
    """
    system, horizon = _loaded(name, filled["options"])
    updates, keep_every = filled["updates"], filled.get("keep_every")
    window = min(filled.get("window") or horizon, horizon)
    training = updates * METHODS[method].members * filled["workers"] * window
    # One evaluation takes place before the first update.
    affordable = EVALUATION_SHARE * training / evaluation_steps(system) - 1
    every = max(1, updates // max(1, min(EVALUATIONS, round(affordable))))
    if not keep_every:
        return every
    fitting = max(1, keep_every // max(1, round(keep_every / every)))
    return keep_every if keep_every % fitting else fitting


def _loaded(name: str, options: dict[str, Any]) -> tuple[Any, int]:
    """Return a system and its horizon."""
    system = load_system(name, options)
    try:
        return system, horizon_of(system)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
