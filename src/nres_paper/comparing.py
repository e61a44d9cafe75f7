"""Carry out the runs of a comparison, store them in one file, and rank them."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nres.runs import (
    Evaluations,
    MetricsError,
    Run,
    RunError,
    Settings,
    SettingsError,
    build,
    early_level,
    evaluated,
    read_lines,
    resolve,
    write_lines,
)
from nres_paper.claims import REFERENCE, Ranking
from nres_paper.comparisons import Comparison

# The size of a quick version.
QUICK_UPDATES, QUICK_WORKERS, QUICK_WINDOW, QUICK_HORIZON = 4, 2, 10, 20


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A finished run: its settings, its machine and its evaluations."""

    name: str
    """The name of its `PlannedRun` in the comparison."""
    settings: Settings
    device: dict[str, Any]
    versions: dict[str, str]
    entries: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, name: str, run: Run) -> "FinishedRun":
        """Read a finished run from its folder."""
        entries = (e | {"seconds": round(e["seconds"], 4)} for e in evaluated(run))
        config = run.config
        return cls(name, run.settings, config["device"], config["versions"], tuple(entries))

    @property
    def evaluations(self) -> Evaluations:
        """The evaluations as arrays."""
        return Evaluations.read(self.entries)

    def lines(self) -> tuple[dict[str, Any], ...]:
        """Return the run as lines of JSON: one that describes it, then one per evaluation."""
        # Published files call the name `entrant`.
        about = {"entrant": self.name, "settings": self.settings.to_json()}
        return about | {"device": self.device, "versions": self.versions}, *self.entries


def write_runs(path: Path, runs: Sequence[FinishedRun], before: Sequence[FinishedRun] = ()) -> None:
    """Write runs to one file: for each run, a line that describes it, then its evaluations.

    The file also keeps the runs in `before` that are not among `runs`.
    """
    others = [run for run in before if find_run(run.settings, runs) is None]
    write_lines(path, (line for run in [*runs, *others] for line in run.lines()))


def read_runs(path: Path) -> list[FinishedRun]:
    """Read the runs that `write_runs` wrote, or none if there is no file."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for line in read_lines(path):
        if "settings" in line:
            found.append((line, []))
        elif found:
            found[-1][1].append(line)
        else:
            raise MetricsError(
                f"{path} is not a file of results: its first line does not describe a run."
            )
    return [
        FinishedRun(
            about["entrant"],
            Settings.from_json(about["settings"]),
            about["device"],
            about["versions"],
            tuple(entries),
        )
        for about, entries in found
    ]


def planned(comparison: Comparison, name: str, seed: int, quick: bool = False) -> Settings:
    """Return the settings of one run of a comparison."""
    run = comparison.runs[name]
    given: dict[str, Any] = {
        "updates": run.updates,
        "eval_every": max(1, run.updates // comparison.evaluations),
        "log_every": max(1, run.updates // 1200),
        "options": dict(comparison.options),
        **run.settings,
    }
    given |= {"seed": seed, "start_seed": comparison.start_seed}
    if quick:
        full = resolve(comparison.system, run.method, **given)
        given |= {"updates": QUICK_UPDATES, "eval_every": 2, "log_every": 1}
        given |= {
            "workers": QUICK_WORKERS,
            "options": given["options"] | {"horizon": QUICK_HORIZON},
        }
        if full.window is not None:
            given["window"] = min(full.window, QUICK_WINDOW)
        if full.period is not None:
            given["period"] = min(full.period, QUICK_HORIZON)
    return resolve(comparison.system, run.method, **given)


def run_comparison(
    comparison: Comparison,
    folder: Path,
    *,
    seeds: int | None,
    quick: bool,
    finished: Callable[[Path, Settings], Run],
    say: Callable[[str], Any],
) -> list[FinishedRun]:
    """Carry out the runs of a comparison that have no results yet.

    Args:
        comparison: The runs and their settings.
        folder: The folder of the results. Unfinished runs are in its subfolder `runs`.
        seeds: The number of seeds; `None` for the planned number.
        quick: True to make tiny runs instead.
        finished: A function that starts or resumes the run with these settings in a folder.
        say: A function that is called with a line of text before each run.

    Returns:
        All runs of the comparison, old and new.
    """
    chosen = _seeds(comparison, 1 if quick else seeds)
    plan = [
        (name, planned(comparison, name, seed, quick))
        for name, run in comparison.runs.items()
        for seed in chosen[: run.seeds if seeds is None else None]
    ]
    file = folder / "metrics.jsonl"
    known = read_runs(file)
    for run in known:
        if run.name not in comparison.runs or run.settings != planned(
            comparison, run.name, run.settings.seed, quick
        ):
            raise SettingsError(
                f"{file} contains runs with other settings, for example {run.name}: choose another "
                "folder with --out."
            )
    if comparison.shares is not None:
        known += read_runs(folder.parent / comparison.shares / "metrics.jsonl")
    # Build everything before anything runs, so that a mistake in the last run shows at once.
    for settings in {name: one for name, one in plan if not find_run(one, known)}.values():
        build(settings)
    return carry_out(plan, folder, known, finished, say)


def carry_out(
    plan: Sequence[tuple[str, Settings]],
    folder: Path,
    known: Sequence[FinishedRun],
    finished: Callable[[Path, Settings], Run],
    say: Callable[[str], Any],
) -> list[FinishedRun]:
    """Carry out the runs of a plan that are not known yet, and store all in `metrics.jsonl`."""
    file = folder / "metrics.jsonl"
    runs: list[FinishedRun] = []
    for number, (name, settings) in enumerate(plan, start=1):
        # Quick versions of different runs may coincide.
        found = find_run(settings, [*known, *runs])
        new = found is None
        if found is None:
            say(f"{number} of {len(plan)}: {name}, seed {settings.seed}")
            path = folder / "runs" / f"{_file_name(name)}-{settings.seed}"
            found = FinishedRun.of(name, finished(path, settings))
        runs.append(dataclasses.replace(found, name=name))
        if new or number == len(plan):
            # The file may contain more seeds than were asked for, or have gained some meanwhile.
            write_runs(file, runs, read_runs(file))
    return runs


def find_run(settings: Settings, runs: Sequence[FinishedRun]) -> FinishedRun | None:
    """Return the run with these settings, or `None`."""
    return next((run for run in runs if run.settings == settings), None)


def rank(comparison: Comparison, runs: Sequence[FinishedRun]) -> Ranking:
    """Rank the runs of a comparison at its level, which by default the runs of NRES define."""
    smooth: dict[str, list[Evaluations]] = {}
    for run in runs:
        smooth.setdefault(run.name, []).append(run.evaluations.smoothed(comparison.smooth))
    level = comparison.level
    if level is None:
        level = early_level(smooth[REFERENCE], comparison.early)
    if not math.isfinite(level):
        raise RunError(f"no evaluation of {REFERENCE} is finite: there is nothing to compare with.")
    return Ranking(smooth, level, comparison.axis)


def _seeds(comparison: Comparison, count: int | None) -> tuple[int, ...]:
    """Return the planned seeds, or `count` seeds: the planned ones, then consecutive numbers."""
    if count is None:
        return comparison.seeds
    more = range(comparison.seeds[-1] + 1, comparison.seeds[-1] + 1 + count)
    return (*comparison.seeds, *more)[:count]


def _file_name(name: str) -> str:
    return name.lower().replace(" ", "").replace(",", "-").replace("=", "")
