"""Carry out the runs of a comparison, store them in one file, and rank them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nres.cli import unknown
from nres.runs import (
    AXES,
    Evaluations,
    MetricsError,
    Run,
    Settings,
    SettingsError,
    build,
    evaluated,
    read_lines,
    write_lines,
)
from nres_paper.auto import Auto
from nres_paper.original import original
from nres_paper.plans import Comparison
from nres_paper.ranking import Ranking

# The size of a quick version.
QUICK_UPDATES, QUICK_WORKERS, QUICK_WINDOW, QUICK_HORIZON = 4, 2, 10, 20
QUICK_EPISODES = 100


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A finished run: its settings, its machine and its evaluations."""

    name: str
    """The name of its `PlannedRun` in the comparison."""
    settings: Settings
    device: dict[str, Any]
    versions: dict[str, str]
    entries: tuple[dict[str, Any], ...]
    auto: Auto | None = None
    """The plan, if trials chose the settings."""
    alone: float | None = None
    """The seconds that an update takes on a machine that it does not share, if this run shared."""

    @classmethod
    def of(cls, name: str, run: Run, auto: Auto | None = None) -> "FinishedRun":
        """Read a finished run from its folder."""
        entries = tuple(e | {"seconds": round(e["seconds"], 4)} for e in evaluated(run))
        config = run.config
        return cls(name, run.settings, config["device"], config["versions"], entries, auto)

    @property
    def plan(self) -> Settings | Auto:
        """The plan of the run: its settings, unless trials chose them."""
        return self.auto or self.settings

    @property
    def evaluations(self) -> Evaluations:
        """The evaluations as arrays.

        A run that diverged ended early and would never have come back, so its value is infinite at
        its planned end. If a run shared its machine, its seconds are computed from `alone`.
        """
        entries = list(self.entries)
        if self.alone is not None:
            entries = [entry | {"seconds": entry["update"] * self.alone} for entry in entries]
        last, planned = entries[-1], self.settings.updates
        if self.auto is None and 0 < last["update"] < planned:
            longer = planned / last["update"]
            entries.append({axis: last[axis] * longer for axis in AXES} | {"value": None})
        return Evaluations.read(entries)

    def lines(self) -> tuple[dict[str, Any], ...]:
        """Return the run as lines of JSON: one that describes it, then one per evaluation."""
        # Published files call the name `entrant`.
        about: dict[str, Any] = {"entrant": self.name, "settings": self.settings.to_json()}
        about |= {"device": self.device, "versions": self.versions}
        if self.auto is not None:
            about["auto"] = self.auto.to_json()
        if self.alone is not None:
            about["alone"] = self.alone
        return about, *self.entries


def write_runs(path: Path, runs: Sequence[FinishedRun], before: Sequence[FinishedRun] = ()) -> None:
    """Write runs to one file: for each run, a line that describes it, then its evaluations.

    The file begins with the runs in `before`, in their order.
    """
    new = [run for run in runs if not _among(run, before)]
    write_lines(path, (line for run in [*before, *new] for line in run.lines()))


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
            Auto(**about["auto"]) if "auto" in about else None,
            about.get("alone"),
        )
        for about, entries in found
    ]


def planned(
    comparison: Comparison, name: str, seed: int, quick: bool = False, rate: str | None = None
) -> Settings | Auto:
    """Return the settings of one run of a comparison, with its own learning rate or another.

    If trials choose the settings, return what they are given.
    """
    run = comparison.runs[name]
    if run.auto is not None:
        about = {"system": comparison.system, "method": run.method, "seed": seed}
        small = {"horizon": QUICK_HORIZON} if quick else {}
        budget = {"total_steps": QUICK_EPISODES * QUICK_HORIZON} if quick else run.auto
        return Auto({**about, "options": {**comparison.options, **small}, **run.settings}, budget)
    given: dict[str, Any] = {
        "updates": run.updates,
        "eval_every": max(1, run.updates // comparison.evaluations),
        "log_every": max(1, run.updates // 1200),
        "options": dict(comparison.options),
        "lr": rate,
        **run.settings,
        "seed": seed,
    }
    if quick:
        full = original(comparison.system, run.method, **given)
        given |= {"updates": QUICK_UPDATES, "eval_every": 2, "log_every": 1}
        short = {"horizon": QUICK_HORIZON}
        if "test_horizon" in full.options:
            short["test_horizon"] = QUICK_HORIZON
        given |= {"workers": QUICK_WORKERS, "options": given["options"] | short}
        if full.window is not None:
            given["window"] = min(full.window, QUICK_WINDOW)
        if full.period is not None:
            given["period"] = min(full.period, QUICK_HORIZON)
    return original(comparison.system, run.method, **given)


def run_comparison(
    comparison: Comparison,
    folder: Path,
    *,
    seeds: int | None,
    only: Sequence[str] = (),
    only_seeds: Sequence[int] = (),
    quick: bool,
    finished: Callable[[Path, Settings | Auto], Run],
    say: Callable[[str], Any],
) -> list[FinishedRun]:
    """Carry out the runs of a comparison that have no results yet.

    Args:
        comparison: The runs and their settings.
        folder: The folder of the results. Unfinished runs are in its subfolder `runs`.
        seeds: The number of seeds; `None` for the planned number.
        only: The names of the runs to carry out; by default all.
        only_seeds: The seeds to carry out; by default all.
        quick: True to make tiny runs instead.
        finished: A function that starts or resumes the run with these settings in a folder.
        say: A function that is called with a line of text before each run.

    Returns:
        All runs of the comparison that have results, old and new.
    """
    for name in only:
        if name not in comparison.runs:
            raise SettingsError(unknown("run of this comparison", name, comparison.runs))
    chosen = _seeds(comparison, 1 if quick else seeds)
    names = [name for name in comparison.runs if not only or name in only]
    only_planned = seeds is None

    def seeds_of(name: str) -> tuple[int, ...]:
        return chosen[: comparison.runs[name].seeds if only_planned else None]

    planned_seeds = sorted({seed for name in names for seed in seeds_of(name)})
    for seed in only_seeds:
        if seed not in planned_seeds:
            raise SettingsError(
                f"--seed {seed} is not among the planned seeds of these runs. Choose among "
                f"{', '.join(map(str, planned_seeds))}."
            )
    file = folder / "metrics.jsonl"
    known = read_runs(file)
    for run in known:
        if not _fits(comparison, run, quick):
            raise SettingsError(
                f"{file} contains runs with other settings, for example {run.name}: choose another "
                "folder with --out."
            )
    if comparison.shares is not None:
        shared = read_runs(folder.parent / comparison.shares / "metrics.jsonl")
        wanted = [run for run in shared if run.settings.seed in chosen]
        known += [run for run in wanted if _fits(comparison, run, quick)]

    def plan(count: int | None, rates: Mapping[str, Sequence[str | None]]) -> _Plan:
        return [
            (name, planned(comparison, name, seed, quick, rate))
            for name in names
            for rate in rates.get(name, ())
            for seed in seeds_of(name)[:count]
            if not only_seeds or seed in only_seeds
        ]

    if comparison.rates:
        first = plan(1, dict.fromkeys(names, comparison.rates))
        _build(first, known)
        tried = carry_out(first, folder, known, finished, say)
        known += [run for run in tried if not _among(run, known)]
        best = best_rates(comparison, known)
        begin = [name for name in names if name not in best]
        if begin:
            raise SettingsError(
                f"--seed {' --seed '.join(map(str, only_seeds))} needs the learning rates that "
                f"seed {chosen[0]} chooses: begin {begin[0]} with --seed {chosen[0]}."
            )
        rest = plan(None, {name: [best[name]] for name in names})
    else:
        rest = plan(None, dict.fromkeys(names, (None,)))
        _build(rest, known)
    carry_out(rest, folder, known, finished, say)
    if known:
        _store(file, known)
    return read_runs(file)


_Plan = list[tuple[str, Settings | Auto]]


def _build(plan: _Plan, known: Sequence[FinishedRun]) -> None:
    """Build everything before anything runs, so that a mistake in the last run shows at once."""
    for one in {name: one for name, one in plan if not find_run(one, known)}.values():
        build(one if isinstance(one, Settings) else one.untuned())


def _fits(comparison: Comparison, run: FinishedRun, quick: bool = False) -> bool:
    """Return whether a stored run has the settings of the comparison."""
    return run.name in comparison.runs and any(
        run.plan == planned(comparison, run.name, run.settings.seed, quick, rate)
        for rate in comparison.rates or (None,)
    )


def trials(comparison: Comparison, name: str, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the runs of a method with the first seed, which tries all learning rates."""
    return [run for run in runs if (run.name, run.settings.seed) == (name, comparison.seeds[0])]


def best_rates(comparison: Comparison, runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Return the best learning rate of each method that has tried all of them.

    That is the rate with which the first seed reaches the level first; among equals, or if it never
    does, the one with the lowest value.
    """

    def place(run: FinishedRun) -> tuple[float, float]:
        values = run.evaluations.smoothed(comparison.smooth)
        return values.first(comparison.level, comparison.axis), values.least()

    best = {}
    for name in comparison.runs:
        tried = trials(comparison, name, runs)
        if len(tried) == len(comparison.rates):
            best[name] = min(tried, key=place).settings.lr
    return best


def carry_out(
    plan: Sequence[tuple[str, Settings | Auto]],
    folder: Path,
    known: Sequence[FinishedRun],
    finished: Callable[[Path, Settings | Auto], Run],
    say: Callable[[str], Any],
) -> list[FinishedRun]:
    """Carry out the runs of a plan that are not known yet, and store all in `metrics.jsonl`."""
    file = folder / "metrics.jsonl"
    runs: list[FinishedRun] = []
    for number, (name, one) in enumerate(plan, start=1):
        # Quick versions of different runs may coincide.
        found = find_run(one, [*known, *runs])
        new = found is None
        if found is None:
            say(f"{number} of {len(plan)}: {name}, seed {one.seed}")
            rates = [each.lr for other, each in plan if (other, each.seed) == (name, one.seed)]
            path = folder / "runs" / f"{_file_name(name)}-{one.seed}"
            if len(rates) > 1:
                path = path.with_name(f"{path.name}-{one.lr}")
            auto = one if isinstance(one, Auto) else None
            found = FinishedRun.of(name, finished(path, one), auto)
        runs.append(dataclasses.replace(found, name=name))
        if new or number == len(plan):
            _store(file, runs)
    return runs


def _store(file: Path, runs: Sequence[FinishedRun]) -> None:
    """Add runs to a file, which other processes may add to as well."""
    import filelock  # imported here, since only writing needs it

    file.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(file.parent / ".metrics.lock"):
        write_runs(file, runs, read_runs(file))


def _among(run: FinishedRun, others: Sequence[FinishedRun]) -> bool:
    """Return whether a run is among others; quick versions of different runs may coincide."""
    return any((run.name, run.plan) == (other.name, other.plan) for other in others)


def find_run(plan: Settings | Auto, runs: Sequence[FinishedRun]) -> FinishedRun | None:
    """Return the run with this plan, or `None`."""
    return next((run for run in runs if run.plan == plan), None)


def place(device: dict[str, Any]) -> str:
    """Name a device in words."""
    if device["backend"] != "cpu":
        return str(device["kind"])
    count = device.get("processors")
    return "CPU" if count is None else "1 CPU core" if count == 1 else f"{count} CPU cores"


def rank(comparison: Comparison, runs: Sequence[FinishedRun]) -> Ranking:
    """Rank the runs of a comparison at its level."""
    if comparison.rates:
        best = best_rates(comparison, runs)
        runs = [run for run in runs if run.settings.lr == best.get(run.name)]
    smooth: dict[str, list[Evaluations]] = {}
    seeds: dict[str, list[int]] = {}
    places: dict[str, frozenset[str]] = {}
    for run in sorted(runs, key=lambda run: run.settings.seed):
        smooth.setdefault(run.name, []).append(run.evaluations.smoothed(comparison.smooth))
        seeds.setdefault(run.name, []).append(run.settings.seed)
        places[run.name] = places.get(run.name, frozenset()) | {place(run.device)}
    planned_runs = comparison.runs.items()
    return Ranking(
        {name: smooth[name] for name in comparison.runs if name in smooth},
        comparison.level,
        comparison.axis,
        seeds,
        {name: run.budget for name, run in planned_runs if run.budget is not None},
        frozenset(name for name, run in planned_runs if run.fixed),
        places,
    )


def _seeds(comparison: Comparison, count: int | None) -> tuple[int, ...]:
    """Return the planned seeds, or `count` seeds: the planned ones, then consecutive numbers."""
    if count is None:
        return comparison.seeds
    more = range(comparison.seeds[-1] + 1, comparison.seeds[-1] + 1 + count)
    return (*comparison.seeds, *more)[:count]


def _file_name(name: str) -> str:
    return name.lower().replace(" ", "").replace(",", "-").replace("=", "")
