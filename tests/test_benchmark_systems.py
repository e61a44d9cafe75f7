"""Influence balancing, the toy schedule, training runs and recurrent networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import as_users_run, assert_same, raises_naming
from nres.systems import hyperparameters, recurrent

KEY = jax.random.key(3)


def total_loss(system, theta, key=KEY):
    """Unroll an episode in plain Python; return the mean loss per step."""
    episode = jax.random.fold_in(key, 7)
    state, losses = system.init(theta, episode), []
    for t in range(system.horizon):
        state, loss = system.step(state, theta, jnp.int32(t), jax.random.fold_in(episode, 100 + t))
        losses.append(loss)
    return sum(losses) / system.horizon


def rtrl_mean(system, theta):
    """Return the mean of the estimates of RTRL over the windows of one episode."""
    estimator = nres.RTRL(system, workers=1, window=system.horizon // 4)
    state = estimator.init(theta, KEY)
    gradients = []
    # The second episode: the first began where `init` placed the worker.
    for i in range(8):
        estimate = estimator.estimate(theta, state)
        at = int(state.workers.start[0])
        state = estimate.state
        if i >= 4 or (at == 0 or gradients):
            gradients.append((at, estimate.grad))
    whole = dict(gradients[:4])
    assert len(whole) == 4
    return jax.tree.map(lambda *g: sum(g) / 4, *whole.values())


@pytest.mark.slow
def test_influence_balancing_has_its_closed_form():
    system = nres.systems.InfluenceBalancing(horizon=40)
    theta = system.initial_theta()
    by_grad = jax.grad(lambda theta: total_loss(system, theta))(theta)
    np.testing.assert_allclose(system.exact_gradient(theta), by_grad, rtol=1e-4)
    np.testing.assert_allclose(rtrl_mean(system, theta), by_grad, rtol=1e-4)
    # The fixed point of the state's first component is -6 theta.
    for value in (-1 / 6, 0.5):
        expected = 0.5 * (-6 * value - 1) ** 2
        found = system.final_loss(jnp.array([value]))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.slow
def test_one_step_of_influence_balancing_points_the_wrong_way():
    system = nres.systems.InfluenceBalancing(horizon=1000)
    theta = jnp.array([0.0])
    estimator = nres.TBPTT(system, workers=1, window=1)
    state = estimator.init(theta, KEY)
    truncated = estimator.estimate(theta, state).grad
    assert float(truncated[0]) * float(system.exact_gradient(theta)[0]) < 0


def _toy_in_numpy(theta, steps):
    x, losses = np.ones(2), []

    def height(x):
        ripples = np.sin(x[1]) ** 2 * np.exp(-5 * x[0] ** 2)
        return np.sqrt(x[0] ** 2 + 5) - np.sqrt(5) + ripples + 0.25 * abs(x[1] - 100)

    for t in range(steps):
        rate = (1 - t / steps) * np.exp(theta[0]) + t / steps * np.exp(theta[1])
        bump = np.exp(-5 * x[0] ** 2)
        slope = np.array(
            [
                x[0] / np.sqrt(x[0] ** 2 + 5) - 10 * x[0] * np.sin(x[1]) ** 2 * bump,
                np.sin(2 * x[1]) * bump + 0.25 * np.sign(x[1] - 100),
            ]
        )
        x = x - rate * slope
        losses.append(height(x))
    return sum(losses)


def test_the_toy_schedule_agrees_with_numpy():
    system = nres.systems.ToySchedule()
    # Larger rates are chaotic, so that single and double precision differ.
    for theta in ([-4.0, -4.0], [-2.0, -3.0]):
        found = system.metrics(jnp.array(theta), KEY)["total_loss"]
        np.testing.assert_allclose(found, _toy_in_numpy(theta, 100), rtol=1e-3)


def _regression(**changes):
    """A linear regression whose rate and penalty are tuned."""
    x = jax.random.normal(jax.random.key(1), (30, 3))
    y = x @ jnp.array([1.0, -2.0, 0.5])
    options = {"train": (x[:20], y[:20]), "validation": (x[20:], y[20:]), "horizon": 8}

    def loss(w, batch, theta):
        x, y = batch
        return jnp.mean((x @ w - y) ** 2) + jnp.exp(theta["penalty"]) * jnp.sum(w**2)

    def outer(w, batch, theta):
        x, y = batch
        return jnp.mean((x @ w - y) ** 2)

    def optimizer(theta):
        return optax.sgd(lambda t: jnp.exp(theta["rate"]) / (1 + t.astype(float)), momentum=0.5)

    return nres.systems.TrainingRun(
        lambda key: jnp.zeros(3),
        loss,
        optimizer,
        {"rate": -1.5, "penalty": -3.0},
        outer_loss=outer,
        **(options | changes),
    )


def test_a_training_run_agrees_with_numpy():
    """Gradient descent with momentum and a falling rate on all data, written out."""
    system = _regression()
    theta = system.initial_theta()
    (x, y), (vx, vy) = (jax.tree.map(np.asarray, d) for d in (system.train, system.validation))
    w, velocity, expected = np.zeros(3), np.zeros(3), []
    for t in range(8):
        slope = 2 * x.T @ (x @ w - y) / len(y) + 2 * np.exp(-3.0) * w
        velocity = 0.5 * velocity + slope
        w = w - np.exp(-1.5) / (1 + t) * velocity
        expected.append(np.mean((vx @ w - vy) ** 2))
    np.testing.assert_allclose(system.losses(theta, KEY), expected, rtol=1e-4)
    by_grad = jax.grad(lambda theta: total_loss(system, theta))(theta)
    assert_same(rtrl_mean(system, theta), by_grad, rtol=1e-3)


def test_a_training_run_that_diverges_costs_its_cap():
    system = _regression(cap=5.0, horizon=200)
    theta = {"rate": jnp.array(6.0), "penalty": jnp.array(0.0)}
    losses = np.asarray(system.losses(theta, KEY))
    assert losses[-1] == 5.0
    assert losses.max() == 5.0


@pytest.mark.slow
def test_nres_tunes_a_training_run():
    system = _regression(batch=5, cap=10.0, horizon=20)
    theta = system.initial_theta()
    theta["rate"] = theta["rate"] - 4
    estimator = nres.NRES(system, workers=20, window=5, sigma=0.1)
    with as_users_run():
        result = nres.train(estimator, optax.adam(0.05), theta, updates=60, key=KEY)
    before, after = (system.losses(t, KEY).mean() for t in (theta, result.theta))
    assert after < 0.5 * before


@pytest.mark.parametrize(("batch", "error"), [(0, ValueError), (11, ValueError), (2.5, TypeError)])
def test_batches_that_do_not_fit_are_refused(batch, error):
    with raises_naming(error, "batch", batch):
        _regression(batch=batch)


def test_a_module_is_a_set_of_hyperparameters_and_no_way_to_draw_them():
    schedule = eqx.nn.Linear(1, 1, key=KEY)
    system = nres.systems.TrainingRun(
        lambda key: jnp.zeros(2),
        lambda model, batch, theta: jnp.sum(model**2),
        lambda theta: optax.sgd(0.1),
        schedule,
        train=jnp.ones((4, 1)),
        validation=jnp.ones((4, 1)),
        horizon=3,
    )
    assert_same(system.initial_theta(), schedule)


def test_data_of_different_lengths_are_refused():
    with raises_naming(ValueError, "validation", "[4, 5]"):
        _regression(validation=(jnp.ones((4, 3)), jnp.ones(5)))


def test_the_metrics_of_a_training_run_are_those_of_whole_runs():
    system = _regression(batch=5, test_runs=3)
    theta = system.initial_theta()
    metrics = system.metrics(theta, KEY)
    assert list(metrics) == ["loss", "penalty", "rate"]
    expected = nres.evaluate(system, theta, KEY, episodes=3).loss
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)
    assert system.metrics_steps == 24


def test_a_ridge_penalty_ends_at_the_ridge_estimate():
    """NumPy solves for the weights of endless training, and finds no better penalty."""
    system = hyperparameters.RidgePenalty(horizon=4000, start=2.0)
    (x, y), (vx, vy) = (jax.tree.map(np.asarray, d) for d in (system.train, system.validation))

    def limit(log_penalty):
        w = np.linalg.solve(x.T @ x + np.exp(log_penalty) * np.eye(10), x.T @ y)
        return 0.5 * np.sum((vx @ w - vy) ** 2)

    theta = system.initial_theta()
    losses = system.losses(theta, KEY)
    np.testing.assert_allclose(losses[-1], limit(2.0), rtol=1e-3)
    best = min(np.linspace(-8, 8, 1601), key=limit)
    assert abs(system.best - best) < 0.02
    metrics = system.metrics(theta, KEY)
    np.testing.assert_allclose(metrics["distance"], abs(2.0 - best), atol=0.02)
    np.testing.assert_allclose(metrics["loss"], limit(2.0), rtol=1e-4)


def test_a_rate_decays():
    system = hyperparameters.rate_and_decay()
    theta = {"log_rate": jnp.log(0.5), "log_decay": jnp.log(2.0)}
    optimizer = system.optimizer(theta)
    change, memory = optimizer.update(jnp.ones(()), optimizer.init(jnp.ones(())))
    np.testing.assert_allclose(change, -0.5, rtol=1e-6)
    late = jax.tree.map(lambda x: jnp.full_like(x, 5000) if x.dtype == jnp.int32 else x, memory)
    change, _ = optimizer.update(jnp.ones(()), late)
    np.testing.assert_allclose(change, -0.5 / 4 * 1.9, rtol=1e-5)


@pytest.mark.slow
def test_each_tensor_has_its_rate_and_momentum_and_each_layer_its_width():
    system = hyperparameters.many_hyperparameters(width=8)
    theta = system.initial_theta(KEY)
    other = system.initial_theta(jax.random.key(9))
    with raises_naming(ValueError, "initial_theta", "key"):
        system.initial_theta()
    assert sum(x.size for x in theta.values()) == 29
    assert (jax.nn.sigmoid(theta["momentum"]) <= 0.9).all()
    assert not np.allclose(theta["log_rate"], other["log_rate"])
    params = system.init_model(KEY)
    optimizer, ones = system.optimizer(theta), jax.tree.map(jnp.ones_like, params)
    _, memory = optimizer.update(ones, optimizer.init(params))
    change, _ = optimizer.update(ones, memory)
    rates, momenta = np.exp(theta["log_rate"]), 1 / (1 + np.exp(-theta["momentum"]))
    found = [float(x.ravel()[0]) for x in jax.tree.leaves(change)]
    np.testing.assert_allclose(found, -rates * (1 + momenta), rtol=1e-5)
    # Half of the eight units of each layer are kept; the weights of the others have no effect.
    theta["mask"] = jnp.full(5, 0.1)
    batch = system.train[0][:4], system.train[1][:4]
    without = params[2] | {"w": params[2]["w"].at[:, 4:].set(9.0)}
    less = params[2] | {"w": params[2]["w"].at[:, 3:].set(9.0)}
    full, masked, changed = (
        system.loss([*params[:2], layer, *params[3:]], batch, theta)
        for layer in (params[2], without, less)
    )
    np.testing.assert_allclose(masked, full, rtol=1e-6)
    assert abs(changed - full) > 1e-4


def _gru_in_numpy(theta, symbols):
    """Return the logits after each symbol."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    n = len(theta["output"])
    h, found = np.zeros(n), []
    for symbol in symbols:
        given = theta["input"][symbol] + theta["bias"]
        before = h @ theta["recurrent"]
        r = sigmoid(given[:n] + before[:n])
        z = sigmoid(given[n : 2 * n] + before[n : 2 * n])
        c = np.tanh(given[2 * n :] + r * before[2 * n :])
        h = z * h + (1 - z) * c
        found.append(h @ theta["output"] + theta["output_bias"])
    return np.array(found)


@pytest.mark.slow
def test_a_recurrent_network_agrees_with_numpy():
    text = np.array([0, 2, 1, 1, 2, 0, 1, 2, 2])
    stream = recurrent.Sequence(text[:-1], text[1:])
    system = recurrent.RecurrentNetwork(recurrent.GRU(3, 4), stream, horizon=8)
    theta = system.initial_theta(KEY)
    logits = _gru_in_numpy(jax.tree.map(np.asarray, theta), text[:-1])
    logits = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -logits[np.arange(8), text[1:]].mean()
    np.testing.assert_allclose(total_loss(system, theta), expected, rtol=1e-4)
    by_grad = jax.grad(lambda theta: total_loss(system, theta))(theta)
    assert_same(rtrl_mean(system, theta), by_grad, rtol=1e-3)


def test_a_sequence_starts_anywhere_and_must_be_long_enough():
    stream = recurrent.Sequence(jnp.arange(10), jnp.arange(10) + 1)
    places = jax.vmap(lambda key: stream.begin(key, 8))(jax.random.split(KEY, 50))
    assert set(np.asarray(places).tolist()) == {0, 1, 2}
    assert [int(x) for x in stream.at(places[0], 3)] == [int(places[0]) + 3, int(places[0]) + 4]
    with raises_naming(ValueError, "horizon", 10, 11):
        stream.begin(KEY, 11)
    with raises_naming(ValueError, "inputs", "(3,)", "(4,)"):
        recurrent.Sequence(jnp.arange(3), jnp.arange(4))


def test_an_echo_repeats_after_its_lag():
    stream = recurrent.Echo(lag=3, symbols=5)
    place = stream.begin(KEY, 60)
    symbols, targets = zip(
        *[map(int, stream.at(place, jnp.int32(t))) for t in range(60)], strict=True
    )
    assert targets == (0, 0, 0, *symbols[:-3])
    assert len(set(symbols)) == 5
