"""The paper's claims and the results, for README and docs/reproduction.md."""

from typing import Any

from nres_paper.figures import FIGURES
from nres_paper.reproduction import (
    NOT_RUN,
    PaperFigure,
    place,
    read_summaries,
    verdict_line,
)
from results import ROOT, load, table


def reproduction() -> str:
    """List all checks in one table, and name the figures that have no results yet."""
    summaries = read_summaries(ROOT / "results", FIGURES)
    rows = []
    for name in FIGURES:
        link = f"[{name}](docs/reproduction.md#{name.lower()})"
        if name not in summaries:
            rows.append([link, "", "", NOT_RUN, ""])
            continue
        for check in summaries[name]["checks"]:
            rows.append([link, check["about"], check["paper"], check["ours"], check["grade"]])
            link = ""
    return table(["", "", "paper", "here", ""], rows)


def figures() -> str:
    """Show each figure with its claim, its checks and how it was made."""
    summaries = read_summaries(ROOT / "results", FIGURES)
    parts = []
    for name, figure in FIGURES.items():
        parts.append(f"\n## {name}\n")
        parts += _shown(name, summaries[name]) if name in summaries else _not_run(name, figure)
    return "\n".join([*parts, ""])


def _shown(name: str, summary: dict[str, Any]) -> list[str]:
    rows = [[c["about"], c["paper"], c["ours"], c["grade"]] for c in summary["checks"]]
    device = summary["device"]
    places = dict.fromkeys(map(place, (device, *device.get("others", []))))
    facts = [f"`{summary['command']}`", " and ".join(places)]
    facts.append(f"{summary['seeds']} seed" + "s" * (summary["seeds"] > 1))
    if summary["seconds"]:
        facts.append(f"{summary['seconds']:,.0f} s of computing")
    return [
        f"{summary['claim']}{_label(summary['figure'])} **{verdict_line(summary)}.**\n",
        f"![{summary['claim']}](../results/{name}/{name}.png)",
        table(["", "paper", "here", ""], rows),
        *([f"{summary['remark']}\n"] if summary["remark"] else []),
        f"{level(summary['numbers'])}{'; '.join(facts)}. "
        f"Measurements: [results/{name}](../results/{name}).",
    ]


def _not_run(name: str, figure: PaperFigure) -> list[str]:
    verdict = NOT_RUN.capitalize()
    return [f"{figure.claim}{_label(figure.label)} **{verdict}**: `nres reproduce {name}`."]


def _label(label: str) -> str:
    return f" In the paper: {label}." if label else ""


def level(numbers: dict) -> str:
    """State the level of a comparison and where it starts; nothing for other figures."""
    if "level" not in numbers:
        return ""
    what, times = numbers["shown"]["what"], numbers["shown"]["times"]
    starts = [value for method in numbers["methods"].values() for value in method["start"]]
    first = " to ".join(dict.fromkeys(f"{times * x:.3g}" for x in (min(starts), max(starts))))
    return f"Level: a {what} of {times * numbers['level']:.4g} (at the start {first}). "


def batching() -> str:
    """State how much more an H200 does with four times the workers."""
    rates = {
        row["workers"]: row["inner_steps_per_second"]
        for row in load("bench/learned_optimizer_gpu.json")["rows"]
        if (row["implementation"], row["precision"], row["width"]) == ("nres", "default", 32)
    }
    return f"{rates[400] / rates[100]:.1f}"


PARTS = (reproduction, figures, batching)
