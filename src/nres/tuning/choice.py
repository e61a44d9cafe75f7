"""`tune`: choose sigma, learning rate, window and number of workers by short trials."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import optax
from jaxtyping import Array, PyTree

from nres.checks import as_key, positive_number
from nres.estimators import NRES, PES, TES, Estimator, FullES
from nres.noise import Noise, Orthogonal
from nres.pools.jax import as_pool
from nres.system import Theta, as_theta, check_one_length
from nres.tuning.budget import PROBES, TRIALS, Budget
from nres.tuning.probes import Distance, Probe, Prober, scale
from nres.tuning.trials import Trial, Trials
from nres.workers import Steps

# The evolution strategies that `tune` sets up; GPES also needs a period.
STRATEGIES: Mapping[str, Callable[..., Estimator]] = MappingProxyType(
    {"nres": NRES, "pes": PES, "tes": TES, "fulles": FullES}
)
# The first learning rate of Adam is this times sigma times the root of the pairs per update, and
# the last is this share of the first.
RATE, LAST_RATE = 0.2, 0.1


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The choice of `tune`: the arguments of `nres.train`, and the measurements behind them."""

    estimator: Estimator
    """The estimator, with the chosen sigma, window and number of workers."""
    optimizer: optax.GradientTransformation
    """Adam with the chosen learning rate, which falls along a cosine over `updates`."""
    theta: Theta
    """The parameters to start from: those after the trial of this sigma, else the best probe's."""
    updates: int
    """The number of updates in the part of the budget that is left."""
    sigma: float
    """The chosen scale of the noise."""
    rates: tuple[float, float]
    """The first and the last learning rate."""
    workers: int
    """N, the chosen number of workers."""
    window: int
    """W, the chosen window."""
    steps: Steps
    """The number of unroll steps of probes and trials, which count against the budget."""
    reasons: tuple[str, str, str]
    """The reasons for the choice, in three sentences."""
    probes: tuple[Probe, ...]
    """The probes, in their order."""
    trials: tuple[Trial, ...]
    """The trials, in their order."""


def tune(
    system: Any,
    theta: PyTree,
    *,
    key: Array,
    total_steps: int | float | None = None,
    sequential_steps: int | float | None = None,
    seconds: int | float | None = None,
    method: str = "nres",
    sigma: float | int | None = None,
    rate: float | int | None = None,
    workers: int | None = None,
    window: int | None = None,
    noise: Noise = Orthogonal(),  # noqa: B008 - frozen
    callback: Callable[[Probe | Trial], Any] | None = None,
) -> Tuned:
    r"""Choose sigma, learning rate, window and number of workers for a budget, by short trials.

    **Sigma.** A *probe* estimates the gradient at `theta` with a few antithetic episodes, and
    evaluates unperturbed parameters at several distances along it. Probes with three sigmas, around
    a tenth of the root mean square of `theta`, tell the largest distance r that brings most of the
    possible decrease of the loss. If r is beyond their sigmas, three more probes follow there. The
    scale of the problem is $r / \sqrt d$ for d parameters. If the budget allows, *trials* follow:
    short training from `theta` with this sigma, and with ones $\sqrt{10}$ times smaller and larger
    while the loss improves. The sigma with the lowest mean loss in the second half of its trial is
    chosen, or the next smaller one if it lowered the loss almost as much. Noise that is too small
    follows the roughness of the loss, and noise that is too large follows a smoothed loss that
    differs from the loss itself.

    **Learning rate.** Adam moves each parameter by about its learning rate per update, whatever the
    scale of the loss. With $E = NW/T$ pairs of episodes per update, the rate begins at
    $0.2\,\sigma\sqrt E$: the noise of the updates during one pair of episodes then moves each
    parameter by a fifth of sigma, for any E. It falls to a tenth of that along a cosine.

    **Workers and window.** There are ten windows per episode and two pairs of episodes per update,
    or fewer if the budget would not allow 100 updates. If sequential steps are limited, there are
    more workers with shorter windows.

    Probes and trials take up to 15 % of the budget. They are not wasted: training goes on from
    the parameters after the trial of that sigma or, without trials, from the best of the probes.

    Args:
        system: An `nres.System`, or any `nres.Pool`.
        theta: The parameters to start from.
        key: A JAX random key.
        total_steps: The number of unroll steps in total, including those of the trials.
        sequential_steps: The number of sequential steps, including those of the trials. It may be
            given together with `total_steps`.
        seconds: The number of seconds, including those of the trials, instead of steps. The number
            of updates follows from the measured time of a few of them.
        method: The evolution strategy: `"nres"`, `"pes"`, `"tes"` or `"fulles"`.
        sigma: A scale of the noise to keep. Then there are neither probes nor trials.
        rate: A first learning rate to keep.
        workers: A number of workers to keep.
        window: A window to keep.
        noise: The distribution of the noise.
        callback: A function that is called with each `Probe` and each `Trial`.

    Returns:
        The arguments of `nres.train`, the reasons for the choice, the probes and the trials.

    Raises:
        ValueError: If there is no budget or it is too small, if the method is unknown, or if no
            probe finds a step that lowers the loss.

    Example:
        ```python
        key = jax.random.key(0)
        tuned = nres.tune(system, theta, total_steps=1e7, key=key)
        print(*tuned.reasons, sep="\n")
        result = nres.train(
            tuned.estimator, tuned.optimizer, tuned.theta, updates=tuned.updates, key=key
        )
        ```
    """
    began = time.perf_counter()
    pool, theta, key = as_pool(system), as_theta(theta), as_key(key)
    check_one_length("tune", pool)
    if method not in STRATEGIES:
        raise ValueError(f"method must be one of {', '.join(STRATEGIES)}; got {method!r}.")
    given = {
        name: positive_number(name, value)
        for name, value in (("sigma", sigma), ("rate", rate))
        if value is not None
    }
    budget = Budget.of(pool.horizon, total_steps, sequential_steps, seconds)
    workers, window = budget.shape(method, workers, window)
    pairs = workers * window / pool.horizon
    online = {} if method == "fulles" else {"window": window}

    def make(sigma: float) -> tuple[Estimator, float]:
        first = given.get("rate", float(f"{RATE * sigma * math.sqrt(pairs):.3g}"))
        return STRATEGIES[method](pool, workers=workers, sigma=sigma, noise=noise, **online), first

    make(given.get("sigma", 1.0))[0].check(theta)  # so that a mistake shows before the probes
    probe_key, trial_key, time_key = jax.random.split(key, 3)
    report = callback or (lambda result: None)
    share = budget.share(PROBES)
    # In a round, episodes along the gradients follow those of the gradients.
    episodes, rounds = share.total / pool.horizon, share.sequential / (2 * pool.horizon)
    prober = Prober(pool, theta, probe_key, episodes, rounds, noise, report)
    found = None if "sigma" in given else prober.search()
    chosen = given["sigma"] if found is None else scale(found.place)
    if seconds is not None:
        left = seconds - (time.perf_counter() - began)
        count = _updates_in(left, make(chosen)[0], theta, time_key)
        each = make(chosen)[0].most_steps
        budget = dataclasses.replace(budget, total=float(prober.steps.total + count * each.total))
    trials = Trials(make, prober.theta, trial_key, budget.share(TRIALS, prober.steps), report)
    if found is not None:
        chosen = scale(trials.search(found.place, found.before))
    steps = Steps.added([prober.steps, trials.steps])
    estimator, first = make(chosen)
    updates = budget.updates(estimator, steps)
    if updates < 1:
        each = estimator.most_steps
        raise ValueError(
            f"after the {steps.total} steps of the trials, the budget leaves no update of "
            f"{each.total} total and {each.sequential} sequential steps: give a larger budget, or "
            "fewer workers."
        )
    last = float(f"{LAST_RATE * first:.3g}")
    return Tuned(
        estimator=estimator,
        optimizer=optax.adam(optax.cosine_decay_schedule(first, updates, last / first)),
        theta=trials.thetas.get(chosen, prober.theta) if trials.trials else prober.best,
        updates=updates,
        sigma=chosen,
        rates=(first, last),
        workers=workers,
        window=window,
        steps=steps,
        reasons=(
            f"sigma is {chosen:g}: {_evidence(found, trials)}.",
            f"The learning rate of Adam begins at {first:g}, "
            + ("as you gave it" if "rate" in given else f"{first / chosen:.2g} of sigma")
            + f", and falls to {last:g}, for {pairs:.2g} pairs of episodes per update.",
            f"{workers} workers of {type(estimator).__name__} with windows of {window} steps make "
            f"{updates} updates in the budget, after {steps.total} total and {steps.sequential} "
            "sequential steps of trials.",
        ),
        probes=tuple(prober.probes),
        trials=tuple(trials.trials),
    )


def _evidence(found: Distance | None, trials: Trials) -> str:
    """Describe the measurements behind sigma."""
    if found is None:
        return "you gave it"
    text = (
        f"steps of up to {scale(found.place):g} per parameter lower the loss, from "
        f"{found.before:.4g} to {found.after:.4g} on average over three probes"
    )
    if not trials.trials:
        return f"{text}, and the budget is too small for trials of other scales"
    ends = ", ".join(f"{trial.loss:.4g} with {trial.sigma:g}" for trial in trials.trials)
    return f"{text}, and trials of {trials.updates} updates end at {ends}"


def _updates_in(seconds: float, estimator: Estimator, theta: Theta, key: Array) -> int:
    """Return the number of updates in some seconds, from the time of the fastest of three."""
    state = estimator.init(theta, key)
    times = []
    for _ in range(4):  # the first includes the compilation
        began = time.perf_counter()
        estimate = jax.block_until_ready(estimator.estimate(theta, state))
        times.append(time.perf_counter() - began)
        state = estimate.state
    return int(max(0.0, seconds - sum(times)) / min(times[1:]))
