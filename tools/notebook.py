"""Write examples/lotka_volterra.ipynb from the script beside it, cell by cell.

python tools/notebook.py [--check]

The outputs are those that tools/gallery.py has saved in results/.
"""

import json
import re
import sys

from results import ROOT

SCRIPT = ROOT / "examples/lotka_volterra.py"
OUTPUTS = ROOT / "results/examples/lotka_volterra.json"


def split(script: str) -> list[tuple[str, str]]:
    """Return the kind ("markdown" or "code") and the text of each cell."""
    cells = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        kind, _, text = part.partition("\n")
        text = text.strip()
        if "markdown" in kind:
            cells.append(("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE)))
        else:
            cells.append(("code", text))
    return cells


def notebook(script: str, outputs: list[str]) -> str:
    """Return the notebook as JSON; `outputs` has the printed text of each code cell."""
    cells = []
    printed = iter(outputs)
    for number, (kind, text) in enumerate(split(script)):
        cell: dict = {"cell_type": kind, "metadata": {}}
        if kind == "code":
            shown = {"name": "stdout", "output_type": "stream"}
            stream = [shown | {"text": out.splitlines(True)}] if (out := next(printed)) else []
            cell |= {"execution_count": None, "outputs": stream}
        cells.append(cell | {"id": str(number), "source": text.splitlines(True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    page = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1) + "\n"


if __name__ == "__main__":
    made = notebook(SCRIPT.read_text(), json.loads(OUTPUTS.read_text())["outputs"])
    file = SCRIPT.with_suffix(".ipynb")
    if "--check" not in sys.argv:
        file.write_text(made)
    elif not file.exists() or file.read_text() != made:
        sys.exit(f"{file.name} differs from {SCRIPT.name}: run tools/notebook.py.")
