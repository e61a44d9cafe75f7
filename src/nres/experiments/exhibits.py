"""Exhibits: figures and tables of the paper, made again and held against what it says of them."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nres.experiments.claims import Check, verdict
from nres.experiments.races import Race
from nres.experiments.racing import Record, run_race, standings
from nres.experiments.racing_figure import race_figure
from nres.files import write_json
from nres.runs import Run, Settings
from nres.runs.folder import device, versions
from nres.runs.metrics import MetricsError


@dataclasses.dataclass(frozen=True)
class Work:
    """What an exhibit is to be made with."""

    folder: Path
    """Where its results are, or go; those of the others are beside it."""
    name: str
    quick: bool
    """Whether to make a small version, to see that it runs."""
    seeds: int | None
    """How many, if not as many as planned."""
    finished: Callable[[Path, Settings], Run]
    """Carries out a run in a folder, from its beginning or from where it was."""
    say: Callable[[str], Any]
    """Told what comes next."""

    @property
    def command(self) -> str:
        """What makes it, given to a shell."""
        asked = f" --seeds {self.seeds}" * (self.seeds is not None) + " --quick" * self.quick
        return f"nres reproduce {self.name}{asked}"

    @property
    def drawing(self) -> Path:
        """The figure, without its ending."""
        return self.folder / self.name


@dataclasses.dataclass(frozen=True)
class Findings:
    """What came out."""

    checks: tuple[Check, ...]
    numbers: dict[str, Any]
    seconds: float | None
    """Of computing, evaluations not counted where there are any; if it is known."""
    seeds: int = 1
    device: dict[str, Any] = dataclasses.field(default_factory=device)
    versions: dict[str, Any] = dataclasses.field(default_factory=versions)


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """A figure or table of the paper."""

    figure: str
    """Its label in the paper's source, or empty: it is not in the paper."""
    claim: str
    tier: str
    """Where it is made in minutes: on a `cpu` or a `gpu`."""
    make: Callable[[Work], Findings]
    remark: str = ""
    """What a reader should know of the comparison."""
    takes_seeds: bool = False
    """Whether it can be asked for more or fewer seeds."""


def of_race(race: Race) -> Exhibit:
    """Methods side by side."""

    def make(work: Work) -> Findings:
        records = run_race(
            race,
            work.folder,
            seeds=work.seeds,
            quick=work.quick,
            finished=work.finished,
            say=work.say,
        )
        result = standings(race, records)
        race_figure(race, result, work.drawing)
        return Findings(
            tuple(claim.judge(result) for claim in race.claims),
            {
                "axis": race.axis,
                "level": result.level,
                "shown": {"what": race.shown, "times": race.scale},
                "smoothed_over": race.smooth,
                "methods": {
                    name: {"seeds": [r.settings.seed for r in records if r.entrant == name]}
                    | result.to_json(name)
                    for name in result.runs
                },
                "settings": {record.entrant: record.settings.to_json() for record in records},
            },
            seeds=len({record.settings.seed for record in records}),
            **facts_of(records),
        )

    remark = " ".join(filter(None, (race.remark, race.start)))
    return Exhibit(race.figure, race.claim, race.tier, make, remark, takes_seeds=True)


def facts_of(records: Sequence[Record]) -> dict[str, Any]:
    """What findings say of the runs they rest on: how long they took, where, and with what."""
    return {
        "seconds": sum(record.entries[-1]["seconds"] for record in records),
        "device": first_and_others([record.device for record in records]),
        "versions": first_and_others([record.versions for record in records]),
    }


def first_and_others(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first run's, and those of others that were made elsewhere or with something else."""
    first, *others = [fact for i, fact in enumerate(facts) if fact not in facts[:i]]
    return first | {"others": others} if others else first


def place(device: dict[str, Any]) -> str:
    """A device in words."""
    if device["backend"] != "cpu":
        return str(device["kind"])
    return f"{device['processors']} processors" if "processors" in device else "processors"


def exhibit_summary(exhibit: Exhibit, work: Work) -> dict[str, Any]:
    """Make an exhibit, and write `summary.json`: the paper's claim, and what was found."""
    findings = exhibit.make(work)
    summary = {
        "id": work.name,
        "figure": exhibit.figure,
        "tier": exhibit.tier,
        "claim": exhibit.claim,
        "remark": exhibit.remark,
        "reproduced": _verdict(exhibit, work, findings),
        "checks": [_recorded(check, work.quick) for check in findings.checks],
        "seeds": findings.seeds,
        "seconds": findings.seconds,
        "device": findings.device,
        "versions": findings.versions,
        "command": work.command,
        "quick": work.quick,
        "numbers": findings.numbers,
    }
    write_json(work.folder / "summary.json", summary)
    return summary


_NOT_THERE = "not in the paper"
_TOO_SMALL = "too small to tell"


def _recorded(check: Check, quick: bool) -> dict[str, Any]:
    """A check as JSON; a small version is too small for a grade."""
    return dataclasses.asdict(check) | ({"grade": None} if quick else {})


def _verdict(exhibit: Exhibit, work: Work, findings: Findings) -> str:
    if work.quick:
        return _TOO_SMALL
    return verdict(findings.checks) if exhibit.figure else _NOT_THERE


def verdict_line(summary: dict[str, Any]) -> str:
    """The verdict on the claim, in words."""
    found = summary["reproduced"]
    if found == _TOO_SMALL:
        return "A quick version, to see that the command runs: it is too small for a verdict."
    return _NOT_THERE.capitalize() if found == _NOT_THERE else f"Reproduced: {found}"


def read_summaries(folder: Path, names: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Those that there are in a folder of results, in the order of the names."""
    files = {name: folder / name / "summary.json" for name in names}
    found = {}
    for name, file in files.items():
        if not file.exists():
            continue
        try:
            found[name] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            found[name] = {}
        if not found[name].keys() >= {"checks", "reproduced"}:
            raise MetricsError(
                f"{file} is damaged: delete it, and `nres reproduce {name}` writes it anew."
            )
    return found
