"""`hysteresis`: the bias of gradients if parameters change while episodes run."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from nres.checks import as_key
from nres.estimators.base import Estimator
from nres.estimators.computing import compute_estimate
from nres.estimators.nonfinite import NonFiniteError
from nres.execution import compiled, repeat
from nres.measured import all_learned
from nres.system import Theta, as_theta, check_one_length
from nres.updates import lift_update
from nres.variance.measured import Measurement, check_samples, like, measure, split
from nres.variance.statistics import Mean


@dataclasses.dataclass(frozen=True)
class Hysteresis:
    """The difference between gradients of running pools and of fresh episodes, at one rate."""

    rate: float
    """The learning rate."""
    drift: float
    """The Euclidean distance that the parameters moved during the last episode."""
    running: PyTree
    """The mean gradient of pools that ran while the parameters changed."""
    fresh: PyTree
    """The mean gradient of episodes that ran entirely at the newest parameters."""
    bias: float
    r"""$\lVert \mathbb E[\text{running}] - \mathbb E[\text{fresh}] \rVert$, corrected for the
    noise of both means; 0 if the noise explains the whole difference."""
    bias_stderr: float
    """The norm of the standard error of the difference, over all elements. A bias below this scale
    is hard to detect."""
    norm: float
    """The norm of the fresh gradient, corrected for noise."""
    cosine: float
    """The cosine of the angle between the two means."""
    nonfinite: int
    """The number of contributions of running pools left out because they were not finite."""

    @property
    def relative(self) -> float:
        """The bias relative to the norm of the fresh gradient."""
        return self.bias / self.norm if self.norm else math.nan


def hysteresis(
    estimator: Estimator,
    optimizer: Callable[[float], optax.GradientTransformation],
    theta: PyTree,
    key: Any,
    *,
    rates: Sequence[float],
    updates: int | None = None,
    samples: int = 4096,
    callback: Callable[[float], Any] | None = None,
) -> list[Hysteresis]:
    """Measure the bias that arises because parameters change while episodes run.

    An online estimator continues states that earlier parameters produced. For each learning rate,
    this function trains from `theta`. Then many other pools, which took no part in the training,
    follow the same sequence of parameters until all of their episodes have begun within it. Their
    gradients at its end are compared with those of fresh episodes there. The difference is
    therefore the effect of old histories alone.

    Args:
        estimator: An online estimator. `FullES` and `BPTT` have no hysteresis.
        optimizer: A function from a learning rate to an optax optimizer, for example `optax.sgd`.
        theta: The parameters to start from.
        key: A JAX random key.
        rates: The learning rates.
        updates: The number of updates before the comparison. The minimum, and the default, is the
            number of windows in an episode.
        samples: The number of workers for each of the two means.
        callback: A function that is called now and then with the fraction of work done.

    Returns:
        One comparison per learning rate.

    Raises:
        ValueError: If the estimator runs whole episodes, or `updates` is too small.
        NonFiniteError: If training diverges, or almost no contribution is finite.

    Example:
        ```python
        rows = nres.variance.hysteresis(
            estimator, optax.sgd, theta, jax.random.key(0), rates=[1e-6, 1e-5, 1e-4]
        )
        [(row.rate, row.relative, row.cosine) for row in rows]
        ```
    """
    theta, key = all_learned("hysteresis", as_theta(theta)), as_key(key)
    check_one_length("hysteresis", estimator.pool)
    check_samples(samples, 0.95)
    windows = estimator.windows
    if windows == 1:
        raise ValueError(
            f"{type(estimator).__name__} runs whole episodes, so it has no hysteresis."
        )
    updates = windows if updates is None else updates
    if updates < windows:
        raise ValueError(
            f"updates must be at least the number of windows in an episode, {windows}, so that all "
            f"history belongs to parameters of this training; got {updates}."
        )
    estimator.pool.check(theta)
    train_key, replay_key, fresh_key = jax.random.split(key, 3)
    result = []
    for i, rate in enumerate(rates):

        def report(fraction, i=i):
            if callback is not None:
                callback((i + fraction) / len(rates))

        path = _trajectory(estimator, optimizer, rate, theta, train_key, updates)
        newest = jax.tree.map(lambda x: x[-1], path)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(newest)):
            raise NonFiniteError(f"with rate {rate:g} parameters are not finite after training.")
        running, nonfinite = _replay(estimator, path, replay_key, samples, report)
        fresh = measure(estimator, newest, fresh_key, samples=samples)
        result.append(_compare(rate, path, running, fresh, nonfinite))
    return result


def _trajectory(
    estimator: Estimator, optimizer: Any, rate: float, theta: Theta, key: Array, updates: int
) -> PyTree:
    """Train, and stack the parameters of the last episode on a first axis.

    These are the parameters before each of the last n updates and after the last one, where n is
    the number of windows in an episode.
    """
    made = optimizer(rate)
    update = lift_update(made, theta)  # one program serves all rates
    state, optimizer_state = estimator.init(theta, key), made.init(theta)
    thetas = [theta]
    for _ in range(updates):
        theta, optimizer_state, state = _update(estimator, update, theta, optimizer_state, state)
        thetas = [*thetas, theta][-(estimator.windows + 1) :]
    return jax.tree.map(lambda *x: jnp.stack(x), *thetas)


@compiled
def _update(estimator, update, theta, optimizer_state, state):
    estimate = compute_estimate(estimator, theta, state)
    loss = estimate.loss.astype(float)
    return *update(estimate.grad, optimizer_state, theta, loss), estimate.state


def _replay(
    estimator: Estimator, path: PyTree, key: Array, samples: int, callback: Callable[[float], Any]
) -> tuple[Mean, int]:
    """Average gradients at the end of a path over pools that followed it; count those left out."""
    first = jax.tree.map(lambda x: x[0], path)
    batch, batches = split(samples, first, estimator)
    group = estimator.with_workers(batch)
    mean, nonfinite = Mean(), 0
    for i in range(batches):
        state = group.init(first, jax.random.fold_in(key, i))
        grad, left_out = jax.device_get(_follow(group, path, state))
        nonfinite += int(left_out)
        if left_out < batch:
            mean.add(grad)
        callback((i + 1) / batches)
    if mean.count < 4:
        raise NonFiniteError(f"{nonfinite} of {batch * batches} contributions were not finite.")
    return mean, nonfinite


@compiled
def _follow(estimator, path, state):
    """Return the gradient at the end of the path, and the number of workers left out."""

    def one_update(i, loop):
        estimate = compute_estimate(estimator, jax.tree.map(lambda x: x[i], path), loop[0])
        return estimate.state, estimate.grad, estimate.info.nonfinite

    zero = jnp.zeros((), jnp.int32)
    loop = (state, jax.tree.map(lambda x: jnp.zeros_like(x[0]), path), zero)
    loop = repeat(estimator, estimator.windows + 1, one_update, loop)
    return jax.flatten_util.ravel_pytree(loop[1])[0], loop[2]


def _compare(
    rate: float, path: PyTree, running: Mean, fresh: Measurement, nonfinite: int
) -> Hysteresis:
    flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])  # noqa: E731
    mean, stderr = flat(fresh.mean), flat(fresh.stderr)
    noise = float(np.sum(running.stderr**2 + stderr**2))
    difference = running.mean - mean
    bias = math.sqrt(max(0.0, difference @ difference - noise))
    norm = math.sqrt(max(0.0, mean @ mean - np.sum(stderr**2)))
    norms = norm * math.sqrt(max(0.0, running.signal))
    moved = flat(jax.tree.map(lambda x: np.asarray(x[-1] - x[0], np.float64), path))
    return Hysteresis(
        rate=rate,
        drift=float(np.linalg.norm(moved)),
        running=like(fresh.mean, running.mean),
        fresh=fresh.mean,
        bias=bias,
        bias_stderr=math.sqrt(noise),
        norm=norm,
        # The estimate is not confined to [-1, 1], and may be slightly above 1.
        cosine=min(1.0, float(running.mean @ mean) / norms) if norms else math.nan,
        nonfinite=nonfinite,
    )
