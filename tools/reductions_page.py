"""Fill in the measured numbers of docs/reductions.md from results/reductions."""

from typing import Any

from nres_paper.figures import FIGURES
from nres_paper.grades import NOT_RUN
from nres_paper.reductions.drawing import TITLES
from nres_paper.reproduction import read_summaries
from results import ROOT, table

_NAME = "reductions"


def _entries() -> dict[str, Any] | None:
    """Return the measurements, or `None` if there are none with the planned settings."""
    found = read_summaries(ROOT / "results", FIGURES)
    return found[_NAME]["numbers"] if _NAME in found else None


def _missing() -> str:
    return f"\n(`{_NAME}` is {NOT_RUN}.)\n"


def _at(entries: dict[str, Any], law: str) -> dict[str, Any]:
    """Select the measurements at fixed parameters with one law of noise, by place."""
    ending = f", {law}"
    return {
        name.removesuffix(ending).replace(", ", ", after ").capitalize(): entry
        for name, entry in entries.items()
        if name.endswith(ending) and "reductions" in entry
    }


def reductions_shares() -> str:
    """Show the properties of the response that bound the savings."""
    entries = _entries()
    if entries is None:
        return _missing()
    rows = []
    for place, entry in _at(entries, "gaussian").items():
        orthogonal = _at(entries, "orthogonal")[place]
        shares = entry["shares"]
        names = ("linear", "linear_by_window", "linear_over_episodes", "even")
        snr = (e["squared_gradient"] / e["variance"] for e in (entry, orthogonal))
        cells = [place, *(f"{shares[name]:.2g}" for name in names), *(f"{x:.2g}" for x in snr)]
        rows.append(cells)
    heading = ["", "$R$", "$R_{\\text{window}}$", "$R_{\\text{episode}}$", "$E/O$"]
    return table([*heading, "SNR, Gaussian", "SNR, orthogonal"], rows)


def reductions_ratios() -> str:
    """Show all ratios with orthogonal noise."""
    entries = _entries()
    if entries is None:
        return _missing()
    places = _at(entries, "orthogonal")
    rows = []
    for name, title in TITLES.items():
        cells = [title]
        for entry in places.values():
            ratios = entry["reductions"].get(name)
            cells.append("–" if ratios is None else "; ".join(map(_told, ratios.values())))
        rows.append(cells)
    return table(["update; episode", *places], rows)


def _told(ratio: dict[str, float]) -> str:
    value, error = ratio["ratio"], (ratio["high"] - ratio["low"]) / 2
    if error < 1e-6:
        return f"{value:g}"
    return f"{value:.2f} ± {error:.2f}" if value > 0.1 else f"{value:.4f} ± {error:.4f}"


def reductions_drift() -> str:
    """Show bias and variance with and without importance weights."""
    entries = _entries()
    if entries is None:
        return _missing()
    rows = [
        [
            name.capitalize(),
            f"{row['drift']:.2g}",
            f"{row['bias']:.1e}",
            f"{row['bias_error']:.1e}",
            f"{row['variance']:.2g}",
            f"{row['corrected_variance']:.2g}",
            f"{row['ratio']:.3g}",
        ]
        for name, row in entries.items()
        if "drift" in row
    ]
    heading = ["", "drift / σ", "squared bias", "its noise", "variance", "variance, corrected"]
    return table([*heading, "ratio of mean square errors"], rows)


def reductions_training() -> str:
    """Show the updates to a level with and without momentum as control."""
    entries = _entries()
    if entries is None:
        return _missing()
    rows = []
    for name, row in entries.items():
        if "plain" in row:
            both = [row[kind]["updates"] for kind in ("plain", "momentum")]
            rows.append(
                [name.replace(", training", "").capitalize(), *map(_listed, both), _speedup(*both)]
            )
    heading = ["", "plain NRES: updates", "with momentum as control", "plain / control"]
    return table(heading, rows)


def _listed(updates: list[int | None]) -> str:
    return ", ".join("never" if count is None else str(count) for count in updates)


def _speedup(plain: list[int | None], new: list[int | None]) -> str:
    if None in plain or None in new:
        return "–"
    return f"{sum(filter(None, plain)) / sum(filter(None, new)):.2f}"


def reductions_picture() -> str:
    """Show the drawing."""
    if _entries() is None:
        return _missing()
    what = "Variance with each reduction, divided by that of plain NRES at equal steps"
    return f"\n![{what}](../results/{_NAME}/{_NAME}.png)\n"


PARTS = (
    reductions_shares,
    reductions_ratios,
    reductions_drift,
    reductions_training,
    reductions_picture,
)
