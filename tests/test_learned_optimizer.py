"""Learned optimizers: against NumPy, against optax, and the kernels against plain JAX."""

import functools
import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import nres
from helpers import as_users_run
from nres.cli import app
from nres.data import Images
from nres.systems import learned_optimizer as lo
from nres.systems.learned_optimizer import convolutional, dense, dispatch, network, tasks
from nres.systems.learned_optimizer.export import OptimizerFileError
from nres.systems.learned_optimizer.kernels import convolutional as convolutional_kernels
from nres.systems.learned_optimizer.kernels import dense as dense_kernels
from nres.systems.learned_optimizer.kernels.network import fused_step
from nres.systems.learned_optimizer.losses import mean_loss
from nres.systems.learned_optimizer.network import Inputs, Network, fusable, plain_step
from nres.systems.learned_optimizer.system import _losses
from nres_paper.learned_optimizer import gradient_norm

KEY = jax.random.key(0)
BLOCKS = convolutional.plain_block, convolutional_kernels.fused_block


def blobs(count=60):
    """Two classes of four-pixel images, easy to tell apart."""
    generator = np.random.default_rng(0)
    labels = (np.arange(count) % 2).astype(np.uint8)
    images = generator.integers(0, 120, (count, 2, 2, 1)) + 130 * labels[:, None, None, None]
    return Images(images.astype(np.uint8), labels)


def small_task(**options):
    init = functools.partial(dense.init_dense, (4, 3, 2))
    return lo.classification(init, dense.apply_dense, blobs(), batch=8, **options)


@functools.cache
def small_system(**options):
    return lo.LearnedOptimizerSystem(small_task(), lo.PerParameterMLP(4, 1), horizon=6, **options)


def reference_step(theta, width, depth, tensors, t):
    """The optimizer of SPEC, one tensor after the other, in NumPy."""
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
def test_the_network_is_that_of_the_paper(width, depth, t):
    generator = np.random.default_rng(1)
    shapes = ((3, 2), (4,), ())
    params, grads = ([generator.normal(size=s) for s in shapes] for _ in range(2))
    means = [generator.normal(size=(6, *s)) for s in shapes]
    optimizer = lo.PerParameterMLP(width, depth)
    theta = generator.normal(size=optimizer.network.size)
    with jax.enable_x64(True):
        state = jnp.concatenate([jnp.asarray(m).reshape(6, -1) for m in means], axis=1)
        changes, state = optimizer.update(
            jnp.asarray(theta),
            [jnp.asarray(g) for g in grads],
            state,
            [jnp.asarray(p) for p in params],
            jnp.int32(t),
        )
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


def test_training_by_optax_is_the_inner_loop(tmp_path):
    """Step for step, through a file."""
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
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), params, inner.params)
        evaluated = tuple(x[at[1]] for x in system.task.evaluated_on)
        np.testing.assert_allclose(system.task.outer_loss(params, evaluated), loss, rtol=1e-5)
    with pytest.raises(ValueError, match="PerParameterMLP needs the parameters"):
        optimizer.update(params, state)


def inputs(lanes, size):
    keys = jax.random.split(KEY, 3)
    return Inputs(
        jnp.linspace(-1, 1, 11),
        jax.random.normal(keys[0], (lanes, size)),
        3 * jax.random.normal(keys[1], (lanes, size)),
        jax.random.normal(keys[2], (lanes, 6, size)),
    )


def test_the_network_kernels_are_plain_jax():
    """Interpreted here; tensors larger and smaller than a block, several lanes."""
    network, tensors = Network((19, 16, 16, 2)), (700, 3, 130)
    thetas = jax.random.normal(KEY, (2, network.size)) / 4
    given = inputs(2, sum(tensors))
    axes = (0, Inputs(None, 0, 0, 0))
    both = [
        jax.jit(jax.vmap(functools.partial(function, network, tensors), axes))
        for function in (plain_step, fused_step)
    ]
    for plain, fused in zip(*(lanes(thetas, given) for lanes in both), strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-7)
    fresh = given._replace(means=jnp.zeros_like(given.means))
    for lanes in both:
        _, means = lanes(thetas, fresh)
        rest = np.array([0.9, 0.5, 0.1, 0.01, 0.001, 0.0001])[:, None]
        np.testing.assert_allclose(means, rest * np.asarray(given.grad)[:, None], rtol=1e-6)
    assert fusable(network, thetas[0], given)
    assert not fusable(Network((19, 5, 2)), thetas[0], given)
    half = given._replace(grad=given.grad.astype(jnp.bfloat16))
    assert not fusable(network, thetas[0], half)


def test_the_kernels_have_the_derivatives_of_plain_jax():
    network, tensors = Network((19, 16, 2)), (5, 2)
    theta = jax.random.normal(KEY, (network.size,)) / 4
    given = jax.tree.map(lambda x: x[0], inputs(1, 7)._replace(time=jnp.ones((1, 11))))
    for derivative in (jax.jacfwd, jax.jacrev):
        plain, fused = (
            jax.jit(derivative(lambda th, f=f: f(network, tensors, th, given)[0]))(theta)
            for f in (plain_step, fused_step)
        )
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-8)


def test_the_kernels_of_the_model_are_plain_jax():
    params = jax.vmap(functools.partial(dense.init_dense, (4, 20, 3)))(jax.random.split(KEY, 2))
    data = blobs(16)
    batch = (jnp.asarray(data.images), jnp.asarray(data.labels))
    assert dense.fusable(jax.tree.map(lambda x: x[0], params), batch)
    lanes = functools.partial(jax.vmap, in_axes=(0, None))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    plain, fused = (jax.jit(lanes(f)) for f in (dense.plain_gradient, dense_kernels.fused_gradient))
    jax.tree.map(close, fused(params, batch), plain(params, batch))
    large = jax.tree.map(lambda x: 20 * x, params)  # so that some examples reach the cap
    found = {}
    for what in ("cross-entropy", "capped"):
        plain, fused = (
            jax.jit(lanes(functools.partial(f, what)))
            for f in (dense.plain_loss, dense_kernels.fused_loss)
        )
        found[what] = fused(large, batch)
        close(found[what], plain(large, batch))
        # A class that is all but certain and wrong: infinite in one lane, or capped.
        certain = jax.tree.map(lambda x: x.at[0].set(jnp.inf) if x.shape == (2, 3) else x, large)
        np.testing.assert_array_equal(fused(certain, batch), plain(certain, batch))
    assert (found["capped"] < found["cross-entropy"]).all()
    one = jax.tree.map(lambda x: x[0], params)
    plain, fused = (
        jax.jit(jax.grad(lambda p, f=f: f("cross-entropy", p, batch)))(one)
        for f in (dense.plain_loss, dense_kernels.fused_loss)
    )
    jax.tree.map(close, fused, plain)


@pytest.mark.slow
def test_the_kernels_of_convolutions_are_plain_jax():
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    # Patches that are a chunk or several, and patches with a rest; lanes with weights of their own.
    for inputs, channels in ((32, 20), (3, 32)):
        shapes = (2, 5, 8, 8, inputs), (2, 3, 3, inputs, channels), (2, channels)
        given = [
            jax.random.normal(k, s) for k, s in zip(jax.random.split(KEY, 3), shapes, strict=True)
        ]
        weights = jax.random.normal(KEY, (2, 5, 4, 4, channels))

        def both(block, given=given, weights=weights):
            value, pull = jax.vjp(jax.vmap(block), *given)
            return value, pull(weights)

        plain, fused = (jax.jit(both, static_argnums=0)(block) for block in BLOCKS)
        jax.tree.map(close, fused, plain)


def test_the_loss_with_convolutions_has_the_derivatives_of_plain_jax():
    params = convolutional.init_convolutional(1, 2, KEY)
    images = jax.random.randint(KEY, (2, 32, 32, 3), 0, 256).astype(jnp.uint8)
    images = images.at[0].set(0)  # with no bias yet, nothing but zeros goes into the ReLU
    batch = images, jnp.asarray([4, 9], jnp.uint8)
    assert convolutional.fusable(params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    at = functools.partial(jax.jvp, primals=(params,), tangents=(params,))
    for name in ("loss", "gradient"):
        plain = getattr(convolutional, f"plain_{name}")
        fused = getattr(convolutional_kernels, f"fused_{name}")
        if name == "loss":
            plain, fused = (functools.partial(f, "capped") for f in (plain, fused))
        jax.tree.map(close, jax.jit(fused)(params, batch), jax.jit(plain)(params, batch))
        plain, fused = (jax.jit(lambda f=f: at(lambda p: f(p, batch)))() for f in (plain, fused))
        jax.tree.map(close, fused, plain)


def test_kernels_are_chosen_where_they_apply(monkeypatch):
    perceptron = dense.init_dense((4, 20, 3), KEY)
    images = convolutional.init_convolutional(1, 2, KEY)
    small = jnp.zeros((16, 2, 2, 1), jnp.uint8), jnp.zeros(16, jnp.uint8)
    large = jnp.zeros((2, 32, 32, 3), jnp.uint8), jnp.zeros(2, jnp.uint8)
    shape = Network((19, 16, 2))
    given = jax.tree.map(lambda x: x[0], inputs(1, 7)._replace(time=jnp.ones((1, 11))))
    choices = {
        dense: [
            lambda: dispatch.dense_loss("capped", perceptron, small),
            lambda: dispatch.dense_gradient(perceptron, small),
        ],
        convolutional: [
            lambda: dispatch.convolutional_loss("accuracy", images, large),
            lambda: dispatch.convolutional_gradient(images, large),
        ],
        network: [lambda: dispatch.network_step(shape, (5, 2), jnp.zeros(shape.size), given)],
    }

    def has_kernel(function):
        return "pallas_call" in str(jax.make_jaxpr(lambda: function())())

    for module, functions in choices.items():
        assert not any(map(has_kernel, functions))
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "on_nvidia", lambda: True)
            assert all(map(has_kernel, functions))
            patch.setattr(module, "fusable", lambda *arguments: False)
            assert not any(map(has_kernel, functions))
    monkeypatch.setattr(dispatch, "on_nvidia", lambda: True)
    assert not has_kernel(lambda: dispatch.dense_loss("accuracy", perceptron, small))


def test_importing_nres_does_not_import_the_kernels():
    script = "import sys, nres; sys.exit('jax.experimental.pallas' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


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
    """From a learning rate too small, with the fraction of misclassified examples as the loss."""
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
    with pytest.raises(ValueError, match="sequence must be"):
        lo.LearnedOptimizerSystem(task, sequence="sorted")
    with pytest.raises(ValueError, match="outer_loss must be one of"):
        small_task(outer_loss="f1")
    with pytest.raises(ValueError, match="evaluated_on must be"):
        small_task(evaluated_on="test")
    with pytest.raises(ValueError, match="batch must be from 1"):
        lo.Task(task.init, task.loss, (np.zeros((4, 2)),), batch=5)
    with pytest.raises(ValueError, match="one example in each row"):
        lo.Task(task.init, task.loss, (np.zeros((4, 2)), np.zeros(3)), batch=2)
    with pytest.raises(ValueError, match="width and depth"):
        lo.PerParameterMLP(depth=0)
    with pytest.raises(ValueError, match="each halves"):
        lo.cifar10_task(blocks=6)
    with pytest.raises(ValueError, match="channels must be at least 1"):
        lo.cifar10_task(channels=0)
    with pytest.raises(ValueError, match="hidden must be a list of sizes"):
        lo.fashion_mnist_task(hidden=[32, 0])


class Sign(lo.LearnableOptimizer):
    def initial_theta(self, key):
        return {"log_lr": jnp.asarray(-3.0)}

    def init(self, params):
        return ()

    def update(self, theta, grads, state, params, t):
        return jax.tree.map(lambda g: -jnp.exp(theta["log_lr"]) * jnp.sign(g), grads), state


def test_files_of_optimizers(tmp_path):
    path = tmp_path / "a.npz"
    theta = {"log_lr": jnp.asarray(-1.5)}
    lo.save_optimizer(path, Sign(), theta, {"note": "mine"})
    optimizer, again, about = lo.read_optimizer(path, Sign())
    assert isinstance(optimizer, Sign)
    assert again == theta
    assert about == {"note": "mine"}
    with pytest.raises(OptimizerFileError, match=r"optimizer=\.\.\."):
        nres.load_optimizer(path)
    with pytest.raises(OptimizerFileError, match=r"is for .*Sign with .*, not for SGD"):
        nres.load_optimizer(path, lo.SGD())
    lo.save_optimizer(path, lo.SGD(0.3), theta)
    with pytest.raises(OptimizerFileError, match=r"0\.3.*, not for SGD with .*0\.1"):
        nres.load_optimizer(path, lo.SGD())
    lo.save_optimizer(path, lo.PerParameterMLP(4, 1), jnp.zeros(7))
    with pytest.raises(OptimizerFileError, match=r"shape \[90\].* has \[7\]"):
        nres.load_optimizer(path)
    with pytest.raises(OptimizerFileError, match=r"must end in \.npz"):
        lo.save_optimizer(tmp_path / "a.bin", Sign(), theta)
    for content in (b"", b"PK\x03\x04 no", b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(OptimizerFileError, match="holds no optimizer"):
            nres.load_optimizer(path)
    np.savez(path, description=np.array([{"a": 1}], dtype=object))
    with pytest.raises(OptimizerFileError, match="holds no optimizer"):
        nres.load_optimizer(path)
    with pytest.raises(FileNotFoundError):
        nres.load_optimizer(tmp_path / "none.npz")


def test_what_is_committed_loads():
    """The optimizer that the README speaks of."""
    path = Path(__file__).parent.parent / "results/learned-optimizer/optimizer.npz"
    optimizer, theta, about = lo.read_optimizer(path)
    assert optimizer == lo.PerParameterMLP()
    assert theta.size == 1762
    assert about["settings"]["method"] == "nres"


def test_names_that_earlier_versions_stored():
    """Options in run folders, and arrays in checkpoints."""
    task = lo.fashion_mnist_task(judge="capped", judged_on="train")
    assert task.outer_loss.args == ("capped",)
    assert task.evaluated_on is task.train
    system = small_system()
    state = system.init(system.initial_theta(KEY), KEY)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    assert names[0] == ".params[0]['bias']"
    assert names[-1] == ".memory"


def test_the_shipped_images():
    images, labels = nres.data.fashion_mnist()
    assert images.shape == (60_000, 8, 8, 1)
    assert np.bincount(labels).tolist() == [6000] * 10
    tool = Path(__file__).parent.parent / "tools/fashion_mnist.py"
    spec = importlib.util.spec_from_file_location("tool", tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    large = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    want = jax.image.resize(jnp.asarray(large, jnp.float32), (3, 8, 8), "bilinear", antialias=False)
    np.testing.assert_allclose(module.resize(large, 8), want, atol=0.501)


@pytest.mark.slow
def test_a_run_learns_is_exported_and_described(tmp_path):
    run = tmp_path / "run"
    command = ["train", "learned-optimizer", "--updates", "2", "--workers", "2", "--quiet"]
    options = ("horizon=4", "width=4", "depth=1", "hidden=[4]", "batch=8")
    command += [part for option in options for part in ("--set", option)] + ["--out", str(run)]
    with as_users_run():
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        done = CliRunner().invoke(app, ["export", str(run)])
        assert done.exit_code == 0, done.output
        card = (run / "optimizer.md").read_text()
        assert "PerParameterMLP, 90 parameters" in card
        assert "310 parameters" in card
        _, theta, about = lo.read_optimizer(run / "optimizer.npz")
        np.testing.assert_array_equal(theta, nres.runs.Run.open(run).theta())
        assert about["settings"]["workers"] == 2
        assert json.loads((run / "config.json").read_text())["settings"]["lr"] == "0.0003"
        done = CliRunner().invoke(
            app, ["train", "learned-optimizer-cifar10", "--data-dir", str(run)]
        )
        assert done.exit_code == 2
        assert "data_batch_1.bin is not in" in " ".join(done.output.split())
