"""Workers that are elsewhere: theta goes out, losses come back, noise is drawn on both sides."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nres.estimators.blocks import Carry, over_blocks
from nres.estimators.values import Contributions, Workers
from nres.noise import Noise, Perturbed, draw, noise_number, noise_scale, times_worker, where_worker
from nres.pools.ray import RayWindow
from nres.system import Theta, parameter_count

if TYPE_CHECKING:
    from nres.estimators.es import EvolutionStrategy


def begin_remote(es: "EvolutionStrategy", theta: Theta, workers: Workers) -> Carry:
    """`EvolutionStrategy._begin` on a `RayPool`."""
    update, length = jnp.zeros((), jnp.int32), jnp.zeros_like(workers.start)
    window = _ask(es, theta, update, workers, None, 0, length)
    noise, *_ = es._perturb(theta, workers, None, jnp.asarray(window.sigma))
    return Carry(noise, window.state)


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
    noise = None if carry is None else carry.noise
    sigma, late, restarted = jax.tree.map(
        jnp.asarray, (window.sigma, window.late, window.restarted)
    )
    if noise is not None and noise.score is not None and window.restarted.any():
        score = _score(theta, workers, sigma, es.horizon, es.period)
        score = where_worker(restarted, score, noise.score)
        noise = Noise(noise.sigma, noise.epsilon, score)
    loss, steps = jnp.asarray(window.loss), jnp.asarray(window.steps)
    after, contributions = _weigh(es, theta, workers, noise, sigma, loss, steps)
    contributions = eqx.tree_at(
        lambda c: (c.late, c.restarted),
        contributions,
        (late, restarted),
        is_leaf=lambda x: x is None,
    )
    if carry is None:
        return None, contributions
    if window.late.any():
        after = where_worker(late, carry.noise, after)
    state = es.pool.fork(window.state, 2) if es.restarts else window.state
    return Carry(after, state), contributions


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
    return es.pool.advance(state, perturbed, keys, start, window, length, wait=wait)


@eqx.filter_jit
def _weigh(
    es: "EvolutionStrategy",
    theta: Theta,
    workers: Workers,
    noise: Noise | None,
    sigma: Float[Array, "workers"],
    loss: Float[Array, "members workers"],
    steps: Int[Array, "members workers"],
) -> tuple[Noise | None, Contributions]:
    """Draw the noise that the workers were given, and weigh the losses with it."""

    def run(part, carry, _):
        workers, sigma, loss, steps = part
        noise = None if carry is None else carry.noise
        noise, epsilon, _ = es._perturb(theta, workers, noise, sigma)
        contributions = es._reduce(noise, epsilon, loss.T, steps.T)
        return None if carry is None else Carry(noise, ()), contributions

    carry = None if noise is None else Carry(noise, ())
    rows = (workers, sigma, loss.T, steps.T)
    carry, contributions = over_blocks(
        run, rows, carry, None, workers.start.shape[0], parameter_count(theta)
    )
    return None if carry is None else carry.noise, contributions


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
