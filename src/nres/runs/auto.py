"""`tune_settings`: the settings of a run that `nres.tune` chooses."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from nres.runs.components import Components
from nres.runs.defaults import resolve
from nres.runs.methods import LAWS, METHODS
from nres.runs.names import SettingsError
from nres.runs.placement import unplaced
from nres.runs.rates import Cosine, parse_rate
from nres.runs.registry import SYSTEMS
from nres.runs.settings import Settings, checked
from nres.schedule import Piecewise
from nres.tuning import Probe, Trial, Tuned, tune
from nres.tuning.budget import LEAST, Budget
from nres.tuning.choice import STRATEGIES
from nres.workers import Steps

# The optimizers for which the learning rate is a distance per update.
ADAMS = ("adam", "adamw", "nadam", "adam_root")
# The updates of the default budget, for a system and a method without a preset.
UPDATES = 1000
# The settings that do not depend on trials.
USUAL = {"optimizer": "adam", "noise": "orthogonal", "shaping": "none"}
BUDGETS = ("total_steps", "sequential_steps", "seconds")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The settings that tuning chose, and the components of the run with them."""

    settings: Settings
    components: Components
    """The components; training starts from the parameters after the best trial."""
    record: dict[str, Any]
    """The reasons, the steps and the measurements, for the run's config."""

    @property
    def reasons(self) -> list[str]:
        return self.record["reasons"]


def tune_settings(
    given: Mapping[str, Any],
    budget: Mapping[str, int | float | None],
    make: Callable[[Settings], Components],
    callback: Callable[[Probe | Trial], Any] | None = None,
) -> Chosen:
    """Choose the settings that are not given, by short trials, and keep the others.

    ```python
    given = {"system": "lorenz", "method": "nres", "seed": 1}
    chosen = nres.runs.tune_settings(given, {"total_steps": 1e8}, nres.runs.build)
    run = nres.runs.Run.create(
        "runs/auto", chosen.settings, chosen.components, tuning=chosen.record
    )
    ```

    Args:
        given: The arguments of `resolve`.
        budget: The budget, by the names of the arguments of `nres.tune`. If it is empty, it is that
            of `updates`, else that of the preset, else that of 1000 updates.
        make: A function that makes the components of a run, such as `build`.
        callback: A function that is called with each probe and each trial.

    Returns:
        The settings and components of the run, and the record for its config.

    Raises:
        SettingsError: A setting is wrong or cannot be combined with tuning, or no setting works.
    """
    began = time.monotonic()
    given = {name: value for name, value in given.items() if value is not None}
    method, optimizer = given["method"], given.get("optimizer", "adam")
    if checked("method", method) not in STRATEGIES:
        raise SettingsError(
            f"--auto chooses settings for {', '.join(STRATEGIES)}, not for {method}."
        )
    if checked("optimizer", optimizer) not in ADAMS:
        raise SettingsError(
            f"--auto chooses learning rates for {', '.join(ADAMS)}, not for {optimizer}."
        )
    # An estimator needs a sigma, a rate and a window. Where none is given, any will do here; that
    # of a preset may be longer than the horizon.
    any_will_do: dict[str, Any] = {"sigma": "1", "lr": "1", "window": 1}
    accepted = {n: v for n, v in any_will_do.items() if n == "lr" or n in METHODS[method].accepts}
    first = make(unplaced(resolve(**(accepted | USUAL | given))))
    given = USUAL | given
    pool = first.estimator.pool
    sizes = {name: checked(name, given[name]) for name in ("workers", "window") if name in given}
    limits: dict[str, Any] = {n: budget[n] for n in BUDGETS if budget.get(n) is not None}
    if not limits:
        limits = {"total_steps": _usual_steps(given, pool.horizon, sizes)}
    try:
        tuned = tune(
            pool,
            first.theta,
            key=jax.random.fold_in(first.key, 0),
            method=method,
            sigma=Piecewise.parse(given["sigma"]).first if "sigma" in given else None,
            rate=parse_rate(str(given["lr"])).first if "lr" in given else None,
            noise=LAWS[checked("noise", given["noise"])](),
            callback=callback,
            **limits,
            **sizes,
        )
    except ValueError as error:
        raise SettingsError(f"{given['system']}: {error}") from error
    chosen = chosen_settings(tuned, method)
    settings = resolve(**(chosen | given))
    components = dataclasses.replace(make(settings), theta=tuned.theta)
    record = {
        "budget": limits,
        "chosen": {name: value for name, value in chosen.items() if name not in given},
        "seconds": time.monotonic() - began,
        **measurements(tuned),
    }
    return Chosen(settings, components, record)


def measurements(tuned: Tuned) -> dict[str, Any]:
    """Return the reasons, the steps, the probes and the trials of a choice, for a JSON file."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def fields(result: Probe | Trial) -> dict[str, Any]:
        return {name: plain(value) for name, value in vars(result).items()}

    return {
        "reasons": list(tuned.reasons),
        "steps": list(tuned.steps),
        "probes": [fields(probe) for probe in tuned.probes],
        "trials": [fields(trial) for trial in tuned.trials],
    }


def chosen_settings(tuned: Tuned, method: str) -> dict[str, Any]:
    """Return the settings that `nres.tune` chose, by name."""
    chosen = {
        "sigma": str(tuned.sigma),
        "lr": str(Cosine(*tuned.rates)),
        "workers": tuned.workers,
        "window": tuned.window,
        "updates": tuned.updates,
    }
    if "window" not in METHODS[method].accepts:
        del chosen["window"]
    return chosen


def command_options(tuned: Tuned, budget: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of `nres train` with the settings that `nres.tune` chose for NRES.

    The run starts from the parameters before the trials, with the whole budget.
    """
    steps = budget.get("total_steps"), budget.get("sequential_steps")
    whole = Budget.of(tuned.estimator.horizon, *steps, None)
    updates = whole.updates(tuned.estimator, Steps(0, 0))
    return {
        "method": "nres",
        **chosen_settings(tuned, "nres"),
        "updates": updates,
        **USUAL,
    }


def _usual_steps(given: Mapping[str, Any], horizon: int, sizes: Mapping[str, int]) -> int:
    """Return the total number of steps of a run whose budget is not given."""
    method = given["method"]
    known = SYSTEMS.get(given["system"])
    preset = None if known is None else known.presets.get(method)
    if preset is not None and "updates" not in given:
        updates, workers, window = preset.updates, preset.workers, preset.window or horizon
    else:
        shape = Budget(horizon).shape(method, sizes.get("workers"), sizes.get("window"))
        workers, window = shape
        updates = given.get("updates", UPDATES)
    total = METHODS[method].members * updates * workers * window
    return max(LEAST["total_steps"] * horizon, total)
