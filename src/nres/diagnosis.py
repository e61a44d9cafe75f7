"""`diagnose`: whether the noise of an estimator suits a loss, at fixed parameters."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, PyTree

from nres import diagnostics
from nres.checks import as_key, whole_number
from nres.estimators.base import Estimator
from nres.estimators.evolution import EvolutionStrategy
from nres.evaluation import evaluate
from nres.measured import frozen
from nres.monitor import (
    DISTINCT,
    HEALTHY_SHARE,
    ROUGH_SHARE,
    NoSignalWarning,
    batch_of,
    mean_and_stderr,
)
from nres.system import parameter_count
from nres.training import train

# The least number of updates per batch; a batch has at least two episodes.
_LEAST_BATCH = 10
# Sigma is too large if the smoothed loss is above the loss by more than this share of its size.
_FAR_ABOVE = 1.0


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The numbers that tell whether the noise suits the loss, and a verdict; `print` it.

    `linear_share` is NaN if an episode has several noises, or parameters have different sigmas.
    """

    snr: float
    """The signal-to-noise ratio of an update."""
    linear_snr: float
    """The ratio N/(d + 1) that independent noises would have if losses were linear in them."""
    linear_share: float
    """The share of the response to the noise that is linear."""
    linear_share_stderr: float
    """The standard error of `linear_share`."""
    even_spread: float
    """The standard deviation over workers of the mean loss of their pairs."""
    odd_spread: float
    """The root mean square over workers of half the difference of their pairs' losses."""
    phase_rms: tuple[float, ...]
    """The root mean square of the contributions by part of the episode, in at most eight parts."""
    loss: float
    """The mean loss per step at the parameters themselves."""
    smoothed_loss: float
    """The mean loss per step with noise, which training minimises."""
    problem: str | None
    """`"sigma too small"`, `"sigma too large"`, `"nothing but noise"`, or `None`."""

    @property
    def verdict(self) -> str:
        """The problem in words, with advice."""
        return _VERDICTS[self.problem]

    def __str__(self) -> str:
        share = f"{self.linear_share:.2g} ± {self.linear_share_stderr:.1g}"
        phases = ", ".join(f"{value:.2g}" for value in self.phase_rms)
        rows = {
            "signal-to-noise ratio": f"{self.snr:.2g} ({self.linear_snr:.2g} if linear)",
            "linear share": share,
            "even spread": f"{self.even_spread:.3g}",
            "odd spread": f"{self.odd_spread:.3g}",
            "rms by phase": phases,
            "loss": f"{self.loss:.4g}",
            "loss with noise": f"{self.smoothed_loss:.4g}",
        }
        return "\n".join([*(f"{name:<22} {text}" for name, text in rows.items()), self.verdict])


_VERDICTS = {
    None: "No problem shows in these numbers.",
    "sigma too small": (
        "Sigma is too small: losses are so rough at its scale that the two losses of a pair differ "
        "by much more than the gradient explains. Try a larger sigma. Near an optimum, this may "
        "mean that windows pull in opposite directions, which is as it should be."
    ),
    "sigma too large": (
        "Sigma is too large: the noise at least doubles the loss, or makes losses that are not "
        "finite, and training minimises the loss with noise. Try a smaller sigma."
    ),
    "nothing but noise": (
        "The update is nothing but noise: its signal is not distinguishable from zero, although a "
        "linear response would be. Try a larger sigma, unless the parameters are optimal already."
    ),
}


def diagnose(
    estimator: Estimator, theta: PyTree, key: Array, *, batches: int = 10, episodes: int = 100
) -> Diagnosis:
    """Measure at fixed parameters whether the noise of an estimator suits the loss.

    The estimator runs as in training, for `batches` times two episodes, and `episodes` episodes
    run without noise. A verdict concerns these parameters only: a loss that is rough on scales much
    larger than sigma looks smooth here.

    Args:
        estimator: The estimator.
        theta: The parameters.
        key: A JAX random key.
        batches: The number of batches, from which standard errors come; at least 2.
        episodes: The number of episodes without noise.

    Returns:
        The numbers, and a verdict in words.

    Raises:
        TypeError: If the estimator has no pairs of perturbed members.

    Example:
        ```python
        estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
        print(nres.diagnose(estimator, theta, jax.random.key(0)))
        ```
    """
    if not (isinstance(estimator, EvolutionStrategy) and len(estimator.noise.contrast) > 1):
        raise TypeError(
            "estimator must be an evolution strategy with pairs, for example nres.NRES; got "
            f"{type(estimator).__name__}."
        )
    batches = whole_number("batches", batches, 2)
    run_key, loss_key = jax.random.split(as_key(key))
    size = max(_LEAST_BATCH, 2 * estimator.windows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoSignalWarning)  # the verdict says it
        history = train(
            estimator, optax.set_to_zero(), frozen(theta), updates=batches * size, key=run_key
        ).history
    loss = float(evaluate(estimator.pool, theta, loss_key, episodes=episodes).loss)
    names = ("update", "loss", "grad_norm")
    rows = history.diagnostics | {name: getattr(history, name) for name in names}
    found = diagnostics.summarised(rows)
    parts = range(diagnostics.parts_of(rows))
    each = [
        batch_of({name: column[i : i + size] for name, column in rows.items()})
        for i in range(0, len(history.update), size)
    ]
    numbers: dict[str, Any] = {
        name: found.get(name, math.nan)
        for name in ("snr", "linear_share", "even_spread", "odd_spread")
    }
    share_stderr = mean_and_stderr([batch.share for batch in each])[1]
    fraction = mean_and_stderr([batch.fraction for batch in each])
    smoothed = mean_and_stderr([batch.mean_loss for batch in each])
    finite = np.isfinite(history.loss).any()
    return Diagnosis(
        **numbers,
        linear_snr=estimator.workers / (parameter_count(theta) + 1),
        linear_share_stderr=share_stderr,
        phase_rms=tuple(found.get(f"phase_rms_{i + 1}", math.nan) for i in parts),
        loss=loss,
        smoothed_loss=smoothed[0] if finite else math.inf,
        problem=_problem(numbers, share_stderr, fraction, loss, smoothed, history.nonfinite),
    )


def _problem(
    numbers: dict[str, float],
    share_stderr: float,
    fraction: tuple[float, float],
    loss: float,
    smoothed: tuple[float, float],
    nonfinite: np.ndarray,
) -> str | None:
    """Return the problem of a `Diagnosis`; its arguments come as a mean and a standard error."""
    if not math.isfinite(smoothed[0]) or nonfinite.any():
        return "sigma too large" if math.isfinite(loss) else None
    if smoothed[0] - loss > _FAR_ABOVE * abs(loss) + DISTINCT * smoothed[1]:
        return "sigma too large"
    share = numbers["linear_share"]
    if not share + DISTINCT * share_stderr < HEALTHY_SHARE:  # also if it is unknown
        return None
    if fraction[0] < DISTINCT * fraction[1]:
        return "nothing but noise"
    if share < ROUGH_SHARE and numbers["even_spread"] >= numbers["odd_spread"] > 0:
        return "sigma too small"
    return None
