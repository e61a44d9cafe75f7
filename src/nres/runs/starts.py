"""Initial parameters of the paper's runs, which all seeds of a preset share.

The published runs drew their initial parameters from a seed per task. For each weight matrix in
order, a Threefry key is split, and the second half draws the matrix, of shape (inputs, outputs),
from a normal distribution truncated at two. Biases are zero and draw nothing.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from nres.policies import MLP, Linear
from nres.pools.mujoco import MujocoPool
from nres.system import Theta
from nres.systems.learned_optimizer import LearnedOptimizerSystem, Task
from nres.systems.learned_optimizer.network import MEANS
from nres.systems.learned_optimizer.optimizers import PerParameterNetwork

# The standard deviation of a standard normal distribution truncated at two.
_TRUNCATED = 0.87962566103423978


def _matrices(
    seed: int, shapes: Iterable[tuple[int, ...]], before: tuple[int, ...] = ()
) -> Iterator[Array]:
    """Draw one matrix per shape; `before` lists the halves of the key that are taken first."""
    # The stored seeds mean the numbers of the old implementation.
    with jax.threefry_partitionable(False):
        key = jax.random.key(seed, impl="threefry2x32")
        for half in before:
            key = jax.random.split(key)[half]
        for shape in shapes:
            key, own = jax.random.split(key)
            yield jax.random.truncated_normal(own, -2, 2, shape)


def policy_start(pool: MujocoPool, seed: int) -> Theta:
    """Return the initial parameters of a policy.

    Linear policies and perceptrons begin as in the paper, which has no others.

    Args:
        pool: The task.
        seed: The seed of the initial parameters.
    """
    policy = pool.policy
    if isinstance(policy, Linear):
        sizes: tuple[int, ...] = (policy.observations, policy.actions)
    elif isinstance(policy, MLP):
        sizes = policy.sizes
    else:
        return pool.initial_theta(jax.random.key(seed))
    shapes = list(itertools.pairwise(sizes))
    weights = [
        math.sqrt(policy.variance / inputs) / _TRUNCATED * matrix.T
        for matrix, (inputs, _) in zip(_matrices(seed, shapes), shapes, strict=True)
    ]
    theta: Theta = [{"weight": weight, "bias": jnp.zeros(weight.shape[0])} for weight in weights]
    return pool.actor.with_moments(weights[0] if isinstance(policy, Linear) else theta)


def optimizer_start(system: LearnedOptimizerSystem, seed: int) -> Theta:
    """Return the initial parameters of a learned optimizer.

    The paper orders the inputs as gradient, parameter, running means and time; here the running
    means come first.

    Args:
        system: The system, whose optimizer is a `PerParameterMLP` or a `LayeredMLP`.
        seed: The seed of the initial parameters.
    """
    assert isinstance(system.optimizer, PerParameterNetwork)
    sizes, theta = system.optimizer.network.sizes, []
    shapes = list(itertools.pairwise(sizes))
    for i, matrix in enumerate(_matrices(seed, shapes)):
        if i == 0:
            own, means, time = jnp.split(matrix, [2, 2 + MEANS])
            matrix = jnp.concatenate([means, own, time])
        inputs, outputs = shapes[i]
        theta += [matrix.reshape(-1) / math.sqrt(inputs), jnp.zeros(outputs)]
    return system.optimizer.arranged(jnp.concatenate(theta))


def model_start(task: Task, seed: int) -> Any:
    """Return the initial model that a learned optimizer trains.

    Args:
        task: The task, whose model is a list of layers with a weight and a bias.
        seed: The seed of the initial model.
    """
    layers = jax.eval_shape(task.init, jax.random.key(0))
    # Two splits lead to the key of the model, and its first half is spent before the first layer.
    matrices = _matrices(seed, [layer["weight"].shape for layer in layers], before=(0, 0, 0))
    return [
        {
            "weight": matrix / math.sqrt(math.prod(matrix.shape[:-1])),
            "bias": jnp.zeros(layer["bias"].shape),
        }
        for layer, matrix in zip(layers, matrices, strict=True)
    ]
