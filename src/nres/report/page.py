"""Collect the metrics and files of runs, and write one HTML page that needs no network."""

import base64
import json
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from nres.figures import COLOURS, DASHED, DISPLAY_NAMES
from nres.files import finite, read_plain, replacing
from nres.runs.compare import AXES
from nres.runs.folder import Run, RunError

# Pictures that other commands write into the folder of a run, and the largest to include.
PICTURES = ("variance.png", "advice.png", "*.gif")
LARGEST_PICTURE = 16_000_000
LARGEST_NOTES = 1_000_000
_TYPES = {".png": "image/png", ".gif": "image/gif"}


class LeftOutWarning(UserWarning):
    """A file in the folder of a run is not part of the report."""


def find_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Open the runs in some folders: each is a run, or holds runs, as that of a comparison does."""
    runs = []
    for path in map(Path, paths):
        # A link may lead out of what was named.
        configs = (file for file in path.glob("*/config.json") if not file.parent.is_symlink())
        inside = sorted(file.parent for file in configs)
        folders = [path] if (path / "config.json").is_file() or not inside else inside
        runs += [Run.open(folder) for folder in folders]
    return runs


def write_report(runs: Sequence[Run], out: str | Path, title: str = "Runs compared") -> Path:
    """Write a page about runs: curves, tables, settings, versions and pictures.

    ```python
    import nres.report

    runs = nres.report.find_runs(["runs/first", "runs/second"])
    nres.report.write_report(runs, "report.html")
    ```

    **Arguments:**

    - `runs`: at least one, each with metrics.
    - `out`: the HTML file, which is replaced if it exists.
    - `title`: its heading.
    """
    if not runs:
        raise RunError("there is no run to report.")
    data = {
        "title": title,
        "axes": dict(AXES),
        "runs": [_described(run, name) for run, name in zip(runs, _names(runs), strict=True)],
    }
    page = _part("report.html")
    for mark, text in {
        "/*CHART_STYLE*/": _part("uplot/uPlot.min.css"),
        "/*STYLE*/": _part("report.css"),
        "/*LICENCE*/": _part("uplot/LICENSE"),
        "/*LIBRARY*/": _part("uplot/uPlot.iife.min.js"),
        "/*CHART*/": _part("chart.js"),
        "/*CONTROLS*/": _part("controls.js"),
        "/*TABLES*/": _part("tables.js"),
        # Nothing in it can end the element that it stands in.
        "/*DATA*/": json.dumps(finite(data), allow_nan=False).replace("<", "\\u003c"),
    }.items():
        before, _, after = page.partition(mark)
        page = before + text + after
    out = Path(out)
    with replacing(out) as partial:
        partial.write_text(page, encoding="utf-8")
    return out


def _part(name: str) -> str:
    return resources.files("nres.report").joinpath(name).read_text(encoding="utf-8")


def _names(runs: Sequence[Run]) -> list[str]:
    """Name runs by their folders, with as much of the path as tells them apart."""
    paths = [run.path.resolve().parts for run in runs]
    depth = 1
    while depth < max(map(len, paths)) and len({p[-depth:] for p in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in paths]


def _described(run: Run, name: str) -> dict[str, Any]:
    settings, metrics = run.settings, run.metrics
    if not len(metrics["update"]):
        raise RunError(f"{run.path} has no metrics yet: let it run for a while.")
    method = DISPLAY_NAMES[settings.method]
    columns = [*AXES, "loss", "grad_norm", *(c for c in metrics if c.startswith("eval/"))]
    notes = run.path / "notes.txt"
    return {
        "name": name,
        "method": method,
        "colour": COLOURS[method],
        "dashed": method in DASHED,
        "settings": {k: v for k, v in settings.to_json().items() if v not in (None, {})},
        "facts": {
            "begun": run.config.get("created"),
            "device": run.config.get("device"),
            "versions": run.config.get("versions"),
            "git": run.config.get("git"),
        },
        "notes": (_content(notes, LARGEST_NOTES) or b"").decode(errors="replace"),
        "columns": {column: _packed(metrics[column]) for column in columns},
        "pictures": [
            _picture(file) for pattern in PICTURES for file in sorted(run.path.glob(pattern))
        ],
    }


def _packed(values: np.ndarray) -> str:
    """Encode numbers for the script in single precision, which is more than a screen shows."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def _picture(file: Path) -> dict[str, str]:
    content = _content(file, LARGEST_PICTURE)
    if content is None:
        return {"name": file.name, "source": ""}
    text = base64.b64encode(content).decode()
    return {"name": file.name, "source": f"data:{_TYPES[file.suffix]};base64,{text}"}


def _content(file: Path, largest: int) -> bytes | None:
    """Read a plain file of the folder: a shared page must not contain files from elsewhere."""
    if not file.exists() and not file.is_symlink():
        return None
    try:
        return read_plain(file, largest)
    except OSError as error:
        warnings.warn(f"{file} is left out: {error.strerror}.", LeftOutWarning, stacklevel=2)
        return None
