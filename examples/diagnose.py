"""Diagnose the noise of NRES on a chaotic and on a smooth loss, for several sigmas.

python examples/diagnose.py
"""

import sys
import warnings

import jax
import jax.numpy as jnp

import nres

quick = "--quick" in sys.argv
batches, episodes = (2, 2) if quick else (10, 100)
key = jax.random.key(0)
lorenz = nres.systems.Lorenz(100 if quick else 2000)
smooth = nres.systems.Quadratic.random(key, horizon=20, states=3, parameters=6)
cases = [(lorenz, lorenz.initial_theta(), sigma) for sigma in (1e-4, 0.01, 0.04, 0.1, 3.0)]
cases += [(smooth, jnp.linspace(-0.6, 0.9, 6), sigma) for sigma in (0.01, 0.1, 10.0)]

found = []
for system, theta, sigma in cases:
    estimator = nres.NRES(system, workers=200, window=system.horizon // 20, sigma=sigma)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nres.NonFiniteWarning)  # of the largest sigma
        result = nres.diagnose(estimator, theta, key, batches=batches, episodes=episodes)
    found.append((type(system).__name__, sigma, result))

print("system     sigma   snr      share    even     odd      loss   with noise  problem")
for name, sigma, result in found:
    print(
        f"{name:<9} {sigma:>6g}  {result.snr:<7.2g}  {result.linear_share:<7.2g}  "
        f"{result.even_spread:<7.2g}  {result.odd_spread:<7.2g}  {result.loss:<5.3g}  "
        f"{result.smoothed_loss:<10.3g}  {result.problem or '-'}"
    )

print("\nLorenz with sigma = 0.04:")
print(found[2][2])
