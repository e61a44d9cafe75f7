"""Options for GPUs: which a run gets, and that they leave its results the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import THETA, Wave
from nres import graphs, updates

KEY = jax.random.key(8)


def test_operations_in_loops_count_once_per_iteration():
    def inner(x):
        return jax.lax.fori_loop(0, 6, lambda _, x: 2 * jnp.sin(x), x)

    # An iteration increments its counter, too. The length of the outer loop is not known.
    assert graphs.executed(jax.make_jaxpr(inner)(1.0)) == 6 * 3
    outer = jax.make_jaxpr(lambda n: jax.lax.fori_loop(0, n, lambda _, x: inner(x), 1.0))(3)
    assert graphs.executed(outer) == 6 * 3 + len(("counter", "condition"))


@pytest.mark.parametrize(
    ("most", "chosen"),
    [(None, updates._PLAIN), (10**6, updates._IN_ONE_GRAPH), (100, updates._CONCURRENT)],
)
def test_updates_are_the_same_however_a_gpu_starts_them(most, chosen, monkeypatch):
    monkeypatch.setattr(graphs, "has_nvidia", lambda: most is not None)
    monkeypatch.setattr(graphs, "MOST_OPERATIONS", most)
    estimator = nres.NRES(Wave(), workers=4, window=2, sigma=0.1)
    optimizer = optax.sgd(0.1)
    update = updates.lift_update(optimizer, THETA[Wave])
    compiled = updates.CompiledUpdates(estimator, update, updates.Chunks(estimator, None, 5))
    theta = jnp.copy(THETA[Wave])  # its memory is used for the result
    position, _ = compiled.start(theta, optimizer.init(theta), KEY, lambda _: None)
    assert compiled.run is chosen
    position, rows = compiled.advance(position, 0, 5)
    expected = nres.train(
        estimator, optax.sgd(0.1), THETA[Wave], updates=len(rows["loss"]), key=KEY
    )
    np.testing.assert_allclose(rows["loss"], expected.history.loss, rtol=1e-6)
    np.testing.assert_allclose(position[0], expected.theta, rtol=1e-6)
