"""Updates: many in one call of compiled code, or one after another in Python."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from nres import multihost
from nres.errors import first_line
from nres.estimators.base import (
    Estimator,
    Unlocking,
    compute_estimate,
    mesh_of,
    steps_are_known,
    unlocked,
)
from nres.estimators.mesh import replicated
from nres.estimators.values import Estimate, Info, Steps, squared_norm
from nres.system import Theta

# Between two visits to Python, compiled code runs for about so long, and at most so many updates.
# Each visit costs: on a CPU, the memory for what is temporary is taken anew.
DISPATCH_SECONDS = 0.5
DISPATCH_UPDATES = 4096
# On an accelerator every iteration of a loop of unknown length waits for the host, so updates
# come in bundles of known length: up to this many, and about so many sequential steps.
BUNDLE = 32
BUNDLE_STEPS = 3200


class Chunks:
    """The updates that one call of compiled code makes.

    Updates are bundled from evaluation to evaluation; what is left before one is made singly. How
    an update is made so depends on its number alone, not on where a run was continued.
    """

    def __init__(self, estimator: Estimator, eval_every: int | None, last: int):
        self.eval_every, self.last = eval_every, last
        largest = 1
        if jax.default_backend() != "cpu":
            largest = max(1, min(BUNDLE, BUNDLE_STEPS // estimator.window, eval_every or BUNDLE))
        divisors = [n for n in range(1, largest + 1) if (eval_every or n) % n == 0]
        self.bundle = divisors[-1] if 4 * divisors[-1] >= largest else largest

    def stop(self, update: int) -> int:
        """The first update after this one at which a call must end."""
        every = self.eval_every
        return self.last if every is None else min(self.last, (update // every + 1) * every)

    def next(self, update: int) -> tuple[int, int]:
        """The size of a bundle, and how many updates may be made with it."""
        done = update if self.eval_every is None else update % self.eval_every
        left = self.stop(update) - update
        to_next_bundle = -done % self.bundle
        if to_next_bundle == 0 and left >= self.bundle:
            return self.bundle, left // self.bundle * self.bundle
        return 1, min(left, to_next_bundle) or left

    def bundles(self, update: int) -> set[int]:
        """All sizes of bundles that will be used."""
        sizes: set[int] = set()
        while update < self.last and len(sizes) < 2:
            size, most = self.next(update)
            sizes.add(size)
            update += most
        return sizes


class Dispatch:
    """Calls compiled code: for updates, and for the rounds before that unlock the workers.

    Both are one program, which is compiled once: most of it is the window that they share.
    """

    def __init__(self, estimator: Estimator, optimizer: optax.GradientTransformation):
        self.estimator, self.optimizer = estimator, optimizer
        # In updates nobody waits.
        self.updating = (False, np.int32(0), np.zeros(estimator.workers, np.int32))
        self.mesh = mesh_of(estimator.pool)

    def __call__(self, bundles: int, bundle: int, carry: Any, unlocking: Any = None) -> Any:
        given = self.updating if unlocking is None else unlocking
        given = replicated(self.mesh, given) if self.estimator.windows > 1 else None
        arguments = (self.estimator, self.optimizer, jnp.asarray(bundles), bundle, given)
        return _compiled_updates(arguments, carry)

    def unlock(self, offset: np.ndarray, bundles: set[int], carry: Any) -> tuple[Any, Steps]:
        """Run each worker to its starting point, `offset` windows away; what that cost.

        **Arguments:**

        - `offset`: the number of windows, of each worker.
        - `bundles`: the sizes of bundles that are compiled anyway.
        - `carry`: parameters, optimizer state and estimator state.
        """
        estimator, most = self.estimator, int(offset.max())
        sizes = sorted(bundles) or [1]
        bundle = max([size for size in sizes if size <= most] or sizes[:1])
        # Workers start late and arrive together; the first rounds may be empty.
        rounds = -(-most // bundle) * bundle
        bound = Steps(estimator.members * estimator.workers * estimator.window, estimator.window)
        steps, done, size = Steps(0, 0), 0, 1
        while done < rounds:
            began = time.perf_counter()
            count = max(1, min(size, rounds - done, DISPATCH_UPDATES) // bundle)
            unlocking = (True, np.int32(done), (rounds - offset).astype(np.int32))
            carry, _, integers = self(count, bundle, carry, unlocking)
            count *= bundle
            # In rounds that are almost empty this number is large: 32 bits without a sign.
            unused = np.asarray(integers)[:count, -2:].view(np.uint32)
            unused = unused.sum(axis=0, dtype=np.int64).tolist()
            spent = (count * b - u for b, u in zip(bound, unused, strict=True))
            steps = Steps(*(s + more for s, more in zip(steps, spent, strict=True)))
            done += count
            elapsed = time.perf_counter() - began
            size = int(min(DISPATCH_UPDATES, count * DISPATCH_SECONDS / max(elapsed, 1e-9)))
            size, _ = multihost.agree_on(size, False)  # every process has its own clock
        if steps_are_known(estimator, carry[2]):
            windows = Steps(estimator.members * int(offset.sum(dtype=np.int64)), int(offset.max()))
            steps = Steps(*(estimator.window * count for count in windows))
        # Only the sum counts; a single number may be too large for 32 bits.
        share, rest = divmod(steps.total, estimator.workers)
        total = np.full(estimator.workers, share, np.int32)
        total[:rest] += 1
        sequential = np.asarray(steps.sequential, carry[2].unlocked_sequential.dtype)
        counted = unlocked(carry[2], *replicated(self.mesh, (total, sequential)))
        return (carry[0], carry[1], counted), steps


@eqx.filter_jit(donate="all-except-first")
def _compiled_updates(arguments, carry):
    estimator, optimizer, bundles, bundle, unlocking = arguments

    def one_update(i, loop):
        carry, floats, integers = loop
        now = None
        if unlocking is not None:
            on, first, delay = unlocking
            counts = not steps_are_known(estimator, carry[2])
            now = Unlocking(on, first + i >= delay, counts)
        estimate = compute_estimate(estimator, carry[0], carry[2], now)
        theta, optimizer_state = apply_gradient(
            optimizer, carry[0], carry[1], estimate.grad, estimate.loss
        )
        if now is not None:
            keep = lambda old, new: jnp.where(now.on, old, new)  # noqa: E731
            theta = jax.tree.map(keep, carry[0], theta)
            optimizer_state = jax.tree.map(keep, carry[1], optimizer_state)
        carry = (theta, optimizer_state, estimate.state)
        more_floats, more_integers = _report(*_reported(estimate))
        return carry, floats.at[i].set(more_floats), integers.at[i].set(more_integers)

    def one_bundle(i, loop):
        body = lambda j, loop: one_update(i * bundle + j, loop)  # noqa: E731
        return jax.lax.fori_loop(0, bundle, body, loop)

    rows = jnp.zeros((DISPATCH_UPDATES, 2)), jnp.zeros((DISPATCH_UPDATES, 7), jnp.int32)
    return jax.lax.fori_loop(0, bundles, one_bundle, (carry, *rows))


def host_update(estimator, optimizer, carry):
    """One update with a pool that JAX cannot trace: only what follows its losses is compiled."""
    estimate = compute_estimate(estimator, carry[0], carry[2])
    # Only what the update reads is handed to compiled code: a simulator's state stays outside.
    theta, optimizer_state, _ = carry
    theta, optimizer_state = _apply_compiled(
        optimizer, theta, optimizer_state, estimate.grad, estimate.loss
    )
    floats, integers = _report(*_reported(estimate))
    return (theta, optimizer_state, estimate.state), floats[None], integers[None]


def apply_gradient(optimizer, theta, optimizer_state, grad, loss):
    """Parameters and optimizer state after one update."""
    # Some optimizers want to know the loss, too. Wrapped here, where it is traced: a wrapper made
    # for every run would be a new function, and compile anew.
    update = optax.with_extra_args_support(optimizer).update
    change, optimizer_state = update(grad, optimizer_state, theta, value=loss)
    return optax.apply_updates(theta, change), optimizer_state


def check_optimizer(optimizer: optax.GradientTransformation, theta: Theta) -> None:
    """Raise a `ValueError` if an optimizer cannot update `theta`; nothing is computed."""

    def one(theta: Theta) -> Theta:
        return apply_gradient(optimizer, theta, optimizer.init(theta), theta, jnp.zeros(()))[0]

    try:
        jax.eval_shape(one, theta)
    except Exception as error:
        raise ValueError(
            f"the optimizer cannot update theta: {type(error).__name__}: {first_line(error)}"
        ) from error


_apply_compiled = eqx.filter_jit(apply_gradient)


def _reported(estimate: Estimate) -> tuple:
    return estimate.grad, estimate.loss, estimate.info, estimate.spent.unused


@eqx.filter_jit
def _report(grad: Theta, loss: Array, info: Info, unused: Array) -> tuple[Array, Array]:
    """The numbers that are kept of an update, in two rows: each costs a write to memory."""
    norm = jnp.sqrt(squared_norm(grad))
    start = info.window_start[jnp.maximum(info.first_nonfinite, 0)]
    floats = jnp.stack([loss.astype(float), norm.astype(float)])
    counts = [info.nonfinite, info.first_nonfinite, start, info.restarted, info.late]
    return floats, jnp.stack([*counts, *unused])
