"""Diagnostics of many updates: ratios of sums over the numbers that each update records.

A ratio of two noisy numbers has no useful mean, so numerators and denominators are added up first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# The numbers of `Info` that every update records, besides those by phase.
PER_UPDATE = ("signal", "signal_weight", "linear_signal", "even", "odd", "sigma")
_PHASE = "phase_power_"

Columns = Mapping[str, Any]
"""Recorded numbers by name, one row per update."""


def columns(parts: int) -> tuple[str, ...]:
    """Return the names of the recorded diagnostics, if an episode has so many parts."""
    return (*PER_UPDATE, *(f"{_PHASE}{i}" for i in range(1, parts + 1)))


def is_diagnostic(name: str) -> bool:
    """Return whether a recorded column is a diagnostic, which is no mean or sum by itself."""
    return name in PER_UPDATE or name.startswith(_PHASE)


def parts_of(rows: Columns) -> int:
    """Return the number of parts of the episode in recorded columns."""
    return sum(name.startswith(_PHASE) for name in rows)


class Sums:
    """Sums over updates, from which the diagnostics follow.

    Args:
        rows: The recorded columns.
        add: A function that adds up an array along its first axis; for example a moving sum.
    """

    def __init__(self, rows: Columns, add: Any = math.fsum):
        self._rows, self._add = rows, add
        self._weight = _known(rows["signal_weight"], rows["signal"])

    def _weighted(self, name: str) -> Any:
        return self._add(_known(self._rows[name], self._rows["signal"]) * self._weight)

    def _mean(self, values: Any) -> Any:
        return _ratio(self._add(_known(values)), self._add(np.isfinite(values).astype(float)))

    @property
    def signal(self) -> Any:
        """The weighted mean of the signal."""
        return _ratio(self._weighted("signal"), self._add(self._weight))

    @property
    def snr(self) -> Any:
        """The signal-to-noise ratio of an update."""
        signal = self.signal
        noise = self._mean(np.asarray(self._rows["grad_norm"], float) ** 2) - signal
        return np.where(noise > 0, _ratio(signal, noise), math.nan)

    @property
    def linear_share(self) -> Any:
        """The linear share of the response."""
        return _ratio(self._weighted("signal"), self._weighted("linear_signal"))

    def spread(self, name: str) -> Any:
        """Return the square root of the mean of a recorded mean square."""
        return np.sqrt(self._mean(np.asarray(self._rows[name], float)))

    @property
    def sigma(self) -> Any:
        """The mean of a sigma that adapts."""
        return self._mean(np.asarray(self._rows["sigma"], float))

    def phase_rms(self, part: int) -> Any:
        """Return the root mean square of the contributions in one part of the episode."""
        return self.spread(f"{_PHASE}{part}")


def summarised(rows: Columns) -> dict[str, float]:
    """Return the diagnostics of some updates together, as far as they are known.

    Args:
        rows: The recorded columns, with `grad_norm`.

    Returns:
        `snr`, `linear_share`, `even_spread`, `odd_spread`, `phase_rms_1` to `phase_rms_8`, and
        `sigma` if it adapts.
    """
    sums = Sums(rows)
    found = {"snr": sums.snr, "linear_share": sums.linear_share}
    found |= {f"{name}_spread": sums.spread(name) for name in ("even", "odd")}
    found["sigma"] = sums.sigma
    numbers = range(1, parts_of(rows) + 1)
    found |= {f"phase_rms_{i}": sums.phase_rms(i) for i in numbers}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def moving_sum(values: np.ndarray, over: int) -> np.ndarray:
    """Return the sum of the last `over` values at each position, or of fewer at the beginning."""
    padded = np.concatenate([np.zeros(min(over, len(values)) - 1), values])
    return np.lib.stride_tricks.sliding_window_view(padded, min(over, len(values))).sum(axis=1)


def _known(values: Sequence[float] | np.ndarray, where: Any = None) -> np.ndarray:
    """Return values as floats, with zeros where they or `where` are not finite."""
    array = np.asarray(values, float)
    known = np.isfinite(array) if where is None else np.isfinite(array) & np.isfinite(where)
    return np.where(known, array, 0.0)


def _ratio(numerator: Any, denominator: Any) -> Any:
    """Divide, with NaN where the denominator is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator != 0, np.divide(numerator, denominator), math.nan)
