"""The paper's claims and the results, for docs/reproduction.md."""

from typing import Any, NamedTuple

from nres_paper.comparing import place
from nres_paper.figures import FIGURES
from nres_paper.grades import DIFFERS, FAILS, HOLDS, NOT_RUN, NOT_THERE, SHOWN, UNKNOWN, VERDICTS
from nres_paper.pes_comparisons import PES_PAPER
from nres_paper.reproduction import PaperFigure, read_summaries, verdict_line
from results import ROOT, load, table


class Counts(NamedTuple):
    """The number of figures and tables of the paper by verdict, and of statements by grade."""

    verdicts: dict[str, int]
    grades: dict[str, int]

    def told(self) -> str:
        """Return the number of experiments by verdict, in words."""
        parts = [_counted(n, _VERDICTS[v]) for v, n in self.verdicts.items() if n]
        return f"Of {sum(self.verdicts.values())} experiments of the paper, {_listed(parts)}"


_VERDICTS = {
    "yes": ("is reproduced in full", "are reproduced in full"),
    "in part": ("is reproduced in part", "are reproduced in part"),
    "no": ("is not reproduced", "are not reproduced"),
    UNKNOWN: ("is not established", "are not established"),
    NOT_RUN: ("is not run yet", "are not run yet"),
}
_GRADES = {
    HOLDS: ("holds", "hold"),
    DIFFERS: ("holds in part or differs in size", "hold in part or differ in size"),
    FAILS: ("fails", "fail"),
    UNKNOWN: ("is not established", "are not established"),
    NOT_RUN: ("is not measured yet", "are not measured yet"),
}


def _counted(count: int, words: tuple[str, str]) -> str:
    return f"{count} {words[count != 1]}"


def _listed(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def counts() -> Counts:
    """Count the verdicts on figures and tables that are in the paper."""
    graded = _graded()
    verdicts = [graded[n]["reproduced"] if n in graded else NOT_RUN for n in _in_paper()]
    grades = [check["grade"] for summary in graded.values() for check in summary["checks"]]
    return Counts(
        {name: verdicts.count(name) for name in VERDICTS},
        {name: grades.count(name) for name in (HOLDS, DIFFERS, FAILS, UNKNOWN, NOT_RUN)},
    )


def _in_paper() -> list[str]:
    return [name for name, figure in _figures().items() if figure.label]


def _figures(pes_paper: bool = False) -> dict[str, PaperFigure]:
    """Return the figures of the page on the paper, or those of the paper that introduced PES."""
    return {n: f for n, f in FIGURES.items() if (f.label == PES_PAPER) == pes_paper}


def summary() -> str:
    """Say in words which figures are reproduced, and in what the others differ."""
    found = counts()
    told = [_counted(n, _GRADES[grade]) for grade, n in found.grades.items() if n]
    lines = [
        f"\n{found.told()}. Of {sum(found.grades.values())} statements about those with results, "
        f"{_listed(told)}.",
    ]
    headings = {
        "yes": "**Reproduced.** Every statement about these figures holds:",
        "in part": "**Reproduced in part.** The statements below each claim do not hold:",
        "no": "**Not reproduced.**",
        UNKNOWN: "**Not established.** Runs are missing, or too few to tell:",
    }
    for verdict, heading in headings.items():
        mine = {n: s for n, s in _graded().items() if s["reproduced"] == verdict}
        if mine:
            lines += [f"\n{heading}\n", *(_told(name, told) for name, told in mine.items())]
    missing = [f"[{name}](#{name.lower()})" for name in _in_paper() if name not in _graded()]
    if missing:
        lines.append(
            f"\n**Not run yet** from the paper's initial parameters: {', '.join(missing)}."
        )
    return "\n".join([*lines, ""])


def _graded() -> dict[str, dict[str, Any]]:
    """Return the summaries of figures in the paper that have a verdict."""
    summaries = read_summaries(ROOT / "results", _figures())
    wanted = [name for name in VERDICTS if name != NOT_RUN]
    return {name: s for name, s in summaries.items() if s["reproduced"] in wanted}


def _told(name: str, summary: dict[str, Any]) -> str:
    """Return an item of the summary: the claim, and what does not hold."""
    claim = f"- [{name}](#{name.lower()}): {summary['claim']}"
    shortfalls = [
        f"    - **{check['grade'].capitalize()}:** {check['about']}. "
        f"Paper: *{check['paper']}*. Here: {check['ours']}."
        for check in summary["checks"]
        if check["grade"] not in (HOLDS, SHOWN, NOT_RUN)
    ]
    missing = [check["about"] for check in summary["checks"] if check["grade"] == NOT_RUN]
    if missing:
        shortfalls.append(f"    - **{NOT_RUN.capitalize()}:** {'; '.join(missing)}.")
    return "\n".join([claim, *shortfalls])


def reproduction() -> str:
    """List all checks in one table, and name the figures that have no results yet."""
    summaries = read_summaries(ROOT / "results", _figures())
    rows = []
    for name in _figures():
        link = f"[{name}](#{name.lower()})"
        if name not in summaries:
            rows.append([link, "", "", NOT_RUN, ""])
            continue
        for check in summaries[name]["checks"]:
            rows.append([link, check["about"], check["paper"], check["ours"], check["grade"]])
            link = ""
    return _text_table(["figure", "statement", "paper or aim", "here", "verdict"], rows)


def _text_table(heading: list[str], rows: list[list[str]]) -> str:
    """Return a table of words, which are easier to read from the left."""
    return table(heading, rows).replace("---:", "---")


def figures() -> str:
    """Show each figure with its claim, its checks and the command that makes it."""
    return _sections(_figures())


def pes_figures() -> str:
    """Show each figure of the paper that introduced PES."""
    return _sections(_figures(pes_paper=True))


def nres_or_pes() -> str:
    """List the statements that compare NRES with PES on the problems of the latter."""
    found = read_summaries(ROOT / "results", _figures(pes_paper=True))
    rows = [
        [f"[{name}](#{name})", check["about"], check["ours"], check["grade"]]
        for name, summary in found.items()
        for check in summary["checks"]
        if check["paper"] == NOT_THERE and check["grade"] != SHOWN
    ]
    return _text_table(["problem", "statement", "here", "verdict"], rows)


def _sections(chosen: dict[str, PaperFigure]) -> str:
    summaries = read_summaries(ROOT / "results", chosen)
    parts = []
    for name, figure in chosen.items():
        parts.append(f"\n## {name}\n")
        parts += _shown(name, summaries[name]) if name in summaries else _not_run(name, figure)
    return "\n".join([*parts, ""])


def _shown(name: str, summary: dict[str, Any]) -> list[str]:
    rows = [[c["about"], c["paper"], c["ours"], c["grade"]] for c in summary["checks"]]
    device = summary["device"]
    places = dict.fromkeys(map(place, (device, *device.get("others", []))))
    facts = [f"`{summary['command']}`", ", ".join(places)]
    facts.append(f"{summary['seeds']} seed" + "s" * (summary["seeds"] > 1))
    if summary["seconds"]:
        facts.append(f"{summary['seconds']:,.0f} s of computing")
    return [
        f"{summary['claim']}{_label(summary['figure'])} **{verdict_line(summary)}.**\n",
        f"![{summary['claim']}](../results/{name}/{name}.png)",
        _text_table(["statement", "paper or aim", "here", "verdict"], rows),
        *([f"{summary['remark']}\n"] if summary["remark"] else []),
        f"{level(summary['numbers'])}{'; '.join(facts)}. "
        f"Measurements: [results/{name}](../results/{name}).",
    ]


def _not_run(name: str, figure: PaperFigure) -> list[str]:
    verdict = NOT_RUN.capitalize()
    return [f"{figure.claim}{_label(figure.label)} **{verdict}**: `nres reproduce {name}`."]


def _label(label: str) -> str:
    return f" In the paper: {label}." if label not in ("", PES_PAPER) else ""


def level(numbers: dict) -> str:
    """Return the level of a comparison and its first value; nothing for other figures."""
    if "level" not in numbers:
        return ""
    what, times = numbers["shown"]["what"], numbers["shown"]["times"]
    starts = [value for method in numbers["methods"].values() for value in method["start"]]
    first = " to ".join(dict.fromkeys(f"{times * x:.3g}" for x in (min(starts), max(starts))))
    return f"Level ({what}): {times * numbers['level']:.4g}; at the start {first}. "


def batching() -> str:
    """Return the factor by which four times as many workers raise the throughput of an H200."""
    rates = {
        row["workers"]: row["inner_steps_per_second"]
        for row in load("bench/learned_optimizer_gpu.json")["rows"]
        if (row["implementation"], row["precision"], row["width"]) == ("nres", "default", 32)
    }
    return f"{rates[400] / rates[100]:.1f}"


PARTS = (summary, reproduction, figures, batching, pes_figures, nres_or_pes)
