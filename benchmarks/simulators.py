"""Environment steps per second on MuJoCo: updates of NRES, raw physics, and Gymnasium.

python benchmarks/simulators.py [--quick] [--out FOLDER]

*Raw* is `mujoco.batch.Batch` with a linear policy in NumPy and nothing else: no rewards, no
resets, no gradients. *Gymnasium* is `SyncVectorEnv` with the same policy.
"""

import time
import warnings

import gymnasium
import mujoco.batch
import numpy as np
import optax

from nres.pools import MujocoPool
from nres.runs import build, resolve
from run import publish

GYM_IDS = {"swimmer": "Swimmer-v4", "halfcheetah": "HalfCheetah-v4"}


def whole_updates(settings, theta, updates: int) -> tuple[float, float]:
    """Measure the steps per second of updates, and the seconds of unlocking the workers."""
    components = build(settings)
    began = time.perf_counter()
    state = components.estimator.init(theta, components.key)
    unlocking = time.perf_counter() - began
    steps, optimizer = 0, optax.sgd(1e-9)
    components.estimator.estimate(theta, state)  # compile
    began = time.perf_counter()
    optimizer_state = optimizer.init(theta)
    for _ in range(updates):
        estimate = components.estimator.estimate(theta, state)
        change, optimizer_state = optimizer.update(estimate.grad, optimizer_state)
        theta, state = optax.apply_updates(theta, change), estimate.state
        steps += estimate.steps.total
    return steps / (time.perf_counter() - began), unlocking


def raw(pool: MujocoPool, theta, sigma: float, state, lanes: int, steps: int) -> float:
    batch = mujoco.batch.Batch(pool.model, nsim=lanes, nthread=pool.threads)
    qpos, qvel, ctrl = (batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
    batch.state[:] = state["rows"].reshape(lanes, -1)
    # Perturb as in training: the cost of physics depends on the motion.
    noise = sigma * np.random.default_rng(0).normal(size=(lanes // 2, *theta.shape))
    thetas = np.asarray(theta, np.float64) + np.concatenate([noise, -noise])
    hidden = qpos.shape[1] + qvel.shape[1] - pool.observations
    began = time.perf_counter()
    for _ in range(steps):
        observation = np.concatenate([qpos[:, hidden:], qvel], axis=1)
        ctrl[:] = np.matmul(thetas, observation[:, :, None])[:, :, 0]
        batch.step(nstep=pool.task.frame_skip)
    return lanes * steps / (time.perf_counter() - began)


def gymnasiums(name: str, theta, lanes: int, steps: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make(GYM_IDS[name], disable_env_checker=True)] * lanes
        )
    observation: np.ndarray
    observation, _ = envs.reset(seed=0)
    weights = np.asarray(theta, np.float64)
    began = time.perf_counter()
    for _ in range(steps):
        observation, *_ = envs.step(observation @ weights.T)
    return lanes * steps / (time.perf_counter() - began)


def run(quick: bool = False, rounds: int = 4) -> list[dict]:
    """Measure all in turn, and keep the best of several rounds for each."""
    rows = []
    for name in GYM_IDS:
        small = {"options": {"horizon": 200}, "workers": 2} if quick else {}
        settings = resolve(name, "nres", **small)
        components = build(settings)
        pool, theta = components.system, components.theta
        assert isinstance(pool, MujocoPool)
        lanes, sigma = 2 * settings.workers, float(settings.sigma or 0)
        state = components.estimator.init(theta, components.key).carry.pool
        best = dict.fromkeys(("nres", "raw", "gymnasium"), 0.0)
        for _ in range(1 if quick else rounds):
            speed, unlocking = whole_updates(settings, theta, 1 if quick else 6)
            best["nres"] = max(best["nres"], speed)
            best["raw"] = max(
                best["raw"], raw(pool, theta, sigma, state, lanes, 5 if quick else 100)
            )
            best["gymnasium"] = max(
                best["gymnasium"], gymnasiums(name, theta, lanes, 1 if quick else 30)
            )
        rows.append(
            {"task": name, "workers": settings.workers, "window": settings.window}
            | {f"{who}_steps_per_second": speed for who, speed in best.items()}
            | {"of_raw": best["nres"] / best["raw"], "unlocking_seconds": unlocking}
        )
    return rows


def main() -> None:
    title, versions = "Environment steps per second", {"mujoco": mujoco.__version__}
    publish(__doc__, run, title, "simulators", "simulators.json", ",.2f", **versions)


if __name__ == "__main__":
    main()
