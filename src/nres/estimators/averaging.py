"""From the workers' contributions to a gradient: `weigh` and `average`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from nres.estimators.values import Info, Spent, squared_norm
from nres.noise import where_worker
from nres.system import Theta, at_least_single
from nres.workers import Contributions, Steps


@eqx.filter_jit
def weigh(
    coefficient: Float[Array, " workers"],
    rows: PyTree,
    loss: Float[Array, " workers"],
    steps: Int[Array, "members workers"],
) -> Contributions:
    r"""Let each worker contribute $c_i r_i$: a coefficient times a row like `theta`.

    The sum is in single precision at least: half would overflow where the mean does not. Workers
    whose contribution is not finite are left out of it.

    **Arguments:**

    - `coefficient`: $c_i$, one number per worker.
    - `rows`: $r_i$, a pytree like `theta` with an axis of workers in front.
    - `loss`: the mean loss per step of each worker's unrolls, to be reported.
    - `steps`: the number of steps that each unroll took.
    """
    norm = jnp.abs(coefficient) * jnp.sqrt(jax.vmap(squared_norm)(rows)).astype(coefficient.dtype)
    result = Contributions(None, norm, loss, steps)
    coefficient = jnp.where(result.finite, coefficient, 0)

    def add(rows):
        rows = where_worker(result.finite, rows, jnp.zeros_like(rows))
        rows = rows.astype(at_least_single(rows.dtype))
        # Full precision: the matrix units' short float would cost three digits and save nothing.
        c = coefficient.astype(rows.dtype)
        return jnp.tensordot(c, rows, axes=1, precision=jax.lax.Precision.HIGHEST)

    return Contributions(jax.tree.map(add, rows), norm, loss, steps)


@eqx.filter_jit
def average(
    contributions: Contributions,
    absent: Bool[Array, " workers"] | None,
    start: Int[Array, " workers"],
    bound: Steps,
    theta: Theta,
) -> tuple[Theta, Array, Spent, Info]:
    """Average the workers' contributions, leaving out those that are not finite.

    **Arguments:**

    - `contributions`: of one window of all workers.
    - `absent`: workers that took no part in it, if there are any.
    - `start`: the step of its episode at which each worker's window started.
    - `bound`: the largest number of steps that the window can have taken.
    - `theta`: the parameters, for their dtypes.

    **Returns:** gradient, mean loss, steps spent and diagnostics.
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
