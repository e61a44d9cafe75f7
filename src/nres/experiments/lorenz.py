"""Lorenz with the settings of the paper [subsec:lorenz, tab:lorenz_hyperparameters]."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from nres.estimators import BPTT, DODGE, GPES, NRES, PES, TBPTT, TES, UORO, Estimator, FullES
from nres.estimators.es import Options
from nres.evaluate import evaluate
from nres.systems import Lorenz
from nres.train import Progress, TrainResult, train

_ONLINE: Options = {"workers": 200, "sigma": 0.04}


@dataclasses.dataclass(frozen=True)
class Method:
    """An estimator with its optimizer, as the paper tuned them."""

    name: str
    estimator: Callable[[Lorenz], Estimator]
    learning_rate: float | optax.Schedule


METHODS = (
    Method("FullES", lambda s: FullES(s, workers=10, sigma=0.04), 3e-5),
    Method("TES", lambda s: TES(s, window=100, **_ONLINE), 3e-4),
    Method(
        "PES",
        lambda s: PES(s, window=100, **_ONLINE),
        optax.piecewise_constant_schedule(1e-5, {1000: 0.1}),
    ),
    Method("GPES", lambda s: GPES(s, window=100, period=500, **_ONLINE), 1e-5),
    Method("NRES", lambda s: NRES(s, window=100, **_ONLINE), 1e-5),
    Method("BPTT", lambda s: BPTT(s), 1e-8),
    Method("TBPTT", lambda s: TBPTT(s, window=100, workers=200), 3e-4),
    Method("DODGE", lambda s: DODGE(s, window=100, workers=200), 1e-10),
    Method("UORO", lambda s: UORO(s, window=100, workers=200), 1e-13),
)

TEST_KEY = jax.random.key(2023)


def run(
    method: Method,
    system: Lorenz,
    *,
    updates: int,
    seed: int,
    evaluations: int = 40,
    episodes: int = 2000,
    callback: Callable[[Progress], object] | None = None,
) -> TrainResult:
    """Train with one method, recording the test loss and the parameters along the way."""

    def measure(theta):
        loss = system.test_loss(theta, TEST_KEY, episodes=episodes)
        return {"test_loss": loss, "ln_r": theta[0], "ln_a": theta[1]}

    return train(
        method.estimator(system),
        optax.sgd(method.learning_rate),
        system.initial_theta(),
        updates=updates,
        key=jax.random.key(seed),
        eval_fn=measure,
        eval_every=max(1, updates // evaluations),
        callback=callback,
    )


def loss_surface(
    system: Lorenz, ln_r: Float[np.ndarray, "columns"], ln_a: Float[np.ndarray, "rows"]
) -> Float[Array, "rows columns"]:
    """The training loss on a grid of parameters."""
    grid = jnp.stack(jnp.meshgrid(jnp.asarray(ln_r), jnp.asarray(ln_a)), axis=-1)
    loss = jax.jit(jax.vmap(lambda theta: evaluate(system, theta, TEST_KEY).loss))
    return loss(grid.reshape(-1, 2)).reshape(grid.shape[:2])
