r"""Backpropagation through time, full and truncated."""

import abc
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp

from nres.checks import whole_number
from nres.estimators.ad import Differentiating, for_lanes, run_widened, widened
from nres.estimators.base import LOCAL
from nres.placement import Placement
from nres.pools.base import Pool
from nres.system import System
from nres.workers import EVEN, Carry, Response


class Backpropagation(Differentiating):
    """Base class of `BPTT` and `TBPTT`: reverse mode through one window."""

    checkpoint_every: int | None = eqx.field(static=True)

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        checkpoint_every: int | None = None,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
    ):
        super().__init__(pool, workers=workers, nonfinite=nonfinite, placement=placement)
        every = checkpoint_every
        self.checkpoint_every = None if every is None else whole_number("checkpoint_every", every)

    def __check_init__(self) -> None:
        if self.checkpoint_every is not None and self.checkpoint_every > self.window:
            raise ValueError(
                f"checkpoint_every must be from 1 to the window, {self.window} steps; got "
                f"{self.checkpoint_every}."
            )

    @property
    @abc.abstractmethod
    def segment(self) -> int:
        """The number of steps in a segment, of which only the first state is stored."""

    def begin(self, theta, workers):
        if self.window == self.horizon:
            return None
        thetas = for_lanes(theta, workers.start.size)
        state = self.pool.begin(None, thetas, workers.episode_keys(), workers.start)
        return Carry(None, state)

    def run(self, theta, workers, carry, length):
        state = None if carry is None else carry.pool

        def loss_of_each(thetas):
            loss, *rest = self._unroll(theta, state, thetas, workers, length)
            return loss.sum(), (loss, *rest)

        thetas = for_lanes(widened(theta), workers.start.size)
        rows, (loss, steps, state) = jax.grad(loss_of_each, has_aux=True)(thetas)
        coefficient = jnp.full_like(loss[0], self.scale)
        rows = jax.tree.map(lambda x: x[0], rows)
        response = Response(coefficient, rows, loss[0] * self.scale, steps)
        return None if carry is None else Carry(None, state), response

    def _unroll(self, theta, state, thetas, workers, length):
        """Return loss, steps and state of a window; store only the first state of each segment."""
        keys, start = workers.episode_keys(), workers.start
        size, window = self.segment, self.window
        own = jax.tree.map(lambda x, like: x.astype(like.dtype), thetas, theta)
        state = self.pool.begin(state, own, keys, start)
        run = functools.partial(run_widened, self.pool, theta)
        if size == window:
            result = run(state, thetas, keys, start, window, length)
            return result.loss, result.steps, result.state
        if length is None and window % size:
            length = jnp.full_like(start, window)

        @functools.partial(jax.checkpoint, prevent_cse=False)  # a scan makes it unnecessary
        def segment(state, first):
            left = None if length is None else jnp.clip(length - first, 0, size)
            result = run(state, thetas, keys, start + first, size, left)
            return result.state, (result.loss, result.steps)

        firsts = jnp.arange(0, window, size, dtype=start.dtype)
        state, (loss, steps) = jax.lax.scan(segment, state, firsts)
        return loss.sum(axis=0), steps.sum(axis=0, dtype=steps.dtype), state


class BPTT(Backpropagation):
    r"""Backpropagation through time: the exact gradient of $\frac1T \sum_t L_t$.

    It takes T steps per worker; the backward pass is not counted as unroll steps. The gradient is
    exact along the path taken: it does not see a jump of the loss, or a change of the step at
    which an episode ends. It is useless if the loss is chaotic. Recomputation limits memory: only
    the states between segments of about √T steps are stored, and the backward pass recomputes
    those within a segment. Memory then grows with √T, at the cost of one more forward unroll.

    Args:
        pool: An `nres.System` whose `init` and `step` can be differentiated.
        workers: The number of random episodes to average over.
        checkpoint_every: The number of steps per segment, about √T by default; the horizon turns
            recomputation off.
        nonfinite: The policy for a worker whose loss or gradient is not finite, for example
            because the gradient explodes: `"skip"` or `"raise"`, as for `NRES`.
        placement: The devices or processes that run the workers, as for `NRES`.

    Raises:
        TypeError: If the pool is a black box, which cannot be differentiated.
        ValueError: If `checkpoint_every` is longer than the window.

    Example:
        ```python
        estimator = nres.BPTT(system)
        estimate = estimator.estimate(theta, estimator.init(theta, jax.random.key(0)))
        ```

    Reference:
        Rumelhart et al., *Learning internal representations by error propagation*, 1985; for the
        recomputation, Griewank and Walther, *Revolve*, 2000.
    """

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int = 1,
        checkpoint_every: int | None = None,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
    ):
        super().__init__(
            pool,
            workers=workers,
            checkpoint_every=checkpoint_every,
            nonfinite=nonfinite,
            placement=placement,
        )

    @property  # type: ignore[misc]
    def window(self) -> int:  # type: ignore[override]
        return self.horizon

    @property
    def segment(self) -> int:
        return self.checkpoint_every or even_segment(self.horizon)


class TBPTT(Backpropagation):
    """Truncated backpropagation through time: the gradient within each window alone.

    The state is carried from window to window as a constant, so that the influence of `theta`
    before the window is ignored. The estimator is therefore biased, like `TES`, of which it is the
    limit for small noise. It takes W steps per worker and estimate.

    Args:
        pool: An `nres.System` whose `init` and `step` can be differentiated.
        workers: N, the number of unrolls, which are at independent steps of their episodes.
        window: W, the number of steps that each worker takes for one estimate, and through which
            the gradient is propagated.
        checkpoint_every: The number of steps per recomputed segment; by default, nothing is
            recomputed.
        nonfinite: The policy for non-finite contributions, as for `NRES`.
        placement: The devices or processes that run the workers, as for `NRES`.

    Raises:
        TypeError: If the pool is a black box, which cannot be differentiated.
        ValueError: If an argument is out of bounds.

    Example:
        ```python
        estimator = nres.TBPTT(system, window=100, workers=200)
        ```

    Reference:
        Williams and Peng, *An efficient gradient-based algorithm for on-line training of recurrent
        network trajectories*, 1990.
    """

    window: int = eqx.field(static=True)
    phases: str = eqx.field(static=True)

    def __init__(
        self,
        pool: System | Pool,
        *,
        workers: int,
        window: int,
        checkpoint_every: int | None = None,
        nonfinite: str = "skip",
        placement: Placement = LOCAL,
        phases: str = EVEN,
    ):
        super().__init__(
            pool,
            workers=workers,
            checkpoint_every=checkpoint_every,
            nonfinite=nonfinite,
            placement=placement,
        )
        self.window = whole_number("window", window)
        self.phases = phases

    @property
    def segment(self) -> int:
        return self.checkpoint_every or self.window


def even_segment(window: int) -> int:
    """Return a length near √W that wastes the fewest masked steps: a divisor if one is near."""
    root = math.isqrt(window)
    near = range(max(1, root // 2), min(window, 2 * root) + 1)
    return min(near, key=lambda size: (-window % size, abs(size - root)))
