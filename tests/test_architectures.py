"""Learned optimizers of other papers, against transcriptions of their definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import raises_naming, slow_except
from nres.systems import learned_optimizer as lo
from small_tasks import small_task

KEY = jax.random.key(2)
BETAS = (0.9, 0.99, 0.999)
# Wide, tall and square matrices, a vector, a number, and a kernel with ties among its axes.
SHAPES = [(3, 5), (5, 3), (4, 4), (6,), (), (3, 3, 2, 4)]


def longest(shape):
    """The longest axis and the next; of equal axes the later is the longest."""
    ranked = sorted(range(len(shape)), key=lambda axis: (shape[axis], axis), reverse=True)
    return ranked[0], ranked[1]


class Plain:
    """The averages of one tensor, step by step."""

    def __init__(self, shape):
        self.m = [np.zeros(shape) for _ in BETAS]
        self.v = np.zeros(shape)
        self.rows, self.columns = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]

    def add(self, g, second, betas=(BETAS, BETAS)):
        self.v = second * self.v + (1 - second) * g**2
        for i, (b, factored) in enumerate(zip(*betas, strict=True)):
            self.m[i] = b * self.m[i] + (1 - b) * g
            square = g**2 + 1e-30
            if g.ndim < 2:
                self.rows[i] = factored * self.rows[i] + (1 - factored) * square
                continue
            d0, d1 = longest(g.shape)
            means = [np.expand_dims(square.mean(d), d) for d in (d0, d1)]
            self.rows[i] = factored * self.rows[i] + (1 - factored) * means[0]
            self.columns[i] = factored * self.columns[i] + (1 - factored) * means[1]

    def scale(self, i, shape):
        if len(shape) < 2:
            return (self.rows[i] + 1e-9) ** -0.5
        _, d1 = longest(shape)
        mean = np.expand_dims(self.rows[i].mean(d1), d1)
        rf = np.maximum(self.rows[i] / (mean + 1e-9), 1e-9) ** -0.5
        return rf * np.maximum(self.columns[i], 1e-9) ** -0.5


def network(layers, x):
    for i, layer in enumerate(layers):
        x = sum(x[k] * layer["weight"][k] for k in range(len(x))) + layer["bias"]
        x = np.maximum(x, 0) if i < 2 else x
    return x


def each(layers, features, shape):
    """Apply the network to one parameter after another."""
    wide = np.stack([np.broadcast_to(f, shape) for f in features], -1)
    outputs = [network(layers, row) for row in wide.reshape(-1, wide.shape[-1])]
    return np.reshape(outputs, (*shape, -1))


def adafactor_mlp(theta, p, gradients):
    plain, theta = Plain(p.shape), jax.tree.map(np.asarray, theta)
    second = np.clip(1 - (1 - 0.999) * np.exp(10 * theta["second"][0]), 0, 1)
    momenta = [1 - (1 - b) * np.exp(10 * x) for b, x in zip(BETAS, theta["momenta"], strict=True)]
    factored = [
        np.clip(1 - (1 - b) * np.exp(10 * x), 0, 1)
        for b, x in zip(BETAS, theta["factored"], strict=True)
    ]
    for t, g in enumerate(gradients):
        plain.add(g, second, (momenta, factored))
        r = (plain.v + 1e-6) ** -0.5
        scales = [plain.scale(i, p.shape) for i in range(3)]
        columns = plain.columns if p.ndim > 1 else plain.rows
        features = [g, p, *plain.m, plain.v, *(m * r for m in plain.m), r]
        features += [g * s for s in scales]
        features += [*plain.rows, *columns]
        features += [(x + 1e-8) ** -0.5 for x in (*plain.rows, *columns)]
        last = scales if p.ndim > 1 else [(x + 1e-6) ** -0.5 for x in plain.rows]
        features += [m * s for m, s in zip(plain.m, last, strict=True)]
        assert len(features) == 28
        full = [np.broadcast_to(f, p.shape) for f in features]
        features = [f * (1e-5 + np.mean(f**2)) ** -0.5 for f in full]
        times = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
        features += [np.tanh(t / s - 1) for s in times]
        out = each(theta["layers"], features, p.shape)
        p = p - 0.001 * out[..., 0] * np.exp(0.001 * out[..., 1])
    return p


def over_the_last_two(x, eps=1e-9):
    axes = tuple(range(x.ndim))[-2:]
    return x * (eps + np.mean(x**2, axes, keepdims=True)) ** -0.5


def newton_schulz(matrix):
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def celo2(theta, p, gradients, base, lr=0.01, decay=0.1):
    plain, layers = Plain(p.shape), jax.tree.map(np.asarray, theta)
    for g in gradients:
        g = np.clip(g, -1000, 1000)
        plain.add(g, 0.95)
        r = (plain.v + 1e-8) ** -0.5
        if p.ndim < 2 and not base:
            p = p - lr * (20 * plain.m[0] * r + decay * p)
            continue
        scales = [plain.scale(i, p.shape) for i in range(3)]
        features = [g, np.clip(g, -0.1, 0.1), p, *plain.m, plain.v]
        features += [*(m * r for m in plain.m), r, *(g * s for s in scales), g * r]
        used = [dict(layer) for layer in layers]
        if p.ndim < 2:
            used[0]["weight"] = used[0]["weight"][:15]
        else:
            features += [*plain.rows, *plain.columns]
            features += [(x + 1e-8) ** -0.5 for x in (*plain.rows, *plain.columns)]
            features += [m * s for m, s in zip(plain.m, scales, strict=True)]
        assert len(features) == len(used[0]["weight"])
        full = [over_the_last_two(np.broadcast_to(f, p.shape)) for f in features]
        u = each(used, full, p.shape)[..., 0]
        if not base:
            matrices = u.reshape(-1, *u.shape[-2:])
            u = np.reshape([newton_schulz(x) for x in matrices], u.shape)
        p = p - lr * (over_the_last_two(u) + decay * p)
    return p


OPTIMIZERS = {
    "AdafactorMLP": (lo.AdafactorMLP(), adafactor_mlp),
    "Celo2": (lo.Celo2(0.01, 0.1), lambda *given: celo2(*given, base=False)),
    "Celo2-base": (lo.Celo2(0.01, 0.1, base=True), lambda *given: celo2(*given, base=True)),
}


@pytest.mark.parametrize("name", slow_except({"Celo2"}, {name: name for name in OPTIMIZERS}))
def test_three_steps_are_those_of_the_definition(name, x64):
    optimizer, transcribed = OPTIMIZERS[name]
    theta = optimizer.initial_theta(KEY)
    rng = np.random.default_rng(5)
    # Decays and biases that are not at their initial values.
    theta = jax.tree.map(lambda x: x + 0.02 * rng.normal(size=x.shape), theta)
    if name == "AdafactorMLP":  # decays beyond 0, which only those of momenta may be
        theta |= {k: theta[k].at[0].set(0.3) for k in ("momenta", "second", "factored")}
    params = [rng.normal(size=shape) for shape in SHAPES]
    steps = [[rng.normal(size=shape) for shape in SHAPES] for _ in range(3)]
    for step in steps:  # no gradients, and tiny ones
        step[0][0], step[1][:, 1] = 0.0, 1e-6 * step[1][:, 1]
    steps[1][0][1, 0] = 3000.0  # beyond the bound of Celo2

    @jax.jit
    def train(params, grads, state, t):
        updates, state = optimizer.update(theta, grads, state, params, t)
        return optax.apply_updates(params, updates), state

    got = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(got)
    for t, grads in enumerate(steps):
        got, state = train(got, jax.tree.map(jnp.asarray, grads), state, jnp.asarray(t))
    for i, p in enumerate(params):
        expected = transcribed(theta, p, [grads[i] for grads in steps])
        assert np.abs(expected - p).max() > 1e-4
        np.testing.assert_allclose(got[i] - p, expected - p, rtol=1e-7, atol=1e-12)


def test_numbers_of_parameters():
    def count(optimizer):
        shapes = jax.eval_shape(optimizer.initial_theta, KEY)
        return sum(x.size for x in jax.tree.leaves(shapes))

    assert count(lo.AdafactorMLP()) == 190 + 7
    assert count(lo.AdafactorMLP(32, 0.01)) == 2402 + 7
    assert count(lo.Celo2()) == count(lo.Celo2(base=True)) == 347


def test_layers_make_the_same_steps_as_the_vector():
    plain, layered = lo.PerParameterMLP(width=5), lo.LayeredMLP(width=5)
    theta, layers = (each.initial_theta(KEY) for each in (plain, layered))
    assert [layer["weight"].shape for layer in layers] == [(19, 5), (5, 5), (5, 2)]
    np.testing.assert_array_equal(layered.arranged(theta)[1]["weight"], layers[1]["weight"])
    params = {"w": jax.random.normal(KEY, (4, 3)), "b": jnp.ones(3)}
    states = [each.init(params) for each in (plain, layered)]
    for t in range(3):
        (mine, left), (theirs, right) = (
            each.update(own, params, state, params, jnp.int32(t))
            for each, own, state in zip((plain, layered), (theta, layers), states, strict=True)
        )
        states = [left, right]
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), mine, theirs)


@pytest.mark.slow
def test_steps_of_celo2_have_size_one_and_files_keep_it(tmp_path):
    optimizer = lo.Celo2(lr=1.0)
    theta = optimizer.initial_theta(KEY)
    lo.save_optimizer(tmp_path / "celo2.npz", optimizer, theta)
    used = lo.load_optimizer(tmp_path / "celo2.npz")
    params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
    grads = jax.tree.map(
        lambda p: jnp.cos(jnp.arange(p.size, dtype=float)).reshape(p.shape), params
    )
    updates, _ = used.update(grads, used.init(params), params)
    np.testing.assert_allclose(jnp.mean(updates["w"] ** 2), 1.0, rtol=1e-4)
    saved = optimizer.as_optax(theta)
    expected, _ = saved.update(grads, saved.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, updates, expected)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [lo.AdafactorMLP(), lo.Celo2(), lo.Celo2(base=True)])
def test_they_train_in_a_system(optimizer):
    system = lo.LearnedOptimizerSystem(small_task(), optimizer, horizon=6)
    theta = system.initial_theta(KEY)
    estimator = nres.NRES(system, workers=4, window=2, sigma=0.01)
    result = nres.train(estimator, optax.sgd(0.1), theta, updates=3, key=KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.theta))
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), theta, result.theta)
    assert any(jax.tree.leaves(moved))


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: lo.AdafactorMLP(0), "width"),
        (lambda: lo.AdafactorMLP(step=-1.0), "step"),
        (lambda: lo.Celo2(lr=0.0), "lr"),
        (lambda: lo.Celo2(weight_decay=-0.1), "weight_decay"),
    ],
)
def test_mistakes(make, culprit):
    with raises_naming(ValueError, culprit):
        make()
