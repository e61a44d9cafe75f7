"""Ratios of the variances of two kinds of updates, with intervals."""

import dataclasses

import numpy as np

from nres_paper.reductions.estimates import Updates

# The number of blocks of groups for the jackknife.
BLOCKS = 16


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio of two variances, with an interval of two standard errors."""

    ratio: float
    low: float
    high: float


def total_variance(updates: Updates) -> float:
    """Estimate the trace of the covariance of one update, without bias."""
    means = updates.mean(axis=1)
    count = len(means)
    summed = means.sum(axis=0)
    signal = (summed @ summed - np.sum(means**2)) / (count * (count - 1))
    return float(np.mean(np.sum(updates**2, axis=2)) - signal)


def over_episodes(updates: Updates) -> Updates:
    """Average the updates of whole episodes."""
    return updates.mean(axis=1, keepdims=True)


def compare(new: Updates, old: Updates, cost: float = 1.0) -> Ratio:
    """Return the ratio of the variances of two kinds of updates, at equal steps.

    Args:
        new: Updates of independent groups.
        old: Updates of the same groups, without the reduction.
        cost: The steps of a new update divided by those of an old one.
    """

    def ratio(first, second):
        return cost * total_variance(first) / total_variance(second)

    value = ratio(new, old)
    blocks = min(BLOCKS, len(new))
    parts = zip(_without_blocks(new, blocks), _without_blocks(old, blocks), strict=True)
    left = np.array([ratio(*pair) for pair in parts])
    error = np.sqrt((blocks - 1) / blocks * np.sum((left - left.mean()) ** 2))
    return Ratio(*map(float, (value, value - 2 * error, value + 2 * error)))


def _without_blocks(updates: Updates, blocks: int) -> list[Updates]:
    split = np.array_split(np.arange(len(updates)), blocks)
    return [np.delete(updates, block, axis=0) for block in split]
