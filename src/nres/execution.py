"""The one module that decides what JAX compiles and what Python loops over.

A pool, or an estimator on it, is `traceable` if JAX can trace its windows. Then a whole
computation over windows becomes one compiled function. Otherwise Python loops over the windows,
and only the arithmetic between them is compiled.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.measured import learned, measured
from nres.noise import Noise
from nres.noise.factors import is_form, moved_by, share
from nres.noise.law import for_workers
from nres.pools.base import Pool
from nres.workers import Carry, Contributions, Response, Workers, summed

Chosen = TypeVar("Chosen")
Loop = TypeVar("Loop")

# The number of perturbed parameters that exist at one time: 32 MB in single precision on an
# accelerator, which is slow unless it is filled, and less on a CPU.
BLOCK_ELEMENTS = {"cpu": 2**20, "gpu": 2**23, "tpu": 2**23}
# The same for noise of low rank, if unrolls share the unperturbed matrices: every block reads these
# again, so blocks must be large.
SHARED_BLOCK_ELEMENTS = {"cpu": 2**23, "gpu": 2**28, "tpu": 2**28}


@runtime_checkable
class Traceable(Protocol):
    """A pool or an estimator, which tells if JAX can trace it."""

    @property
    def traceable(self) -> bool: ...


@runtime_checkable
class Runner(Protocol):
    """The part of an estimator that runs its windows."""

    @property
    def pool(self) -> Pool: ...
    @property
    def horizon(self) -> int: ...
    @property
    def window(self) -> int: ...

    def block_size(self, theta: Any) -> int: ...

    def run(
        self, theta: Any, workers: Workers, carry: Carry | None, length: Any
    ) -> tuple[Carry | None, Response]: ...


def choose(what: Traceable, compiled: Chosen, looped: Chosen) -> Chosen:
    """Return the first alternative if JAX can trace `what`, else the second."""
    return compiled if what.traceable else looped


def compiled(function: Callable) -> Callable:
    """Compile a function if JAX can trace its first argument, a pool or an estimator."""
    with_jit = eqx.filter_jit(function)

    @functools.wraps(function)
    def call(what: Traceable, *arguments: Any) -> Any:
        return choose(what, with_jit, function)(what, *arguments)

    return call


def repeat(
    what: Traceable, count: int | Int[Array, ""], body: Callable[[Any, Loop], Loop], loop: Loop
) -> Loop:
    """Compute `loop = body(i, loop)` for i from 0 to `count - 1`, like `jax.lax.fori_loop`."""
    if what.traceable:
        return jax.lax.fori_loop(0, count, body, loop)
    for i in range(int(count)):
        loop = body(i, loop)
    return loop


@compiled
def run_episodes(
    pool: Pool,
    theta: PyTree,
    keys: Key[Array, " episodes"],
    smoothing: tuple[Noise, Key[Array, " episodes"], PyTree] | None = None,
    length: int | None = None,
) -> tuple[Float[Array, " episodes"], Int[Array, " episodes"]]:
    """Run whole episodes at `theta`, or at parameters perturbed around it.

    Args:
        pool: The pool that runs the episodes.
        theta: The parameters.
        keys: One key per episode.
        smoothing: The distribution, keys and sigma of the perturbations; `None` for none.
        length: The number of steps of every episode; by default the pool's own.

    Returns:
        The mean loss per step of each episode, and the number of steps that it took.
    """
    count = keys.shape[0]
    start = jnp.zeros(count, jnp.int32)
    thetas = share(theta, count)
    if smoothing is not None:
        noise, noise_keys, sigma = smoothing
        drawn = noise.draw(noise_keys, start, for_workers(sigma, count), learned(theta))
        moved = jax.tree.map(moved_by, learned(theta), drawn)
        thetas = eqx.combine(moved, measured(thetas), is_leaf=is_form)
    if length is not None or pool.lengths is None:
        length = pool.horizon if length is None else length
        result = pool.advance_arrays(None, thetas, keys, start, length)
        return result.loss[0] / length, result.steps[0]
    ends = jnp.asarray(ends_of(pool, keys, jnp.zeros(count, bool), pool.horizon))
    result = pool.advance_arrays(None, thetas, keys, start, pool.horizon, ends)
    return result.loss[0] / pool.lengths.mean(), result.steps[0]


def needed_lengths(runner: Runner, length: Int[Array, " workers"]) -> Int[Array, " workers"] | None:
    """Return the lengths for `Runner.run`: `None` if all windows of compiled code are equal."""
    return None if runner.pool.traceable and windows_are_whole(runner) else length


def windows_are_whole(runner: Runner) -> bool:
    """Return true if every window has as many steps as any other."""
    return runner.pool.lengths is None and runner.horizon % runner.window == 0


def ends_of(
    pool: Pool, keys: Key[Array, " workers"], first: Bool[Array, " workers"], window: int
) -> int | Int[Array, " workers"]:
    """Return the length of each worker's episode, or the length of all.

    Args:
        pool: The pool.
        keys: The keys of the episodes.
        first: The workers that begin on the way through this episode.
        window: The number of steps of a window.
    """
    if pool.lengths is None:
        return pool.horizon
    draw = functools.partial(pool.lengths.draw, window=window)
    return jax.vmap(draw)(keys, first)


def state_shapes(pool: Pool, theta: PyTree) -> PyTree:
    """Return the shapes in one unroll's state, or `None` if only running it would show them."""
    if not pool.traceable:
        return None
    thetas = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, 1, *x.shape), x.dtype), theta)
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    start = jax.ShapeDtypeStruct((1,), jnp.int32)
    return jax.eval_shape(
        lambda thetas, key, start: pool.advance_arrays(None, thetas, key, start, 0).state,
        thetas,
        key,
        start,
    )


def block_size(size: int, *, shared: bool = False) -> int:
    """Return the number of workers per block.

    Args:
        size: The number of elements that each worker has of its own.
        shared: True if these are the factors of perturbations of matrices that workers share.
    """
    elements = SHARED_BLOCK_ELEMENTS if shared else BLOCK_ELEMENTS
    return max(1, elements[jax.default_backend()] // size)


def run_at_once(
    runner: Runner,
    theta: Any,
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, " workers"] | None,
) -> tuple[Carry | None, Contributions]:
    """Run one window of some workers in one piece, and add up their contributions."""
    carry, response = runner.run(theta, workers, carry, length)
    return carry, summed(response)


def run_window(
    runner: Runner,
    theta: Any,
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, " workers"] | None,
) -> tuple[Carry | None, Contributions]:
    """Run one window of workers that are all on this device.

    If JAX can trace the window, blocks of workers run one after another, so that the perturbed
    parameters of only one block exist at a time. Carried arrays are updated in place. Results
    depend on the block size only through the order in which contributions are added.
    """
    count, block = workers.start.size, runner.block_size(theta)
    if not runner.pool.traceable or block >= count:
        return run_at_once(runner, theta, workers, carry, length)

    def take(tree, start, size, axis=0):
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis), tree)

    def put(tree, part, start, axis=0):
        return jax.tree.map(
            lambda x, p: jax.lax.dynamic_update_slice_in_dim(x, p, start, axis), tree, part
        )

    def one_block(start, size, carry):
        if carry is not None:
            carry = Carry(take(carry.noise, start, size), take(carry.pool, start, size, axis=1))
        return run_at_once(
            runner, theta, take(workers, start, size), carry, take(length, start, size)
        )

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
            put(total.odd, part.odd, start),
            *jax.tree.map(jnp.add, (total.slope, total.observed), (part.slope, part.observed)),
        )
        return carry, total

    part = jax.eval_shape(lambda: one_block(0, block, carry)[1])
    empty = Contributions(
        jax.tree.map(lambda g: jnp.zeros(g.shape, g.dtype), part.grad),
        jnp.zeros(count, part.norm.dtype),
        jnp.zeros(count, part.loss.dtype),
        jnp.zeros((part.steps.shape[0], count), part.steps.dtype),
        jax.tree.map(lambda x: jnp.zeros(count, x.dtype), part.odd),
        *jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (part.slope, part.observed)),
    )
    whole, rest = divmod(count, block)
    loop = jax.lax.fori_loop(
        0, whole, lambda i, loop: accumulate(i * block, block, loop), (carry, empty)
    )
    return accumulate(whole * block, rest, loop) if rest else loop
