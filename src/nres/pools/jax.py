"""`JaxPool`: a batch of unrolls of a `System`, as one vectorised scan."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from nres.checks import whole_number
from nres.jaxprs import operations
from nres.lengths import Lengths
from nres.measured import has_measured
from nres.noise.factors import has_perturbed, lanes_of, mapped_axes, unshared
from nres.pools.base import Pool, TraceablePool, Window
from nres.pools.lazy import lazily
from nres.system import System, at_least_single, check_system, horizon_of, selected


class _Lane(eqx.Module):
    """The state of one unroll, or of a batch of them."""

    state: PyTree
    ended: Array | None  # None when the system never ends early


class JaxPool(eqx.Module, TraceablePool):
    """A batch of unrolls of a `System`: `vmap` over members and workers, `scan` over steps.

    Args:
        system: The `nres.System` to unroll.
        unroll: The number of steps compiled into one iteration of the scan. More is faster for
            cheap steps, especially on GPUs, and takes longer to compile. By default, it is chosen
            from the backend and the size of the step.

    Raises:
        TypeError: If `system` is not an `nres.System`.

    Example:
        ```python
        pool = nres.JaxPool(nres.systems.Lorenz(), unroll=8)
        estimator = nres.NRES(pool, workers=200, window=100, sigma=0.04)
        ```
    """

    system: System
    unroll: int | None = eqx.field(static=True)
    lazy = True

    def __init__(self, system: Any, *, unroll: int | None = None):
        if not isinstance(system, System):
            raise TypeError(f"JaxPool needs an nres.System, got {type(system).__name__}.")
        horizon_of(system)
        # Traced numbers cannot index NumPy arrays.
        self.system = jax.tree.map(
            lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, system
        )
        self.unroll = None if unroll is None else whole_number("unroll", unroll)

    @property
    def horizon(self) -> int:  # type: ignore[override]
        return horizon_of(self.system)

    @property
    def lengths(self) -> Lengths | None:  # type: ignore[override]
        return self.system.lengths

    @property
    def initial_theta(self) -> Any:  # type: ignore[override]
        return self.system.initial_theta

    @property
    def film(self) -> Any:  # type: ignore[override]
        return self.system.film

    @property
    def metrics(self) -> Any:  # type: ignore[override]
        return self.system.metrics

    @property
    def metrics_steps(self) -> int | None:  # type: ignore[override]
        return self.system.metrics_steps

    def begin(
        self,
        state: _Lane | None,
        thetas: PyTree,
        keys: Key[Array, " workers"],
        start: Int[Array, " workers"],
    ) -> _Lane:
        members, _ = lanes_of(thetas)
        of_workers, of_members = (mapped_axes(thetas, over) for over in (False, True))
        over_workers = jax.vmap(self._begin_one, in_axes=(0, of_workers, 0, 0))
        over_members = jax.vmap(
            over_workers, in_axes=(0, of_members, None, None), axis_size=members
        )
        return over_members(state, thetas, keys, start)

    def run(
        self,
        state: _Lane,
        thetas: PyTree,
        keys: Key[Array, " workers"],
        start: Int[Array, " workers"],
        window: int,
        length: Int[Array, " workers"] | None = None,
    ) -> Window:
        lanes = math.prod(lanes_of(thetas))
        run = functools.partial(self._run_one, window=window, lanes=lanes)
        workers, members = (mapped_axes(thetas, over) for over in (False, True))
        # Members outside, workers inside, so that the long axis is contiguous.
        over_workers = jax.vmap(run, in_axes=(0, workers, 0, 0, 0))
        over_members = jax.vmap(over_workers, in_axes=(0, members, None, None, None))
        return Window(*over_members(state, thetas, keys, start, length))

    def check(self, theta: PyTree) -> None:
        check_system(self.system, theta)

    def programs(self, theta: PyTree) -> list[Any]:
        system, key = self.system, jax.random.key(0)
        state = jax.eval_shape(system.init, theta, key)
        return [
            jax.make_jaxpr(system.init)(theta, key),
            jax.make_jaxpr(system.step)(state, theta, np.int32(0), key),
        ]

    def never_ends(self, states: PyTree) -> bool:
        is_lane = lambda x: isinstance(x, _Lane)  # noqa: E731
        lanes = list(filter(is_lane, jax.tree.leaves(states, is_leaf=is_lane)))
        return bool(lanes) and all(lane.ended is None for lane in lanes)

    def _begin_one(self, lane, theta, key, start):
        system, theta = self.system, unshared(theta)
        if lane is not None:
            theta = _shield(start == 0, theta)
        init, step = _methods(system, theta)
        fresh = jax.tree.map(jnp.asarray, init(theta, jax.random.fold_in(key, 0)))
        ends = len(jax.eval_shape(step, fresh, theta, start, key)) == 3
        fresh = _Lane(fresh, jnp.zeros((), bool) if ends else None)
        if lane is None:
            return fresh
        ended = None if fresh.ended is None else lane.ended & (start != 0)
        return _Lane((system.begun or selected)(start == 0, fresh.state, lane.state), ended)

    def _run_one(self, lane, theta, key, start, length, *, window: int, lanes: int):
        """Run one lane; return the fields of a `Window` without the axes of members and workers."""
        system, theta = self.system, unshared(theta)
        _, step = _methods(system, theta)
        jaxpr, step_shape = jax.make_jaxpr(step, return_shape=True)(lane.state, theta, start, key)
        ends = lane.ended is not None

        def body(carry, i):
            lane, total, taken = carry
            # Steps beyond the horizon are masked, and systems must not see them.
            t = start + i if length is None else jnp.minimum(start + i, self.horizon - 1)
            masks = [~lane.ended] if ends else []
            masks += [] if length is None else [i < length]
            active = functools.reduce(jnp.logical_and, masks) if masks else None
            state, th = _shield(active, (lane.state, theta))
            state, loss, *end = step(state, th, t, jax.random.fold_in(key, t + 1))
            # A state may contain Python numbers; `check_system` has checked the rest.
            state, end = jax.tree.map(jnp.asarray, (state, end))
            new = _Lane(state, end[0] if ends else None)
            if ends:
                loss = jnp.where(lane.ended, jnp.asarray(system.absorbing_loss, loss.dtype), loss)
            if length is not None:
                loss = jnp.where(i < length, loss, 0)
            if active is not None:
                new = jax.tree.map(lambda n, o: jnp.where(active, n, o), new, lane)
                taken = taken + active.astype(taken.dtype)
            return (new, total + loss.astype(total.dtype), taken), None

        total = jnp.zeros((), at_least_single(step_shape[1].dtype))
        taken = jnp.zeros((), jnp.int32)
        first = lane.state
        unroll = self.unroll or default_unroll(jaxpr, lanes, window)
        steps = jnp.arange(window, dtype=start.dtype)
        scan = _scan_packed if _packs(lane.state, total) else jax.lax.scan
        (lane, total, taken), _ = scan(body, (lane, total, taken), steps, unroll=unroll)
        if length is None and not ends:
            taken = jnp.full_like(taken, window)
        observed = None
        if system.observed_between is not None and has_measured(theta):
            observed = system.observed_between(theta, first, lane.state)
        return lane, total, taken, observed


def _methods(system: System, theta: PyTree) -> tuple[Any, Any]:
    """Return `init` and `step` of a system, for parameters of this form."""
    if not has_perturbed(theta):
        return system.init, system.step
    return lazily(system.init), lazily(system.step)


def _shield(active: Array | None, tree: PyTree) -> PyTree:
    """Return the same values, with zero derivatives unless active; `None` means always active.

    The result of a masked step is not used, but its derivative may still be infinite, and zero
    times infinity is NaN.
    """
    if active is None:
        return tree
    return jax.tree.map(lambda x: _cut(active, x) if eqx.is_inexact_array(x) else x, tree)


# Not `jnp.where(active, x, stop_gradient(x))`: backpropagation would store a copy of it per step.
@jax.custom_jvp
def _cut(active, x):
    return x


@_cut.defjvp
def _cut_jvp(primals, tangents):
    active, x = primals
    return x, jnp.where(active, tangents[1], jnp.zeros_like(tangents[1]))


def _packs(state: PyTree, total: Array) -> bool:
    """Return true if state and loss are a few scalars, which are carried as one vector on CPUs."""
    leaves = [*jax.tree.leaves(state), total]
    alike = {(leaf.shape, leaf.dtype) for leaf in leaves} == {((), total.dtype)}
    return jax.default_backend() == "cpu" and alike and 1 < len(leaves) <= 16


def _scan_packed(body, carry, steps, unroll):
    """Run `jax.lax.scan` with fewer arrays: on a CPU each costs one kernel per step."""
    structure = jax.tree.structure((carry[0].state, carry[1]))

    def unpack(packed):
        vector, ended, taken = packed
        state, total = jax.tree.unflatten(structure, list(vector))
        return _Lane(state, ended), total, taken

    def pack(lane, total, taken):
        return jnp.stack(jax.tree.leaves((lane.state, total))), lane.ended, taken

    def packed_body(packed, i):
        carry, _ = body(unpack(packed), i)
        return pack(*carry), None

    packed, _ = jax.lax.scan(packed_body, pack(*carry), steps, unroll=unroll)
    return unpack(packed), None


def default_unroll(step: Any, lanes: int, window: int) -> int:
    """Choose the number of steps to compile into one iteration of the scan.

    The choice for steps without matrix products is based on measurements of Lorenz, whose step has
    27 operations. A CPU gains little from more than two steps, and loses by them if a step has 60
    operations or more. On a GPU, a long iteration is one kernel instead of many: its length is
    limited by the compilation time, and with very many lanes by the number of registers. Products
    are kernels of their own, so steps with products gain only what starting an iteration costs.

    Args:
        step: The jaxpr of one step.
        lanes: The number of unrolls in the batch.
        window: The number of steps of a window. A divisor of it is preferred if one is near: a
            remainder would be compiled separately, and doubles the memory of backpropagation.
    """
    names = list(operations(step))
    if jax.default_backend() == "cpu":
        best = 2 if len(names) <= 50 else 1
    else:
        most = (100 if lanes < 2**19 else 25) if _OWN_KERNELS.isdisjoint(names) else 4
        best = max(1, min(most, 3000 // max(1, len(names))))
    near = [n for n in range(-(-best // 2), best + 1) if window % n == 0]
    return near[-1] if near else best


_OWN_KERNELS = frozenset({"dot_general", "conv_general_dilated", "pallas_call"})


def as_pool(given: Any) -> Pool:
    """Wrap a `System` in a `JaxPool`; return a pool unchanged."""
    if isinstance(given, System):
        return JaxPool(given)
    if isinstance(given, Pool):
        return given
    if isinstance(given, type):
        name = given.__name__
        raise TypeError(f"expected a system or pool, got the class {name}: write {name}(...).")
    raise TypeError(
        f"expected an nres.System or an nres.Pool, got {type(given).__name__}: subclass one of "
        "them."
    )
