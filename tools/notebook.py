"""Write examples/lotka_volterra.ipynb from the script beside it, cell by cell.

python tools/notebook.py [--check]
"""

import json
import re
import sys

from results import ROOT

SCRIPT = ROOT / "examples/lotka_volterra.py"


def notebook(script: str) -> str:
    cells = []
    for number, part in enumerate(re.split(r"^# %%", script, flags=re.MULTILINE)[1:]):
        kind, _, text = part.partition("\n")
        text = text.strip()
        cell: dict = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
        if "markdown" in kind:
            cell = {"cell_type": "markdown", "metadata": {}}
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        lines = [f"{line}\n" for line in text.split("\n")]
        cells.append(cell | {"id": str(number), "source": [*lines[:-1], lines[-1].rstrip("\n")]})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    page = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1) + "\n"


if __name__ == "__main__":
    made = notebook(SCRIPT.read_text())
    file = SCRIPT.with_suffix(".ipynb")
    if "--check" not in sys.argv:
        file.write_text(made)
    elif not file.exists() or file.read_text() != made:
        sys.exit(f"{file.name} differs from {SCRIPT.name}: run tools/notebook.py.")
