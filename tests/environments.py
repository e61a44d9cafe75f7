"""Environments and helpers that the tests of simulators share."""

import os

import gymnasium
import jax
import numpy as np

import nres

KEY = jax.random.key(3)
# The names of the tasks in gymnasium, without their version.
NAMES = {
    "swimmer": "Swimmer",
    "halfcheetah": "HalfCheetah",
    "hopper": "Hopper",
    "walker2d": "Walker2d",
    "ant": "Ant",
    "humanoid": "Humanoid",
}


def estimate(pool, theta, updates=3, method=nres.NRES, **options):
    estimator = method(pool, **({"workers": 4, "window": 15, "sigma": 0.1} | options))
    state, grads = estimator.init(theta, KEY), []
    for _ in range(updates):
        result = estimator.estimate(theta, state)
        state = result.state
        grads.append(np.concatenate([np.ravel(g) for g in jax.tree.leaves(result.grad)]))
    return np.stack(grads), result


class CliffEnv(gymnasium.Env):
    """`Cliff` of the tests of unbiasedness, as an environment: its length depends on theta."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.x = 0.0
        return np.ones(1), {}

    def step(self, action):
        self.x += float(action[0])
        ended = self.x > 1.2
        # Ended steps cost 1.5 there and nothing here: so every step that is taken gains 1.5.
        return np.ones(1), 1.5 - (self.x - 1.0) ** 2, ended, False, {}

    def get_state(self):
        return np.array([self.x])

    def set_state(self, state):
        (self.x,) = state


class BadEnv(CliffEnv):
    """An environment that fails at its second step."""

    def __init__(self, fault="raise"):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.seed, self.t = seed, 0
        return super().reset(seed=seed)

    def step(self, action):
        self.t += 1
        observation, reward, *rest = super().step(0 * action)
        if self.t == 2:
            match self.fault:
                case "raise":
                    raise RuntimeError("out of fuel")
                case "reward":
                    reward = np.nan
                case "observation":
                    observation = np.array([np.inf])
                case "shape":
                    observation = np.ones(3)
                case "die":
                    os._exit(3)
        return observation, reward, *rest


class Stumbling(CliffEnv):
    """An environment that raises once, in its third step."""

    stumbled = False

    def step(self, action):
        if self.x > 1.9 and not Stumbling.stumbled:
            Stumbling.stumbled = True
            raise RuntimeError("stumbled")
        self.x += 1
        return np.ones(1), self.x, False, False, {}
