"""`Devices`: workers divided among the devices of a mesh."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from nres.execution import run_window
from nres.placement.base import Placement, WindowOutcome
from nres.workers import Carry, Contributions


class Devices(Placement):
    """Workers divided equally among devices, of this process or of several.

    Only gradients travel between the devices, in one sum. Results are the same on any number of
    devices, except for rounding, because the order of additions differs.

    Args:
        mesh: The devices, a `jax.sharding.Mesh` with any axes. The number of devices must divide
            the number of workers.

    Raises:
        TypeError: If `mesh` is not a mesh of at least one device.

    Example:
        ```python
        mesh = jax.make_mesh((jax.device_count(),), ("workers",))
        estimator = nres.NRES(
            system, workers=200, window=100, sigma=0.04, placement=nres.placement.Devices(mesh)
        )
        ```
    """

    def __init__(self, mesh: Any):
        if not isinstance(mesh, Mesh) or mesh.empty:
            raise TypeError(
                "mesh must be a jax.sharding.Mesh of at least one device, for example "
                f'jax.make_mesh((jax.device_count(),), ("workers",)); got {mesh!r}.'
            )
        # The compiler decides about these axes, as in the rest of the program.
        kinds = (AxisType.Auto,) * len(mesh.axis_names)
        self.mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
        self.multiple = mesh.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Devices) and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash(self.mesh)

    def __repr__(self) -> str:
        return f"Devices({self.mesh})"

    def can_trace(self, pool):
        return True

    def check(self, estimator):
        super().check(estimator)
        if not estimator.pool.traceable:
            raise TypeError(
                f"{type(estimator.pool).__name__} does not run in JAX, so its workers cannot be "
                "divided among devices: use nres.placement.Ray, which divides them among processes."
            )

    def begin(self, estimator, theta, workers):
        carries = jax.eval_shape(lambda: estimator.begin(theta, workers)) is not None
        across, second = P(self.mesh.axis_names), P(None, self.mesh.axis_names)

        def on_device(given, workers):
            estimator, theta = given
            carry = estimator.begin(theta, workers)
            return None if carry is None else (carry.noise, carry.pool)

        carry = self._map(
            on_device, (across,), (across, second) if carries else None, (estimator, theta), workers
        )
        return None if carry is None else Carry(*carry)

    def run(self, estimator, theta, update, workers, carry, length):
        estimator = estimator.at(update)

        def on_device(given, workers, carry, length):
            estimator, theta = given
            carry = None if carry is None else Carry(*carry)
            carry, part = run_window(estimator, theta, workers, carry, length)
            sums = part.grad, part.slope, part.observed
            if self.mesh.size > 1:  # a sum over one device would still interrupt a GPU
                sums = jax.lax.psum(sums, self.mesh.axis_names)
            grad, slope, observed = sums
            carry = None if carry is None else (carry.noise, carry.pool)
            return carry, grad, part.norm, part.loss, part.steps, part.odd, slope, observed

        across, second = P(self.mesh.axis_names), P(None, self.mesh.axis_names)
        of_carry = None if carry is None else (across, second)
        parts = None if carry is None else (carry.noise, carry.pool)
        parts, *contributions = self._map(
            on_device,
            (across, of_carry, across),
            (of_carry, P(), across, across, second, across, P(), P()),
            (estimator, theta),
            workers,
            parts,
            length,
        )
        carry = None if parts is None else Carry(*parts)
        return WindowOutcome(carry, Contributions(*contributions))

    def _map(
        self, function: Callable, specs: Any, out_specs: Any, replicated: Any, *arguments: Any
    ) -> Any:
        """Call `function(replicated, *arguments)` on each device, with its part of them."""
        arrays, static = eqx.partition(replicated, eqx.is_array)
        mapped = jax.shard_map(
            lambda arrays, *shares: function(eqx.combine(arrays, static), *shares),
            mesh=self.mesh,
            in_specs=(P(), *specs),
            out_specs=out_specs,
            check_vma=False,
        )
        return mapped(arrays, *arguments)

    def replicate(self, tree):
        sharding = NamedSharding(self.mesh, P())

        def copied(x):
            if isinstance(x, jax.Array):
                if x.sharding == sharding:
                    return x
                if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                    return jax.device_put(x, sharding)
            return jax.device_put(np.asarray(x), sharding)

        return jax.tree.map(copied, tree)

    def everywhere(self, array):
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, P()))
