"""`Monitor`: tell from the diagnostics of many updates whether a run makes progress.

Consecutive updates are not independent, because a worker keeps its noise for an episode. Standard
errors therefore come from batches of at least two episodes.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# The number of updates per batch is twice the windows per episode, and at least this.
LEAST_BATCH = 25
# The number of batches in a stretch, over which a run is judged.
BATCHES = 20
# A response is healthy if at least this share of it is linear, and rough below the second number.
# Measured: docs/diagnostics.md.
HEALTHY_SHARE, ROUGH_SHARE = 0.05, 0.02
# The number of standard errors at which a signal counts as distinguishable from zero.
DISTINCT, INDISTINCT = 3.0, 1.0
# A run has diverged if its loss stays this many times its first size above its first value.
FAR_ABOVE = 10.0


class NoSignalWarning(RuntimeWarning):
    """Warning that the updates of a run are nothing but noise, or its losses too rough."""


class Batch(NamedTuple):
    """Sums over the updates of one batch."""

    updates: float = 0.0
    """The number of updates with a finite loss."""
    loss: float = 0.0
    square: float = 0.0
    signal: float = 0.0
    """The sum of signals times their weights, and so on."""
    linear: float = 0.0
    weight: float = 0.0
    even: float = 0.0
    odd: float = 0.0

    @property
    def share(self) -> float:
        """The linear share of the response."""
        return self.signal / self.linear if self.linear > 0 else math.nan

    @property
    def fraction(self) -> float:
        """The share of the squared norm of the gradient estimates that is signal."""
        if not (self.weight > 0 and self.square > 0):
            return math.nan
        return self.signal / self.weight / (self.square / self.updates)

    @property
    def mean_loss(self) -> float:
        return self.loss / self.updates if self.updates else math.nan


class Monitor:
    """Judge a run by the signal in its gradients and by its loss, batch by batch.

    Batches begin at fixed updates, and sums are added up in order. So the judgement does not depend
    on how many updates each call adds, nor on an interruption in between.

    Args:
        windows: The number of windows per episode.
    """

    def __init__(self, windows: int):
        self.size = max(LEAST_BATCH, 2 * windows)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._seen, self._sums = 0, Batch()  # of the present batch
        self._batches: deque[Batch] = deque(maxlen=BATCHES)
        self._first: Batch | None = None
        self._was_healthy = self._was_distinct = False
        self.problem: str | None = None
        """The first problem with the noise of the run, in words; `None` if none has shown."""

    def add(self, rows: dict[str, np.ndarray]) -> None:
        """Add some updates, which follow those of the last call.

        Args:
            rows: Columns of `History`.
        """
        update, terms, done = rows["update"], _terms(rows), 0
        while done < len(update):
            left = self.size - (int(update[done]) - 1) % self.size
            part = terms[done : done + left]
            # One after another, so that rounding is the same wherever a call ends.
            sums = np.add.accumulate(np.vstack([self._sums, part]))[-1]
            self._sums, self._seen = Batch(*sums.tolist()), self._seen + len(part)
            done += len(part)
            if len(part) == left:
                if self._seen == self.size:  # else the monitor began in the middle of this batch
                    self._complete(self._sums)
                self._seen, self._sums = 0, Batch()

    def _complete(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._first = self._first or batch
        if len(self._batches) == BATCHES:
            self._was_healthy = self._was_healthy or self._is_healthy()
            self._was_distinct = self._was_distinct or self._signal_score() >= DISTINCT
            self.problem = self.problem or self._find_problem()

    def _is_healthy(self) -> bool:
        """Return whether the stretch, or a batch of it, shows a linear response, not by chance.

        A run that converges fast may show it in its first batch alone.
        """
        shares = np.array([batch.share for batch in self._batches])
        mean, stderr = mean_and_stderr(shares)
        if mean >= HEALTHY_SHARE and mean > DISTINCT * stderr:
            return True
        centre = np.median(shares)
        spread = 1.48 * np.median(np.abs(shares - centre))  # of normal numbers, their deviation
        best = shares.max()
        return bool(best >= HEALTHY_SHARE and best - centre > 5 * spread)

    def _signal_score(self) -> float:
        """Return the mean signal over the stretch in standard errors."""
        mean, stderr = mean_and_stderr([batch.fraction for batch in self._batches])
        return mean / stderr if stderr > 0 else math.nan

    def _has_improved(self) -> bool:
        """Return whether the loss of the first batch was well above that of the latest ones."""
        latest = [batch.mean_loss for batch in self._batches][BATCHES // 2 :]
        first = math.nan if self._first is None else self._first.mean_loss
        return bool(first - np.mean(latest) > DISTINCT * np.std(latest, ddof=1))

    def _find_problem(self) -> str | None:
        """Describe what is wrong with the noise in a whole stretch, or return `None`.

        A run that has ever shown a healthy response, or whose loss has fallen, is not judged: its
        signal also fades when it converges.
        """
        if self._was_healthy or self._has_improved():
            return None
        batches = self._batches
        mean, stderr = mean_and_stderr([batch.share for batch in batches])
        if not mean + DISTINCT * stderr < HEALTHY_SHARE:  # also if it is unknown
            return None
        seen = f"over {BATCHES * self.size:,} updates, the linear share of the response is "
        seen += f"{mean:.2g}"
        updates = max(sum(batch.updates for batch in batches), 1)
        even = math.sqrt(sum(batch.even for batch in batches) / updates)
        odd = math.sqrt(sum(batch.odd for batch in batches) / updates)
        advice = "`nres.diagnose` tells which, and whether a larger sigma helps."
        if self._signal_score() < DISTINCT:
            return (
                f"the updates are nothing but noise: {seen} ± {stderr:.1g}, not distinguishable "
                "from zero. Either the losses are too rough for this sigma, or sigma is far too "
                f"large, or theta is at an optimum already; {advice}"
            )
        if mean < ROUGH_SHARE and even >= odd > 0:
            return (
                f"sigma is probably too small: {seen}, and the losses of a pair differ as if they "
                f"were hardly related (half their difference has the size {odd:.3g}). Losses are "
                "rough at the scale of sigma, or sigma is far too large, or theta is near an "
                f"optimum; {advice}"
            )
        return None

    @property
    def converged(self) -> bool:
        """True if the signal is no longer distinguishable from zero, and the loss does not fall.

        Before, the signal was distinguishable over a stretch of the same length, or the loss of the
        first batch was well above that of the latest ones.
        """
        if len(self._batches) < BATCHES or self._first is None:
            return False
        if not (self._was_distinct or self._has_improved()):
            return False
        half, losses = BATCHES // 2, [batch.mean_loss for batch in self._batches]
        before, after = (mean_and_stderr(part) for part in (losses[:half], losses[half:]))
        falls = before[0] - after[0] > 2 * math.hypot(before[1], after[1])
        return self._signal_score() < INDISTINCT and not falls

    @property
    def diverged(self) -> bool:
        """True if the loss of a whole stretch is far above that of the first batch."""
        if len(self._batches) < BATCHES or self._first is None:
            return False
        start, updates = self._first.mean_loss, max(self._first.updates, 1)
        size = abs(start) + math.sqrt(self._first.even / updates)
        return all(batch.mean_loss > start + FAR_ABOVE * size for batch in self._batches)

    @property
    def state(self) -> dict[str, Any]:
        """Everything that later judgements depend on, for JSON."""
        return {
            "seen": self._seen,
            "sums": list(self._sums),
            "batches": [list(batch) for batch in self._batches],
            "first": None if self._first is None else list(self._first),
            "was_healthy": self._was_healthy,
            "was_distinct": self._was_distinct,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the `state` of another monitor."""
        self._seen, self._sums = int(state["seen"]), Batch(*state["sums"])
        self._batches = deque((Batch(*each) for each in state["batches"]), maxlen=BATCHES)
        self._first = None if state["first"] is None else Batch(*state["first"])
        self._was_healthy = bool(state["was_healthy"])
        self._was_distinct = bool(state["was_distinct"])


def _terms(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the terms of `Batch`, one row per update; an update without finite loss adds none."""
    names = ("loss", "grad_norm", "signal", "linear_signal", "signal_weight", "even", "odd")
    loss, norm, signal, linear, weight, even, odd = (np.asarray(rows[n], float) for n in names)
    weight = np.where(np.isfinite(signal), weight, 0.0)
    with np.errstate(invalid="ignore"):  # infinite signals of weight zero
        weighted = (signal * weight, linear * weight, weight)
    terms = np.stack([np.ones(len(loss)), loss, norm**2, *weighted, even, odd], axis=1)
    terms[~np.isfinite(loss)] = 0
    return np.where(np.isfinite(terms), terms, 0.0)


def batch_of(rows: dict[str, np.ndarray]) -> Batch:
    """Return the sums over all updates in columns of `History`."""
    return Batch(*_terms(rows).sum(axis=0).tolist())


def mean_and_stderr(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean of some values and its standard error."""
    array = np.asarray(values)
    with np.errstate(invalid="ignore"):  # infinite losses
        return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array)))
