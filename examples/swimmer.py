"""Train a linear policy for MuJoCo's Swimmer in seconds.

Install the simulator first: pip install '.[mujoco]'
"""

import sys

import jax
import optax

import nres

QUICK = "--quick" in sys.argv

pool = nres.pools.MujocoPool("swimmer", "linear", horizon=100 if QUICK else 1000)
estimator = nres.NRES(pool, workers=4 if QUICK else 30, window=50 if QUICK else 100, sigma=0.3)
theta = pool.initial_theta(jax.random.key(0))
result = nres.train(
    estimator, optax.sgd(3.0), theta, updates=2 if QUICK else 30, key=jax.random.key(1)
)
for name, where in (("before", theta), ("after", result.theta)):
    measured = pool.metrics(where, jax.random.key(2))
    print(f"{name}: mean return {measured['return']:.1f} over 20 episodes")
print("total and sequential steps:", *result.state.steps)
