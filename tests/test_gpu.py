"""Options for NVIDIA GPUs: which a run gets, and that bundles leave its results the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import pallas as pl

import nres
from helpers import THETA, Wave
from nres import gpu, updates
from nres.jaxprs import count_operations, decides_in_loop

KEY = jax.random.key(8)
OPTIMIZER = optax.sgd(0.1)


def counted(function, *arguments):
    return count_operations(jax.make_jaxpr(function)(*arguments))


def test_operations_in_loops_count_once_per_iteration():
    def inner(x):
        return jax.lax.fori_loop(0, 6, lambda _, x: 2 * jnp.sin(x), x)

    # An iteration increments its counter, too. The length of the outer loop is not known.
    assert counted(inner, 1.0) == 6 * 3
    outer = lambda n: jax.lax.fori_loop(0, n, lambda _, x: inner(x), 1.0)  # noqa: E731
    assert counted(outer, 3) == 6 * 3 + len(("counter", "condition"))


def test_where_the_platform_decides_its_kernel_counts():
    def kernel(x):
        return pl.pallas_call(lambda a, b: None, jax.ShapeDtypeStruct((3,), jnp.float32))(x)

    def chosen(x):
        return jax.lax.platform_dependent(x, cuda=kernel, default=lambda x: 2 * jnp.sin(x) + 1)

    decision = counted(lambda x: jax.lax.platform_dependent(x, default=jnp.sin, cuda=jnp.cos), 1.0)
    assert counted(jax.vmap(chosen), jnp.ones((5, 3))) == decision


def test_decisions_inside_loops_are_found():
    def chosen(x):
        return jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)

    def repeated(function):
        return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: function(x), x)

    def halved(x):
        return jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)

    def of_platform(x):
        return jax.lax.platform_dependent(x, cuda=jnp.sin, default=jnp.cos)

    def decides(function, x=1.0):
        return decides_in_loop(jax.make_jaxpr(function)(x))

    assert not decides(chosen)
    assert not decides(halved)
    assert decides(repeated(chosen))
    assert decides(repeated(halved))
    assert decides(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jax.jit(halved)(x), x))
    assert not decides(repeated(repeated(jnp.sin)))
    assert not decides(repeated(of_platform))
    lanes = jnp.ones(4)
    assert not decides(jax.vmap(repeated(chosen)), lanes)
    assert decides(jax.vmap(repeated(halved)), lanes)


class Long(Wave):
    """A system whose step has a loop of very many operations."""

    def step(self, state, theta, t, key):
        theta = jax.lax.fori_loop(0, 2**30, lambda _, x: jnp.cos(x), theta)
        return super().step(state, theta, t, key)


def updates_of(estimator, last=9):
    update = updates.lift_update(OPTIMIZER, THETA[Wave])
    return updates.CompiledUpdates(estimator, update, updates.Chunks(estimator, None, last))


class Searching(Wave):
    """A system whose step has a loop of unknown length."""

    def step(self, state, theta, t, key):
        small = jax.lax.while_loop(lambda x: jnp.abs(x) > 1, lambda x: x / 2, theta.sum())
        state, loss = super().step(state, theta, t, key)
        return state, loss + small


def test_very_many_operations_are_counted():
    estimator = nres.NRES(Long(), workers=2, window=2, sigma=0.1)
    compiled = updates_of(estimator)
    state = jax.eval_shape(estimator.init, THETA[Wave], KEY)  # computing it would take hours
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)
    position = THETA[Wave], OPTIMIZER.init(THETA[Wave]), state
    assert updates._operations_of_graph(compiled._arguments(0, 1), position) == 2**31 - 1


@pytest.mark.parametrize(
    ("system", "most", "chosen"),
    [
        (Wave(), 10**6, updates._IN_ONE_GRAPH),
        (Wave(), 100, updates._CONCURRENT),
        (Searching(), 10**6, updates._CONCURRENT),
    ],
)
def test_updates_are_the_same_however_a_gpu_starts_them(system, most, chosen, monkeypatch):
    estimator = nres.NRES(system, workers=4, window=2, sigma=0.1)
    arguments = estimator, OPTIMIZER, THETA[Wave]
    alone = nres.train(*arguments, updates=9, key=KEY)
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "has_nvidia", lambda: True)
        patch.setattr(gpu, "MOST_OPERATIONS", most)
        patch.setattr(jax, "default_backend", lambda: "gpu")
        patch.setattr(updates, "BUNDLE", 6)
        bundled = nres.train(*arguments, updates=9, key=KEY)
        half = nres.train(*arguments, updates=7, key=KEY)
        rest = nres.train(estimator, OPTIMIZER, half.theta, updates=2, state=half.state)
        compiled = updates_of(estimator)
        for update in (0, 7):
            theta = jnp.copy(THETA[Wave])  # its memory is used for the result
            state = estimator.init(theta, KEY)
            compiled.compile((theta, OPTIMIZER.init(theta), state), update)
            assert compiled.run is chosen
    np.testing.assert_allclose(bundled.history.loss, alone.history.loss, rtol=1e-5)
    np.testing.assert_allclose(bundled.theta, alone.theta, rtol=1e-5)
    np.testing.assert_array_equal(rest.theta, bundled.theta)


def test_a_compiler_without_the_options_compiles_without_them(monkeypatch):
    monkeypatch.setattr(gpu, "ONE_GRAPH", {"xla_gpu_no_such_option": True})
    assert not gpu.knows_options.__wrapped__()
    assert gpu.knows_options()  # the real ones, on the version that is installed
