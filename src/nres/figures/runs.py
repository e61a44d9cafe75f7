"""Learning curves of runs, and comparisons of methods."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from nres.figures.style import DISPLAY_NAMES, line_style, log_if_positive
from nres.files import save_figure
from nres.history import needs_log
from nres.runs.compare import AXES, Curve
from nres.runs.folder import Run


def run_figure(runs: Sequence[Run], path: Path) -> None:
    """Draw the training loss of runs, and the first number that their evaluations report.

    Args:
        runs: One or several runs.
        path: File to write, with an ending that matplotlib knows.
    """
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row")
    for run in runs:
        metrics = run.metrics
        evals = [name for name in metrics if name.startswith("eval/")]
        label = run.path.name
        for column, axis in enumerate(("update", "seconds")):
            x, loss = metrics[axis], metrics["loss"]
            known = np.isfinite(loss)
            panels[0, column].plot(x[known], loss[known], lw=1.2, label=label)
            if evals:
                known = np.isfinite(metrics[evals[0]])
                panels[1, column].plot(x[known], metrics[evals[0]][known], ".-", lw=1.5)
                panels[1, 0].set_ylabel(evals[0][5:].replace("_", " "))
    panels[0, 0].set_ylabel("training loss")
    for row in panels:
        row[0].set_xlabel("updates")
        row[1].set_xlabel("seconds of training")
        for panel in row:
            log_if_positive(panel)
            panel.grid(alpha=0.3)
    if len(runs) == 1:
        figure.suptitle(runs[0].path.name)
    else:
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False)
    save_figure(_plain_text(figure), path)


def _plain_text(figure: Figure) -> Figure:
    """Switch off formulas: the name of a run may contain dollar signs."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    return figure


def comparison_figure(curves: dict[str, dict[str, Curve]], title: str, path: Path) -> None:
    """Draw the evaluations of each method against each of the four `AXES`.

    Args:
        curves: Of each method, the curve against each axis, as `nres.runs.curves` returns them.
        title: Label of the vertical axis.
        path: File to write, with an ending that matplotlib knows.
    """
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        # A linear axis would squeeze short runs into a corner.
        log = needs_log([by_axis[axis].x[-1] for by_axis in curves.values()])
        for method, by_axis in curves.items():
            curve = by_axis[axis]
            style = line_style(DISPLAY_NAMES[method])
            shown = (curve.x > 0) | (not log)
            x, mean, low, high = (
                part[shown] for part in (curve.x, curve.mean, curve.low, curve.high)
            )
            panel.plot(x, mean, label=DISPLAY_NAMES[method], **style)
            panel.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
        panel.set(xlabel=label)
        if log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
        else:
            panel.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))
        panel.grid(alpha=0.3)
    log_if_positive(panels[0])
    panels[0].set_ylabel(title)
    every = [curve for by_axis in curves.values() for curve in by_axis.values()]
    if any((curve.low < curve.high).any() for curve in every):
        figure.suptitle(
            "Lines: mean over seeds. Bands: from the lowest to the highest seed.", fontsize="medium"
        )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    save_figure(_plain_text(figure), path)
