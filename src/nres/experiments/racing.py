"""Carry out a race: every run once, kept in one file, and measured against the paper."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nres.experiments.claims import REFERENCE, Standings
from nres.experiments.races import Entrant, Race
from nres.files import write_lines
from nres.runs import Run, RunError, Settings, SettingsError, build, resolve
from nres.runs.compare import Evaluations, early_level, evaluated
from nres.runs.metrics import MetricsError, read_lines

# How small a race is that only shows that it runs.
QUICK_UPDATES, QUICK_WORKERS = 4, 2


@dataclasses.dataclass(frozen=True)
class Record:
    """A run that is over, as it is kept: what it was, where, and what its evaluations found."""

    entrant: str
    settings: Settings
    device: dict[str, Any]
    versions: dict[str, str]
    entries: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, entrant: str, run: Run) -> "Record":
        entries = (e | {"seconds": round(e["seconds"], 4)} for e in evaluated(run))
        config = run.config
        return cls(entrant, run.settings, config["device"], config["versions"], tuple(entries))

    @property
    def evaluations(self) -> Evaluations:
        return Evaluations.read(self.entries)

    def lines(self) -> tuple[dict[str, Any], ...]:
        about = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[:-1]}
        return about | {"settings": self.settings.to_json()}, *self.entries


def write_records(path: Path, records: list[Record], before: Sequence[Record] = ()) -> None:
    """One file: for each run a line about it, then its evaluations.

    What was there before, and is not among the records, stays.
    """
    others = [record for record in before if like(record.settings, records) is None]
    write_lines(path, (line for record in records + others for line in record.lines()))


def read_records(path: Path) -> list[Record]:
    """What `write_records` wrote, or nothing."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for line in read_lines(path):
        if "settings" in line:
            found.append((line | {"settings": Settings.from_json(line["settings"])}, []))
        elif found:
            found[-1][1].append(line)
        else:
            raise MetricsError(f"{path} is not a file of results: it does not begin with a run.")
    return [Record(**about, entries=tuple(entries)) for about, entries in found]


def planned(race: Race, name: str, seed: int, quick: bool = False) -> Settings:
    """The settings of one run of a race."""
    entrant: Entrant = race.entrants[name]
    given: dict[str, Any] = {
        "updates": entrant.updates,
        "eval_every": max(1, entrant.updates // race.evaluations),
        "log_every": max(1, entrant.updates // 1200),
        "options": dict(race.options),
        **entrant.settings,
    }
    given |= {"seed": seed, "start_seed": race.start_seed}
    if quick:
        full = resolve(race.system, entrant.method, **given)
        window = resolve(race.system, race.entrants[REFERENCE].method, eval_every=1).window
        horizon = 2 * max(window or 1, 10)
        given |= {"updates": QUICK_UPDATES, "eval_every": 2, "log_every": 1}
        given |= {"workers": QUICK_WORKERS, "options": given["options"] | {"horizon": horizon}}
        if full.period is not None:
            given["period"] = min(full.period, horizon)
    return resolve(race.system, entrant.method, **given)


def run_race(
    race: Race,
    folder: Path,
    *,
    seeds: int | None,
    quick: bool,
    finished: Callable[[Path, Settings], Run],
    say: Callable[[str], Any],
) -> list[Record]:
    """Make the runs of a race that are not there yet.

    **Arguments:**

    - `race`: which.
    - `folder`: where its results are, or go; runs under way are in `runs` there.
    - `seeds`: how many, if not as many as planned.
    - `quick`: whether to make tiny runs instead.
    - `finished`: carries out the run with these settings in a folder, from where it was.
    - `say`: told what comes next.
    """
    chosen = _seeds(race, 1 if quick else seeds)
    plan = [
        (name, planned(race, name, seed, quick))
        for name, entrant in race.entrants.items()
        for seed in chosen[: entrant.seeds if seeds is None else None]
    ]
    file = folder / "metrics.jsonl"
    known = read_records(file)
    for record in known:
        name = record.entrant
        if name not in race.entrants or record.settings != planned(
            race, name, record.settings.seed, quick
        ):
            raise SettingsError(
                f"{file} holds other results, such as those of {name}: choose another folder with "
                "--out."
            )
    if race.shares is not None:
        known += read_records(folder.parent / race.shares / "metrics.jsonl")
    # Everything is made once before anything runs, so that a mistake in the last shows at once.
    for settings in {name: one for name, one in plan if not like(one, known)}.values():
        build(settings)
    return carry_out(plan, folder, known, finished, say)


def carry_out(
    plan: Sequence[tuple[str, Settings]],
    folder: Path,
    known: Sequence[Record],
    finished: Callable[[Path, Settings], Run],
    say: Callable[[str], Any],
) -> list[Record]:
    """Make the runs, by name, that are not known yet; all are kept in `metrics.jsonl`."""
    file = folder / "metrics.jsonl"
    records: list[Record] = []
    for number, (name, settings) in enumerate(plan, start=1):
        found = like(settings, known)
        new = found is None
        if found is None:
            say(f"{number} of {len(plan)}: {name}, seed {settings.seed}")
            path = folder / "runs" / f"{_file_name(name)}-{settings.seed}"
            found = Record.of(name, finished(path, settings))
        records.append(dataclasses.replace(found, entrant=name))
        if new or number == len(plan):
            # There may be more seeds than are asked for now, or than there were at the beginning.
            write_records(file, records, read_records(file))
    return records


def like(settings: Settings, records: Sequence[Record]) -> Record | None:
    """The run with these settings, if it is there."""
    return next((record for record in records if record.settings == settings), None)


def standings(race: Race, records: list[Record]) -> Standings:
    """Who got where, with the level that the race is measured at."""
    runs: dict[str, list[Evaluations]] = {}
    for record in records:
        runs.setdefault(record.entrant, []).append(record.evaluations.smoothed(race.smooth))
    level = early_level(runs[REFERENCE], race.early) if race.level is None else race.level
    if not math.isfinite(level):
        raise RunError(f"{REFERENCE} was never evaluated to a number: there is nothing to compare.")
    return Standings(runs, level, race.axis)


def _seeds(race: Race, count: int | None) -> tuple[int, ...]:
    """As many as asked for: those planned, and then the numbers after them."""
    if count is None:
        return race.seeds
    more = range(race.seeds[-1] + 1, race.seeds[-1] + 1 + count)
    return (*race.seeds, *more)[:count]


def _file_name(name: str) -> str:
    return name.lower().replace(" ", "").replace(",", "-").replace("=", "")
