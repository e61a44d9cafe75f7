"""What estimators carry from call to call, and what they return."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.system import Theta, at_least_single


class Steps(NamedTuple):
    """Unroll steps spent."""

    total: int
    """All of them, over every member of every worker."""
    sequential: int
    """Those that had to follow one another, were all unrolls run in parallel."""


class Spent(eqx.Module):
    """Unroll steps as compiled code counts them: a bound, and how much of it was not needed.

    The bound is a Python int of any size; what was not needed is exact up to 2³¹ steps a call.
    """

    bound: Steps = eqx.field(static=True)
    unused: Int[Array, "2"]

    def steps(self) -> Steps:
        total, sequential = np.asarray(self.unused).tolist()
        return Steps(self.bound.total - total, self.bound.sequential - sequential)


class Workers(eqx.Module):
    """Where each worker is. All of a worker's randomness comes from its key."""

    key: Key[Array, "workers"]
    episode: Int[Array, "workers"]
    start: Int[Array, "workers"]
    """The step of the episode at which the next window starts."""

    @eqx.filter_jit
    def episode_keys(self) -> Key[Array, "workers"]:
        """The keys of the systems' own randomness, one an episode."""
        return jax.vmap(jax.random.fold_in)(self.key, self.episode)

    def noise_numbers(self, horizon: int, period: int) -> Int[Array, "workers"]:
        """Which of its noises each worker uses at `start`, with a new one every `period` steps."""
        return self.episode * -(-horizon // period) + self.start // period

    @eqx.filter_jit
    def advance(self, length: Int[Array, "workers"], horizon: int) -> "Workers":
        """Where the workers are after a window."""
        end = self.start + length
        finished = end >= horizon
        episode = self.episode + finished.astype(self.episode.dtype)
        return Workers(self.key, episode, jnp.where(finished, 0, end))


@functools.partial(jax.jit, static_argnums=1)
def worker_keys(key: Key[Array, ""], count: int) -> Key[Array, "workers"]:
    """A key for each of so many workers: the same for a worker, however many there are."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count, dtype=jnp.uint32))


class EstimatorState(eqx.Module):
    """Everything an estimator carries from one estimate to the next. A value: save it, copy it."""

    workers: Workers
    carry: PyTree
    """Unrolled states and noise."""
    update: Int[Array, ""]
    """How many estimates were made: what a schedule of sigma is a function of."""
    unlocked_total: Int[Array, "workers"]
    unlocked_sequential: Int[Array, ""]
    signature: Any = eqx.field(static=True)

    @property
    def unlock_steps(self) -> Steps:
        """The unroll steps that `init` spent to bring the workers to their starting points."""
        total = np.asarray(self.unlocked_total).sum(dtype=np.int64)
        return Steps(int(total), int(self.unlocked_sequential))


class Info(eqx.Module):
    """Diagnostics of one estimate: nothing here is needed for the next one."""

    window_start: Int[Array, "workers"]
    """The step of its episode at which each worker's window started."""
    steps: Int[Array, "workers"]
    """The number of steps that the unrolls of each worker took."""
    contribution_norm: Float[Array, "workers"]
    """The Euclidean norm of each worker's own gradient estimate; not a number if left out."""
    variance: Float[Array, ""]
    r"""Total variance $\operatorname{tr}\operatorname{Cov}$ of `grad`, estimated from the spread
    of the workers' contributions; infinite when fewer than two contribute."""
    nonfinite: Int[Array, ""]
    """How many workers were left out because their contribution was not finite."""
    first_nonfinite: Int[Array, ""]
    """The index of the first of them, or -1."""
    restarted: Int[Array, ""]
    """How many workers began anew because the machine that had them was lost (see `RayPool`)."""
    late: Int[Array, ""]
    """How many were not waited for, and will contribute to a later estimate (see `RayPool`)."""


class Estimate(eqx.Module):
    """A gradient estimate."""

    grad: Theta
    """The estimate itself, like `theta`."""
    loss: Float[Array, ""]
    """The mean loss of the unrolls, perturbed as they are, per step."""
    state: EstimatorState
    """What the next call of `estimate` needs."""
    spent: Spent
    """What `steps` is made of."""
    info: Info
    """Diagnostics."""

    @property
    def steps(self) -> Steps:
        """Unroll steps spent in this call, total and sequential, as Python ints."""
        return self.spent.steps()


class Contributions(eqx.Module):
    """What the workers of one window, or a block of them, contribute."""

    grad: Theta
    """Summed over the workers whose contribution is finite."""
    norm: Float[Array, "workers"]
    loss: Float[Array, "workers"]
    steps: Int[Array, "members workers"]
    late: Bool[Array, "workers"] | None = None
    """Which workers were not waited for, where that can be."""
    restarted: Bool[Array, "workers"] | None = None
    """Which workers had to begin anew, where that can be."""

    @property
    def finite(self) -> Bool[Array, "workers"]:
        return jnp.isfinite(self.norm) & jnp.isfinite(self.loss)


def squared_norm(tree: PyTree) -> Float[Array, ""]:
    """The squared Euclidean norm of a pytree of arrays."""
    leaves = jax.tree.leaves(tree)
    dtype = at_least_single(*[x.dtype for x in leaves])
    return functools.reduce(jnp.add, [jnp.sum(x.astype(dtype) ** 2) for x in leaves])
