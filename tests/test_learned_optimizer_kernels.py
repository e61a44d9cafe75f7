"""The kernels of learned optimizers against plain JAX, interpreted on the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nres.systems.learned_optimizer import convolutional, dense, dispatch, network
from nres.systems.learned_optimizer.kernels import convolutional as convolutional_kernels
from nres.systems.learned_optimizer.kernels import dense as dense_kernels
from nres.systems.learned_optimizer.kernels.network import fused_step
from nres.systems.learned_optimizer.network import Inputs, Network, fusable, plain_step
from small_tasks import KEY, blobs, inputs

BLOCKS = convolutional.plain_block, convolutional_kernels.fused_block


def test_the_network_kernels_are_plain_jax():
    """Tensors are larger and smaller than a block, in several lanes."""
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


@pytest.mark.slow
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
    for width, channels in ((32, 20), (3, 32)):
        shapes = (2, 5, 8, 8, width), (2, 3, 3, width, channels), (2, channels)
        given = [
            jax.random.normal(k, s) for k, s in zip(jax.random.split(KEY, 3), shapes, strict=True)
        ]
        weights = jax.random.normal(KEY, (2, 5, 4, 4, channels))

        def both(block, given=given, weights=weights):
            value, pull = jax.vjp(jax.vmap(block), *given)
            return value, pull(weights)

        plain, fused = (jax.jit(both, static_argnums=0)(block) for block in BLOCKS)
        jax.tree.map(close, fused, plain)


@pytest.mark.slow
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
