"""`measure`: mean, variance and cost of an estimator's gradients at fixed parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nres.checks import as_key, whole_number
from nres.estimators.base import Estimator, blank_state, compute_estimate
from nres.estimators.nonfinite import NonFiniteError
from nres.execution import block_size, choose, compiled, repeat
from nres.pools.base import Pool
from nres.system import Theta, as_theta, parameter_count
from nres.variance.statistics import Moments
from nres.workers import Steps

# Intervals rest on pairs of independent batches: so many batches, if there are samples enough.
BATCHES = 64
# Accelerators and simulators outside of JAX want fewer, larger ones.
LARGE_BATCHES = 16


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What `measure` found out about an estimator at some parameters."""

    mean: PyTree
    """The mean gradient, in double precision."""
    stderr: PyTree
    """Its standard error, of each element."""
    variance: float
    r"""$\operatorname{tr}\operatorname{Cov}$ of one estimate: the mean over N workers."""
    interval: tuple[float, float]
    """A confidence interval for `variance`."""
    signal: float
    r"""$\lVert \mathbb E g \rVert^2$, without bias: noise may make it negative."""
    steps: Steps
    """What one estimate costs in a running pool, on average."""
    cost: Steps
    """Unroll steps of the whole measurement."""
    samples: int
    """Independent episodes of a worker that were run."""
    nonfinite: int
    """Contributions that were left out because they were not finite."""

    @property
    def snr(self) -> float:
        r"""The signal-to-noise ratio $\lVert \mathbb E g \rVert^2 / \operatorname{tr Cov}$."""
        return self.signal / self.variance if self.variance > 0 else np.inf

    @property
    def work(self) -> float:
        """Variance times total steps: of two estimators, less of it is better at equal compute."""
        return self.variance * self.steps.total

    def z_scores(self, reference: PyTree) -> PyTree:
        """How many standard errors each element of `mean` lies from a reference gradient."""

        def score(mean, stderr, r):
            difference = mean - np.asarray(r, np.float64)
            with np.errstate(divide="ignore"):  # infinitely many, if nothing is left to chance
                return np.divide(difference, stderr, np.zeros_like(mean), where=difference != 0)

        return jax.tree.map(score, self.mean, self.stderr, reference)


def measure(
    estimator: Estimator,
    theta: PyTree,
    key: Any,
    *,
    samples: int = 4096,
    level: float = 0.95,
    callback: Callable[[float], Any] | None = None,
) -> Measurement:
    r"""Mean and total variance of an estimator's gradients at fixed parameters.

    Independent workers run whole episodes at `theta`, so that no history is older than the
    parameters: there is no hysteresis. Each worker is asked for the estimate of every window of
    its episode, which stands for $\tau$ uniform over windows with the least work: for $T$ steps,
    $T/W$ estimates instead of one. Memory grows neither with `samples` nor with the horizon.

    ```python
    estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
    measured = nres.variance.measure(estimator, theta, jax.random.key(0))
    measured.variance, measured.interval, measured.snr, measured.z_scores(gradient)
    ```

    **Arguments:**

    - `estimator`: any estimator, on any pool. A schedule of sigma counts as of the first update.
        Its `nonfinite` says what to do about workers whose contribution is not finite.
    - `theta`: the parameters.
    - `key`: a JAX random key.
    - `samples`: how many independent episodes to run, each of one worker. The variance of a
        mean over N workers follows, as they are independent.
    - `level`: of the confidence interval.
    - `callback`: called with the fraction that is done, from time to time.
    """
    theta, key = as_theta(theta), as_key(key)
    estimator.pool.check(theta)
    check_samples(samples, level)
    batch, batches = split(samples, theta, estimator)
    group = estimator.with_workers(batch)
    moments, total, sequential, nonfinite = Moments(), 0, 0, 0
    for i in range(batches):
        result = _episodes(group, theta, jax.random.fold_in(key, i))
        mean, second, unused, left_out = jax.device_get(result)
        if left_out < batch * group.windows:
            moments.add(mean, second[None])
        total += group.members * batch * group.windows * group.window - int(unused[0])
        sequential += group.windows * group.window - int(unused[1])
        nonfinite += int(left_out)
        if nonfinite and estimator.nonfinite == "raise":
            raise NonFiniteError(_not_finite(nonfinite, batch * group.windows * (i + 1)))
        if callback is not None:
            callback((i + 1) / batches)
    if moments.mean.count < 4:
        raise NonFiniteError(_not_finite(nonfinite, batch * batches * group.windows))
    low, high = moments.interval(level)
    n = estimator.workers
    each = total / (batch * batches * group.windows)
    return Measurement(
        mean=like(theta, moments.mean.mean),
        stderr=like(theta, moments.mean.stderr),
        variance=float(moments.variance[0]) / n,
        interval=(float(low[0]) / n, float(high[0]) / n),
        signal=moments.mean.signal,
        steps=Steps(round(n * each), estimator.window),
        cost=Steps(total, sequential),
        samples=batch * batches,
        nonfinite=nonfinite,
    )


def _not_finite(count: int, total: int) -> str:
    return (
        f"{count} of {total} contributions were not finite. Smaller noise or a bounded loss may "
        "help; so may an estimator that is to skip them, if there are few."
    )


def check_samples(samples: int, level: float) -> None:
    """Refuse what gives no interval."""
    whole_number("samples", samples, 8)  # fewer do not tell a variance
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")


def split(samples: int, theta: Theta, source: Pool | Estimator) -> tuple[int, int]:
    """The size of a batch, and an even number of batches that make at least so many samples."""
    on_cpu = jax.default_backend() == "cpu"
    batches = choose(source, BATCHES if on_cpu else LARGE_BATCHES, LARGE_BATCHES)
    batch = max(1, min(samples // batches, block_size(parameter_count(theta))))
    multiple = source.placement.multiple if isinstance(source, Estimator) else 1
    batch = -(-batch // multiple) * multiple
    return batch, -(-samples // (2 * batch)) * 2


def like(theta: PyTree, vector: np.ndarray) -> PyTree:
    """A vector of doubles in the shape of `theta`."""
    leaves, structure = jax.tree.flatten(theta)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(np.split(vector, ends), leaves, strict=True)
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in parts])


@compiled
def _episodes(estimator: Estimator, theta: Theta, key: Array) -> tuple[Array, ...]:
    """A whole episode of every worker, all in step: mean, second moment and bookkeeping."""
    state = blank_state(estimator, theta, key)

    def one_window(_, loop):
        state, grad, second, unused, nonfinite = loop
        estimate = compute_estimate(estimator, theta, state)
        norm = estimate.info.contribution_norm
        left_out = estimate.info.nonfinite
        count = (estimator.workers - left_out).astype(grad.dtype)
        squares = jnp.where(jnp.isnan(norm), 0, norm).astype(second.dtype) ** 2
        # A schedule of sigma does not go on.
        state = eqx.tree_at(lambda s: s.update, estimate.state, state.update)
        flat, _ = jax.flatten_util.ravel_pytree(estimate.grad)
        return (
            state,
            grad + flat.astype(grad.dtype) * count,
            second + squares.sum(),
            unused + estimate.spent.unused,
            nonfinite + left_out,
        )

    size = parameter_count(theta)
    dtype = jnp.result_type(float)
    integer = jnp.zeros((), jnp.int32)
    loop = (state, jnp.zeros(size, dtype), jnp.zeros((), dtype), jnp.zeros(2, jnp.int32), integer)
    loop = repeat(estimator, estimator.windows, one_window, loop)
    _, grad, second, unused, nonfinite = loop
    count = jnp.maximum(estimator.workers * estimator.windows - nonfinite, 1).astype(dtype)
    return grad / count, second / count, unused, nonfinite
