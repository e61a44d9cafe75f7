"""Figures and tables of the paper, and the summaries that compare them with results here."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nres.runs import MetricsError, Run, Settings, device, versions, write_json
from nres_paper.auto import Auto
from nres_paper.claims import all_checks
from nres_paper.comparing import FinishedRun, best_rates, planned, rank, run_comparison, trials
from nres_paper.comparison_figure import draw_comparison
from nres_paper.grades import NOT_THERE, SHOWN, Check, verdict
from nres_paper.plans import Comparison


@dataclasses.dataclass(frozen=True)
class Context:
    """Folder and options for making a figure."""

    folder: Path
    """The folder of its results, next to those of the other figures."""
    name: str
    quick: bool
    """True to make a small version that only shows that the command runs."""
    seeds: int | None
    """The number of seeds; `None` for the planned number."""
    only: Sequence[str]
    """The names of the runs to carry out; empty for all."""
    only_seeds: Sequence[int]
    """The seeds to carry out; empty for all."""
    finished: Callable[[Path, Settings | Auto], Run]
    """A function that starts or resumes the run with this plan in a folder."""
    say: Callable[[str], Any]
    """A function that is called with a line of text about the next task."""

    @property
    def command(self) -> str:
        """The shell command that makes the figure."""
        asked = f" --seeds {self.seeds}" * (self.seeds is not None) + " --quick" * self.quick
        return f"nres reproduce {self.name}{asked}"

    @property
    def again(self) -> str:
        """The shell command that goes on with the same runs of the figure."""
        asked = "".join(f" --only {shlex.quote(name)}" for name in self.only)
        return self.command + asked + "".join(f" --seed {seed}" for seed in self.only_seeds)

    @property
    def drawing(self) -> Path:
        """The path of the drawing, without its suffix."""
        return self.folder / self.name


@dataclasses.dataclass(frozen=True)
class Result:
    """Checks and numbers of a figure, and the devices and versions that computed them."""

    checks: tuple[Check, ...]
    numbers: dict[str, Any]
    seconds: float | None
    """The seconds of computing, without evaluations; `None` if unknown."""
    seeds: int = 1
    device: dict[str, Any] = dataclasses.field(default_factory=device)
    versions: dict[str, Any] = dataclasses.field(default_factory=versions)


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """A figure or table of the paper, or an additional one."""

    label: str
    """The figure or table of the paper, for example `Figure 8`; empty for additional ones."""
    claim: str
    tier: str
    """The device on which the figure takes minutes rather than days: `cpu` or `gpu`."""
    make: Callable[[Context], Result]
    plan: Callable[[], Any]
    """Returns, as JSON, the settings that determine what is measured."""
    remark: str = ""
    """Notes for the reader."""
    takes_seeds: bool = False
    """True if the user may choose the number of seeds."""
    takes_names: bool = False
    """True if the user may choose some of the runs."""

    def fingerprint(self) -> str:
        """Return a digest of the plan, which tells results with other settings apart."""
        plan = json.loads(json.dumps(self.plan()), object_hook=_without_later)
        return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


# Settings that are younger than some results, with the values that mean the same as their absence.
_LATER: Mapping[str, tuple[Any, ...]] = {
    "warmup": (None,),
    "clip": (None,),
    "stop_after": (None,),
    "auto_stop": (None, "off"),
    "phases": (None, "independent"),
    "regenerate_noise": (False,),
    "adapt_sigma": (False,),
    "shaping": (None, "none"),
}


def _without_later(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out later settings that have no effect, so that older results still count."""
    kept = {k: v for k, v in values.items() if k not in _LATER or v not in _LATER[k]}
    # There was no other law.
    return kept | {"noise": None} if kept.get("noise") == "gaussian" else kept


def of_comparison(comparison: Comparison) -> PaperFigure:
    """Return the figure of a comparison."""

    def make(context: Context) -> Result:
        rates = comparison.rates[:1] if context.quick else comparison.rates
        tried = dataclasses.replace(comparison, rates=rates)
        runs = run_comparison(
            tried,
            context.folder,
            seeds=context.seeds,
            only=context.only,
            only_seeds=context.only_seeds,
            quick=context.quick,
            finished=context.finished,
            say=context.say,
        )
        ranking = rank(tried, runs)
        draw_comparison(comparison, ranking, context.drawing)
        return Result(
            checks_of(tried, runs),
            {
                "axis": comparison.axis,
                "level": ranking.level,
                "shown": {"what": comparison.shown, "times": comparison.scale},
                "smoothed_over": comparison.smooth,
                "methods": {name: ranking.to_json(name) for name in ranking.runs},
                "settings": {run.name: run.settings.to_json() for run in runs},
            },
            seeds=len({run.settings.seed for run in runs}),
            **metadata_of(runs),
        )

    def plan() -> Any:
        runs = {
            name: planned(comparison, name, comparison.seeds[0]).to_json()
            for name in comparison.runs
        }
        return [runs, comparison.rates, comparison.level, comparison.smooth]

    about = comparison.label, comparison.claim, comparison.tier
    return PaperFigure(*about, make, plan, comparison.remark, takes_seeds=True, takes_names=True)


def checks_of(comparison: Comparison, runs: Sequence[FinishedRun]) -> tuple[Check, ...]:
    """Check the claims of a comparison, and name the learning rates that were chosen."""
    checks = all_checks(comparison.claims, rank(comparison, runs))
    if not comparison.rates:
        return checks
    return *checks, Check("learning rates", "", "; ".join(_rates(comparison, runs)), SHOWN)


def _rates(comparison: Comparison, runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Name the best learning rate of each method, or how many of them it has tried so far."""
    best, rates = best_rates(comparison, runs), sorted(map(float, comparison.rates))
    ends: dict[float, str] = {}
    if len(rates) > 1:
        ends = {rates[0]: " (the smallest tried)", rates[-1]: " (the largest tried)"}
    for name in comparison.runs:
        if name in best:
            yield f"{name} {best[name]}{ends.get(float(best[name]), '')}"
        elif tried := trials(comparison, name, runs):
            yield f"{name}: {len(tried)} of {len(rates)} tried so far"


def metadata_of(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Collect the seconds, devices and versions of the runs behind a result."""
    return {
        "seconds": sum(run.entries[-1]["seconds"] for run in runs),
        "device": first_and_others([run.device for run in runs]),
        "versions": first_and_others([run.versions for run in runs]),
    }


def first_and_others(metadata: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first metadata, with all that differ from it under `others`."""
    first, *others = [one for i, one in enumerate(metadata) if one not in metadata[:i]]
    return first | {"others": others} if others else first


def make_summary(figure: PaperFigure, context: Context) -> dict[str, Any]:
    """Make a figure, and write the paper's claim and the results to `summary.json`."""
    result = figure.make(context)
    summary = {
        "id": context.name,
        "fingerprint": figure.fingerprint(),
        "figure": figure.label,
        "tier": figure.tier,
        "claim": figure.claim,
        "remark": figure.remark,
        "reproduced": _verdict(figure, context, result),
        "checks": [_to_json(check, context.quick) for check in result.checks],
        "seeds": result.seeds,
        "seconds": result.seconds,
        "device": result.device,
        "versions": result.versions,
        "command": context.command,
        "quick": context.quick,
        "numbers": result.numbers,
    }
    write_json(context.folder / "summary.json", summary)
    return summary


_TOO_SMALL = "too small to tell"


def _to_json(check: Check, quick: bool) -> dict[str, Any]:
    """Return a check as JSON, without a grade for a quick version, which is too small."""
    return dataclasses.asdict(check) | ({"grade": None} if quick else {})


def _verdict(figure: PaperFigure, context: Context, result: Result) -> str:
    if context.quick:
        return _TOO_SMALL
    return verdict(result.checks) if figure.label else NOT_THERE


def verdict_line(summary: dict[str, Any]) -> str:
    """State the verdict on the claim as text."""
    found = summary["reproduced"]
    if found == _TOO_SMALL:
        return "This quick version shows that the command runs. It is too small for a verdict."
    return NOT_THERE.capitalize() if found == NOT_THERE else f"Reproduced: {found}"


def read_summaries(folder: Path, figures: Mapping[str, PaperFigure]) -> dict[str, dict[str, Any]]:
    """Read the summaries in a folder of results, in the order of the figures.

    Figures without results are left out, as are results that were measured with other settings.
    """
    files = {name: folder / name / "summary.json" for name in figures}
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
                f"{file} is damaged: delete it and run `nres reproduce {name}` to write it again."
            )
        if found[name].get("fingerprint") != figures[name].fingerprint():
            del found[name]
    return found
