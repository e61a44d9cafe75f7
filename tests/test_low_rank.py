"""Noise of low rank: its law, estimates, evaluations, and runs with it."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import as_users_run, normal, raises_naming, slow, slow_except
from nres import runs
from nres.execution import run_episodes
from nres.noise import LowRank
from nres.noise.factors import Factors, dense, is_factors
from table import mesh

KEY = jax.random.key(2)


def full(rows):
    """Return rows as arrays, whatever form they have."""
    return jax.tree.map(lambda x: x.full() if is_factors(x) else x, rows, is_leaf=is_factors)


class Recurrence(nres.System):
    """A small recurrent network with an embedding, four matrices and a bias."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.zeros(theta["recurrent"].shape[0], theta["bias"].dtype)

    def step(self, state, theta, t, key):
        x = theta["symbols"][jax.random.randint(key, (), 0, 9)]
        state = jnp.tanh(state @ theta["recurrent"] + x @ theta["input"] + theta["bias"])
        return state, jnp.mean((theta["output"].T @ state - 0.5) ** 2)

    def initial_theta(self, key=None, dtype=jnp.float32):
        shapes = {"symbols": (9, 8), "recurrent": (8, 8), "input": (8, 8), "output": (8, 6)}
        theta = {name: 0.4 * normal(i, s, dtype) for i, (name, s) in enumerate(shapes.items())}
        return theta | {"bias": jnp.zeros(8, dtype)}


class Layers(nres.System):
    """Stacked layers, a projection with two axes, and a convolution."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.ones((3, 8))

    def step(self, state, theta, t, key):
        state, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), state, theta["layers"])
        heads = jnp.einsum("td,dhk->thk", state, theta["heads"])
        signal = jax.lax.conv_general_dilated(
            *(heads, theta["kernel"], (1,), "SAME"), dimension_numbers=("NWC", "WIO", "NWC")
        )
        return state, jnp.mean((signal - 0.5) ** 2)

    def initial_theta(self, key=None):
        shapes = {"layers": (3, 8, 8), "heads": (8, 4, 5), "kernel": (3, 5, 6)}
        return {name: 0.4 * normal(i, s) for i, (name, s) in enumerate(shapes.items())}


class DensePool(nres.JaxPool):
    """The same pool, but with matrices that are formed."""

    lazy = False


ESTIMATORS = {
    "NRES": lambda pool, **o: nres.NRES(pool, workers=6, window=2, sigma=0.1, **o),
    "TES": lambda pool, **o: nres.TES(pool, workers=6, window=2, sigma=0.1, **o),
    "FullES": lambda pool, **o: nres.FullES(pool, workers=6, sigma=0.1, **o),
    "NRES, regenerated": lambda pool, **o: nres.NRES(
        pool, workers=6, window=2, sigma=0.1, store_noise=False, **o
    ),
}


def estimates(estimator, theta, count=4):
    state, result = estimator.init(theta, KEY), []
    for _ in range(count):
        estimate = estimator.estimate(theta, state)
        result.append(estimate.grad)
        state = estimate.state
    return result


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("make", slow_except(("NRES",), ESTIMATORS))
def test_estimates_are_those_of_formed_matrices(make):
    theta = Recurrence().initial_theta()
    lazy, formed = (
        estimates(make(pool, noise=LowRank(2)), theta)
        for pool in (nres.JaxPool(Recurrence()), DensePool(Recurrence()))
    )
    for left, right in zip(lazy, formed, strict=True):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4), left, right
        )


@pytest.mark.slow
@pytest.mark.usefixtures("strict")
def test_arrays_with_more_axes_have_low_rank_too():
    theta = Layers().initial_theta()
    noise = LowRank(1)
    assert noise.size(theta) == (3 * 8 + 8) + (8 + 4 * 5) + (3 * 5 + 6)
    lazy, formed = (
        estimates(ESTIMATORS["NRES"](pool, noise=noise), theta, 2)
        for pool in (nres.JaxPool(Layers()), DensePool(Layers()))
    )
    close = functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-4)
    for left, right in zip(lazy, formed, strict=True):
        assert jax.tree.map(jnp.shape, left) == jax.tree.map(jnp.shape, theta)
        jax.tree.map(close, left, right)


@pytest.mark.slow
def test_noise_is_regenerated_the_same():
    theta = Recurrence().initial_theta()
    kept, again = (
        estimates(ESTIMATORS[name](Recurrence(), noise=LowRank(1)), theta)
        for name in ("NRES", "NRES, regenerated")
    )
    for left, right in zip(kept, again, strict=True):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), left, right
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_loses_no_worker(dtype):
    """Norms and inverse squares of sigma are beyond what half precision holds."""
    theta = {"w": jnp.zeros((300, 300), dtype)}

    class Wide(nres.System):
        horizon: int = 2

        def init(self, theta, key):
            return jnp.ones(300, dtype)

        def step(self, state, theta, t, key):
            return state, jnp.mean((state @ theta["w"]).astype(jnp.float32))

    for sigma in (0.3, {"w": 0.003}):
        estimator = nres.NRES(Wide(), workers=4, window=1, sigma=sigma, noise=LowRank(1))
        estimate = estimator.estimate(theta, estimator.init(theta, KEY))
        assert int(estimate.info.nonfinite) == 0
        assert float(jnp.abs(estimate.grad["w"].astype(jnp.float32)).max()) > 0


@pytest.mark.slow
def test_parts_of_theta_that_are_measured():
    class Measuring(Recurrence):
        def observed_between(self, theta, before, after):
            one = jnp.ones(())
            return ((one, after[:3], after[:3] ** 2),)

    theta = Recurrence().initial_theta() | {"seen": nres.measured.Moments.empty(3)}
    estimator = nres.NRES(Measuring(), workers=4, window=2, sigma=0.1, noise=LowRank(1))
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    assert np.isfinite(estimate.grad["recurrent"]).all()


@pytest.mark.slow
def test_a_worker_that_is_not_finite_is_left_out():
    class Breaking(Recurrence):
        def step(self, state, theta, t, key):
            state, loss = super().step(state, theta, t, key)
            return state, jnp.where(jax.random.uniform(key) < 0.2, jnp.nan, loss)

    theta = Recurrence().initial_theta()
    estimator = nres.NRES(Breaking(), workers=40, window=1, sigma=0.1, noise=LowRank(1))
    estimate = estimator.estimate(theta, estimator.init(theta, KEY))
    assert 0 < int(estimate.info.nonfinite) < 40
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(estimate.grad))


def test_the_law_has_the_moments_of_sigma():
    theta = {"w": jnp.zeros((6, 5)), "b": jnp.zeros(4)}
    keys = jax.random.split(KEY, 20_000)
    number = jnp.zeros(len(keys), jnp.int32)
    drawn = LowRank(2).draw(keys, number, jnp.full(len(keys), 0.3), theta)
    assert isinstance(drawn["w"], Factors)
    assert drawn["w"].a.shape == (20_000, 6, 2)
    w = np.asarray(full(drawn)["w"]).reshape(len(keys), -1)
    # Products of normal numbers have a fourth moment of 9, and sums of two of 3 + 6/2.
    error = np.sqrt((6 - 1) / len(keys))
    np.testing.assert_allclose((w**2).mean(axis=0), 0.09, atol=5 * 0.09 * error)
    assert np.abs(np.corrcoef(w.T) - np.eye(30)).max() < 0.05
    norms = np.square(w).sum(axis=1)
    np.testing.assert_allclose(drawn["w"].squared_norms(), norms, rtol=1e-4)
    np.testing.assert_allclose(np.asarray(drawn["b"]).std(), 0.3, rtol=0.02)
    assert LowRank(2).size(theta) == 2 * 11 + 4


def test_a_stack_has_the_law_of_one_matrix():
    """Its layers share columns of noise, so only products of four elements could tell."""
    keys = jax.random.split(KEY, 20_000)
    number = jnp.zeros(len(keys), jnp.int32)
    drawn = LowRank(1).draw(keys, number, jnp.full(len(keys), 0.3), jnp.zeros((3, 4, 5)))
    assert (drawn.a.shape[1:], drawn.b.shape[1:]) == ((3, 4, 1), (5, 1))
    w = np.asarray(drawn.full())
    assert w.shape == (20_000, 3, 4, 5)
    norms = np.square(w).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(drawn.squared_norms(), norms, rtol=1e-4)
    weights = np.asarray(normal(9, (len(keys),)))
    expected = np.tensordot(weights, w, axes=1)
    np.testing.assert_allclose(drawn.weighted_sum(jnp.asarray(weights)), expected, atol=2e-3)
    w = w.reshape(len(keys), -1)
    error = np.sqrt((9 - 1) / len(keys))  # the fourth moment of products of normal numbers is 9
    np.testing.assert_allclose((w**2).mean(axis=0), 0.09, atol=5 * 0.09 * error)
    assert np.abs(np.corrcoef(w.T) - np.eye(60)).max() < 0.06
    assert LowRank(1).gain(jnp.zeros((3, 4, 5))) == (12 + 2) * (5 + 2)


@pytest.mark.parametrize("rank", [1, slow(3)])
def test_squared_estimates_of_a_linear_loss_have_the_gain(rank):
    theta, gradient = jnp.zeros((6, 30)), np.asarray(normal(7, (6, 30)))
    keys = jax.random.split(KEY, 40_000)
    drawn = LowRank(rank).draw(keys, jnp.zeros(len(keys), int), jnp.ones(len(keys)), theta)
    epsilon = np.asarray(drawn.full())
    along = (epsilon * gradient).sum(axis=(1, 2)) ** 2 / np.sum(gradient**2)
    squares = along * np.square(epsilon).sum(axis=(1, 2))
    error = squares.std() / np.sqrt(len(keys))
    assert abs(squares.mean() - LowRank(rank).gain(theta)) < 4 * error
    assert error < 0.05 * LowRank(rank).gain(theta)
    if rank == 1:
        assert LowRank(1).gain(theta) == (6 + 2) * (30 + 2)
    # The share of a vector in the gradient matters here.
    assert LowRank(1).gain({"w": theta, "b": jnp.zeros(3)}) is None
    assert LowRank(1).gain({"w": jnp.zeros((600, 600)), "b": jnp.zeros(3)}) is not None


class Squares(nres.System):
    """A loss that is quadratic in a matrix, so that its smoothed gradient is its gradient."""

    horizon: int = 4

    def init(self, theta, key):
        return jnp.zeros(5)

    def step(self, state, theta, t, key):
        state = state + jnp.arange(1.0, 7.0) @ theta["w"]
        return state, jnp.mean(state**2) + jnp.sum(theta["b"])


@pytest.mark.parametrize("rank", [1, slow(2)])
def test_estimates_of_a_quadratic_loss_are_unbiased(rank):
    theta = {"w": 0.1 * normal(7, (6, 5)), "b": jnp.ones(2)}
    exact = nres.BPTT(Squares(), workers=1)
    exact = exact.estimate(theta, exact.init(theta, KEY)).grad
    estimator = nres.NRES(Squares(), workers=20, window=2, sigma=0.1, noise=LowRank(rank))

    @jax.jit
    def third(key):
        """Return the third estimate after the workers have been placed."""
        state = estimator.init(theta, key)
        for _ in range(3):
            estimate = estimator.estimate(theta, state)
            state = estimate.state
        return jax.flatten_util.ravel_pytree(estimate.grad)[0]

    drawn = np.asarray(jax.lax.map(third, jax.random.split(KEY, 500)))
    expected = jax.flatten_util.ravel_pytree(exact)[0]
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - expected) < 4.5 * error).all()
    assert (error < 0.2 * np.abs(expected).max()).all()


class Cubes(nres.System):
    """A loss of third powers, whose smoothed gradient depends on the fourth moments of noise."""

    horizon: int = 2

    def init(self, theta, key):
        return jnp.zeros(())

    def step(self, state, theta, t, key):
        return state, jnp.sum(theta**3)


@pytest.mark.parametrize("rank", [1, slow(4)])
def test_beyond_quadratic_responses_the_mean_is_another(rank):
    r"""The expected estimate is 3 w² + (3 + 6/r) σ², where Gaussian noise gives 3 w² + 3 σ²."""
    theta, sigma = 0.3 * normal(8, (12, 12)), 0.5
    estimator = nres.FullES(DensePool(Cubes()), workers=64, sigma=sigma, noise=LowRank(rank))
    one = jax.jit(lambda key: estimator.estimate(theta, estimator.init(theta, key)).grad.mean())
    drawn = np.asarray(jax.lax.map(one, jax.random.split(KEY, 1000)))
    excess = drawn - 3 * float((theta**2).mean())
    error = excess.std(ddof=1) / np.sqrt(len(excess))
    assert abs(excess.mean() - (3 + 6 / rank) * sigma**2) < 4 * error
    assert excess.mean() - 3 * sigma**2 > 4 * error


@pytest.mark.slow
def test_memory_does_not_grow_with_lanes_times_parameters():
    """The compiler's plan for 256 pairs and 65,664 parameters: less than a tenth of N times d."""
    n, workers = 128, 256

    class Wide(Recurrence):
        def initial_theta(self, key=None, dtype=jnp.float32):
            names = ("symbols", "recurrent", "input", "output")
            theta = {name: 0.1 * normal(i, (n, n)) for i, name in enumerate(names)}
            return theta | {"bias": jnp.zeros(n)}

    system = Wide()
    theta = system.initial_theta()
    estimator = nres.NRES(system, workers=workers, window=3, sigma=0.1, noise=LowRank(1))
    state = jax.eval_shape(estimator.init, theta, KEY)
    plan = jax.jit(estimator.estimate).lower(theta, state).compile().memory_analysis()
    count = sum(leaf.size for leaf in jax.tree.leaves(theta))
    assert plan.temp_size_in_bytes < 0.1 * 2 * workers * 4 * count
    assert sum(leaf.size for leaf in jax.tree.leaves(state.carry)) < 0.1 * workers * count


@pytest.mark.slow
def test_several_devices_agree_with_one():
    theta = Recurrence().initial_theta()
    one = ESTIMATORS["NRES"](Recurrence(), noise=LowRank(1))
    several = ESTIMATORS["NRES"](
        Recurrence(), noise=LowRank(1), placement=nres.placement.Devices(mesh(2))
    )
    for left, right in zip(estimates(one, theta), estimates(several, theta), strict=True):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), left, right
        )


@pytest.mark.slow
@pytest.mark.usefixtures("strict")
def test_evaluations_form_no_matrices():
    """Neither at theta, where all episodes share the matrices, nor around it."""
    theta = Recurrence().initial_theta()
    for options in ({}, {"sigma": 0.05, "noise": LowRank(1)}):
        lazy, formed = (
            nres.evaluate(pool(Recurrence()), theta, KEY, episodes=20, **options)
            for pool in (nres.JaxPool, DensePool)
        )
        np.testing.assert_allclose(lazy.losses, formed.losses, rtol=1e-5)
    assert np.std(lazy.losses) > 0
    keys = jax.random.split(KEY, 20)
    program = jax.make_jaxpr(lambda theta: run_episodes(nres.JaxPool(Recurrence()), theta, keys))
    assert "20,8,8]" not in str(program(theta))


def test_evaluations_around_half_precision():
    """Noise of a law that draws in single precision is rounded like the parameters."""

    class Signs(nres.Gaussian):
        def draw(self, keys, number, sigma, theta):
            drawn = super().draw(keys, number, sigma, jax.tree.map(jnp.float32, theta))
            return jax.tree.map(jnp.sign, drawn)

    theta = Recurrence().initial_theta(dtype=jnp.bfloat16)
    result = nres.evaluate(Recurrence(), theta, KEY, episodes=3, sigma=0.1, noise=Signs())
    assert np.isfinite(result.losses).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_sums_of_half_precision_hold_beside_a_large_weight(dtype, size):
    a, b = (normal(i, (50, n, 2)).astype(dtype) for i, n in enumerate((4, 3)))
    a = a if dtype == jnp.float16 else (size * a).astype(dtype)
    weights = normal(2, (50,), jnp.float32).at[0].set(1e4)
    rows = Factors(a.at[0].set(0), b)
    exact = np.einsum("i,imr,inr->mn", *(np.asarray(x, float) for x in (weights, rows.a, b)))
    found = rows.weighted_sum(weights)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, atol=0.01 * np.abs(exact).max())


@pytest.mark.slow
def test_blocks_of_workers_change_nothing(monkeypatch):
    theta = Recurrence().initial_theta()
    whole = estimates(ESTIMATORS["NRES"](Recurrence(), noise=LowRank(1)), theta)
    elements = 4 * LowRank(1).size(theta)
    monkeypatch.setitem(nres.execution.SHARED_BLOCK_ELEMENTS, "cpu", elements)
    jax.clear_caches()
    blocks = estimates(ESTIMATORS["NRES"](Recurrence(), noise=LowRank(1)), theta)
    jax.clear_caches()
    for left, right in zip(whole, blocks, strict=True):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), left, right
        )


def test_blocks_are_large_only_where_matrices_are_shared():
    theta = Recurrence().initial_theta()
    make = functools.partial(ESTIMATORS["NRES"], Recurrence())
    assert make(noise=LowRank(1)).block_size(theta) > 8 * make().block_size(theta)
    vector = jnp.zeros(500)
    assert make(noise=LowRank(1)).block_size(vector) == make().block_size(vector)


def test_what_needs_more_of_a_noise_is_refused():
    with raises_naming(ValueError, "PES", "LowRank"):
        nres.PES(Recurrence(), workers=2, window=2, sigma=0.1, noise=LowRank(1))
    with raises_naming(ValueError, "adaptive"):
        nres.NRES(
            Recurrence(), workers=2, window=2, sigma=nres.AdaptiveSigma(0.1), noise=LowRank(1)
        )
    with raises_naming(ValueError, "DODGE"):
        nres.DODGE(Recurrence(), workers=2, window=2, noise=LowRank(1))
    with raises_naming(ValueError, "rank"):
        LowRank(0)


def test_a_pytree_of_sigmas_scales_each_matrix():
    theta = {"w": jnp.zeros((6, 5)), "b": jnp.zeros(4)}
    keys, number = jax.random.split(KEY, 7), jnp.zeros(7, jnp.int32)
    sigma = {"w": jnp.full(7, 0.5), "b": jnp.full(7, 2.0)}
    unit = LowRank(1).draw(keys, number, jnp.ones(7), theta)
    drawn = LowRank(1).draw(keys, number, sigma, theta)
    np.testing.assert_allclose(full(drawn)["w"], 0.5 * full(unit)["w"], rtol=1e-5)
    np.testing.assert_allclose(drawn["b"], 2.0 * unit["b"], rtol=1e-6)
    factor, rows = LowRank(1).score(drawn, sigma)
    np.testing.assert_allclose(factor, 1.0)
    np.testing.assert_allclose(full(rows)["w"], full(unit)["w"] / 0.5, rtol=1e-5)
    thetas = LowRank(1).perturb(theta, drawn)
    np.testing.assert_allclose(dense(thetas)["w"][1], -full(drawn)["w"], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("regenerate", [False, True])
def test_a_run_goes_on_as_if_uninterrupted(tmp_path, regenerate):
    """A run in two parts, with a checkpoint between them."""
    given = {"workers": 4, "window": 5, "noise": "low-rank-2", "regenerate_noise": regenerate}
    given["lr"] = "3e-3"  # that of the preset depends on the number of updates
    options = {"hidden": 6, "horizon": 10, "precision": "float32"}

    def created(name, updates):
        settings = runs.resolve("text", "nres", options=options, updates=updates, **given)
        return runs.Run.create(tmp_path / name, settings, runs.build(settings))

    with as_users_run():
        whole = runs.execute(created("whole", 6))
        runs.execute(created("parts", 3))
        parts = runs.execute(runs.Run.open(tmp_path / "parts"), updates=6)
    jax.tree.map(np.testing.assert_array_equal, whole.result.theta, parts.result.theta)


@pytest.mark.slow
def test_the_preset_of_a_large_model_needs_little_memory():
    settings = runs.resolve("text", "nres")
    assert (settings.noise, settings.regenerate_noise) == ("low-rank", True)
    assert runs.resolve("text", "nres", noise="gaussian").noise == "gaussian"
    estimator, theta = (getattr(runs.build(settings), name) for name in ("estimator", "theta"))
    estimator.check(theta)
    carry = jax.eval_shape(estimator.init, theta, KEY).carry
    assert sum(leaf.size for leaf in jax.tree.leaves(carry)) < 0.01 * 8192 * 1_312_512
