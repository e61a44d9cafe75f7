"""What several tests use: small systems, their NumPy twins, and one way to judge a mean."""

import contextlib
import functools
import inspect
import os
import pty
import re
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
from typer.testing import CliRunner

import nres
from nres.cli import app


@contextlib.contextmanager
def as_users_run():
    """Without the strictness of the tests, which not every library we call stands."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def invoke(*arguments):
    """A command in this process, as in a terminal of 200 columns."""
    with as_users_run():
        return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


def in_a_terminal(command, environment):
    """The output of a process that has a terminal, which must end well."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    screen = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:  # how Linux says that the other side is closed
            break
        if not data:
            break
        screen += data
    os.close(leader)
    assert process.wait(60) == 0, screen.decode()
    return screen.decode()


def as_file(system, path):
    """Write the class of a system to a file of its own, as a user would."""
    imports = "import jax\nimport jax.numpy as jnp\nimport nres\n\n\n"
    path.write_text(imports + inspect.getsource(system))
    return f"{path}:{system.__name__}"


def updates_in(metrics) -> list[int]:
    """The updates of all entries of a file that may be written to meanwhile."""
    return [int(number) for number in re.findall(r'^{"update": (\d+),', metrics.read_text(), re.M)]


def z_scores(samples, expected) -> np.ndarray:
    """How many standard errors the mean of independent samples lies from what is expected."""
    samples = np.asarray(samples, np.float64)
    stderr = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return (samples.mean(axis=0) - np.asarray(expected)) / stderr


def chance(key, dtype):
    """A uniform number in [-2, 2), straight from the key: quicker to compile than jax.random."""
    return (jax.random.key_data(key)[1] >> jnp.uint32(9)).astype(dtype) * 2.0**-21 - 2.0


class Wave(nres.System):
    """Random disturbances, an initial state that depends on theta, a loss that depends on t."""

    horizon: int = 10

    def init(self, theta, key):
        return jnp.stack([theta[0], chance(key, theta.dtype)])

    def step(self, state, theta, t, key):
        x, y = state
        x = 0.9 * x + 0.3 * y + theta[1]
        y = jnp.cos(x) + 0.2 * y + 0.1 * chance(key, theta.dtype)
        return jnp.stack([x, y]), (y - 0.1 * t.astype(x.dtype)) ** 2


class Faller(nres.System):
    """Ends early, at a step that depends on theta and on chance; ended steps cost a constant."""

    horizon: int = 10
    absorbing_loss: float = 0.7

    def init(self, theta, key):
        return jnp.zeros((), theta.dtype)

    def step(self, state, theta, t, key):
        state = state + theta[0] + 0.3 * chance(key, theta.dtype)
        return state, (state - theta[1]) ** 2, state > 2.0


THETA = {Wave: jnp.array([0.5, -0.2]), Faller: jnp.array([0.3, 0.5])}


@functools.cache
def _chance(key: tuple[int, ...], number: int) -> float:
    key = jax.random.wrap_key_data(np.array(key, np.uint32))
    return float(chance(jax.random.fold_in(key, number), jnp.float32))


class Twin:
    """`Wave` or `Faller` in NumPy; JAX provides the random numbers, and nothing else."""

    def __init__(self, system):
        self.falls = isinstance(system, Faller)
        self.absorbing_loss = system.absorbing_loss

    def init(self, theta, key):
        return np.float64(0) if self.falls else np.array([theta[0], _chance(tuple(key), 0)])

    def step(self, state, theta, t, key):
        draw = _chance(tuple(key), t + 1)
        if self.falls:
            state = state + theta[0] + 0.3 * draw
            return state, (state - theta[1]) ** 2, state > 2.0
        x, y = state
        x = 0.9 * x + 0.3 * y + theta[1]
        y = np.cos(x) + 0.2 * y + 0.1 * draw
        return np.array([x, y]), (y - 0.1 * t) ** 2, False


class Spiral(nres.System):
    """A small non-linear system with nested parameters and a state of several dtypes."""

    horizon: int = 12

    def init(self, theta, key):
        start = jnp.stack([theta["rate"], theta["push"]["x"][0]])
        count, own = jnp.zeros((), jnp.int32), jax.random.split(key)[0]
        return {"point": start, "count": count, "key": own}

    def step(self, state, theta, t, key):
        x, y = state["point"]
        angle = theta["rate"]
        x, y = x * jnp.cos(angle) - y * jnp.sin(angle), x * jnp.sin(angle) + y * jnp.cos(angle)
        draw = chance(jax.random.fold_in(state["key"], t), x.dtype)
        point = jnp.tanh(jnp.stack([x, y]) + theta["push"]["x"] + 0.05 * draw)
        loss = jnp.sum((point - 0.3) ** 2)
        return {"point": point, "count": state["count"] + 1, "key": state["key"]}, loss


def spiral_theta(dtype=jnp.float32):
    push = {"x": jnp.array([0.1, -0.2], dtype)}
    return {"rate": jnp.array(0.4, dtype), "push": push}
