"""Workers that are elsewhere: theta goes out, losses come back, noise is drawn where it is needed.

It is never kept here, whatever the estimator's `noise` says.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nres.estimators.blocks import Carry, over_blocks
from nres.estimators.values import Contributions, EstimatorState, Workers
from nres.noise import (
    Noise,
    Perturbed,
    draw,
    noise_number,
    noise_scale,
    times_worker,
    update_noise,
    where_worker,
)
from nres.pools.ray import RayPool, RayWindow
from nres.system import Theta, parameter_count

if TYPE_CHECKING:
    from nres.estimators.es import EvolutionStrategy


def begin_remote(es: "EvolutionStrategy", theta: Theta, workers: Workers) -> Carry:
    """`EvolutionStrategy._begin` on a `RayPool`."""
    update, length = jnp.zeros((), jnp.int32), jnp.zeros_like(workers.start)
    window = _ask(es, theta, update, workers, None, 0, length)
    score = None
    if es.accumulates:
        score = _score(theta, workers, jnp.asarray(window.sigma), es.horizon, es.period)
    return Carry(Noise(jnp.asarray(window.sigma), None, score), window.state)


def run_remote(
    es: "EvolutionStrategy",
    theta: Theta,
    update: Int[Array, ""],
    workers: Workers,
    carry: Carry | None,
    length: Int[Array, "workers"],
) -> tuple[Carry | None, Contributions]:
    """`EvolutionStrategy._run` on a `RayPool`."""
    window = _ask(es, theta, update, workers, carry, es.window, length)
    old = None
    if carry is not None and carry.noise is not None:
        old = Noise(carry.noise.sigma, None, carry.noise.score)
    new, part = _contributions(es, theta, workers, old, window)
    late, restarted = jnp.asarray(window.late), jnp.asarray(window.restarted)
    contributions = Contributions(part.grad, part.norm, part.loss, part.steps, late, restarted)
    if old is None:
        return None, contributions
    if window.late.any():
        new = where_worker(late, old, new)
    state = es.pool.fork(window.state, 2) if es.restarts else window.state
    return Carry(new, state), contributions


def portable(es: "EvolutionStrategy", theta: Theta, state: EstimatorState) -> EstimatorState:
    """The state of an estimator on a `RayPool` as it would be on the pool that the actors have."""
    if state.carry is None:
        return state
    noise, workers = state.carry.noise, state.workers
    epsilon = None
    if es.noise == "keep" and es.window < es.horizon:
        number = noise_number(workers.episode, workers.start, es.horizon, es.period)
        epsilon = draw(workers.key, number, noise.sigma, theta)
    assert isinstance(es.pool, RayPool)
    states = es.pool.fetch(state.carry.pool)
    carry = Carry(Noise(noise.sigma, epsilon, noise.score), states)
    return eqx.tree_at(lambda s: s.carry, state, carry)


def _contributions(
    es: "EvolutionStrategy", theta: Theta, workers: Workers, noise: Noise | None, window: RayWindow
) -> tuple[Noise, Contributions]:
    """What the workers contribute, and the noise they had."""
    sigma = jnp.asarray(window.sigma)
    loss, steps = jnp.asarray(window.loss), jnp.asarray(window.steps)
    if window.grad is not None:
        mean = (loss[0] + loss[1]) * (es.scale / 2)
        grad = jax.tree.map(jnp.asarray, window.grad)
        return Noise(sigma, None, None), Contributions(grad, jnp.asarray(window.norm), mean, steps)
    if noise is not None and noise.score is not None and window.restarted.any():
        score = _score(theta, workers, sigma, es.horizon, es.period)
        restarted = jnp.asarray(window.restarted)
        noise = Noise(noise.sigma, None, where_worker(restarted, score, noise.score))
    return _weigh(es, theta, workers, noise, sigma, loss, steps)


def _ask(es, theta, update, workers, carry, window: int, length) -> RayWindow:
    """Let the pool run a window."""
    noise, state = (None, None) if carry is None else (carry.noise, carry.pool)
    sigma = noise_scale(noise, workers.start, es.sigma_at(update), es.period)
    words = jax.random.key_data(workers.key)
    perturbed = Perturbed(theta, words, workers.episode, sigma, es.horizon, es.period, es.members)
    keys = jax.random.key_data(workers.episode_keys())
    keys, start, length = jax.device_get((keys, workers.start, length))
    # Nobody may be late before the first update: workers are brought to their places.
    wait = int(update) == 0
    # Where noises add up to a score, that is here; else actors know all there is to know.
    scale = None if es.accumulates or window == 0 else es.scale
    return es.pool.advance(state, perturbed, keys, start, window, length, scale=scale, wait=wait)


@eqx.filter_jit
def _weigh(
    es: "EvolutionStrategy",
    theta: Theta,
    workers: Workers,
    noise: Noise | None,
    sigma: Float[Array, "workers"],
    loss: Float[Array, "members workers"],
    steps: Int[Array, "members workers"],
) -> tuple[Noise, Contributions]:
    """Draw the noise that the workers were given, and weigh the losses with it."""

    def run(part, carry, _):
        workers, sigma, loss, steps = part
        noise, epsilon = update_noise(
            None if carry is None else carry.noise,
            theta,
            workers.key,
            noise_number(workers.episode, workers.start, es.horizon, es.period),
            workers.start,
            sigma,
            period=es.period,
            keep=False,
            accumulate=es.accumulates,
        )
        contributions = es._reduce(noise, epsilon, loss.T, steps.T)
        return None if carry is None else Carry(noise, ()), contributions

    carry = None if noise is None else Carry(noise, ())
    rows = (workers, sigma, loss.T, steps.T)
    carry, contributions = over_blocks(
        run, rows, carry, None, workers.start.shape[0], parameter_count(theta)
    )
    after = None if carry is None else carry.noise
    return Noise(sigma, None, None) if after is None else after, contributions


@eqx.filter_jit
def _score(
    theta: Theta, workers: Workers, sigma: Float[Array, "workers"], horizon: int, period: int
) -> Theta:
    """The scores of episodes that were unrolled again, before the window that begins now.

    All their noises had the sigma of the present one.
    """
    used = -(-workers.start // period)

    def add(i, score):
        start = jnp.full_like(workers.start, i * period)
        number = noise_number(workers.episode, start, horizon, period)
        epsilon = draw(workers.key, number, sigma, theta)
        more = times_worker(jnp.where(i < used, sigma**-2, 0), epsilon)
        return jax.tree.map(jnp.add, score, more)

    zero = jax.tree.map(
        jnp.zeros_like,
        jax.eval_shape(lambda: times_worker(sigma, draw(workers.key, used, sigma, theta))),
    )
    return jax.lax.fori_loop(0, used.max(), add, zero)
