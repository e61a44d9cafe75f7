"""Write the metrics, settings and pictures of runs into one HTML page that works offline."""

import base64
import json
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from nres.figures import COLOURS, DASHED, DISPLAY_NAMES
from nres.files import finite, read_plain, write_text
from nres.report.summary import by_method, default_title, level_tables, log_axes, subtitle
from nres.runs.compare import AXES
from nres.runs.folder import Run, RunError

# Pictures that other commands write into the folder of a run, and the largest size in bytes.
PICTURES = ("variance.png", "advice.png", "evaluation/evaluation.png", "*.gif")
LARGEST_PICTURE = 16_000_000
LARGEST_NOTES = 1_000_000
_TYPES = {".png": "image/png", ".gif": "image/gif"}


class LeftOutWarning(UserWarning):
    """Warning that the report leaves out a file of a run."""


def find_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Open the runs in some folders.

    Args:
        paths: Folders of runs, or folders that contain runs, such as those of comparisons.

    Returns:
        The runs, in the order of `paths`; those of one comparison in the order of their names.

    Raises:
        RunError: If a folder contains no run.
    """
    runs = []
    for path in map(Path, paths):
        # A link may point to a folder that the user has not named.
        configs = (file for file in path.glob("*/config.json") if not file.parent.is_symlink())
        inside = sorted(file.parent for file in configs)
        folders = [path] if (path / "config.json").is_file() or not inside else inside
        runs += [Run.open(folder) for folder in folders]
    return runs


def write_report(runs: Sequence[Run], out: str | Path, title: str | None = None) -> Path:
    """Write an HTML page about runs: curves, tables, settings, versions and pictures.

    Args:
        runs: At least one run, each with metrics.
        out: HTML file to write. An existing file is replaced.
        title: Heading of the page; by default the systems and methods of the runs, for example
            "lorenz: NRES, PES, TES".

    Returns:
        The path of the page.

    Raises:
        RunError: If there are no runs, or if one of them has no metrics yet.

    Example:
        ```python
        import nres.report

        runs = nres.report.find_runs(["runs/first", "runs/second"])
        nres.report.write_report(runs, "report.html")
        ```
    """
    if not runs:
        raise RunError("runs is empty: give at least one run to report.")
    runs = by_method(runs)
    names, metrics = _names(runs), [_read_metrics(run) for run in runs]
    described = [_describe(*each) for each in zip(runs, names, metrics, strict=True)]
    measures = dict.fromkeys(column for run in described for column in run["columns"])
    data = {
        "title": title or default_title(runs),
        "subtitle": subtitle(runs, names),
        "axes": dict(AXES),
        "log": log_axes(metrics, [name for name in measures if name not in AXES]),
        "levels": level_tables(runs, metrics),
        "runs": described,
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
        # Without "<", no text of a run can close the script element around the data.
        "/*DATA*/": json.dumps(finite(data), allow_nan=False).replace("<", "\\u003c"),
    }.items():
        before, _, after = page.partition(mark)
        page = before + text + after
    out = Path(out)
    write_text(out, page)
    return out


def _part(name: str) -> str:
    return resources.files("nres.report").joinpath(name).read_text(encoding="utf-8")


def _names(runs: Sequence[Run]) -> list[str]:
    """Name runs by the ends of their paths, as long as needed to tell them apart."""
    paths = [run.path.resolve().parts for run in runs]
    depth = 1
    while depth < max(map(len, paths)) and len({p[-depth:] for p in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in paths]


def _read_metrics(run: Run) -> dict[str, np.ndarray]:
    metrics = run.metrics
    if not len(metrics["update"]):
        raise RunError(f"{run.path} has no metrics yet: try again after its first update.")
    return metrics


def _describe(run: Run, name: str, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    settings = run.settings
    method = DISPLAY_NAMES[settings.method]
    shown = [c for c in metrics if c in ("snr", "linear_share") or c.startswith("eval/")]
    columns = [*AXES, "loss", "grad_norm", *shown]
    notes = run.path / "notes.txt"
    return {
        "name": name,
        "method": method,
        "colour": COLOURS[method],
        "dashed": method in DASHED,
        "settings": {k: v for k, v in settings.to_json().items() if v not in (None, {})},
        "environment": {
            "started": run.config.get("created"),
            "ended early": run.ended_early,
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
    """Encode numbers in single precision, which is more than a screen shows."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def _picture(file: Path) -> dict[str, str]:
    content = _content(file, LARGEST_PICTURE)
    if content is None:
        return {"name": file.name, "source": ""}
    text = base64.b64encode(content).decode()
    return {"name": file.name, "source": f"data:{_TYPES[file.suffix]};base64,{text}"}


def _content(file: Path, largest: int) -> bytes | None:
    """Read a file of a run, or return `None` with a warning if it is a link or too large.

    Links are not followed: a page that is shared must not contain files from elsewhere.
    """
    if not file.exists() and not file.is_symlink():
        return None
    try:
        return read_plain(file, largest)
    except OSError as error:
        warnings.warn(
            f"The report leaves out {file}: {error.strerror}.", LeftOutWarning, stacklevel=2
        )
        return None
