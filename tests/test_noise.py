"""The noise: independent standard normal numbers, known by key and number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import portions_drawn, slow, z_scores
from nres.noise import Gaussian, LowRank, draw_signs, threefry, update_noise

KEYS = jax.random.split(jax.random.key(0), 400)


def test_the_hash_is_that_of_jax():
    numbers = jnp.arange(400, dtype=jnp.uint32)
    expected = jax.random.key_data(jax.vmap(jax.random.fold_in)(KEYS, numbers))
    data = jax.random.key_data(KEYS)
    words = threefry((data[:, 0], data[:, 1]), (jnp.zeros_like(numbers), numbers))
    np.testing.assert_array_equal(jnp.stack(words, axis=1), expected)


@pytest.mark.parametrize("dtype", ["float32", slow("float64"), slow("bfloat16")])
def test_noise_is_standard_normal(dtype, x64):
    theta = {"a": jnp.zeros((3, 5), dtype), "b": jnp.zeros((), dtype), "c": jnp.zeros(7, dtype)}
    sigma = jnp.linspace(0.5, 2.0, 400)
    rows = Gaussian().draw(KEYS, jnp.arange(400), sigma, theta)
    assert {leaf.dtype for leaf in jax.tree.leaves(rows)} == {jnp.dtype(dtype)}
    flat = np.concatenate([np.reshape(x, (400, -1)).astype(float) for x in rows.values()], axis=1)
    flat = flat / np.asarray(sigma)[:, None]
    for power, moment in [(1, 0), (2, 1), (3, 0), (4, 3)]:
        assert abs(z_scores(flat.ravel() ** power, moment)) < 4
        assert np.abs(z_scores(flat**power, moment)).max() < 4.5  # each of 23 columns
    # Neither elements nor neighbouring workers have anything to do with one another.
    products = np.einsum("ni,nj->nij", flat, flat)[:, *np.triu_indices(23, 1)]
    assert np.abs(z_scores(products, 0)).max() < 5  # of 253
    assert np.abs(z_scores(flat[1:] * flat[:-1], 0)).max() < 4.5


def test_noise_depends_on_key_and_number_alone():
    theta, sigma = jnp.zeros(6), jnp.ones(400)
    number = jnp.arange(400) % 3
    rows = Gaussian().draw(KEYS, number, sigma, theta)
    np.testing.assert_array_equal(
        rows[7:9], Gaussian().draw(KEYS[7:9], number[7:9], sigma[7:9], theta)
    )
    assert len(np.unique(np.asarray(rows), axis=0)) == len(rows)
    later = Gaussian().draw(KEYS, number + 1, sigma, theta)
    assert np.abs(z_scores(np.asarray(rows) * np.asarray(later), 0)).max() < 4


@pytest.mark.parametrize("law", [Gaussian(), LowRank(2)])
@pytest.mark.parametrize("few", [slow(1), 19, slow(20), slow(400)])
def test_noise_is_drawn_for_few_workers_at_a_time(few, law, monkeypatch):
    """Of 400 workers 20 begin a noise: drawn at once or one after another, it is the same."""
    theta, sigma = jnp.zeros((3, 5)), jnp.float32(0.5)
    start, number = jnp.arange(400, dtype=jnp.int32), jnp.arange(400, dtype=jnp.int32) // 20
    step = functools.partial(update_noise, law, store=True, accumulate=False)
    noise, _ = step(None, theta, KEYS, number, start, sigma, period=20)

    def later(few):
        args = noise, theta, KEYS, number + 1, start - 1, jnp.float32(3.0)
        return step(*args, period=20, few=few)

    every, some = later(None), later(few)
    jax.tree.map(np.testing.assert_array_equal, every, some)
    drawn, draw = [], type(law).draw

    def counted(self, keys, *given):
        drawn.append(len(keys))
        return draw(self, keys, *given)

    monkeypatch.setattr(type(law), "draw", counted)
    jax.eval_shape(lambda: (later(None), later(few)))
    assert drawn == [400, few]


class Turning(nres.System):
    """A system with a matrix as parameters, in twelve windows of two steps."""

    horizon: int = 24

    def init(self, theta, key):
        return jnp.ones(4)

    def step(self, state, theta, t, key):
        state = jnp.tanh(theta.T @ (theta @ state)) + 0.1 * jax.random.normal(key, (4,))
        return state, jnp.sum(state**2)


@pytest.mark.parametrize("phases", ["even", slow("independent")])
@pytest.mark.parametrize("law", [Gaussian(), slow(LowRank(1))])
def test_drawing_for_few_changes_no_training(law, phases, monkeypatch):
    theta = jnp.linspace(-1, 1, 12).reshape(3, 4)
    estimator = nres.NRES(Turning(), workers=96, window=2, sigma=0.1, noise=law, phases=phases)

    def trained():
        return nres.train(estimator, optax.sgd(0.01), theta, updates=30, key=KEYS[0])

    usual = trained()
    jax.clear_caches()
    portions = portions_drawn(monkeypatch)
    np.testing.assert_array_equal(trained().theta, usual.theta)
    assert portions == {9 if phases == "even" else 20}


def test_keys_of_another_generator():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 50)
    rows = np.asarray(Gaussian().draw(keys, jnp.zeros(50, jnp.int32), jnp.ones(50), jnp.zeros(40)))
    assert abs(z_scores(rows.ravel() ** 2, 1)) < 4
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_signs_are_fair_and_independent():
    like = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((), jnp.float16)}
    rows = draw_signs(KEYS, jnp.arange(400), like)
    assert rows["a"].shape == (400, 2, 3)
    assert rows["b"].dtype == jnp.float16
    flat = np.concatenate([np.reshape(x, (400, -1)).astype(float) for x in rows.values()], axis=1)
    assert set(np.unique(flat)) == {-1.0, 1.0}
    assert np.abs(z_scores(flat, 0)).max() < 4
    products = np.einsum("ni,nj->nij", flat, flat)[:, *np.triu_indices(7, 1)]
    assert np.abs(z_scores(products, 0)).max() < 4
    np.testing.assert_array_equal(draw_signs(KEYS, jnp.arange(400), like)["a"], rows["a"])
    assert (draw_signs(KEYS, jnp.arange(1, 401), like)["a"] != rows["a"]).any()
