"""Starting points of workers, progress, and the text that results print."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave
from nres.updates import Chunks, CompiledUpdates, float_names, integer_names, lift_update

KEY = jax.random.key(8)


def test_fresh_episodes_keep_the_schedule_of_sigma():
    estimator = nres.NRES(
        Wave(), workers=4, window=3, sigma=lambda update: jnp.where(update < 5, 0.1, 0.001)
    )
    state = estimator.init(THETA[Wave], KEY, update=20)
    assert int(state.update) == 20
    np.testing.assert_allclose(state.carry.noise.sigma[state.workers.start > 0], 0.001)


def test_printed_results_are_short():
    estimator = nres.NRES(Wave(), workers=4, window=3, sigma=0.1)
    result = nres.train(
        estimator, optax.sgd(0.02), THETA[Wave], updates=12, key=KEY, eval_fn=lambda th: th[0]
    )
    evaluation = nres.evaluate(Wave(), THETA[Wave], KEY, episodes=5)
    for shown, words in (
        (result, ["12 updates", "training loss", "eval 0.5"]),
        (result.history, ["12 updates", "training loss", "unroll steps"]),
        (evaluation, [f"loss {float(evaluation.loss):.5g} ±", "5 episodes", "50 steps"]),
    ):
        assert len(repr(shown)) < 200
        assert "\n" not in repr(shown)
        for word in words:
            assert word in repr(shown)
    for html in (result._repr_html_(), result.history._repr_html_()):
        assert "<table>" in html
        assert "training loss" in html
    assert "1 episode," in repr(nres.evaluate(Wave(), THETA[Wave], KEY))


def test_progress(capsys):
    estimator = nres.NRES(Wave(), workers=4, window=3, sigma=0.1)
    nres.train(estimator, optax.sgd(0.02), THETA[Wave], updates=12, key=KEY, progress=True)
    said = capsys.readouterr().out
    for words in ("compiling", "moving workers to their starting points", "12/12", "training loss"):
        assert words in said
    nres.train(estimator, optax.sgd(0.02), THETA[Wave], updates=12, key=KEY)
    assert capsys.readouterr().out == ""

    phases = []

    class Listener:
        def phase(self, name):
            phases.append(name)

        def __call__(self, progress):
            phases.append(progress.state.update)

    evaluated = {"eval_fn": lambda theta: 0.0, "eval_every": 6}
    nres.train(
        estimator,
        optax.sgd(0.02),
        THETA[Wave],
        updates=6,
        key=KEY,
        progress=Listener(),
        **evaluated,
    )
    assert phases[:4] == ["compiling", "unlocking", "updating", "evaluating"]
    assert phases[-1] == 6


def test_unlocking_compiles_no_program_of_its_own(compilations):
    """The window takes longest to compile, so only one program contains it."""
    compilations.clear()
    estimator = nres.NRES(Wave(13), workers=5, window=3, sigma=0.1)
    nres.train(estimator, optax.sgd(0.02), THETA[Wave], updates=3, key=KEY)
    assert compilations
    assert not [name for name in compilations if "init" in name]


def test_init_in_a_function_that_the_user_compiles():
    estimator = nres.NRES(Wave(), workers=6, window=3, sigma=0.1)
    outside, inside = estimator.init(THETA[Wave], KEY), jax.jit(estimator.init)(THETA[Wave], KEY)
    assert len(set(np.asarray(outside.workers.start).tolist())) > 1
    for one, other in zip(*map(jax.tree.leaves, (outside, inside)), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(("sizes", "offset"), [({1}, 4), ({32}, 4), ({1, 3}, 4), (set(), 4)])
def test_unlocking_uses_what_is_compiled_anyway(sizes, offset, monkeypatch):
    estimator = nres.NRES(Wave(), workers=4, window=2, sigma=0.1)
    chunks = Chunks(estimator, None, 1)
    updates = CompiledUpdates(estimator, lift_update(optax.sgd(0.1), THETA[Wave]), chunks)
    used, columns = [], len(float_names(estimator)) + len(integer_names(estimator))

    def call(arguments, position):
        _, _, bundles, bundle, *_ = arguments
        used.append((int(bundles), bundle))
        count = int(bundles) * bundle
        return position, np.zeros((count, columns), np.int32)

    monkeypatch.setattr(updates, "run", call)
    monkeypatch.setattr(Chunks, "bundles", lambda self, update: sizes)
    state = estimator.init(THETA[Wave], KEY)
    updates._unlock(np.array([1, offset, 0, 2]), (THETA[Wave], (), state))
    fitting = [size for size in sizes if size <= offset]
    bundle = max(fitting or sizes or {1})
    assert {size for _, size in used} == {bundle}
    assert sum(count * size for count, size in used) == -(-offset // bundle) * bundle


@pytest.mark.slow
def test_unlocking_in_training_is_that_of_init():
    for window in (3, 5):  # one of which does not divide the horizon
        estimator = nres.NRES(Wave(), workers=6, window=window, sigma=0.1)
        begun, unlocking = estimator.unlock(THETA[Wave], KEY)
        result = nres.train(estimator, optax.sgd(0.02), THETA[Wave], updates=0, key=KEY)
        state = result.state.estimator
        assert unlocking == result.history.unlock_steps == result.state.steps
        np.testing.assert_array_equal(state.workers.start, begun.workers.start)
        assert int(state.update) == 0
        for one, other in zip(*map(jax.tree.leaves, (state.carry, begun.carry)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
