"""Workers that are elsewhere: theta goes out, losses and sums of contributions come back.

Noise is drawn where the workers are, and the scores of those methods that have some are kept
there; here there is nothing but the sigma of each worker's noise.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nres.estimators.blocks import Carry
from nres.estimators.values import Contributions, EstimatorState, Workers
from nres.noise import Noise, draw, noise_scale
from nres.pools.ray import Noisy, RayPool, RayState, RayWindow
from nres.system import Theta

if TYPE_CHECKING:
    from nres.estimators.es import EvolutionStrategy


def begin_remote(es: "EvolutionStrategy", theta: Theta, workers: Workers) -> Carry:
    """`EvolutionStrategy._begin` on a `RayPool`."""
    update, length = jnp.zeros((), jnp.int32), jnp.zeros_like(workers.start)
    window = _ask(es, theta, update, workers, None, None, 0, length)
    return Carry(Noise(jnp.asarray(window.sigma), None, None), window.state)


def run_remote(
    es: "EvolutionStrategy",
    theta: Theta,
    update: Int[Array, ""],
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, "workers"],
) -> tuple[Carry | None, Contributions]:
    """`EvolutionStrategy._run` on a `RayPool`."""
    noise, state = (None, None) if carry is None else (carry.noise, carry.pool)
    if noise is not None and not isinstance(state, RayState):  # it comes from a checkpoint
        assert isinstance(es.pool, RayPool)
        state = es.pool.adopt(state, noise.score)
        noise = Noise(noise.sigma, None, None)
    window = _ask(es, theta, update, workers, noise, state, es.window, length)
    loss, steps = jnp.asarray(window.loss), jnp.asarray(window.steps)
    late, restarted = jnp.asarray(window.late), jnp.asarray(window.restarted)
    contributions = Contributions(
        jax.tree.map(jnp.asarray, window.grad),
        jnp.asarray(window.norm),
        (loss[0] + loss[1]) * (es.scale / 2),
        steps,
        late,
        restarted,
    )
    if noise is None:
        return None, contributions
    state = es.pool.fork(window.state, 2) if es.restarts else window.state
    sigma = jnp.where(late, noise.sigma, window.sigma)
    return Carry(Noise(sigma, None, None), state), contributions


def portable(es: "EvolutionStrategy", theta: Theta, state: EstimatorState) -> EstimatorState:
    """The state of an estimator on a `RayPool` as it would be on the pool that the actors have."""
    if state.carry is None:
        return state
    assert isinstance(es.pool, RayPool)
    sigma, workers, epsilon = state.carry.noise.sigma, state.workers, None
    noisy, keys = _noisy(es, workers, None, sigma)
    start = np.asarray(workers.start)
    states, score = es.pool.fetch(state.carry.pool, (theta, noisy, keys, start))
    if es.noise == "keep" and es.window < es.horizon:
        number = workers.noise_numbers(es.horizon, es.period)
        epsilon = draw(workers.key, number, sigma, theta)
    carry = Carry(Noise(sigma, epsilon, jax.tree.map(jnp.asarray, score)), states)
    return eqx.tree_at(lambda s: s.carry, state, carry)


def _ask(es, theta, update, workers, noise, state, window: int, length) -> RayWindow:
    """Let the pool run a window."""
    noisy, keys = _noisy(es, workers, noise, es.sigma_at(update))
    start, length = jax.device_get((workers.start, length))
    # Nobody may be late before the first update: workers are brought to their places.
    wait = int(update) == 0
    return es.pool.advance(state, theta, keys, start, window, length, noisy=noisy, wait=wait)


def _noisy(es, workers, noise, sigma) -> tuple[Noisy, np.ndarray]:
    """How actors are to perturb theta, and the words of the keys of the workers' episodes."""
    words, scale, keys = jax.device_get(_rows(noise, workers, sigma, es.period))
    noisy = Noisy(
        keys=words,
        episode=np.asarray(workers.episode),
        sigma=scale,
        horizon=es.horizon,
        window=es.window,
        period=es.period,
        members=es.members,
        accumulate=es.accumulates,
        scale=es.scale,
        generator=str(jax.random.key_impl(workers.key)),
    )
    return noisy, keys


@eqx.filter_jit
def _rows(
    noise: Noise | None, workers: Workers, sigma: Float[Array, "..."], period: int
) -> tuple[Array, Array, Array]:
    """Of each worker: the words of its key, its sigma, and the words of its episode's key."""
    scale = noise_scale(noise, workers.start, sigma, period)
    keys = workers.key, workers.episode_keys()
    return jax.random.key_data(keys[0]), scale, jax.random.key_data(keys[1])
