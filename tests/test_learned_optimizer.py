"""Learned optimizers: against NumPy, against optax, and their tasks."""

import dataclasses
import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nres
from helpers import as_users_run, assert_same, raises_naming
from nres.data import Images
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer import convolutional, dense, tasks
from nres.systems.learned_optimizer.losses import mean_loss
from nres.systems.learned_optimizer.system import _losses
from nres.systems.learned_optimizer.vectors import Layout, on_vectors
from nres_paper.learned_optimizer import gradient_norm
from small_tasks import KEY, small_system, small_task


def reference_step(theta, width, depth, tensors, t):
    """Apply the paper's optimizer in NumPy, one tensor after the other."""
    layers, at = [], 0
    sizes = (19, *[width] * depth, 2)
    for m, n in itertools.pairwise(sizes):
        layers.append((theta[at : at + m * n].reshape(m, n), theta[at + m * n :][:n]))
        at += m * n + n
    assert at == theta.size
    scales = [1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5]
    time = [math.tanh(t / s - 1) for s in scales]
    results = []
    for param, grad, means in tensors:
        new = np.stack(
            [
                d * m + (1 - d) * grad
                for d, m in zip((0.1, 0.5, 0.9, 0.99, 0.999, 0.9999), means, strict=True)
            ]
        )
        seen = [x / np.sqrt(1e-5 + np.mean(x**2)) for x in (*new, grad, param)]
        change = np.zeros_like(param)
        for i in np.ndindex(param.shape):
            x = np.array([*(s[i] for s in seen), *time])
            for j, (weight, bias) in enumerate(layers):
                x = x @ weight + bias
                x = np.maximum(x, 0) if j < len(layers) - 1 else x
            change[i] = -0.001 * x[0] * np.exp(0.001 * x[1])
        results.append((change, new))
    return results


@pytest.mark.parametrize(("width", "depth", "t"), [(5, 2, 0), (4, 1, 700)])
def test_the_network_is_that_of_the_paper(width, depth, t, x64):
    generator = np.random.default_rng(1)
    shapes = ((3, 2), (4,), ())
    params, grads = ([generator.normal(size=s) for s in shapes] for _ in range(2))
    means = [generator.normal(size=(6, *s)) for s in shapes]
    optimizer = lo.PerParameterMLP(width, depth)
    theta = generator.normal(size=optimizer.network.size)
    state = jnp.concatenate([jnp.asarray(m).reshape(6, -1) for m in means], axis=1)
    changes, state = optimizer.update(
        jnp.asarray(theta),
        [jnp.asarray(g) for g in grads],
        state,
        [jnp.asarray(p) for p in params],
        jnp.int32(t),
    )
    if t == 0:  # whatever is there before the first step
        means = [np.zeros_like(m) for m in means]
    expected = reference_step(theta, width, depth, zip(params, grads, means, strict=True), t)
    for change, (want, _) in zip(changes, expected, strict=True):
        np.testing.assert_allclose(change, want, rtol=1e-10)
    want = np.concatenate([new.reshape(6, -1) for _, new in expected], axis=1)
    np.testing.assert_allclose(state, want, rtol=1e-10)


def test_sizes_are_those_of_the_paper():
    for width, size in ((32, 1762), (128, 19_330)):
        optimizer = lo.PerParameterMLP(width)
        theta = jax.eval_shape(optimizer.initial_theta, KEY)
        assert theta.size == optimizer.network.size == size
    theta = lo.PerParameterMLP().initial_theta(KEY)
    (first, bias), *_ = lo.PerParameterMLP().network.layers(theta)
    assert first.std() == pytest.approx(0.88 / 19**0.5, rel=0.1)
    assert not bias.any()
    system = lo.LearnedOptimizerSystem(horizon=2)
    assert sum(leaf.size for leaf in jax.tree.leaves(system.start)) == 4522
    assert system.task.sizes == (48_000, 12_000)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (lo.SGD(0.3), optax.sgd(0.3)),
        (lo.Momentum(0.2, 0.8), optax.sgd(0.2, momentum=0.8)),
        (lo.Adam(0.05, 0.85, 0.99), optax.adam(0.05, b1=0.85, b2=0.99)),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_classical_optimizers_are_those_of_optax(mine, other):
    target = {"a": jnp.arange(3.0), "b": jnp.asarray(-2.0)}
    loss = lambda p: sum(jnp.sum((p[k] - target[k]) ** 4) for k in p)  # noqa: E731
    ends = []
    with as_users_run():
        for optimizer in (mine.as_optax(mine.initial_theta(KEY)), other):
            params = {"a": jnp.ones(3), "b": jnp.asarray(0.5)}
            state = optimizer.init(params)
            for _ in range(7):
                updates, state = optimizer.update(jax.grad(loss)(params), state, params)
                params = optax.apply_updates(params, updates)
            ends.append(params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5), *ends)


@pytest.mark.slow
def test_training_by_optax_is_the_inner_loop(tmp_path):
    """Both take the same steps, and the optimizer passes through a file."""
    system = small_system()
    theta = system.initial_theta(KEY)
    lo.save_optimizer(tmp_path / "o.npz", system.optimizer, theta)
    optimizer = nres.load_optimizer(tmp_path / "o.npz")
    inner = system.init(theta, KEY)
    params, state = system.start, optimizer.init(system.start)
    images, labels = system.task.train
    step, gradient = eqx.filter_jit(system.step), jax.jit(jax.grad(system.task.loss))
    update = jax.jit(optimizer.update)
    for t in range(system.horizon):
        inner, loss = step(inner, theta, jnp.int32(t), KEY)
        at = system.table[t]
        updates, state = update(gradient(params, (images[at[0]], labels[at[0]])), state, params)
        params = optax.apply_updates(params, updates)
        assert_same(params, system.layout.tree(inner.params), rtol=1e-6)
        evaluated = tuple(x[at[1]] for x in system.task.evaluated_on)
        np.testing.assert_allclose(system.task.outer_loss(params, evaluated), loss, rtol=1e-5)
    with raises_naming(ValueError, "PerParameterMLP"):
        optimizer.update(params, state)


def test_vectors_and_pytrees_have_the_same_losses():
    task = lo.fashion_mnist_task(hidden=(4,), batch=16, outer_loss="capped")
    params = task.init(KEY)
    layout = Layout.of(params)
    vector = layout.vector(params)
    assert_same(layout.tree(vector), params, rtol=0)
    batch = jax.tree.map(lambda x: x[:16], task.train)
    plain = lo.classification(
        lambda key: params, dense.apply_dense, nres.data.fashion_mnist(), batch=16
    )
    gradient, capped = jax.grad(plain.loss)(params, batch), task.outer_loss(params, batch)
    assert_same(task.gradient(params, batch), gradient, rtol=1e-5)
    changed = dataclasses.replace(task, outer_loss=lambda p, b: 2 * p[0]["bias"][0] + 7)
    for inner in (task, plain):
        found = on_vectors(inner.gradient, layout, is_gradient=True)(vector, batch)
        assert_same(layout.tree(found), gradient, rtol=1e-5)
    of_vector, other = (
        on_vectors(t.outer_loss, layout, is_gradient=False) for t in (task, changed)
    )
    np.testing.assert_allclose(of_vector(vector, batch), capped, rtol=1e-6)
    assert float(other(vector, batch)) == 7


def test_a_subclass_with_its_own_update_is_used():
    class Still(lo.PerParameterMLP):
        def update(self, theta, grads, state, params, t):
            return jax.tree.map(jnp.zeros_like, grads), state

    class Louder(lo.PerParameterMLP):
        def changes(self, theta, tensors, inputs):
            change, means = super().changes(theta, tensors, inputs)
            return 2 * change + inputs.means[0], means  # zero before the first step

    system = lo.LearnedOptimizerSystem(small_task(), Still(4, 1), horizon=6)
    theta = system.initial_theta(KEY)
    step = eqx.filter_jit(system.step)
    state, _ = step(system.init(theta, KEY), theta, jnp.int32(0), KEY)
    assert_same(state.params, system.start)
    louder, usual = (
        lo.LearnedOptimizerSystem(small_task(), kind(4, 1), horizon=6)
        for kind in (Louder, lo.PerParameterMLP)
    )
    (loud, _), (quiet, _) = (
        eqx.filter_jit(each.step)(each.init(theta, KEY), theta, jnp.int32(0), KEY)
        for each in (louder, usual)
    )
    before, after = (usual.layout.vector(params) for params in (louder.start, loud.params))
    np.testing.assert_allclose(after - before, 2 * (quiet.params - before), rtol=1e-3, atol=1e-7)
    assert system.optimizer.updated_vector is Louder(4, 1).updated_vector is None
    assert small_system().optimizer.updated_vector is not None
    other = eqx.tree_at(lambda s: s.optimizer, small_system(), lo.Momentum())
    assert other.layout is None


class Selecting(lo.LearnedOptimizerSystem):
    """The same system, but with all arrays selected where an episode begins."""

    begun = None


class Counting(lo.LearnedOptimizerSystem):
    """A system whose state is another one."""

    def init(self, theta, key):
        return super().init(theta, key), jnp.zeros((), jnp.int32)

    def step(self, state, theta, t, key):
        inner, loss = super().step(state[0], theta, t, key)
        return (inner, state[1] + 1), loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"), [("NRES", Selecting), ("NRES", Counting), ("DODGE", Selecting)]
)
def test_stale_accumulators_do_not_matter(method, kind):
    """Estimates after episodes have ended, with accumulators left as they were or reset."""

    def estimates(kind):
        system = kind(small_task(), lo.PerParameterMLP(4, 1), horizon=2)
        options = {"sigma": 0.1} if method == "NRES" else {}
        estimator = getattr(nres, method)(system, workers=2, window=1, **options)
        theta = system.initial_theta(KEY)
        state, found = estimator.init(theta, KEY), []
        for _ in range(5):
            estimate = estimator.estimate(theta, state)
            state = estimate.state
            found.append(estimate.grad)
        return np.stack(found)

    usual = estimates(lo.LearnedOptimizerSystem)
    np.testing.assert_allclose(usual, estimates(kind), rtol=1e-5, atol=1e-8)


def test_losses():
    logits = jnp.asarray([[2.0, 0.0, 0.0], [0.0, 50.0, 0.0], [0.0, 1.0, 3.0]])
    batch = (jnp.zeros((3, 1), jnp.uint8), jnp.asarray([0, 0, 2], jnp.uint8))
    measure = lambda what: mean_loss(lambda p, x: logits, what, jnp.zeros(1), batch)  # noqa: E731
    each = [
        np.log(np.exp(x).sum()) - x[i] for x, i in zip(np.asarray(logits), (0, 0, 2), strict=True)
    ]
    np.testing.assert_allclose(measure("cross-entropy"), np.mean(each), rtol=1e-6)
    np.testing.assert_allclose(
        measure("capped"), np.mean(np.minimum(each, 1.5 * math.log(3))), rtol=1e-6
    )
    np.testing.assert_allclose(measure("accuracy"), 1 / 3, rtol=1e-6)


@pytest.mark.slow
def test_a_loss_without_gradient_is_learned_by_evolution_alone():
    """The loss is the fraction of misclassified examples; the initial rate is too small."""
    task = small_task(outer_loss="accuracy", evaluated_on="train")
    system = lo.LearnedOptimizerSystem(task, lo.SGD(0.05), horizon=30)
    theta = system.initial_theta(KEY)
    exact = nres.BPTT(system, workers=1)
    assert not float(exact.estimate(theta, exact.init(theta, KEY)).grad["log_lr"])
    estimator = nres.NRES(system, workers=20, window=10, sigma=1.0)
    with as_users_run():
        result = nres.train(estimator, optax.adam(0.2), theta, updates=60, key=KEY)
    before, after = (system.losses(t, KEY).mean() for t in (theta, result.theta))
    assert before > 0.3
    assert after < 0.2


def test_sequences():
    fixed = small_system()
    for batch in np.asarray(fixed.table).reshape(-1, fixed.task.batch):
        assert len(set(batch.tolist())) == len(batch)
    longer = lo.LearnedOptimizerSystem(fixed.task, fixed.optimizer, horizon=9)
    np.testing.assert_array_equal(longer.table[:6], fixed.table)
    theta = fixed.initial_theta(KEY)
    keys = jax.random.split(KEY, 2)
    assert len({float(fixed.losses(theta, k).mean()) for k in keys}) == 1
    random = lo.LearnedOptimizerSystem(fixed.task, fixed.optimizer, horizon=6, sequence="random")
    assert len({float(random.losses(theta, k).mean()) for k in keys}) == 2
    metrics = random.metrics(theta, keys[0])
    np.testing.assert_allclose(metrics["loss"], random.losses(theta, keys[0]).mean(), rtol=1e-6)


def test_data_are_arguments_of_compiled_code():
    system = lo.LearnedOptimizerSystem(horizon=2)
    theta = system.initial_theta(KEY)
    closed, _, _ = eqx.filter_make_jaxpr(_losses.__wrapped__)(system, theta, KEY)
    assert sum(np.size(constant) for constant in closed.consts) < 1000


def test_the_convolutional_model_by_hand(monkeypatch):
    generator = np.random.default_rng(0)
    data = Images(
        generator.integers(0, 256, (40, 32, 32, 3)).astype(np.uint8),
        (np.arange(40) % 10).astype(np.uint8),
    )
    monkeypatch.setattr(tasks, "cifar10", lambda data_dir: data)
    shapes = jax.eval_shape(tasks.cifar10_task(batch=8).init, KEY)
    assert [s["weight"].shape for s in shapes] == [
        (3, 3, 3, 32),
        *[(3, 3, 32, 32)] * 3,
        (128, 10),
    ]
    task = tasks.cifar10_task(blocks=1, channels=2, batch=8)
    assert task.sizes == (32, 8)
    keys = jax.random.split(KEY, 2)
    params = [
        layer | {"bias": jax.random.normal(k, layer["bias"].shape)}
        for layer, k in zip(task.init(KEY), keys, strict=True)
    ]
    pixels = data.images[0] / 255
    padded = np.pad(pixels, ((1, 1), (1, 1), (0, 0)))
    weight = np.asarray(params[0]["weight"])
    convolved = np.zeros((32, 32, 2))
    for i in range(32):
        for j in range(32):
            convolved[i, j] = np.einsum("abc,abcd->d", padded[i : i + 3, j : j + 3], weight)
    convolved += np.asarray(params[0]["bias"])
    pooled = np.maximum(convolved, 0).reshape(16, 2, 16, 2, 2).mean(axis=(1, 3))
    pixels = jnp.asarray(pixels[None], jnp.float32)
    logits = convolutional.apply_convolutional(convolutional.plain_block, params, pixels)
    want = pooled.reshape(-1) @ np.asarray(params[1]["weight"]) + params[1]["bias"]
    np.testing.assert_allclose(logits[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_exact_gradient_explodes():
    task, optimizer = small_task(), lo.PerParameterMLP(4, 1)
    theta = 5 * optimizer.initial_theta(KEY)
    short, long = (
        gradient_norm(lo.LearnedOptimizerSystem(task, optimizer, horizon=horizon), theta)
        for horizon in (3, 300)
    )
    assert long > 100 * short


def test_bad_input_is_refused():
    task = small_task()
    with raises_naming(ValueError, "sequence", "sorted"):
        lo.LearnedOptimizerSystem(task, sequence="sorted")
    with raises_naming(ValueError, "outer_loss", "f1"):
        small_task(outer_loss="f1")
    with raises_naming(ValueError, "evaluated_on", "test"):
        small_task(evaluated_on="test")
    with raises_naming(ValueError, "batch", 5):
        lo.Task(task.init, task.loss, (np.zeros((4, 2)),), batch=5)
    with raises_naming(ValueError, "row"):
        lo.Task(task.init, task.loss, (np.zeros((4, 2)), np.zeros(3)), batch=2)
    with raises_naming(ValueError, "depth", 0):
        lo.PerParameterMLP(depth=0)
    with raises_naming(ValueError, "blocks", 6):
        lo.cifar10_task(blocks=6)
    with raises_naming(ValueError, "channels", 0):
        lo.cifar10_task(channels=0)
    with raises_naming(ValueError, "hidden", [32, 0]):
        lo.fashion_mnist_task(hidden=[32, 0])
