"""Read results, and format tables in Markdown."""

import json
from pathlib import Path

from nres_paper.figures import FIGURES
from nres_paper.reproduction import read_summaries

ROOT = Path(__file__).parent.parent
DEVICES = {"cpu": "2 CPU cores", "gpu": "NVIDIA H200"}


def table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def load(name: str) -> dict:
    return json.loads((ROOT / "results" / name).read_text())


def has_results(name: str) -> bool:
    """Return whether there are results of a figure with the settings that are planned now."""
    return name in read_summaries(ROOT / "results", FIGURES)
