"""`build`: construct the system, the estimator and the optimizer that settings describe."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax

from nres.estimators import Estimator
from nres.estimators.base import LOCAL
from nres.evaluation import evaluate
from nres.noise import AdaptiveSigma
from nres.placement import Placement
from nres.pools.base import Pool
from nres.runs.methods import LAWS, METHODS, OPTIMIZERS
from nres.runs.names import SettingsError, described, load_system
from nres.runs.placement import check_placement, place
from nres.runs.rates import learning_rate
from nres.runs.registry import SYSTEMS
from nres.runs.settings import Settings
from nres.schedule import Piecewise
from nres.system import System, Theta

# The seed of all evaluations: the same for all runs, so that they are comparable.
EVAL_KEY = 2023
# The number of episodes per evaluation, for systems without metrics of their own.
EPISODES = 100


@dataclasses.dataclass(frozen=True)
class Components:
    """Components of a run: the arguments of `nres.train`, built from settings.

    ```python
    components = nres.runs.build(nres.runs.resolve("lorenz", "nres"))
    estimator, optimizer, theta = components.estimator, components.optimizer, components.theta
    nres.train(estimator, optimizer, theta, updates=10, key=components.key)
    ```
    """

    system: System | Pool
    estimator: Estimator
    optimizer: optax.GradientTransformation
    theta: Theta
    """The initial parameters."""
    key: jax.Array
    measure: Callable[[Theta], dict[str, Any]]
    """Evaluates parameters; the first number is the one to compare, and smaller is better."""


def build(settings: Settings) -> Components:
    """Construct the components that settings describe, without compiling or unrolling anything.

    ```python
    components = nres.runs.build(nres.runs.resolve("lorenz", "nres", updates=500))
    ```
    """
    check_placement(settings)
    system = load_system(settings.system, settings.options)
    estimator = make_estimator(settings, system)
    _, key = jax.random.split(jax.random.key(settings.seed))
    if system.initial_theta is None:
        raise SettingsError(
            f"{settings.system} has no initial parameters: give it a method "
            "`initial_theta(self, key)` that returns them."
        )
    try:
        theta = estimator.check(_initial_theta(settings, system))
    except MemoryError:
        raise
    except Exception as error:  # raised by the user's code, which runs here for the first time
        raise SettingsError(f"{settings.system}: {described(error, settings.system)}") from error
    optimizer = make_optimizer(settings)
    # Last, after all checks, since actors take seconds to start.
    placement = place(settings, system)
    try:
        estimator = make_estimator(settings, system, placement)
    except SettingsError:
        placement.close()
        raise

    def measure(theta: Theta) -> dict[str, Any]:
        key = jax.random.key(EVAL_KEY)
        if system.metrics is not None:
            return dict(system.metrics(theta, key))
        return {"loss": evaluate(system, theta, key, episodes=EPISODES).loss}

    return Components(system, estimator, optimizer, theta, key, measure)


def _initial_theta(settings: Settings, system: Any) -> Theta:
    """Draw the initial parameters from the start seed, or from the seed if there is none."""
    known = SYSTEMS.get(settings.system)
    if settings.start_seed is not None and known is not None and known.start is not None:
        return known.start(system, settings.start_seed)
    seed = settings.seed if settings.start_seed is None else settings.start_seed
    start, _ = jax.random.split(jax.random.key(seed))
    return system.initial_theta(start)


def make_estimator(
    settings: Settings, pool: System | Pool, placement: Placement = LOCAL
) -> Estimator:
    """Construct the estimator that settings describe, for a system or a pool.

    Args:
        settings: The settings of the run; the method uses those that it accepts.
        pool: The system or pool to unroll.
        placement: The placement of the workers.
    """
    info = METHODS[settings.method]
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in info.accepts}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if "sigma" in arguments:
        schedule = Piecewise.parse(arguments["sigma"])
        arguments["sigma"] = schedule if schedule.changes else schedule.first
        if arguments.pop("adapt_sigma"):
            if schedule.changes:
                raise SettingsError(
                    f"sigma = {settings.sigma} changes at given updates, so it cannot also adapt: "
                    "give one number, or leave out adapt_sigma."
                )
            arguments["sigma"] = AdaptiveSigma(schedule.first)
    if "regenerate_noise" in arguments:
        arguments["store_noise"] = not arguments.pop("regenerate_noise")
    try:
        if "noise" in arguments:
            arguments["noise"] = LAWS[arguments["noise"]]()
        return info.estimator(pool, placement=placement, **arguments)
    except (TypeError, ValueError, ArithmeticError, ImportError) as error:
        raise SettingsError(f"{settings.method} on {settings.system}: {error}") from error


def make_optimizer(settings: Settings) -> optax.GradientTransformation:
    """Construct the optimizer that settings describe: its learning rate, warm-up and clipping."""
    rate = learning_rate(settings.lr, settings.warmup)
    optimizer = OPTIMIZERS[settings.optimizer](rate)
    if settings.clip is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)


def evaluation_steps(system: Any) -> int:
    """Return the number of unroll steps per evaluation, estimated if the system does not tell."""
    return int(system.metrics_steps or EPISODES * system.horizon)
