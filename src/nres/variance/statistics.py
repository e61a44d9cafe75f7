"""Streaming moments of independent batches, and confidence intervals for them."""

import math

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

# The number of groups of batches whose means are kept.
GROUPS = 8


class Mean:
    """The mean of independent random vectors and its standard error, by Welford's algorithm."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(())
        self._squares = np.zeros(())

    def add(self, vector: Float[np.ndarray, " d"]) -> None:
        """Add one vector."""
        vector = np.asarray(vector, np.float64)
        self.count += 1
        change = vector - self.mean
        self.mean = self.mean + change / self.count
        self._squares = self._squares + change * (vector - self.mean)

    @property
    def stderr(self) -> Float[np.ndarray, " d"]:
        """The standard error of each coordinate of `mean`."""
        return np.sqrt(self._squares / (self.count * (self.count - 1)))

    @property
    def signal(self) -> float:
        """An unbiased estimate of the squared norm of the expectation; it may be negative."""
        return float(self.mean @ self.mean - np.sum(self.stderr**2))


class Moments:
    r"""Mean and total variance of random vectors, from independent batches of them.

    A batch gives its mean $\mu_b$ and the mean of its squared norms $q_b$ (or several, if the
    vectors come in several versions with the same mean). Then
    $\operatorname{tr}\operatorname{Cov} = \mathbb E q - \lVert \mathbb E \mu \rVert^2$, and every
    pair of batches gives an unbiased value of it, $\frac12 (q_b + q_{b'}) - \mu_b^\top \mu_{b'}$.
    Only a few numbers per batch are kept, and the means of groups of batches.
    """

    def __init__(self) -> None:
        self.mean = Mean()
        self._second: list[np.ndarray] = []
        self._pairs: list[np.ndarray] = []
        self._groups: list[tuple[np.ndarray, int]] = [(np.zeros(()), 0)] * GROUPS
        self._last = np.zeros(())

    def add(self, mean: Float[np.ndarray, " d"], second: Float[np.ndarray, " versions"]) -> None:
        """Add one batch."""
        mean, second = np.asarray(mean, np.float64), np.asarray(second, np.float64)
        self.mean.add(mean)
        if self.mean.count % 2 == 0:
            self._pairs.append((self._second[-1] + second) / 2 - mean @ self._last)
        self._second.append(second)
        self._last = mean
        group = self.mean.count % GROUPS
        total, count = self._groups[group]
        self._groups[group] = (total + mean, count + 1)

    @property
    def variance(self) -> Float[np.ndarray, " versions"]:
        """An unbiased estimate of the total variance of one vector."""
        return np.mean(self._second, axis=0) - self.mean.signal

    @property
    def signal_stderr(self) -> float:
        """The standard error of `mean.signal`, by the jackknife over groups of batches.

        If there is no signal, it is too large by a factor of about the square root of two.
        """
        sums = np.array([total for total, count in self._groups if count])
        counts = np.array([count for _, count in self._groups if count])
        means = sums / counts[:, None]
        products = means @ means.T
        np.fill_diagonal(products, 0)
        n = len(means)
        without = (products.sum() - 2 * products.sum(axis=1)) / ((n - 1) * (n - 2))
        return math.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2))

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute a confidence interval for `variance` from pairs of batches."""
        return interval(np.array(self._pairs), self.variance, level)


def interval(
    samples: Float[np.ndarray, "samples versions"],
    centre: Float[np.ndarray, " versions"],
    level: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute a confidence interval around `centre` for the mean of independent, skewed samples.

    Squares of heavy-tailed numbers are skewed, and Student's interval then misses the true value
    too often on one side. Hall's transformation of the statistic corrects for the skewness.

    Reference:
        Hall, *On the removal of skewness by transformation*, JRSS B, 1992.
    """
    count = len(samples)
    spread = samples.std(axis=0, ddof=1)
    stderr = spread / math.sqrt(count)
    deviations = (samples - samples.mean(axis=0)) / np.where(spread > 0, spread, 1)
    skew = (deviations**3).mean(axis=0)
    quantile = float(stdtrit(count - 1, (1 + level) / 2))

    def bound(t):
        root = math.sqrt(count)
        straight = np.abs(skew) < 1e-6
        bent = np.where(straight, 1, skew)
        inverse = 3 * root / bent * (np.cbrt(1 + bent * (t / root - bent / (6 * count))) - 1)
        return centre - stderr * np.where(straight, t, inverse)

    return bound(quantile), bound(-quantile)
