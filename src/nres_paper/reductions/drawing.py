"""The drawing of all reductions: ratios of variances at equal steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures import COLOURS, save_drawing

TITLES: Mapping[str, str] = {
    "exact gradient": "control: exact gradient",
    "momentum": "control: momentum",
    "exact window gradients": "control: exact gradient of each window",
    "TBPTT": "control: TBPTT",
    "equal windows": "potential: best possible",
    "fitted potential": "potential: fitted to the variance",
    "critic": "potential: learned critic",
    "one-sided": "one-sided members with baseline",
}
_STYLES = {
    "gaussian": ("Gaussian noise", COLOURS["PES"], -0.16),
    "orthogonal": ("orthogonal noise", COLOURS["NRES"], 0.16),
}
_KINDS = {"update": ("one update", "o"), "episode": ("mean over an episode", "D")}


def draw(entries: Mapping[str, Any], path: Path) -> None:
    """Draw the ratio of each reduction, for each system and checkpoint.

    Args:
        entries: The measurements by name.
        path: The file to write, without an ending.
    """
    measured = {name: entry for name, entry in entries.items() if "reductions" in entry}
    places = list(dict.fromkeys(name.rpartition(", ")[0] for name in measured))
    figure = Figure(figsize=(3.8 + 2.4 * len(places), 5.2), layout="constrained")
    panels = figure.subplots(1, len(places), sharey=True, squeeze=False)[0]
    for panel, place in zip(panels, places, strict=True):
        for law, (_, colour, shift) in _STYLES.items():
            found = measured[f"{place}, {law}"]["reductions"]
            for kind, (_, marker) in _KINDS.items():
                _points(panel, found, kind, marker, colour, shift)
        panel.axvline(1, color="black", lw=0.8)
        panel.axvline(1 / 1.3, color="black", lw=0.8, ls=":")
        panel.set_xscale("log")
        panel.set_title(place.replace(", ", "\nafter ").capitalize(), fontsize="medium")
        panel.set_xlim(0.001, 40)
        panel.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
        panel.grid(alpha=0.3, axis="x")
    panels[0].set_yticks(range(len(TITLES)), list(TITLES.values()))
    panels[0].set_ylim(len(TITLES) - 0.5, -0.5)
    figure.supxlabel("variance divided by that of plain NRES, at equal steps", fontsize="medium")
    for _, (label, colour, _) in _STYLES.items():
        panels[0].plot([], [], "s", color=colour, label=label)
    for label, marker in _KINDS.values():
        fill = "none" if marker == "D" else "#666666"
        panels[0].plot([], [], marker, color="#666666", mfc=fill, label=label)
    panels[0].plot([], [], ":", color="black", lw=0.8, label="1/1.3")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save_drawing(figure, path)


def _points(panel: Any, found: Any, kind: str, marker: str, colour: str, shift: float) -> None:
    """Draw the ratios of one kind for one law of noise, with their intervals."""
    for row, name in enumerate(TITLES):
        if name not in found:
            continue
        ratio = found[name][kind]
        # An interval of a small ratio may reach below zero, where a logarithm ends.
        low = max(ratio["low"], ratio["ratio"] / 10)
        sides = np.array([[ratio["ratio"] - low], [ratio["high"] - ratio["ratio"]]])
        panel.errorbar(
            [ratio["ratio"]],
            [row + shift],
            xerr=np.maximum(sides, 0),
            fmt=marker,
            ms=4.5,
            lw=1,
            color=colour,
            mfc="none" if marker == "D" else colour,
        )
