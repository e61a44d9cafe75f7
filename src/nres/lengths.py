r"""Distributions of the lengths of episodes, for systems whose episodes differ in length.

Every episode draws its length $T$ from the worker's key, independently of `theta`: all members of
a worker restart together. The loss of such a system is the mean over steps,

$$ L(\theta) = \frac{\mathbb E \sum_{t=1}^{T} L_t}{\mathbb E\, T}, $$

in which a long episode counts for more than a short one.
"""

import abc
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from nres.checks import whole_number

# A number beyond those of the steps of an episode, for the randomness of its length.
LENGTH = 2**32 - 3


class Lengths(abc.ABC):
    """Base class of distributions of the lengths of episodes.

    A subclass is a frozen dataclass with the field `most` that implements `probabilities`.

    Example:
        ```python
        @dataclasses.dataclass(frozen=True)
        class Uniform(nres.lengths.Lengths):
            most: int

            def probabilities(self):
                return np.r_[0.0, np.full(self.most, 1 / self.most)]
        ```
    """

    most: int
    """The length of the longest episode."""

    @abc.abstractmethod
    def probabilities(self) -> Float[np.ndarray, " lengths"]:
        """Return the probability of each length, from 0 (which must have none) to `most`."""

    @functools.lru_cache(maxsize=16)  # noqa: B019 - a few frozen objects
    def check(self) -> None:
        """Raise a `ValueError` if the probabilities are none."""
        p = np.asarray(self.probabilities())
        if p.shape != (self.most + 1,) or not (p >= 0).all() or abs(p.sum() - 1) > 1e-6 or p[0]:
            raise ValueError(
                f"{self!r}.probabilities() must return {self.most + 1} numbers, of which the first "
                f"is 0, and whose sum is 1; got shape {p.shape} and sum {p.sum():.6g}."
            )

    def mean(self) -> float:
        """Return the mean length."""
        return float(np.arange(self.most + 1) @ self.probabilities())

    def windows(self, window: int) -> float:
        """Return the mean number of windows of `window` steps in an episode."""
        return float(self._counts(window) @ self.probabilities())

    def before(self, window: int) -> Float[np.ndarray, " bounds"]:
        """Return the share of workers that are, in the long run, before each window."""
        longer = np.cumsum(self.probabilities()[::-1])[::-1]  # longer[k]: at least k steps
        return np.r_[0.0, np.cumsum(longer[1::window])] / self.windows(window)

    def draw(self, episode: Key[Array, ""], first: Bool[Array, ""], window: int) -> Int[Array, ""]:
        """Draw the length of an episode.

        Args:
            episode: The key of the episode.
            first: True for the episode in which a worker begins somewhere on the way. In the long
                run, workers meet an episode as often as it has windows, so its length is drawn
                with probabilities in proportion to that number.
            window: The number of steps of a window.
        """
        u = jax.random.uniform(jax.random.fold_in(episode, LENGTH))
        tables = jnp.asarray(self._tables(window), u.dtype)
        plain, met = (jnp.searchsorted(table, u, side="right") for table in tables)
        return jnp.minimum(jnp.where(first, met, plain), self.most).astype(jnp.int32)

    def _counts(self, window: int) -> Int[np.ndarray, " lengths"]:
        return -(-np.arange(self.most + 1) // window)

    @functools.lru_cache(maxsize=16)  # noqa: B019 - a few small tables of a frozen object
    def _tables(self, window: int) -> Float[np.ndarray, "2 lengths"]:
        """Return the cumulative probabilities of lengths, and those of the first episodes."""
        plain = self.probabilities()
        met = plain * self._counts(window)
        return np.stack([np.cumsum(p / p.sum()) for p in (plain, met)])


@dataclasses.dataclass(frozen=True)
class LogUniform(Lengths):
    r"""Log-uniform lengths: $T = \lfloor e^u \rfloor$, u uniform from ln `least` to ln(`most` + 1).

    Raises:
        ValueError: If `least` is not positive, or `most` is smaller.

    Example:
        ```python
        lengths = nres.lengths.LogUniform(100, 2000)
        lengths.mean()
        ```
    """

    least: int
    """The length of the shortest episode."""
    most: int
    """The length of the longest episode."""

    def __post_init__(self):
        whole_number("least", self.least)
        whole_number("most", self.most, self.least)

    def probabilities(self):
        logs = np.log(np.arange(self.least, self.most + 2))
        return np.r_[np.zeros(self.least), np.diff(logs) / (logs[-1] - logs[0])]
