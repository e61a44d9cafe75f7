"""`evaluate`: the mean loss of whole episodes, unperturbed or smoothed."""

import html
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from nres.checks import (
    array_bytes,
    as_key,
    check_memory,
    check_prefix,
    positive_arrays,
    whole_number,
)
from nres.execution import run_episodes, state_shapes
from nres.measured import learned
from nres.noise import Gaussian, Noise
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.system import System, as_theta, horizon_of, parameter_count
from nres.workers import Steps, worker_keys

# The size of the key, the loss and the number of steps of one episode.
_EPISODE_BYTES = 32


class Evaluation(eqx.Module):
    """The losses of some whole episodes, as returned by `evaluate`."""

    losses: Float[Array, " episodes"]
    """The mean loss per step of each episode; if episodes differ in length, the sum of an
    episode's losses divided by the mean length."""
    taken: Array
    """The number of steps that each episode took."""

    def __repr__(self) -> str:
        if isinstance(self.losses, jax.core.Tracer):
            return f"Evaluation({self.losses})"
        spread = f" ± {float(self.stderr):.2g}" if self.losses.size > 1 else ""
        return (
            f"Evaluation(loss {float(self.loss):.5g}{spread}, {self.losses.size:,} episode"
            f"{'s' * (self.losses.size != 1)}, {self.steps.total:,} steps)"
        )

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def loss(self) -> Float[Array, ""]:
        """The mean loss over the episodes."""
        return self.losses.mean()

    @property
    def stderr(self) -> Float[Array, ""]:
        """The standard error of `loss`; NaN for a single episode."""
        return self.losses.std(ddof=1) / jnp.sqrt(self.losses.size)

    @property
    def steps(self) -> Steps:
        """The number of unroll steps of the evaluation."""
        taken = np.asarray(self.taken)
        return Steps(int(taken.sum(dtype=np.int64)), int(taken.max()))


def evaluate(
    system: System | Pool,
    theta: PyTree,
    key: Array,
    *,
    episodes: int = 1,
    sigma: PyTree = 0.0,
    noise: Noise = Gaussian(),  # noqa: B008 - frozen
) -> Evaluation:
    r"""Compute the loss $\frac1T \sum_t L_t$ of whole episodes, at `theta` or smoothed around it.

    Args:
        system: A `nres.System`, or any `nres.Pool`.
        theta: The parameters.
        key: A JAX random key.
        episodes: The number of episodes, each with its own randomness.
        sigma: If positive, each episode runs with parameters drawn from
            $\mathcal N(\theta, \sigma^2 I)$, so that the mean estimates the smoothed loss. It may
            be a pytree of numbers, as for `NRES`.
        noise: The distribution of this noise.

    Returns:
        The losses of the episodes, with their mean, its standard error and the steps taken.

    Raises:
        ValueError: If `theta` does not fit the system, or a number is out of bounds.
        MemoryError: If the episodes do not fit into memory.

    Example:
        ```python
        result = nres.evaluate(system, theta, jax.random.key(0), episodes=100, sigma=0.04)
        print(result.loss, result.stderr)
        ```
    """
    pool, theta, key = as_pool(system), as_theta(theta), as_key(key)
    episodes = whole_number("episodes", episodes)
    horizon_of(pool)
    smooth = not (isinstance(sigma, float | int) and sigma == 0)
    if smooth:
        sigma = positive_arrays("sigma", sigma)
        check_prefix("sigma", sigma, learned(theta))
    pool.check(theta)
    each = _EPISODE_BYTES
    if not pool.lazy:
        each += array_bytes(theta)
    elif smooth:
        own = noise.size(learned(theta)) / parameter_count(learned(theta))
        each += math.ceil(own * array_bytes(theta))
    each += array_bytes(state_shapes(pool, theta))
    check_memory(episodes * each, f"{episodes:,} episodes")
    system_key, noise_key = jax.random.split(key)
    keys, smoothing = worker_keys(system_key, episodes), None
    if smooth:
        smoothing = (noise, worker_keys(noise_key, episodes), sigma)
    return Evaluation(*run_episodes(pool, theta, keys, smoothing))
