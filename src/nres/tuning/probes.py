"""Probes: one gradient estimate each, and the losses of unperturbed parameters along it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nres.estimators import Estimate, FullES
from nres.execution import compiled
from nres.measured import has_measured, joined, learned, map_learned, measured
from nres.noise import Noise
from nres.pools.base import Pool
from nres.system import Theta, parameter_count, squared_norm
from nres.workers import Steps, worker_keys

# Sigmas and distances are on a grid with two places per factor of ten. A round of probes has these
# sigmas and distances, relative to its centre.
SIGMAS, DISTANCES = (-1, 0, 1), (-2, -1, 0, 1, 2, 3)
# Of the distances with this share of the best decrease of the loss, the largest counts, because
# training suffers more from too little noise than from too much.
MOST_OF_GAIN = 0.6
# The largest number of rounds, and the largest number of pairs unless there are many parameters.
ROUNDS, MOST_PAIRS = 8, 32


@dataclasses.dataclass(frozen=True)
class Probe:
    """A probe with one sigma: a gradient estimate, and the losses after steps along it."""

    sigma: float
    """The scale of the noise."""
    distances: tuple[float, ...]
    """The lengths of the steps, divided by the root of the number of parameters."""
    losses: tuple[float, ...]
    """The losses after these steps; infinite if not finite."""
    steps: Steps
    """The number of unroll steps of the probe."""


def scale(place: int) -> float:
    """Return the number at a place of the grid, which has two places per factor of ten."""
    return float(f"{10 ** (place / 2):.3g}")


@dataclasses.dataclass(frozen=True)
class Distance:
    """The largest distance at which probes find a loss close to the lowest."""

    place: int
    """The place of the distance per parameter on the grid."""
    before: float
    """The loss at the start."""
    after: float
    """The lowest loss, the mean over the probes of a round."""


class Prober:
    """Probes at the same parameters and with the same episodes.

    Args:
        pool: The pool to unroll.
        theta: The parameters.
        key: A JAX random key.
        episodes: The number of episodes that all probes may take.
        rounds: The number of rounds that they may take.
        noise: The distribution of the noise.
        callback: A function that is called with each probe.
    """

    def __init__(
        self,
        pool: Pool,
        theta: Theta,
        key: Array,
        episodes: float,
        rounds: float,
        noise: Noise,
        callback: Callable[[Probe], Any],
    ):
        self.pool, self.theta, self.noise, self.callback = pool, theta, noise, callback
        self.best, self.lowest = theta, math.inf
        """The parameters with the lowest loss so far, and that loss."""
        self.size = parameter_count(theta)
        self.key, along = jax.random.split(key)
        # A gradient needs more pairs, the more parameters there are. With more pairs there are more
        # episodes at each distance, too, a quarter of the pairs, because single episodes vary.
        room, each_pair = episodes / len(SIGMAS), 2 + len(DISTANCES) / 4
        wanted = max(8, self.size / 16, min(MOST_PAIRS, room / (ROUNDS * each_pair)))
        # The first is for so few pairs that there is one episode at each distance.
        affordable = max(min((room - len(DISTANCES)) / 2, 11), room / each_pair)
        self.pairs = int(max(2, min(wanted, affordable)))
        repeats = max(1, (self.pairs - 4) // 4)
        self.keys = worker_keys(along, repeats)
        each = len(SIGMAS) * (2 * self.pairs + repeats * len(DISTANCES))
        before = 2 * self.pairs if has_measured(theta) else 0
        self.rounds = int(max(1, min(ROUNDS, (episodes - before) / each, rounds)))
        self.probes: list[Probe] = []
        self.steps = Steps(0, 0)
        """The number of steps of all probes; those of one round do not wait for each other."""

    def search(self) -> Distance:
        """Find the distance to a lower loss.

        Raises:
            ValueError: If no step of any probe lowers the loss.
        """
        root = math.sqrt(float(squared_norm(learned(self.theta))) / self.size)
        centre = first = round(2 * math.log10(0.1 * root if root > 0 else 0.1))
        if has_measured(self.theta):
            self._measure(scale(centre))
        nowhere = jax.tree.map(jnp.zeros_like, learned(self.theta))
        losses, at_start = self._along(nowhere, np.zeros(1))
        before, found, seen = float(losses[0]), None, set()
        self.lowest = before
        for number in range(1, self.rounds + 1):
            seen.add(centre)
            means = np.mean([self._probe(centre, place) for place in SIGMAS], axis=0)
            together = [probe.steps for probe in self.probes[-len(SIGMAS) :]]
            together += [at_start] if number == 1 else []
            self.steps = Steps.added([self.steps, Steps.at_once(together)])
            best = int(means.argmin())
            if not means[best] < (before if found is None else found.after):
                if found is not None:
                    break
                reach = (number + 1) // 2 * 4  # look further and further away
                centre = first - reach if number % 2 else first + reach
                continue
            enough = before - MOST_OF_GAIN * (before - means[best])
            distance = centre + DISTANCES[int(np.flatnonzero(means <= enough)[-1])]
            # A distance beyond the sigmas of the probes needs probes of its own, and so does one
            # below their centre: a few episodes easily suggest too little noise.
            place = min(max(distance, centre), centre + SIGMAS[-1])
            found = Distance(place, before, float(means[best]))
            if place == distance or distance in seen:
                break
            centre = distance
        if found is None:
            scales = ", ".join(f"{probe.sigma:g}" for probe in self.probes)
            raise ValueError(
                f"no step along the gradients of {self.pairs} pairs of episodes lowers the loss, "
                f"which is {before:.4g}, for any sigma of {scales}. Give sigma, a larger budget or "
                "another theta; the loss may be flat at this theta."
            )
        return found

    def _estimate(self, sigma: float, key: Array) -> Estimate:
        estimator = FullES(self.pool, workers=self.pairs, sigma=sigma, noise=self.noise)
        return estimator.estimate(self.theta, estimator.init(self.theta, key))

    def _measure(self, sigma: float) -> None:
        """Measure the moments of observations, because the scale of theta depends on them."""
        key = jax.random.fold_in(self.key, ROUNDS * len(SIGMAS))  # of no probe
        estimate = self._estimate(sigma, key)
        self.theta = self.best = joined(learned(self.theta), estimate.measured)
        self.steps = Steps.added([self.steps, estimate.steps])

    def _probe(self, centre: int, place: int) -> np.ndarray:
        sigma = scale(centre + place)
        estimate = self._estimate(sigma, jax.random.fold_in(self.key, len(self.probes)))
        norm = math.sqrt(float(squared_norm(estimate.grad)))
        distances = np.array([scale(centre + distance) for distance in DISTANCES])
        losses, steps = np.full(len(DISTANCES), math.inf), estimate.steps
        if 0 < norm < math.inf:
            factors = distances * (math.sqrt(self.size) / norm)
            losses, taken = self._along(estimate.grad, factors)
            steps = Steps.added([steps, taken])
            if losses.min() < self.lowest:
                self.lowest, factor = losses.min(), factors[losses.argmin()]
                move = lambda x, g: x - jnp.asarray(factor, x.dtype) * g  # noqa: E731
                self.best = map_learned(move, self.theta, estimate.grad)
        probe = Probe(sigma, tuple(distances.tolist()), tuple(losses.tolist()), steps)
        self.probes.append(probe)
        self.callback(probe)
        return losses

    def _along(self, grad: Theta, factors: np.ndarray) -> tuple[np.ndarray, Steps]:
        moved = (self.pool, self.theta, grad, jnp.asarray(factors, float), self.keys)
        losses, taken = jax.device_get(losses_along(*moved))
        losses = np.where(np.isfinite(losses), losses, math.inf).astype(float)
        return losses, Steps(int(taken.sum(dtype=np.int64)), int(taken.max()))


@compiled
def losses_along(
    pool: Pool, theta: Theta, grad: Theta, factors: Float[Array, " lengths"], keys: Array
) -> tuple[Any, Any]:
    """Return the mean losses of episodes at several distances along a gradient, and their steps."""
    count = keys.shape[0]

    def moved(x, g):
        rows = x[None] - factors.astype(x.dtype).reshape(-1, *(1 for _ in x.shape)) * g[None]
        return jnp.repeat(rows[:, None], count, axis=1)

    every = lambda x: jnp.broadcast_to(x, (factors.size, count, *x.shape))  # noqa: E731
    parts = jax.tree.map(every, measured(theta))
    thetas = joined(jax.tree.map(moved, learned(theta), grad), parts)
    start = jnp.zeros(count, jnp.int32)
    result = pool.advance_arrays(None, thetas, keys, start, pool.horizon)
    return (result.loss / pool.horizon).mean(axis=1), result.steps
