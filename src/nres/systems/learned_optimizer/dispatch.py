"""The choice between kernels for NVIDIA GPUs and plain JAX, made when a program is lowered.

Both give the same numbers up to rounding. A computation on the CPU of a machine with a GPU uses
plain JAX. The kernels are imported where they are used, because importing Pallas is slow.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from nres.gpu import has_nvidia
from nres.systems.learned_optimizer import convolutional, dense
from nres.systems.learned_optimizer import network as network_module
from nres.systems.learned_optimizer.fusing import Batch, Layers
from nres.systems.learned_optimizer.network import Inputs, Network, Result
from nres.systems.learned_optimizer.vectors import Layout


def convolutional_loss(what: str, params: Layers, batch: Batch) -> Float[Array, ""]:
    """Compute a convolutional network's mean loss on a batch, one of `losses.LOSSES`."""
    if has_nvidia() and convolutional.fusable(params):
        from nres.systems.learned_optimizer.kernels.convolutional import fused_loss

        return _fused(fused_loss, convolutional.plain_loss, (what,), params, batch)
    return convolutional.plain_loss(what, params, batch)


def convolutional_gradient(params: Layers, batch: Batch) -> Layers:
    """Compute the gradient of a convolutional network's mean cross-entropy."""
    if has_nvidia() and convolutional.fusable(params):
        from nres.systems.learned_optimizer.kernels.convolutional import fused_gradient

        return _fused(fused_gradient, convolutional.plain_gradient, (), params, batch)
    return convolutional.plain_gradient(params, batch)


def dense_loss(
    what: str, layout: Layout, params: Float[Array, " size"], batch: Batch
) -> Float[Array, ""]:
    """Compute a perceptron's mean loss on a batch, one of `losses.LOSSES`."""
    if what != "accuracy" and has_nvidia() and dense.fusable(layout, params, batch):
        from nres.systems.learned_optimizer.kernels.dense import fused_loss

        return _fused(fused_loss, dense.plain_loss, (what, layout), params, batch)
    return dense.plain_loss(what, layout, params, batch)


def dense_gradient(
    layout: Layout, params: Float[Array, " size"], batch: Batch
) -> Float[Array, " size"]:
    """Compute the gradient of a perceptron's mean cross-entropy."""
    if has_nvidia() and dense.fusable(layout, params, batch):
        from nres.systems.learned_optimizer.kernels.dense import fused_gradient

        return _fused(fused_gradient, dense.plain_gradient, (layout,), params, batch)
    return dense.plain_gradient(layout, params, batch)


def network_step(
    network: Network,
    tensors: tuple[int, ...],
    added: bool,
    theta: Float[Array, " d"],
    inputs: Inputs,
) -> Result:
    r"""Compute the changes that a network makes to the parameters of a model.

    The inputs of the network are the updated running means of a parameter's gradient, the gradient
    and the parameter itself, each divided by $\sqrt{10^{-5} + \text{mean square over the tensor}}$,
    and the time. From its outputs $a, b$ follows the change $-0.001\, a\, e^{0.001 b}$.

    Args:
        network: The shape of the network, which has ReLU between the layers.
        tensors: The sizes of the model's tensors.
        added: True to add the changes to the parameters.
        theta: The network's weights.
        inputs: The inputs of the network.

    Returns:
        The change of each parameter, or its new value if `added`; and the new running means.
    """
    if has_nvidia() and network_module.fusable(network, theta, inputs):
        from nres.systems.learned_optimizer.kernels.network import fused_step

        fixed = network, tensors, added
        return _fused(fused_step, network_module.plain_step, fixed, theta, inputs)
    return network_module.plain_step(network, tensors, added, theta, inputs)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _fused(fused: Callable, plain: Callable, fixed: tuple, *arrays: Any) -> Any:
    """Compute `plain(*fixed, *arrays)`, on an NVIDIA GPU with the kernels of `fused`.

    Derivatives are those of `plain`. Compiled, so that JAX looks where the arrays are.
    """
    return jax.lax.platform_dependent(
        *arrays,
        cuda=functools.partial(fused, *fixed),
        default=functools.partial(plain, *fixed),
    )


@_fused.defjvp
def _(fused, plain, fixed, primals, tangents):
    return jax.jvp(functools.partial(plain, *fixed), primals, tangents)
