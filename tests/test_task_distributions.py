"""Distributions of tasks: episodes that differ in data set, scale, model, batches and length."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import raises_naming
from nres import runs
from nres.data import Images
from nres.lengths import LogUniform
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer import dense
from small_tasks import blobs, small_task

KEY = jax.random.key(3)


def init(key):
    return {"w": jax.random.normal(key, (3,))}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def regression(**options):
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=(40, 3)), "y": generator.normal(size=40)}
    data = jax.tree.map(lambda x: x.astype(np.float32), data)
    return lo.Task(init, loss, data, batch=4, **options)


def random_system(task=None, optimizer=None, **options):
    task = regression() if task is None else task
    optimizer = lo.SGD(0.1) if optimizer is None else optimizer
    return lo.LearnedOptimizerSystem(task, optimizer, sequence="random", **options)


def by_hand(system, state, key, lr):
    """Make one step of gradient descent on the loss of c·p in NumPy; return all that it gives."""
    train, other = system.task.draw(key, state.drawn.part)
    c = 1.0 if state.drawn.scale is None else float(state.drawn.scale)
    p = np.asarray(state.params["w"], np.float64)

    def of(p, index):
        x, y = (np.asarray(system.task.train[name], np.float64)[np.asarray(index)] for name in "xy")
        residual = x @ (c * p) - y
        return np.mean(residual**2), 2 * c * x.T @ residual / len(y)

    before, grad = of(p, train)
    p = p - lr * grad
    return p, before, of(p, other)[0]


@pytest.mark.parametrize("scales", [None, (0.01, 100.0)])
@pytest.mark.parametrize("outer", ["before", "after"])
def test_one_step_is_that_of_the_definition(scales, outer):
    system = random_system(scales=scales, outer=outer, horizon=5)
    theta = system.initial_theta(KEY)
    state = system.init(theta, KEY)
    start = init(KEY)["w"]
    scale = 1.0 if scales is None else state.drawn.scale
    np.testing.assert_allclose(scale * state.params["w"], start, rtol=1e-6)
    for t in range(3):
        key = jax.random.fold_in(KEY, t)
        p, before, after = by_hand(system, state, key, 0.1)
        state, found = system.step(state, theta, jnp.int32(t), key)
        np.testing.assert_allclose(state.params["w"], p, rtol=2e-4)
        np.testing.assert_allclose(found, before if outer == "before" else after, rtol=2e-4)


def test_scales_are_log_uniform():
    system = random_system(scales=(0.01, 100.0))
    theta = system.initial_theta(KEY)
    states = jax.vmap(lambda k: system.init(theta, k))(jax.random.split(KEY, 2000))
    logs = np.sort(np.log10(states.drawn.scale))
    expected = (np.arange(2000) + 0.5) / 2000 * 4 - 2
    assert np.abs(logs - expected).max() < 4 * 1.63 / np.sqrt(2000)  # Kolmogorov and Smirnov


def test_an_episode_keeps_to_its_data_set():
    """The images of the second data set are brighter than all of the first."""
    dark, bright = (
        Images(np.clip(blobs(n).images // 3 + shift, 0, 255).astype(np.uint8), blobs(n).labels)
        for n, shift in ((60, 0), (40, 150))
    )
    task = lo.classification(
        lambda key: dense.init_dense((4, 3, 2), key), dense.apply_dense, [dark, bright], batch=8
    )
    assert task.parts == ((48, 12), (32, 8))
    system = random_system(task, horizon=4)
    theta = system.initial_theta(KEY)
    states = jax.vmap(lambda k: system.init(theta, k))(jax.random.split(KEY, 400))
    share = np.mean(states.drawn.part)
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(400)
    for part, within in enumerate([(0, 100), (150, 255)]):
        for i in range(20):
            batches = system._batches(0, jax.random.fold_in(KEY, i), jnp.int32(part))
            for images, _ in batches:
                assert images.min() >= within[0]
                assert images.max() <= within[1]


def test_losses_are_capped_and_gradients_finite():
    """A model that overflows costs the cap, and stays where it is."""
    system = random_system(optimizer=lo.SGD(1e30), cap=2.0, outer="before", horizon=6)
    theta = system.initial_theta(KEY)
    losses = system.losses(theta, KEY)
    assert float(losses.max()) == 2.0
    assert np.isfinite(losses).all()
    plain = random_system(optimizer=lo.SGD(1e30), outer="before", horizon=6).losses(theta, KEY)
    assert not np.isfinite(plain).all()
    first = random_system(outer="before", horizon=6, cap=1e6).losses(theta, KEY)
    np.testing.assert_array_equal(first[0], plain[0])


def test_members_share_everything_that_is_drawn():
    """Before the first step nothing depends on theta, so that pairs differ in nothing."""
    system = random_system(scales=(0.5, 2.0), outer="before", horizon=LogUniform(2, 6))
    estimator = nres.NRES(system, workers=40, window=1, sigma=0.1)
    theta = system.initial_theta(KEY)
    state = estimator.init(theta, KEY)
    first = np.asarray(state.workers.start) == 0
    norm = np.asarray(estimator.estimate(theta, state).info.contribution_norm)
    assert 0 < first.sum() < 40
    assert (norm[first] == 0).all()
    assert (norm[~first] > 0).all()


def test_metrics_are_means_over_episodes():
    system = random_system(horizon=10, test_episodes=3)
    theta = system.initial_theta(KEY)
    each = [system.losses(theta, key) for key in jax.random.split(KEY, 3)]
    metrics = system.metrics(theta, KEY)
    np.testing.assert_allclose(metrics["loss"], np.mean(each), rtol=1e-6)
    np.testing.assert_allclose(metrics["final_loss"], np.mean([x[-1] for x in each]), rtol=1e-6)
    assert system.metrics_steps == 30


def test_the_recipe_of_celo2():
    known = runs.SYSTEMS["celo2"]
    system = known.make()
    assert sum(leaf.size for leaf in jax.tree.leaves(system.initial_theta(KEY))) == 347
    model = jax.eval_shape(system.task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == 2410
    assert (system.task.batch, system.task.sizes) == (64, (48_000, 48_000))
    assert system.cap == 1.5 * math.log(10)
    assert system.outer == "before"
    assert system.lengths == LogUniform(100, 2000)
    assert system.scales == (1e-3, 1e3)
    pes = known.presets["pes"]
    inner = pes.updates * pes.workers * 2 * pes.window
    assert inner == 320_000_000
    with raises_naming(nres.data.DataError, "svhn"):
        known.make(data=["svhn"])
    with raises_naming(ValueError, "data"):
        known.make(data="mnist")


BAD = {
    "outer": {"outer": "during"},
    "cap": {"cap": 0.0},
    "scales": {"scales": (2.0, 1.0)},
    "test_episodes": {"test_episodes": 0},
    "sequence": {"horizon": LogUniform(2, 5), "sequence": "fixed"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_refused(name):
    with raises_naming(ValueError, name):
        lo.LearnedOptimizerSystem(small_task(), **({"sequence": "random"} | BAD[name]))


def test_parts_that_do_not_add_up_are_refused():
    for bad in ([(20, 20), (10, 20)], [(40, 40), (0, 0)]):
        with raises_naming(ValueError, "parts"):
            regression(parts=bad)
    with raises_naming(TypeError, "scales"):
        random_system(scales=3.0)
