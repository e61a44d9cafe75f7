"""Summary of the runs of a report: title, logarithmic axes, and times to a common level."""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np

from nres.figures import DISPLAY_NAMES
from nres.files import read_plain
from nres.history import needs_log
from nres.runs.compare import (
    AXES,
    COMPARISON_FILE,
    Evaluations,
    early_level,
    relative_times,
    times_to_level,
)
from nres.runs.folder import Run
from nres.runs.metrics import DamagedMetricsWarning

LARGEST_COMPARISON = 1_000_000
# Runs that differ in nothing else are seeds of the same method.
_SEEDS = ("seed", "start_seed")

_Metrics = Mapping[str, np.ndarray]
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def by_method(runs: Sequence[Run]) -> list[Run]:
    """Sort runs by method, in the order of the project's figures."""
    order = list(DISPLAY_NAMES)
    return sorted(runs, key=lambda run: order.index(run.settings.method))


def default_title(runs: Sequence[Run]) -> str:
    """Name the systems and methods of runs, for example "lorenz: NRES, PES, TES"."""
    systems = list(dict.fromkeys(_short_name(run.settings.system) for run in runs))
    methods = dict.fromkeys(DISPLAY_NAMES[run.settings.method] for run in runs)
    more = f" and {len(systems) - 3} more" if len(systems) > 3 else ""
    return f"{', '.join(systems[:3])}{more}: {', '.join(methods)}"


def subtitle(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Count the runs, or name the only one, and name the comparison that they belong to."""
    which = f"{len(runs)} runs" if len(runs) > 1 else f"Run {names[0]}"
    file = _comparison_file(runs)
    if file is None or not file.is_file():
        return which
    return f"{which} of the comparison {file.parent.name}"


def log_axes(metrics: Sequence[_Metrics], measures: Sequence[str]) -> dict[str, dict[str, bool]]:
    """Decide which axes of the chart are logarithmic by default.

    A horizontal axis is logarithmic if the longest run is at least ten times as long as the
    shortest, which a linear axis would squeeze. A vertical axis is if its values are positive and
    span a factor of ten.
    """
    values = {
        measure: [columns[measure] for columns in metrics if measure in columns]
        for measure in measures
    }
    return {
        "x": {axis: needs_log([columns[axis][-1] for columns in metrics]) for axis in AXES},
        "y": {measure: needs_log(np.concatenate(some)) for measure, some in values.items()},
    }


def level_tables(runs: Sequence[Run], metrics: Sequence[_Metrics]) -> list[dict[str, Any]]:
    """Tabulate when each method first reached a level, for each system of the runs.

    The level and the times are those of `nres compare`: see `early_level` and `times_to_level`.
    Runs without evaluations are left out.

    Args:
        runs: The runs, sorted by `by_method`.
        metrics: The metrics of each run.
    """
    problems = _grouped(
        ((run.settings.system, json.dumps(run.settings.options, sort_keys=True), name), run)
        for run, columns in zip(runs, metrics, strict=True)
        if (name := _headline(columns)) is not None
    )
    return [
        _level_table(some, name.removeprefix("eval/").replace("_", " "))
        for (_, _, name), some in problems.items()
    ]


def _level_table(runs: Sequence[Run], measured: str) -> dict[str, Any]:
    methods = _variants(runs)
    with warnings.catch_warnings():
        # Damaged lines were reported when the metrics were read.
        warnings.simplefilter("ignore", DamagedMetricsWarning)
        found = {name: [Evaluations.of(run) for run in some] for name, some in methods.items()}
    reference = next(iter(methods))  # NRES, if it is there
    own = early_level(found[reference])
    recorded = _recorded_level(runs)
    level = own if recorded is None else recorded
    count = len(found[reference])
    several = count > 1
    all_of_them = f"{'both' if count == 2 else f'all {count}'} {reference} runs"
    who = all_of_them if several else f"the {reference} run"
    if not math.isfinite(level):
        one = f"one of the {reference} runs" if several else f"the {reference} run"
        sentence = (
            f"There is no level, because {one} had no finite {measured} in the first half of its "
            "updates."
        )
    elif math.isclose(level, own, rel_tol=1e-6):
        sentence = (
            f"The level is a {measured} of {level:.4g}, the lowest that {who} reached in the first "
            f"half of {'their' if several else 'its'} updates."
        )
    else:
        sentence = f"The level is a {measured} of {level:.4g}, which {COMPARISON_FILE} records."
    return {
        "system": _short_name(runs[0].settings.system),
        "options": runs[0].settings.options,
        "level": level,
        "sentence": sentence,
        "reference": reference,
        "rows": _rows(found, reference, level) if math.isfinite(level) else [],
    }


def _rows(
    found: Mapping[str, Sequence[Evaluations]], reference: str, level: float
) -> list[dict[str, Any]]:
    times = times_to_level(found, level)
    ratios = relative_times(times, reference)
    return [
        {
            "method": name,
            "runs": len(seeds),
            "reached": sum(one.first(level, "update") < math.inf for one in seeds),
            "times": times[name],
            "ratios": ratios[name],
        }
        for name, seeds in found.items()
    ]


def _variants(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ in their seeds alone; name groups by method and differing settings."""
    settings = [
        {k: v for k, v in run.settings.determining().items() if k not in _SEEDS}
        | {"start_from": run.settings.start_from}
        for run in runs
    ]
    named = []
    for run, own in zip(runs, settings, strict=True):
        rivals = [other for other in settings if other["method"] == own["method"]]
        apart = [k for k, v in own.items() if any(other[k] != v for other in rivals)]
        method = DISPLAY_NAMES[run.settings.method]
        words = ", ".join(f"{k} {own[k]}" for k in apart)
        named.append((f"{method} ({words})" if apart else method, run))
    return _grouped(named)


def _grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def _headline(columns: _Metrics) -> str | None:
    """Return the column that is compared: the first number that the system reports."""
    return next((name for name in columns if name.startswith("eval/")), None)


def _comparison_file(runs: Sequence[Run]) -> Path | None:
    """Return the path that the summary of a comparison has, if all runs are in one folder."""
    folders = {run.path.resolve().parent for run in runs}
    return folders.pop() / COMPARISON_FILE if len(folders) == 1 else None


def _recorded_level(runs: Sequence[Run]) -> float | None:
    """Return the level that `nres compare` recorded, if all runs belong to one comparison."""
    file = _comparison_file(runs)
    if file is None:
        return None
    try:
        level = json.loads(read_plain(file, LARGEST_COMPARISON))["level"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None  # not a comparison, or not a finished one
    usable = isinstance(level, float) and math.isfinite(level)
    return level if usable else None


def _short_name(system: str) -> str:
    return PurePath(system).name if ".py:" in system else system
