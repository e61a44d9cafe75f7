"""Episodes of different lengths: their distribution, their mean, and estimates of its gradient."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import raises_naming, samples, slow, slow_except
from nres.lengths import LogUniform

LENGTHS = LogUniform(2, 8)
THETA = jnp.asarray([0.7, -0.4])


class Growing(nres.System):
    """A state that grows by theta in every step, and losses whose gradients differ by step."""

    horizon: int = 8
    lengths: nres.lengths.Lengths | None = eqx.field(static=True, default=LENGTHS)

    def init(self, theta, key):
        return jnp.zeros(2)

    def step(self, state, theta, t, key):
        state = state + theta
        return state, 0.05 * (state**2).sum() + jnp.where(t == 3, 2 * state[0], 0.0)


def probabilities():
    """Return the probability of each length, from the definition."""
    return {k: np.log((k + 1) / k) / np.log(9 / 2) for k in range(2, 9)}


def exact_gradient():
    """Return the gradient of the expected sum of losses over the expected length."""
    theta = np.asarray(THETA, np.float64)
    total, steps = np.zeros(2), 0.0
    for length, probability in probabilities().items():
        steps += probability * length
        for t in range(1, length + 1):
            total += probability * (0.1 * t**2 * theta + (t == 4) * np.array([8.0, 0.0]))
    return total / steps


ESTIMATORS = {
    "NRES": nres.NRES(Growing(), workers=8, window=2, sigma=0.1),
    "NRES, W = 3, independent": nres.NRES(
        Growing(), workers=8, window=3, sigma=0.1, phases="independent"
    ),
    "PES": nres.PES(Growing(), workers=8, window=2, sigma=0.1),
    "GPES": nres.GPES(Growing(), workers=8, window=2, period=4, sigma=0.1),
    "FullES": nres.FullES(Growing(), workers=8, sigma=0.1),
    "BPTT": nres.BPTT(Growing(), workers=8),
    "DODGE": nres.DODGE(Growing(), workers=8, window=2),
    "UORO": nres.UORO(Growing(), workers=8, window=2),
    "RTRL": nres.RTRL(Growing(), workers=8, window=2),
    "NRES, regenerated": nres.NRES(Growing(), workers=8, window=2, sigma=0.1, store_noise=False),
    "NRES, orthogonal": nres.NRES(
        Growing(), workers=8, window=2, sigma=0.1, noise=nres.Orthogonal()
    ),
    "NRES, adaptive": nres.NRES(Growing(), workers=8, window=2, sigma=nres.AdaptiveSigma(0.1)),
}


@pytest.mark.parametrize("estimator", slow_except(("NRES", "FullES"), ESTIMATORS))
@pytest.mark.parametrize("updates", [slow(1), 6])
def test_estimates_are_unbiased_for_the_mean_over_steps(estimator, updates):
    """At once, when workers are where they began, and later, when episodes have ended."""
    drawn = samples(estimator, THETA, updates, groups=600)
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert (error < 0.15 * np.abs(exact_gradient()).max()).all()
    assert (np.abs(drawn.mean(axis=0) - exact_gradient()) < 4 * error).all()


def test_lengths_are_drawn_with_their_probabilities():
    keys = jax.random.split(jax.random.key(1), 20_000)
    first = jnp.zeros(len(keys), bool)
    drawn = np.asarray(jax.vmap(lambda k, f: LENGTHS.draw(k, f, 2))(keys, first))
    for length, p in probabilities().items():
        assert abs((drawn == length).mean() - p) < 4 * np.sqrt(p * (1 - p) / len(keys))
    assert drawn.min() == 2
    assert drawn.max() == 8
    assert LENGTHS.mean() == pytest.approx(sum(k * p for k, p in probabilities().items()))
    assert LENGTHS.windows(3) == pytest.approx(
        sum(-(-k // 3) * p for k, p in probabilities().items())
    )


def test_workers_meet_windows_as_often_at_first_as_in_the_long_run():
    estimator = nres.NRES(Growing(), workers=6000, window=3, sigma=0.1)
    state = estimator.init(THETA, jax.random.key(3))
    expected = np.diff(LENGTHS.before(3))
    shown = sum(p * (np.arange(3) < -(-k // 3)) for k, p in probabilities().items())
    np.testing.assert_allclose(expected, shown / shown.sum(), rtol=1e-12)
    for _ in range(7):
        counts = np.bincount(np.asarray(state.workers.start) // 3, minlength=3) / 6000
        assert (np.abs(counts - expected) < 4 * np.sqrt(expected / 6000)).all()
        state = estimator.estimate(THETA, state).state


def test_both_members_take_the_steps_of_their_episode():
    estimator = nres.NRES(Growing(), workers=50, window=4, sigma=0.1)
    state = estimator.init(THETA, jax.random.key(4))
    for _ in range(5):
        ends = estimator.episode_ends(state.workers)
        estimate = estimator.estimate(THETA, state)
        lengths = np.minimum(4, np.asarray(ends - state.workers.start))
        assert (lengths >= 1).all()
        np.testing.assert_array_equal(estimate.info.steps, 2 * lengths)
        state = estimate.state


def test_episodes_are_evaluated_to_their_end():
    result = nres.evaluate(Growing(), THETA, jax.random.key(5), episodes=4000)
    steps = np.arange(1, 9)
    squares, extra = float((THETA**2).sum()), 8 * float(THETA[0])
    sums = np.cumsum(0.05 * steps**2 * squares + (steps == 4) * extra)
    weights = probabilities()
    exact = sum(p * sums[k - 1] for k, p in weights.items()) / LENGTHS.mean()
    assert abs(float(result.loss) - exact) < 4 * float(result.stderr)
    assert set(np.asarray(result.taken)) == set(weights)


def test_lengths_that_do_not_fit_are_refused():
    with raises_naming(ValueError, "lengths"):
        nres.NRES(Growing(horizon=7), workers=2, window=2, sigma=0.1)
    with raises_naming(ValueError, "most"):
        LogUniform(5, 4)
    with raises_naming(ValueError, "least"):
        LogUniform(0, 5)


USES = {
    "predict": lambda: nres.variance.predict(Growing(), THETA, period=4, window=2),
    "sweep": lambda: nres.variance.sweep(
        Growing(), THETA, jax.random.key(0), sigmas=[0.1], windows=[2]
    ),
    "advise": lambda: nres.variance.advise(
        Growing(), THETA, jax.random.key(0), budget=(10**6, 10**4)
    ),
    "measure": lambda: nres.variance.measure(ESTIMATORS["NRES"], THETA, jax.random.key(0)),
    "hysteresis": lambda: nres.variance.hysteresis(
        ESTIMATORS["NRES"], optax.sgd, THETA, jax.random.key(0), rates=[1e-3]
    ),
    "tune": lambda: nres.tune(Growing(), theta=THETA, key=jax.random.key(0), total_steps=10**6),
}


@pytest.mark.parametrize("name", USES)
def test_what_needs_one_length_says_so(name):
    with raises_naming(ValueError, name):
        USES[name]()


@dataclasses.dataclass(frozen=True)
class Always(nres.lengths.Lengths):
    most: int
    probability: float = 1.0

    def probabilities(self):
        return np.r_[np.zeros(self.most), self.probability]


def test_probabilities_are_checked():
    with raises_naming(ValueError, "Always"):
        nres.FullES(Growing(horizon=6, lengths=Always(6, 0.5)), workers=3, sigma=0.1)


def test_a_state_belongs_to_its_lengths():
    """A worker could be beyond the end of its episode."""
    state = ESTIMATORS["NRES"].init(THETA, jax.random.key(8))
    for lengths in (LogUniform(3, 8), None):
        other = nres.NRES(Growing(lengths=lengths), workers=8, window=2, sigma=0.1)
        with raises_naming(ValueError, "LogUniform(least=2, most=8)"):
            other.estimate(THETA, state)


def test_a_distribution_of_ones_own():
    grads = []
    for lengths in (Always(6), None):
        estimator = nres.FullES(Growing(horizon=6, lengths=lengths), workers=3, sigma=0.1)
        state = estimator.init(THETA, jax.random.key(7))
        grads.append(estimator.estimate(THETA, state).grad)
    np.testing.assert_allclose(*grads, rtol=1e-6)
