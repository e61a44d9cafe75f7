"""The paper's claims and what was found, for README and docs/reproduction.md."""

from nres.experiments.exhibits import place, read_summaries, verdict_line
from nres.experiments.paper import EXHIBITS
from results import ROOT, load, table

SUMMARIES = read_summaries(ROOT / "results", EXHIBITS)


def reproduction() -> str:
    """All of them in one table, a line for each statement."""
    rows = []
    for name, summary in SUMMARIES.items():
        link = f"[{name}](docs/reproduction.md#{name.lower()})"
        for check in summary["checks"]:
            rows.append([link, check["about"], check["paper"], check["ours"], check["grade"]])
            link = ""
    return table(["", "", "paper", "here", ""], rows)


def exhibits() -> str:
    """Each with its figure."""
    parts = []
    for name, summary in SUMMARIES.items():
        rows = [[c["about"], c["paper"], c["ours"], c["grade"]] for c in summary["checks"]]
        device = summary["device"]
        label = f" In the paper: {summary['figure']}." if summary["figure"] else ""
        places = dict.fromkeys(map(place, (device, *device.get("others", []))))
        facts = [f"`{summary['command']}`", " and ".join(places)]
        facts.append(f"{summary['seeds']} seed" + "s" * (summary["seeds"] > 1))
        if summary["seconds"]:
            facts.append(f"{summary['seconds']:,.0f} s of computing")
        parts += [
            f"\n## {name}\n",
            f"{summary['claim']}{label} **{verdict_line(summary)}.**\n",
            f"![{summary['claim']}](../results/{name}/{name}.png)",
            table(["", "paper", "here", ""], rows),
            *([f"{summary['remark']}\n"] if summary["remark"] else []),
            f"{level(summary['numbers'])}{'; '.join(facts)}. "
            f"Measurements: [results/{name}](../results/{name}).",
        ]
    return "\n".join([*parts, ""])


def level(numbers: dict) -> str:
    """What a race is measured at, and where it starts, if it is one."""
    if "level" not in numbers:
        return ""
    what, times = numbers["shown"]["what"], numbers["shown"]["times"]
    starts = [value for method in numbers["methods"].values() for value in method["start"]]
    first = " to ".join(dict.fromkeys(f"{times * x:.3g}" for x in (min(starts), max(starts))))
    return f"Level: a {what} of {times * numbers['level']:.4g} (at the start {first}). "


def batching() -> str:
    """How much more an H200 does with four times the workers."""
    rates = {
        row["workers"]: row["inner_steps_per_second"]
        for row in load("bench/learned_optimizer_gpu.json")["rows"]
        if (row["implementation"], row["precision"], row["width"]) == ("nres", "default", 32)
    }
    return f"{rates[400] / rates[100]:.1f}"


PARTS = (reproduction, exhibits, batching)
