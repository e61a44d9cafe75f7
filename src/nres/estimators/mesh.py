"""Workers on several devices: each has its share of them, and gradients are added up."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PyTree

from nres.estimators.blocks import Carry
from nres.estimators.values import Contributions, Workers


def begin_on(mesh: Mesh, begin: Callable, replicated: PyTree, workers: Workers) -> Carry | None:
    """`begin(replicated, workers)`, by each device for its share of the workers."""
    arrays, static = eqx.partition(replicated, eqx.is_array)

    def on_device(arrays, workers):
        carry = begin(eqx.combine(arrays, static), workers)
        return None if carry is None else (carry.noise, carry.pool)

    across = P(mesh.axis_names)
    shape = jax.eval_shape(lambda: begin(replicated, workers))
    specs = None if shape is None else (across, P(None, mesh.axis_names))
    mapped = jax.shard_map(
        on_device, mesh=mesh, in_specs=(P(), across), out_specs=specs, check_vma=False
    )
    carry = mapped(arrays, workers)
    return None if carry is None else Carry(*carry)


def run_on(
    mesh: Mesh,
    run: Callable[..., tuple[Carry | None, Contributions]],
    replicated: PyTree,
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, "workers"] | None,
) -> tuple[Carry | None, Contributions]:
    """`run(replicated, workers, carry, length)`, by each device for its share of the workers.

    What is `replicated` is the same on all devices, and so is the gradient, which is added up over
    them: that is all they tell each other.
    """
    arrays, static = eqx.partition(replicated, eqx.is_array)

    def on_device(arrays, workers, carry, length):
        carry = None if carry is None else Carry(*carry)
        carry, part = run(eqx.combine(arrays, static), workers, carry, length)
        grad = jax.lax.psum(part.grad, mesh.axis_names)
        carry = None if carry is None else (carry.noise, carry.pool)
        return carry, grad, part.norm, part.loss, part.steps

    across, second = P(mesh.axis_names), P(None, mesh.axis_names)
    of_carry = None if carry is None else (across, second)
    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(P(), across, of_carry, across),
        out_specs=(of_carry, P(), across, across, second),
        check_vma=False,
    )
    parts = None if carry is None else (carry.noise, carry.pool)
    parts, *contributions = mapped(arrays, workers, parts, length)
    return None if parts is None else Carry(*parts), Contributions(*contributions)


def replicated(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Values that every process knows, as arrays that every device has."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), NamedSharding(mesh, P())), tree)


def on_all(mesh: Mesh | None, array: Array) -> Array:
    """An array that every device has, so that any process can read it."""
    return (
        array if mesh is None else jax.lax.with_sharding_constraint(array, NamedSharding(mesh, P()))
    )
