"""The paper's claims and what was found, for README and docs/reproduction.md."""

from nres.experiments.paper import EXHIBITS
from results import ROOT, load, table


def _summaries() -> dict[str, dict]:
    there = [name for name in EXHIBITS if (ROOT / "results" / name / "summary.json").exists()]
    return {name: load(f"{name}/summary.json") for name in there}


def reproduction() -> str:
    """All of them in one table, a line for each statement."""
    rows = []
    for name, summary in _summaries().items():
        link = f"[{name}](docs/reproduction.md#{name.lower()})"
        for check in summary["checks"]:
            rows.append([link, check["about"], check["paper"], check["ours"], check["grade"]])
            link = ""
    return table(["", "", "paper", "here", ""], rows)


def exhibits() -> str:
    """Each with its figure."""
    parts = []
    for name, summary in _summaries().items():
        rows = [[c["about"], c["paper"], c["ours"], c["grade"]] for c in summary["checks"]]
        device = summary["device"]
        label = f" In the paper: {summary['figure']}." if summary["figure"] else ""
        facts = [f"`{summary['command']}`", _place(device)]
        facts.append(f"{summary['seeds']} seed" + "s" * (summary["seeds"] > 1))
        if summary["seconds"]:
            facts.append(f"{summary['seconds']:,.0f} s of computing")
        parts += [
            f"\n## {name}\n",
            f"{summary['claim']}{label} **Reproduced: {summary['reproduced']}.**\n",
            f"![{summary['claim']}](../results/{name}/{name}.png)",
            table(["", "paper", "here", ""], rows),
            *([f"{summary['remark']}\n"] if summary["remark"] else []),
            f"{'; '.join(facts)}. Measurements: [results/{name}](../results/{name}).",
        ]
    return "\n".join([*parts, ""])


def _place(device: dict) -> str:
    kinds = [device, *device.get("others", [])]
    names = []
    for one in kinds:
        count = one.get("processors")
        on_cpu = f"{count} processors" if count else "processors"
        name = on_cpu if one["backend"] == "cpu" else one["kind"]
        if name not in names:
            names.append(name)
    return " and ".join(names)


def unfinished() -> str:
    """Which are not there yet."""
    missing = [name for name in EXHIBITS if name not in _summaries()]
    return ", ".join(f"`{name}`" for name in missing) or "none"


def batching() -> str:
    """How much more an H200 does with four times the workers."""
    rates = {
        row["workers"]: row["inner_steps_per_second"]
        for row in load("bench/learned_optimizer_gpu.json")["rows"]
        if (row["implementation"], row["precision"], row["width"]) == ("nres", "default", 32)
    }
    return f"{rates[400] / rates[100]:.1f}"


PARTS = (reproduction, exhibits, unfinished, batching)
