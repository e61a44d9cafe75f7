r"""Backpropagation through time, whole and truncated."""

import functools
import math
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp

from nres.checks import whole_number
from nres.estimators.ad import Differentiating, Options, for_lanes
from nres.estimators.averaging import weigh
from nres.estimators.blocks import Carry
from nres.pools.base import Pool
from nres.pools.jax import as_pool
from nres.system import System, Theta, at_least_single, horizon_of


class Narrowing(System):
    """A system whose parameters come in a wider dtype than it is written for."""

    system: System
    like: Theta
    horizon: int = eqx.field(static=True)
    absorbing_loss: float = eqx.field(static=True)

    def __init__(self, system: System, like: Theta):
        self.system = system
        self.like = jax.eval_shape(lambda: like)
        self.horizon = system.horizon
        self.absorbing_loss = system.absorbing_loss

    def init(self, theta, key):
        return self.system.init(self._narrow(theta), key)

    def step(self, state, theta, t, key):
        return self.system.step(state, self._narrow(theta), t, key)

    def _narrow(self, theta):
        return jax.tree.map(lambda x, like: x.astype(like.dtype), theta, self.like)


class Backpropagation(Differentiating):
    """The common part of `BPTT` and `TBPTT`: reverse mode through one window."""

    checkpoint_every: int = eqx.field(static=True)

    def __init__(
        self,
        system: System | Pool,
        *,
        workers: int,
        window: int,
        checkpoint_every: int | None,
        **options: Unpack[Options],
    ):
        super().__init__(system, workers=workers, window=window, **options)
        every = self.window if checkpoint_every is None else checkpoint_every
        self.checkpoint_every = whole_number("checkpoint_every", every)
        if self.checkpoint_every > self.window:
            raise ValueError(
                f"checkpoint_every must be from 1 to the window, {self.window} steps; got "
                f"{checkpoint_every}."
            )

    def _begin(self, theta, workers):
        if self.window == self.horizon:
            return None
        thetas = for_lanes(theta, workers.start.size)
        state = self.pool.begin(None, thetas, workers.episode_keys(), workers.start)
        return Carry(None, state)

    def _run(self, theta, update, workers, carry, length):
        state = None if carry is None else carry.pool

        pool = eqx.tree_at(lambda p: p.system, self.pool, Narrowing(self.pool.system, theta))

        def loss_of_each(thetas):
            loss, *rest = self._unroll(pool, state, thetas, workers, length)
            return loss.sum(), (loss, *rest)

        # In single precision at least, as are the sums that make the gradient.
        wide = jax.tree.map(lambda x: x.astype(at_least_single(x.dtype)), theta)
        thetas = for_lanes(wide, workers.start.size)
        rows, (loss, steps, state) = jax.grad(loss_of_each, has_aux=True)(thetas)
        scale = self.windows / self.horizon
        coefficient = jnp.full_like(loss[0], scale)
        rows = jax.tree.map(lambda x: x[0], rows)
        contributions = weigh(coefficient, rows, loss[0] * scale, steps)
        return None if carry is None else Carry(None, state), contributions

    def _unroll(self, pool, state, thetas, workers, length):
        """Loss, steps and state of a window, in segments of which only the starts are kept."""
        keys, start = workers.episode_keys(), workers.start
        size, window = self.checkpoint_every, self.window
        state = pool.begin(state, thetas, keys, start)
        if size == window:
            result = pool.run(state, thetas, keys, start, window, length)
            return result.loss, result.steps, result.state
        if length is None and window % size:
            length = jnp.full_like(start, window)

        @functools.partial(jax.checkpoint, prevent_cse=False)  # no need to, within a scan
        def segment(state, first):
            left = None if length is None else jnp.clip(length - first, 0, size)
            result = pool.run(state, thetas, keys, start + first, size, left)
            return result.state, (result.loss, result.steps)

        firsts = jnp.arange(0, window, size, dtype=start.dtype)
        state, (loss, steps) = jax.lax.scan(segment, state, firsts)
        return loss.sum(axis=0), steps.sum(axis=0, dtype=steps.dtype), state


class BPTT(Backpropagation):
    r"""Backpropagation through time: the exact gradient of $\frac1T \sum_t L_t$, T steps a worker.

    Exact along the path taken: what a jump of the loss does, or a change of the step at which an
    episode ends, no derivative sees. And useless where the loss is chaotic. Memory
    is kept in check by recomputation: the states between segments of about √T steps are kept,
    those within a segment are computed again on the way back. So memory grows with √T, at the
    cost of one more forward unroll.

    ```python
    estimator = nres.BPTT(system)
    estimate = estimator.estimate(theta, estimator.init(theta, jax.random.key(0)))
    ```

    **Arguments:**

    - `system`: a `nres.System` whose `init` and `step` can be differentiated.
    - `workers`: over how many random episodes to average.
    - `checkpoint_every`: the length of a segment, about √T by default; the horizon switches
        recomputation off.
    - `nonfinite`: what to do about a worker whose loss or gradient is not finite, an exploding
        gradient for example: `"skip"` it, averaging over the others (`estimate.info.nonfinite`
        counts), or `"raise"` `nres.NonFiniteError`.

    Steps are counted forward: the way back is not an unroll step.

    **Reference:** Rumelhart et al., *Learning internal representations by error propagation*,
    1985; Griewank and Walther, *Revolve*, 2000, for the recomputation.
    """

    def __init__(
        self,
        system: System | Pool,
        *,
        workers: int = 1,
        checkpoint_every: int | None = None,
        **options: Unpack[Options],
    ):
        pool = as_pool(system)
        horizon = horizon_of(pool)
        if checkpoint_every is None:
            checkpoint_every = even_segment(horizon)
        super().__init__(
            pool,
            workers=workers,
            window=horizon,
            checkpoint_every=checkpoint_every,
            **options,
        )


class TBPTT(Backpropagation):
    """Truncated backpropagation through time: the gradient within each window alone.

    The state is carried from window to window as a constant, so the influence of `theta` before
    the window's start is not seen: biased, like `TES`, whose limit for small noise it is.

    ```python
    estimator = nres.TBPTT(system, window=100, workers=200)
    ```

    **Arguments:** as for `BPTT`, and

    - `window`: W, the steps each worker takes for one estimate, and the reach of the gradient.
    - `workers`: N, how many unrolls sit at independent steps of their episodes.
    - `checkpoint_every`: by default nothing is recomputed.

    **Reference:** Williams and Peng, *An efficient gradient-based algorithm for on-line training
    of recurrent network trajectories*, 1990.
    """

    def __init__(
        self,
        system: System | Pool,
        *,
        window: int,
        workers: int,
        checkpoint_every: int | None = None,
        **options: Unpack[Options],
    ):
        super().__init__(
            system, workers=workers, window=window, checkpoint_every=checkpoint_every, **options
        )


def even_segment(window: int) -> int:
    """The length of about √W steps that wastes the fewest masked ones: a divisor if one is near."""
    root = math.isqrt(window)
    near = range(max(1, root // 2), min(window, 2 * root) + 1)
    return min(near, key=lambda size: (-window % size, abs(size - root)))
