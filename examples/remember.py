"""Train a recurrent network to repeat bits after four steps, in windows of two steps.

Backpropagation through a window never sees that what the network stores now is needed later. NRES
keeps the noise of an episode, so later losses still tell what the noise did earlier.
"""

import sys

import jax
import optax

import nres
from nres.systems import recurrent

# An episode has 100 steps. At each step the network reads a random bit, and must name the bit of
# four steps before.
system = recurrent.RecurrentNetwork(
    recurrent.GRU(symbols=2, hidden=16), recurrent.Echo(lag=4), horizon=100
)
key = jax.random.key(0)
theta = system.initial_theta(key)
updates = 3 if "--quick" in sys.argv else 1500


def test_loss(theta):
    """Return the mean loss of 50 episodes; that of guessing is 0.69."""
    return nres.evaluate(system, theta, jax.random.key(1), episodes=50).loss


histories = {}
for name, estimator in {
    "NRES": nres.NRES(system, workers=300, window=2, sigma=0.03),
    "TBPTT": nres.TBPTT(system, workers=300, window=2),
}.items():
    result = nres.train(
        estimator,
        optax.adam(0.01),
        theta,
        updates=updates,
        key=key,
        eval_fn=test_loss,
        eval_every=50,
    )
    histories[name] = result.history
    print(f"{name}: loss {test_loss(theta):.2f} -> {test_loss(result.theta):.2f}")
