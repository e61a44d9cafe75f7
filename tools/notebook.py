"""Write the notebooks of examples/ from the scripts beside them, cell by cell.

python tools/notebook.py [--check]

The outputs are those that tools/gallery.py has saved in results/.
"""

import base64
import json
import re
import sys

from results import ROOT

EXAMPLES = ROOT / "examples"
SAVED = ROOT / "results/examples"


def split(script: str) -> list[tuple[str, str]]:
    """Return the kind ("markdown" or "code") and the text of each cell; none if it has no cells."""
    cells = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        kind, _, text = part.partition("\n")
        text = text.strip()
        if "markdown" in kind:
            cells.append(("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE)))
        else:
            cells.append(("code", text))
    return cells


def notebook(script: str, outputs: list[dict]) -> str:
    """Return the notebook as JSON; `outputs` has the text and the picture of each code cell."""
    cells, executed = [], 0
    for number, (kind, text) in enumerate(split(script)):
        cell: dict = {"cell_type": kind, "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": executed + 1, "outputs": shown(outputs[executed])}
            executed += 1
        cells.append(cell | {"id": str(number), "source": text.splitlines(True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    page = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1) + "\n"


def shown(output: dict) -> list[dict]:
    """Return the printed text and the picture of a cell in the format of notebooks."""
    parts: list[dict] = []
    if text := output["text"]:
        lines = text.splitlines(True)
        parts.append({"name": "stdout", "output_type": "stream", "text": lines})
    if picture := output["picture"]:
        image = base64.b64encode((SAVED / picture).read_bytes()).decode()
        data = {"data": {"image/png": image}, "metadata": {}}
        parts.append({"output_type": "display_data"} | data)
    return parts


if __name__ == "__main__":
    for script in sorted(EXAMPLES.glob("*.py")):
        if not split(text := script.read_text(encoding="utf-8")):
            continue
        saved = json.loads((SAVED / f"{script.stem}.json").read_text(encoding="utf-8"))
        made, file = notebook(text, saved["outputs"]), script.with_suffix(".ipynb")
        if "--check" not in sys.argv:
            file.write_text(made, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != made:
            sys.exit(f"{file.name} differs from {script.name}: run tools/notebook.py.")
