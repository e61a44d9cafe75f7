"""Trials: short training with one sigma each, from the same parameters."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array

from nres.estimators import Estimator
from nres.evaluation import evaluate
from nres.history import NonFiniteWarning
from nres.progress import Progress
from nres.system import Theta
from nres.training import train
from nres.tuning.budget import Budget
from nres.tuning.probes import scale
from nres.workers import Steps

# The number of trials that a budget must allow: three at once, and one more if the best of them has
# the smallest or the largest sigma.
PLANNED, ROUNDS = 4, 2
# The fewest and the most updates of a trial. Fewer say less than their steps are worth.
FEWEST_UPDATES, MOST_UPDATES = 32, 256
# The evaluations in the second half of a trial, and the episodes of each.
EVALUATIONS, EPISODES = 8, 4
# The next smaller sigma is chosen if it lowers the loss by this share of the best decrease.
LESS_WORKS = 0.7


@dataclasses.dataclass(frozen=True)
class Trial:
    """A trial of one sigma: some updates from the same parameters as in the other trials."""

    sigma: float
    """The scale of the noise."""
    loss: float
    """The mean loss of unperturbed parameters in the second half; infinite if not finite."""
    updates: int
    """The number of updates."""
    steps: Steps
    """The number of unroll steps of the trial, including its evaluations."""


class Trials:
    """Trials of neighbouring sigmas, while they improve and the budget lasts.

    Args:
        make: A function that makes the estimator and the learning rate for a sigma.
        theta: The parameters that all trials start from.
        key: A JAX random key.
        budget: The budget of all trials.
        callback: A function that is called with each trial.
    """

    def __init__(
        self,
        make: Callable[[float], tuple[Estimator, float]],
        theta: Theta,
        key: Array,
        budget: Budget,
        callback: Callable[[Trial], Any],
    ):
        self.make, self.start, self.key, self.callback = make, theta, key, callback
        self.thetas: dict[float, Theta] = {}
        """The parameters after the trial of each sigma, if they are finite."""
        self.trials: list[Trial] = []
        self.steps = Steps(0, 0)
        """The number of steps of all trials; those of one round do not wait for each other."""
        estimator, _ = make(1.0)
        # No update waits for an evaluation, so only the last one takes sequential steps.
        evaluating = Steps(EPISODES * (2 * EVALUATIONS + 1) * budget.horizon, budget.horizon)
        each = dataclasses.replace(
            budget, total=budget.total / PLANNED, sequential=budget.sequential / ROUNDS
        )
        updates = min(each.updates(estimator, evaluating), MOST_UPDATES)
        evaluations = 2 * EVALUATIONS
        self.updates = updates // evaluations * evaluations if updates >= FEWEST_UPDATES else 0

    def search(self, place: int, before: float) -> int:
        """Choose a sigma, beginning at a place of the grid, from a loss before all trials."""
        if not self.updates:
            return place
        tried: dict[int, Trial] = {}
        following = [place - 1, place, place + 1]
        while following and len(tried) < PLANNED:
            tried |= {each: self._try(scale(each)) for each in following}
            together = Steps.at_once(tried[each].steps for each in following)
            self.steps = Steps.added([self.steps, together])
            best = min(tried, key=lambda place: tried[place].loss)
            following = [each for each in (best - 1, best + 1) if each not in tried]
        # The best trial has gone the first part of the way, so less noise suits the rest.
        less = tried.get(best - 1)
        works = less and before - less.loss > LESS_WORKS * (before - tried[best].loss)
        return best - 1 if works else best

    def _try(self, sigma: float) -> Trial:
        estimator, rate = self.make(sigma)
        pool, key = estimator.pool, jax.random.fold_in(self.key, 1)
        losses: list[float] = []
        spent: list[Steps] = []

        def loss(theta: Theta) -> float:
            evaluation = evaluate(pool, theta, key, episodes=EPISODES)
            spent.append(evaluation.steps)
            return float(evaluation.loss)

        def follow(progress: Progress) -> None:
            if progress.evals and progress.state.update > self.updates // 2:
                losses.append(*progress.evals.values())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)
            result = train(
                estimator,
                optax.adam(rate),
                self.start,
                updates=self.updates,
                key=self.key,
                eval_fn=loss,
                eval_every=self.updates // (2 * EVALUATIONS),
                callback=follow,
            )
        if result.signalled:
            raise KeyboardInterrupt
        mean = float(np.mean(losses)) if losses and not result.diverged else math.inf
        trial = Trial(
            sigma=sigma,
            loss=mean if math.isfinite(mean) else math.inf,
            updates=self.updates,
            steps=Steps(
                result.state.steps.total + sum(steps.total for steps in spent),
                result.state.steps.sequential + spent[-1].sequential,
            ),
        )
        if math.isfinite(trial.loss):
            self.thetas[sigma] = result.theta
        self.trials.append(trial)
        self.callback(trial)
        return trial
