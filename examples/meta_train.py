"""Learn the settings of an optimizer by training models with it."""

import sys

import jax
import jax.numpy as jnp
import optax

import nres
from nres.systems import learned_optimizer as lo

QUICK = "--quick" in sys.argv

# The model to train is least squares with badly scaled inputs. Any loss of any pytree would work.
key = jax.random.key(0)
inputs = jax.random.normal(key, (512, 8)) * jnp.logspace(0, -1, 8)
targets = inputs @ jnp.arange(8.0)


def init(key):
    """Return an initial model."""
    return {"weight": jnp.zeros(8)}


def loss(params, batch):
    """Return the loss of a model on a batch."""
    x, y = batch
    return jnp.mean((x @ params["weight"] - y) ** 2)


# An episode is the training of one model, and a step is one step of that training. Here the learned
# optimizer is Adam with learnable rates and decays; lo.PerParameterMLP is the paper's network.
task = lo.Task(init, loss, (inputs, targets), batch=64)
system = lo.LearnedOptimizerSystem(task, lo.Adam(), horizon=100)
theta = system.initial_theta(key)
estimator = nres.NRES(system, workers=50, window=10, sigma=0.1)
updates = 3 if QUICK else 500
result = nres.train(estimator, optax.adam(0.03), theta, updates=updates, key=key)

before, after = (nres.evaluate(system, t, key).loss for t in (theta, result.theta))
print(f"mean loss over a training: {before:.3f} -> {after:.3f}")
print("learned settings:", {name: float(value) for name, value in result.theta.items()})
