"""Common style of all figures: the colour and line of each method, and readable axes."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogFormatter

# Evolution strategies have solid lines; methods that differentiate have dashed lines.
COLOURS = {
    "NRES": "#c8102e",
    "PES": "#0077bb",
    "GPES": "#8855aa",
    "FullES": "#222222",
    "TES": "#ee9922",
    "BPTT": "#222222",
    "TBPTT": "#ee9922",
    "DODGE": "#0077bb",
    "UORO": "#33aa77",
    "RTRL": "#8c564b",
}
DASHED = {"BPTT", "TBPTT", "DODGE", "UORO", "RTRL"}
DISPLAY_NAMES = {name.lower(): name for name in COLOURS}


def line_style(name: str) -> dict[str, Any]:
    """Return the colour, dashes and width of a method's line, as keyword arguments of `plot`."""
    return {"color": COLOURS[name], "ls": (0, (4, 1.5)) if name in DASHED else "-", "lw": 1.8}


def log_if_positive(panel: Axes) -> None:
    """Make the vertical axis logarithmic if all lines of the panel are positive."""
    values = [np.asarray(line.get_ydata(), float) for line in panel.lines]
    finite = np.concatenate([x[np.isfinite(x)] for x in values] or [np.zeros(0)])
    if finite.size and finite.min() > 0:
        panel.set_yscale("log")
        plain_numbers(panel.yaxis)


def plain_numbers(axis: Axis, unit: str = "") -> None:
    """Label a logarithmic axis with plain numbers (20, not 2×10¹), also between powers of ten."""

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}{unit}" if super().__call__(x, pos) else ""

    for choose in (axis.set_major_formatter, axis.set_minor_formatter):
        choose(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
