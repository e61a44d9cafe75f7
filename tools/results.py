"""Read results, and format tables in Markdown."""

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent


def table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def load(name: str) -> dict:
    return json.loads((ROOT / "results" / name).read_text())
