"""`average`: from the workers' contributions to a gradient and its diagnostics."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nres.estimators.values import PARTS, Info, Spent
from nres.noise import Group
from nres.system import Theta, squared_norm
from nres.workers import Contributions, Steps, Workers

# Shares of pairs below this are rounding errors.
SMALLEST_SHARE = 1e-3


class Pairs(eqx.Module):
    """The properties of an estimator that the diagnostics of its pairs depend on."""

    bounds: tuple[int, ...] = eqx.field(static=True)
    """The first step of each part of an episode, and a step after all."""
    shares: tuple[float, ...] = eqx.field(static=True)
    """`Estimator.shares` of these parts."""
    gain: float | None = eqx.field(static=True)
    """`Estimator.linear_gain`."""
    number: Int[Array, " workers"] | None
    """`Estimator.noise_numbers`, if noises are drawn jointly."""

    @classmethod
    def of(cls, estimator: Any, theta: Theta, workers: Workers) -> "Pairs":
        """Return the properties of an estimator."""
        # Each part of the episode begins with a window.
        parts, windows = min(PARTS, estimator.windows), estimator.windows
        first = -(-np.arange(parts + 1) * windows // parts)
        return cls(
            tuple(int(each) for each in first * estimator.window),
            tuple(float(each) for each in estimator.shares(first)),
            estimator.linear_gain(theta),
            None if workers.group is None else estimator.noise_numbers(workers),
        )


@eqx.filter_jit
def average(
    contributions: Contributions,
    absent: Bool[Array, " workers"] | None,
    workers: Workers,
    bound: Steps,
    theta: Theta,
    pairs: Pairs,
) -> tuple[Theta, Array, Spent, Info]:
    """Average the workers' contributions, leaving out those that are not finite.

    Args:
        contributions: The contributions of one window of all workers.
        absent: The workers that took no part in the window; `None` if all did.
        workers: The positions of the workers at the start of the window.
        bound: The maximal number of steps of the window.
        theta: The parameters, for their dtypes.
        pairs: The properties of the estimator.

    Returns:
        The gradient, the mean loss, the number of steps and diagnostics.
    """
    finite = contributions.finite
    count = finite.sum(dtype=jnp.int32)
    fine = finite if absent is None else finite | absent
    first = jnp.where(fine, fine.size, jnp.arange(fine.size, dtype=jnp.int32)).min()
    some = jnp.maximum(count, 1)
    divide = lambda g: g / some.astype(g.dtype)  # noqa: E731
    grad = jax.tree.map(divide, contributions.grad)
    loss = jnp.where(finite, contributions.loss, 0).sum() / some.astype(contributions.loss.dtype)
    loss = jnp.where(count > 0, loss, jnp.nan)

    each = jnp.where(finite, contributions.norm**2, 0)
    squares, number = each.sum(), some.astype(each.dtype)
    # The barrier keeps a GPU from updating the parameters in the kernel of this sum, which is slow
    # because a single block computes it.
    summed = jax.lax.optimization_barrier(contributions.grad)
    exact = squared_norm(jax.tree.map(divide, summed))
    square = exact.astype(squares.dtype)
    spread = squares - number * square
    ordered = number * (number - 1)
    variance = jnp.where(count > 1, jnp.maximum(spread, 0) / jnp.maximum(ordered, 1), jnp.inf)

    unused = bound.sequential - contributions.steps
    spent = Spent(bound, jnp.stack([unused.sum(dtype=unused.dtype), unused.min()]))
    info = Info(
        window_start=workers.start,
        steps=contributions.steps.sum(axis=0, dtype=jnp.int32),
        contribution_norm=jnp.where(finite, contributions.norm, jnp.nan),
        variance=variance,
        nonfinite=finite.size - fine.sum(dtype=jnp.int32),
        first_nonfinite=jnp.where(first < fine.size, first, -1),
        square=exact,
        sigma=jnp.full((), math.nan),
        **_diagnostics(contributions, workers, pairs, finite, number, each, squares, square),
    )
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grad, theta), loss, spent, info


def _diagnostics(
    contributions: Contributions,
    workers: Workers,
    pairs: Pairs,
    finite: Bool[Array, " workers"],
    number: Float[Array, ""],
    each: Float[Array, " workers"],
    squares: Float[Array, ""],
    square: Float[Array, ""],
) -> dict[str, Any]:
    """Return the numbers of `Info` that pairs give, all NaN if workers are not pairs.

    Args:
        contributions: The contributions of the workers.
        workers: The positions of the workers.
        pairs: The properties of the estimator.
        finite: The workers whose contribution is finite.
        number: The number of these workers, at least 1.
        each: The squared norm of each worker's contribution; zero if it is not finite.
        squares: The sum of `each`.
        square: The squared norm of the gradient estimate.
    """
    parts = len(pairs.shares)
    if contributions.odd is None:
        unknown = jnp.full((), math.nan, square.dtype)
        names = ("signal", "signal_weight", "power", "linear_signal", "even", "odd")
        return dict.fromkeys(names, unknown) | {"phase_power": jnp.full(parts, unknown)}
    # A product with a matrix is faster than sums over parts of the workers, and as exact.
    start, bounds = workers.start[None], np.asarray(pairs.bounds, np.int32)[:, None]
    here = ((start >= bounds[:-1]) & (start < bounds[1:])).astype(each.dtype)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    of_parts = product(here, each)
    shares = number * jnp.asarray(pairs.shares, each.dtype)
    ordered = number * (number - 1)
    if workers.group is None:
        informative = jnp.minimum(ordered, 1)
    elif pairs.number is None:
        informative = jnp.zeros_like(number)
    else:
        # Workers that share a noise are mostly at the same window, and contributions are larger at
        # some windows than at others. If all are zero, workers count equally.
        count = finite.astype(each.dtype)
        sizes = jnp.sqrt(of_parts / jnp.maximum(product(here, count), 1))
        largest = sizes.max()
        sizes = jnp.where(largest > 0, sizes / largest, 1)
        informative = _informative_share(workers.group, pairs.number, count * product(sizes, here))
    known = informative > 0
    excess = (number**2 * square - squares) / jnp.where(known, ordered * informative, 1)
    power = squares / number
    mean = jnp.where(finite, contributions.loss, 0).sum() / number
    deviation = jnp.where(finite, contributions.loss - mean, 0)
    return {
        "signal": jnp.where(known, excess, math.nan),
        "signal_weight": informative * ordered / max(float(finite.size) * (finite.size - 1), 1.0),
        "power": power,
        "linear_signal": power / (math.nan if pairs.gain is None else pairs.gain),
        "even": jnp.where(number > 1, (deviation**2).sum() / jnp.maximum(number - 1, 1), math.nan),
        "odd": (jnp.where(finite, contributions.odd, 0) ** 2).sum() / number,
        "phase_power": of_parts / shares,
    }


def _informative_share(
    group: Group, noise: Int[Array, " workers"], weight: Float[Array, " workers"]
) -> Float[Array, ""]:
    """Return the share of pairs of workers that have different noises.

    Contributions of workers that share a noise are orthogonal, so their products carry no
    information. Pairs count in proportion to the weights of both workers, which should be
    proportional to the sizes of their contributions.

    Args:
        group: The groups of workers that may share a noise.
        noise: The index of each worker's noise.
        weight: The weight of each worker.
    """
    missing = -noise.size % group.size
    noise, weights = (jnp.pad(x, (0, missing)).reshape(-1, group.size) for x in (noise, weight))
    products = weights[:, :, None] * weights[:, None, :]
    sharing = jnp.where(noise[:, :, None] == noise[:, None, :], products, 0).sum()
    every, own = weight.sum() ** 2, (weight**2).sum()
    share = (every - sharing) / jnp.where(every > own, every - own, 1)
    return jnp.where(share > SMALLEST_SHARE, share, 0)
