"""`average`: from the workers' contributions to a gradient and its diagnostics."""

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
    of_parts = jnp.matmul(here, each, precision=jax.lax.Precision.HIGHEST)
    shares = number * jnp.asarray(pairs.shares, each.dtype)
    # Workers that share a noise say nothing about the gradient together: their contributions are
    # orthogonal. So the squared norm of the sum has the same excess, from fewer products.
    sharing = _sharing(workers.group, pairs.number, finite, number)
    informative = jnp.maximum(number**2 - sharing, 0)
    known = informative > 0
    excess = (number**2 * square - squares) / jnp.where(known, informative, 1)
    power = squares / number
    mean = jnp.where(finite, contributions.loss, 0).sum() / number
    deviation = jnp.where(finite, contributions.loss - mean, 0)
    return {
        "signal": jnp.where(known, excess, math.nan),
        "signal_weight": informative / max(float(finite.size) * (finite.size - 1), 1.0),
        "power": power,
        "linear_signal": power / (math.nan if pairs.gain is None else pairs.gain),
        "even": jnp.where(number > 1, (deviation**2).sum() / jnp.maximum(number - 1, 1), math.nan),
        "odd": (jnp.where(finite, contributions.odd, 0) ** 2).sum() / number,
        "phase_power": of_parts / shares,
    }


def _sharing(
    group: Group | None,
    noise: Int[Array, " workers"] | None,
    finite: Bool[Array, " workers"],
    number: Float[Array, ""],
) -> Float[Array, ""]:
    """Count the ordered pairs of workers that share a noise, each worker with itself included."""
    if group is None:
        return number
    if noise is None:
        return jnp.full_like(number, jnp.inf)
    missing = -noise.size % group.size
    of_groups = jnp.where(finite, noise, -1)  # a noise has no negative index
    of_groups = jnp.pad(of_groups, (0, missing), constant_values=-1).reshape(-1, group.size)
    same = (of_groups[:, :, None] == of_groups[:, None, :]) & (of_groups >= 0)[:, None, :]
    return same.sum(dtype=number.dtype)
