"""Figures of optimizers that are compared on several tasks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures.style import log_if_positive
from nres.files import save_drawing

# The learned optimizers, and the others.
LEARNED = ("#c8102e", "#0077bb", "#8855aa", "#33aa77")
OTHERS = ("#222222", "#777777", "#bbbbbb", "#ee9922", "#8c564b")


def optimizers_figure(result: Mapping[str, Any], learned: Sequence[str], path: Path) -> None:
    """Draw the training losses of all optimizers, one panel per task.

    Args:
        result: An evaluation, as `nres.runs.evaluate_optimizers` returns it.
        learned: The names of the learned optimizers, which are drawn thicker.
        path: The files to write, without their endings: PNG and SVG.
    """
    tasks = result["tasks"]
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    panels = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for panel, (name, task) in zip(panels, tasks.items(), strict=False):
        others = iter(OTHERS)
        thick = dict(zip(learned, LEARNED, strict=False))
        for each, row in task["optimizers"].items():
            curve = row["curve"]
            loss = [np.nan if value is None else value for value in curve["loss"]]
            colour = thick.get(each) or next(others, "#999999")
            width = 2.0 if each in thick else 1.1
            panel.plot(curve["step"], loss, label=each, color=colour, lw=width)
        finals = [row["final_loss"] for row in task["optimizers"].values() if row["final_loss"]]
        first = task["optimizers"][learned[0]]["curve"]["loss"][0]
        log_if_positive(panel)
        if finals and first:
            panel.set_ylim(0.9 * min(finals), 1.1 * first)
        panel.set(title=name, xlabel="step")
        panel.grid(alpha=0.3)
    for panel in panels[len(tasks) :]:
        panel.set_axis_off()
    for row in range(rows):
        panels[row * columns].set_ylabel("training loss")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save_drawing(figure, path)
