"""`measure`: mean, variance and cost of an estimator's gradients at fixed parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nres.checks import as_key, whole_number
from nres.estimators.base import Estimator
from nres.estimators.computing import blank_state, compute_estimate
from nres.estimators.nonfinite import NonFiniteError
from nres.estimators.values import Estimate, EstimatorState
from nres.execution import block_size, choose, compiled, repeat
from nres.measured import learned
from nres.pools.base import Pool
from nres.system import Theta, as_theta, check_one_length, parameter_count, squared_norm
from nres.variance.statistics import Moments
from nres.workers import Steps

# Intervals are based on pairs of independent batches: this many batches, given enough samples.
BATCHES = 64
# Accelerators and simulators outside JAX are faster with fewer, larger batches.
LARGE_BATCHES = 16


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The result of `measure`: mean, variance and cost of an estimator's gradients."""

    mean: PyTree
    """The mean gradient, in double precision."""
    stderr: PyTree
    """The standard error of each element of `mean`."""
    variance: float
    r"""$\operatorname{tr}\operatorname{Cov}$ of one estimate, which is the mean over N workers."""
    interval: tuple[float, float]
    """A confidence interval for `variance`."""
    signal: float
    r"""An unbiased estimate of $\lVert \mathbb E g \rVert^2$; noise may make it negative."""
    steps: Steps
    """The average number of unroll steps of one estimate in a running pool."""
    cost: Steps
    """The number of unroll steps of the whole measurement."""
    samples: int
    """The number of independent episodes that were run, each of one worker."""
    nonfinite: int
    """The number of contributions left out because they were not finite."""

    @property
    def snr(self) -> float:
        r"""The signal-to-noise ratio $\lVert \mathbb E g \rVert^2 / \operatorname{tr Cov}$."""
        return self.signal / self.variance if self.variance > 0 else np.inf

    @property
    def work(self) -> float:
        """Variance times total steps: at equal compute, the estimator with less is better."""
        return self.variance * self.steps.total

    def z_scores(self, reference: PyTree) -> PyTree:
        """Compute how many standard errors each element of `mean` differs from a reference.

        Args:
            reference: A gradient with the structure of `theta`.

        Returns:
            A pytree of z-scores like `reference`.
        """

        def score(mean, stderr, r):
            difference = mean - np.asarray(r, np.float64)
            with np.errstate(divide="ignore"):  # infinite if the standard error is zero
                return np.divide(difference, stderr, np.zeros_like(mean), where=difference != 0)

        return jax.tree.map(score, self.mean, self.stderr, reference)


def measure(
    estimator: Estimator,
    theta: PyTree,
    key: Any,
    *,
    samples: int = 4096,
    level: float = 0.95,
    together: bool = False,
    callback: Callable[[float], Any] | None = None,
) -> Measurement:
    r"""Measure mean and total variance of an estimator's gradients at fixed parameters.

    Independent workers run whole episodes at `theta`. All of their history therefore belongs to
    these parameters, and there is no hysteresis. Each worker computes the estimate of every window
    of its episode. That is equivalent to a uniformly random window $\tau$, but cheaper: T steps
    give T/W estimates instead of one. Memory grows neither with `samples` nor with the horizon.

    Args:
        estimator: Any estimator, on any pool. A schedule of sigma is evaluated at update 0.
            Contributions that are not finite are handled as its `nonfinite` says.
        theta: The parameters.
        key: A JAX random key.
        samples: The number of independent episodes, each of one worker; at least 8. The variance of
            the mean over N workers follows, because they are independent.
        level: The level of the confidence interval.
        together: True to measure estimates of all N workers together, from where `init` places
            them. This includes the variance that evenly spread workers save, but each N episodes
            give one independent sample. It is always done if the law draws noises jointly.
        callback: A function that is called now and then with the fraction of work done.

    Returns:
        The mean gradient, its standard error, the variance with a confidence interval, and costs.

    Raises:
        NonFiniteError: If almost no contribution is finite, or, with `nonfinite="raise"`, if any
            is not.

    Example:
        ```python
        estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
        measured = nres.variance.measure(estimator, theta, jax.random.key(0))
        measured.variance, measured.interval, measured.snr, measured.z_scores(gradient)
        ```
    """
    theta, key = as_theta(theta), as_key(key)
    check_one_length("measure", estimator.pool)
    estimator.pool.check(theta)
    check_samples(samples, level)
    together = together or estimator.group_size(theta) > 1
    if together:
        batch, batches = estimator.workers, max(8, -(-samples // (2 * estimator.workers)) * 2)
        group, run = estimator, _together
    else:
        batch, batches = split(samples, theta, estimator)
        group, run = estimator.with_workers(batch), _episodes
    moments, total, sequential, nonfinite = Moments(), 0, 0, 0
    for i in range(batches):
        result = run(group, theta, jax.random.fold_in(key, i))
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
    vectors = 1 if together else n  # to be averaged for one estimate
    return Measurement(
        mean=like(theta, moments.mean.mean),
        stderr=like(theta, moments.mean.stderr),
        variance=float(moments.variance[0]) / vectors,
        interval=(float(low[0]) / vectors, float(high[0]) / vectors),
        signal=moments.mean.signal,
        steps=Steps(round(n * each), estimator.window),
        cost=Steps(total, sequential),
        samples=batch * batches,
        nonfinite=nonfinite,
    )


def _not_finite(count: int, total: int) -> str:
    return (
        f"{count} of {total} contributions were not finite. Smaller noise or a bounded loss may "
        'help; if only few are not finite, nonfinite="skip" leaves them out.'
    )


def check_samples(samples: int, level: float) -> None:
    """Raise an error if the number of samples or the level gives no interval."""
    whole_number("samples", samples, 8)  # fewer samples cannot estimate a variance
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")


def split(samples: int, theta: Theta, source: Pool | Estimator) -> tuple[int, int]:
    """Return the size of a batch, and an even number of batches of at least `samples` in total."""
    on_cpu = jax.default_backend() == "cpu"
    batches = choose(source, BATCHES if on_cpu else LARGE_BATCHES, LARGE_BATCHES)
    batch = max(1, min(samples // batches, block_size(parameter_count(theta))))
    multiple = source.placement.multiple if isinstance(source, Estimator) else 1
    batch = -(-batch // multiple) * multiple
    return batch, -(-samples // (2 * batch)) * 2


def like(theta: PyTree, vector: np.ndarray) -> PyTree:
    """Split a vector of doubles into the structure of `theta`."""
    leaves, structure = jax.tree.flatten(learned(theta))
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(np.split(vector, ends), leaves, strict=True)
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in parts])


@compiled
def _episodes(estimator: Estimator, theta: Theta, key: Array) -> tuple[Array, ...]:
    """Run an episode of every worker, all in step; return mean, second moment and counts."""
    return _moments(estimator, theta, blank_state(estimator, theta, key), _of_workers)


@compiled
def _together(estimator: Estimator, theta: Theta, key: Array) -> tuple[Array, ...]:
    """Run all workers from where `init` places them for as many windows as an episode has.

    Return mean, second moment and counts of the estimates, of which each window gives one.
    """
    return _moments(estimator, theta, estimator.init(theta, key), _of_estimate)


def _of_workers(estimate: Estimate, count: Array) -> Array:
    """Return the sum of the squared norms of the workers' own estimates."""
    norm = estimate.info.contribution_norm
    return (jnp.where(jnp.isnan(norm), 0, norm).astype(float) ** 2).sum()


def _of_estimate(estimate: Estimate, count: Array) -> Array:
    """Return the squared norm of the estimate, as often as there are workers."""
    return squared_norm(estimate.grad).astype(float) * count


def _moments(
    estimator: Estimator,
    theta: Theta,
    state: EstimatorState,
    squares: Callable[[Estimate, Array], Array],
) -> tuple[Array, ...]:
    def one_window(_, loop):
        state, grad, second, unused, nonfinite = loop
        estimate = compute_estimate(estimator, theta, state)
        left_out = estimate.info.nonfinite
        count = (estimator.workers - left_out).astype(grad.dtype)
        # Keep a sigma that changes at its first value.
        first = {"update": state.update, "adaptation": state.adaptation}
        state = dataclasses.replace(estimate.state, **first)
        flat, _ = jax.flatten_util.ravel_pytree(estimate.grad)
        return (
            state,
            grad + flat.astype(grad.dtype) * count,
            second + squares(estimate, count).astype(second.dtype),
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
