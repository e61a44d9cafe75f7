"""Workers in blocks: so that memory for perturbed parameters does not grow with their number."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from nres.estimators.values import Contributions, Workers
from nres.noise import Noise

# Perturbed parameters are formed for so many numbers at a time: 32 MB in single precision on an
# accelerator, which wants to be filled, and less on a CPU.
BLOCK_ELEMENTS = {"cpu": 2**20, "gpu": 2**23, "tpu": 2**23}


def block_size(size: int) -> int:
    """How many workers with `size` parameters each make a block."""
    return max(1, BLOCK_ELEMENTS[jax.default_backend()] // size)


class Carry(eqx.Module):
    """What workers carry from window to window."""

    noise: Noise | None
    """The noise or direction of each worker."""
    pool: PyTree
    """States, and what goes along with them, with axes `(members, workers)` in front."""


def over_blocks(
    run: Callable[..., tuple[Carry | None, Contributions]],
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, "workers"] | None,
    count: int,
    size: int,
) -> tuple[Carry | None, Contributions]:
    """Run one block of workers after another, so that only a block's parameters exist at a time.

    Carried arrays are written in place. Results do not depend on the size of a block, but for
    the order in which contributions are added.

    **Arguments:**

    - `run`: one window of some workers, `run(workers, carry, length)`.
    - `workers`, `carry`, `length`: of all workers.
    - `count`: the number of workers.
    - `size`: d, the number of parameters.
    """
    block = block_size(size)
    if block >= count:
        return run(workers, carry, length)

    def take(tree, start, size, axis=0):
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis), tree)

    def put(tree, part, start, axis=0):
        return jax.tree.map(
            lambda x, p: jax.lax.dynamic_update_slice_in_dim(x, p, start, axis), tree, part
        )

    def one_block(start, size, carry):
        if carry is not None:
            carry = Carry(take(carry.noise, start, size), take(carry.pool, start, size, axis=1))
        return run(take(workers, start, size), carry, take(length, start, size))

    def accumulate(start, size, loop):
        carry, total = loop
        part_carry, part = one_block(start, size, carry)
        if carry is not None:
            carry = Carry(
                put(carry.noise, part_carry.noise, start),
                put(carry.pool, part_carry.pool, start, axis=1),
            )
        total = Contributions(
            jax.tree.map(jnp.add, total.grad, part.grad),
            put(total.norm, part.norm, start),
            put(total.loss, part.loss, start),
            put(total.steps, part.steps, start, axis=1),
        )
        return carry, total

    part = jax.eval_shape(lambda: one_block(0, block, carry)[1])
    empty = Contributions(
        jax.tree.map(lambda g: jnp.zeros(g.shape, g.dtype), part.grad),
        jnp.zeros(count, part.norm.dtype),
        jnp.zeros(count, part.loss.dtype),
        jnp.zeros((part.steps.shape[0], count), part.steps.dtype),
    )
    whole, rest = divmod(count, block)
    loop = jax.lax.fori_loop(
        0, whole, lambda i, loop: accumulate(i * block, block, loop), (carry, empty)
    )
    return accumulate(whole * block, rest, loop) if rest else loop
