"""The kernels of learned optimizers against plain JAX, interpreted on the CPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nres.systems.learned_optimizer import convolutional, dense, dispatch, fusing, network
from nres.systems.learned_optimizer.kernels import convolutional as convolutional_kernels
from nres.systems.learned_optimizer.kernels import dense as dense_kernels
from nres.systems.learned_optimizer.kernels.network import fused_step
from nres.systems.learned_optimizer.network import Inputs, Network, fusable, plain_step
from nres.systems.learned_optimizer.vectors import Layout
from small_tasks import KEY, blobs, inputs

SLOW = pytest.mark.slow
SIZES = (4, 20, 17, 3)
LAYOUT = Layout.of(dense.init_dense(SIZES, KEY))
BLOCKS = convolutional.plain_block, convolutional_kernels.fused_block


def perceptron(key):
    return LAYOUT.vector(dense.init_dense(SIZES, key))


@pytest.mark.parametrize(
    "hidden", [(16, 16), pytest.param((32,), marks=SLOW), pytest.param((128, 16, 32), marks=SLOW)]
)
@pytest.mark.parametrize("added", [False, True])
def test_the_network_kernels_are_plain_jax(hidden, added):
    """Tensors are larger and smaller than a block, in several lanes."""
    network, tensors = Network((19, *hidden, 2)), (700, 3, 130)
    thetas = jax.random.normal(KEY, (2, network.size)) / 4
    given = inputs(2, sum(tensors))
    axes = (0, Inputs(None, 0, 0, 0, None))
    both = [
        jax.jit(jax.vmap(functools.partial(function, network, tensors, added), axes))
        for function in (plain_step, fused_step)
    ]
    for plain, fused in zip(*(lanes(thetas, given) for lanes in both), strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-7)
    fresh = given._replace(means=jnp.full_like(given.means, jnp.nan), t=jnp.int32(0))
    for lanes in both:
        _, means = lanes(thetas, fresh)
        rest = np.array([0.9, 0.5, 0.1, 0.01, 0.001, 0.0001])[:, None]
        np.testing.assert_allclose(means, rest * np.asarray(given.grad)[:, None], rtol=1e-6)
    assert fusable(network, thetas[0], given)
    for sizes in ((19, 5, 2), (19, 2), (30, 16, 2)):
        assert not fusable(Network(sizes), thetas[0], given)
    half = given._replace(grad=given.grad.astype(jnp.bfloat16))
    assert not fusable(network, thetas[0], half)


def test_products_of_the_network_may_use_half_precision(monkeypatch):
    """Half precision has eleven bits, and gradients of any size do not leave its range."""
    shape, tensors = Network((19, 16, 16, 2)), (130,)
    theta = jax.random.normal(KEY, (shape.size,)) / 4
    dot, half = jnp.dot, lambda x: x.astype(jnp.float16).astype(jnp.float32)
    monkeypatch.setattr(jnp, "dot", lambda x, y, **options: dot(half(x), half(y), **options))
    for scale in (1e-8, 1.0, 1e8):
        given = inputs(1, 130)
        given = given._replace(
            grad=scale * given.grad[0], param=given.param[0], means=scale * given.means[0]
        )
        plain = plain_step(shape, tensors, False, theta, given)[0]
        change = fused_step(shape, tensors, False, theta, given)[0]
        assert np.linalg.norm(change - plain) < 1e-3 * np.linalg.norm(plain)
        assert (change != plain).any()


@pytest.mark.parametrize(
    ("asked", "usual", "moderate"),
    [
        (None, "TF32_TF32_F32", "F16_F16_F32"),
        ("highest", "TF32_TF32_F32_X3", "TF32_TF32_F32_X3"),
        ("BF16_BF16_F32_X9", "TF32_TF32_F32_X3", "TF32_TF32_F32_X3"),
    ],
)
def test_products_are_as_precise_as_jax_is_asked_to_be(asked, usual, moderate, monkeypatch):
    monkeypatch.setattr(fusing, "interpreted", lambda: False)
    with jax.default_matmul_precision(asked):
        assert fusing.precision() == jax.lax.DotAlgorithmPreset[usual]
        assert fusing.precision(moderate=True) == jax.lax.DotAlgorithmPreset[moderate]


def test_a_large_bias_is_no_error_of_the_network_kernels():
    shape, tensors = Network((19, 16, 2)), (20,)
    theta = jnp.zeros(shape.size).at[19 * 16].set(1e5).at[20 * 16].set(1.0)
    given = inputs(1, 20)
    given = given._replace(grad=given.grad[0], param=given.param[0], means=given.means[0])
    found = fused_step(shape, tensors, False, theta, given)[0]
    np.testing.assert_allclose(found, plain_step(shape, tensors, False, theta, given)[0], rtol=1e-5)


@pytest.mark.parametrize(("asked", "approximate"), [(None, True), ("highest", False)])
def test_tanh_is_as_precise_as_jax_is_asked_to_be(asked, approximate, monkeypatch):
    with_a_gpu(monkeypatch)
    batch = jnp.zeros((16, 4), jnp.uint8), jnp.zeros(16, jnp.uint8)
    with jax.default_matmul_precision(asked):
        gradient = functools.partial(dense_kernels.fused_gradient, LAYOUT)
        assert ("tanh.approx" in str(jax.make_jaxpr(gradient)(PERCEPTRON, batch))) == approximate


def test_the_kernels_of_the_model_are_plain_jax():
    params = jnp.stack([perceptron(key) for key in jax.random.split(KEY, 2)])
    data = blobs(16)
    batch = (jnp.asarray(data.images), jnp.asarray(data.labels))
    assert dense.fusable(LAYOUT, params[0], batch)
    lanes = functools.partial(jax.vmap, in_axes=(0, None))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    plain, fused = (
        jax.jit(lanes(functools.partial(f, LAYOUT)))
        for f in (dense.plain_gradient, dense_kernels.fused_gradient)
    )
    close(fused(params, batch), plain(params, batch))
    large = 20 * params  # so that some examples reach the cap
    found = {}
    for what in ("cross-entropy", "capped"):
        plain, fused = (
            jax.jit(lanes(functools.partial(f, what, LAYOUT)))
            for f in (dense.plain_loss, dense_kernels.fused_loss)
        )
        found[what] = fused(large, batch)
        close(found[what], plain(large, batch))
        # A class that is all but certain and wrong: infinite in one lane, or capped.
        of_one = LAYOUT.tree(large[0])
        of_one[-1]["bias"] = jnp.full(3, jnp.inf)
        certain = large.at[0].set(LAYOUT.vector(of_one))
        close(fused(certain, batch), plain(certain, batch))
    assert (found["capped"] < found["cross-entropy"]).all()


@pytest.mark.slow
def test_the_kernels_of_convolutions_are_plain_jax(monkeypatch):
    # Several iterations per program, the last ones beyond the images.
    monkeypatch.setattr(convolutional_kernels, "PARTS", (2, 2))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    # Whole patches as rows up to seven channels; numbers of channels that are filled up; lanes with
    # weights of their own.
    for width, channels in ((32, 20), (3, 32), (7, 3), (8, 33)):
        shapes = (2, 5, 8, 4, width), (2, 3, 3, width, channels), (2, channels)
        given = [
            jax.random.normal(k, s) for k, s in zip(jax.random.split(KEY, 3), shapes, strict=True)
        ]
        weights = jax.random.normal(KEY, (2, 5, 4, 2, channels))

        def both(block, given=given, weights=weights):
            value, pull = jax.vjp(jax.vmap(block), *given)
            return value, pull(weights)

        plain, fused = (jax.jit(both, static_argnums=0)(block) for block in BLOCKS)
        jax.tree.map(close, fused, plain)


@pytest.mark.slow
def test_no_kernel_of_convolutions_writes_bytes(monkeypatch):
    """Pallas gives arrays of 2^31 to 2^32 bytes 32-bit indices, too few for as many elements."""
    with_a_gpu(monkeypatch)
    images = convolutional.init_convolutional(1, 2, KEY)
    text = lowered(dispatch.convolutional_gradient, images, LARGE)
    assert "ptr<i16>" in text
    assert "ptr<i8>" not in text


@pytest.mark.slow
def test_the_loss_with_convolutions_is_plain_jax():
    params = convolutional.init_convolutional(1, 2, KEY)
    images = jax.random.randint(KEY, (2, 32, 32, 3), 0, 256).astype(jnp.uint8)
    images = images.at[0].set(0)  # with no bias yet, nothing but zeros goes into the ReLU
    batch = images, jnp.asarray([4, 9], jnp.uint8)
    assert convolutional.fusable(params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for name in ("loss", "gradient"):
        plain = getattr(convolutional, f"plain_{name}")
        fused = getattr(convolutional_kernels, f"fused_{name}")
        if name == "loss":
            plain, fused = (functools.partial(f, "capped") for f in (plain, fused))
        jax.tree.map(close, jax.jit(fused)(params, batch), jax.jit(plain)(params, batch))


PERCEPTRON = perceptron(KEY)
SMALL = jnp.arange(64, dtype=jnp.uint8).reshape(16, 2, 2, 1), jnp.ones(16, jnp.uint8)
LARGE = jnp.zeros((2, 32, 32, 3), jnp.uint8), jnp.zeros(2, jnp.uint8)
SHAPE, TENSORS = Network((19, 16, 2)), (5, 2)


def one_model():
    """The inputs of the network for one model of seven parameters."""
    return jax.tree.map(
        lambda x: x[0], inputs(1, 7)._replace(time=jnp.ones((1, 11)), t=jnp.ones(1, int))
    )


def choices():
    """The functions that have kernels, with arguments, by the module that says if these apply."""
    images = convolutional.init_convolutional(1, 2, KEY)
    theta = jax.random.normal(KEY, (SHAPE.size,)) / 4
    step = functools.partial(dispatch.network_step, SHAPE, TENSORS, True)
    return {
        dense: [
            (functools.partial(dispatch.dense_loss, "capped", LAYOUT), PERCEPTRON, SMALL),
            (functools.partial(dispatch.dense_gradient, LAYOUT), PERCEPTRON, SMALL),
        ],
        convolutional: [
            (functools.partial(dispatch.convolutional_loss, "accuracy"), images, LARGE),
            (dispatch.convolutional_gradient, images, LARGE),
        ],
        network: [(step, theta, one_model())],
    }


def with_a_gpu(patch):
    """Trace programs as on a machine that has an NVIDIA GPU."""
    for module in (dispatch, fusing):
        patch.setattr(module, "has_nvidia", lambda: True)


def fresh(function):
    """Compile a function anew, although JAX may have traced it for another machine."""
    return jax.jit(lambda *arguments: function(*arguments))


def lowered(function, *arguments):
    return fresh(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def test_kernels_are_chosen_where_they_apply(monkeypatch):
    def has_kernel(choice):
        return "pallas_call" in str(jax.make_jaxpr(lambda: choice[0](*choice[1:]))())

    for module, functions in choices().items():
        assert not any(map(has_kernel, functions))
        with monkeypatch.context() as patch:
            with_a_gpu(patch)
            assert all(map(has_kernel, functions))
            patch.setattr(module, "fusable", lambda *arguments: False)
            assert not any(map(has_kernel, functions))
    with_a_gpu(monkeypatch)
    accuracy = functools.partial(dispatch.dense_loss, "accuracy", LAYOUT)
    assert not has_kernel((accuracy, PERCEPTRON, SMALL))


@pytest.mark.parametrize("module", [dense, pytest.param(convolutional, marks=SLOW), network])
def test_the_platform_of_a_program_chooses_the_kernels(module, monkeypatch):
    """As an exported optimizer on the CPU of a machine that has a GPU needs it."""
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    for function, *given in choices()[module]:
        plain = fresh(function)(*given)
        with monkeypatch.context() as patch:
            with_a_gpu(patch)
            assert "triton" in lowered(function, *given)
            compiled = fresh(function).lower(*given).compile()
            assert "conditional" not in compiled.as_text()
            jax.tree.map(close, compiled(*given), plain)
            jax.tree.map(close, function(*given), plain)  # not compiled by the caller


def test_derivatives_are_those_of_plain_jax(monkeypatch):
    given = one_model()
    theta = jax.random.normal(KEY, (SHAPE.size,)) / 4

    def step(function):
        return lambda theta: function(SHAPE, TENSORS, False, theta, given)[0]

    with_a_gpu(monkeypatch)
    for derivative in (jax.jacfwd, jax.jacrev):
        plain, chosen = (derivative(step(f)) for f in (plain_step, dispatch.network_step))
        assert "triton" not in lowered(chosen, theta)
        np.testing.assert_allclose(jax.jit(chosen)(theta), jax.jit(plain)(theta), rtol=1e-5)


@pytest.mark.parametrize("lanes", [262_144, 2_000_000])
def test_kernels_can_have_many_lanes(lanes, monkeypatch):
    """A GPU allows 65,535 programs in all but the first dimension of a grid."""
    with_a_gpu(monkeypatch)
    for function, *given in [choice for of in choices().values() for choice in of]:
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((lanes, *x.shape), x.dtype), given)
        text = lowered(jax.vmap(function), *shapes)
        grids = re.findall(r"grid_x = (\d+) .*?grid_y = (\d+) .*?grid_z = (\d+) ", text)
        assert grids
        for x, y, z in grids:
            assert lanes <= int(x) * int(y) * int(z)
            assert int(x) < 2**31
            assert max(int(y), int(z)) < 2**16
