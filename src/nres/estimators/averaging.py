"""`average`: from the workers' contributions to a gradient and its diagnostics."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from nres.estimators.values import Info, Spent
from nres.system import Theta, squared_norm
from nres.workers import Contributions, Steps


@eqx.filter_jit
def average(
    contributions: Contributions,
    absent: Bool[Array, " workers"] | None,
    start: Int[Array, " workers"],
    bound: Steps,
    theta: Theta,
) -> tuple[Theta, Array, Spent, Info]:
    """Average the workers' contributions, leaving out those that are not finite.

    Args:
        contributions: The contributions of one window of all workers.
        absent: The workers that took no part in the window; `None` if all did.
        start: The step of the episode at which each worker's window started.
        bound: The maximal number of steps of the window.
        theta: The parameters, for their dtypes.

    Returns:
        The gradient, the mean loss, the number of steps and diagnostics.
    """
    finite = contributions.finite
    count = finite.sum(dtype=jnp.int32)
    fine = finite if absent is None else finite | absent
    first = jnp.where(fine, fine.size, jnp.arange(fine.size, dtype=jnp.int32)).min()
    some = jnp.maximum(count, 1)
    grad = jax.tree.map(lambda g: g / some.astype(g.dtype), contributions.grad)
    loss = jnp.where(finite, contributions.loss, 0).sum() / some.astype(contributions.loss.dtype)
    loss = jnp.where(count > 0, loss, jnp.nan)

    squares = jnp.where(finite, contributions.norm**2, 0).sum()
    number = some.astype(squares.dtype)
    spread = squares - number * squared_norm(grad).astype(squares.dtype)
    pairs = number * (number - 1)
    variance = jnp.where(count > 1, jnp.maximum(spread, 0) / jnp.maximum(pairs, 1), jnp.inf)

    unused = bound.sequential - contributions.steps
    spent = Spent(bound, jnp.stack([unused.sum(dtype=unused.dtype), unused.min()]))
    info = Info(
        window_start=start,
        steps=contributions.steps.sum(axis=0, dtype=jnp.int32),
        contribution_norm=jnp.where(finite, contributions.norm, jnp.nan),
        variance=variance,
        nonfinite=finite.size - fine.sum(dtype=jnp.int32),
        first_nonfinite=jnp.where(first < fine.size, first, -1),
    )
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grad, theta), loss, spent, info
