"""Small systems, their NumPy twins, and tools that several tests share."""

import contextlib
import functools
import inspect
import os
import re
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import nres
from nres import runs
from nres.cli import app
from nres.estimators import evolution
from nres.estimators.computing import blank_state, starting_points

ROOT = Path(__file__).parents[1]
# A system in a file of the user's own, with settings for a run of a fraction of a second.
BOUNCER = f"{ROOT}/examples/bouncer.py:Bouncer"
SETTINGS = {"sigma": 0.1, "lr": 0.03, "updates": 20, "eval_every": 5, "options": {"horizon": 30}}


def create_run(path, system=BOUNCER, **changes):
    """Create a run folder of NRES; training has not begun."""
    settings = runs.resolve(system, "nres", **(SETTINGS | changes))
    return runs.Run.create(path, settings, runs.build(settings))


@contextlib.contextmanager
def as_users_run():
    """Switch off the strict settings of the tests, under which some libraries do not run."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def slow(*values, **options):
    """Return the parameters of a variant that `make test-slow` runs, not `make test`."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def slow_except(quick, table):
    """Return the values of a table as parameters, all of them slow but those named `quick`."""
    return [
        pytest.param(value, id=name) if name in quick else slow(value, id=name)
        for name, value in table.items()
    ]


@contextlib.contextmanager
def raises_naming(kind, *culprits):
    """Expect an error of this type whose message names every culprit, in whatever words."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    del caught  # else the error, and what it keeps open, would live until it is collected
    for culprit in culprits:
        assert str(culprit) in message, f"{culprit!r} is not in: {message}"


def invoke(*arguments):
    """Run a command in this process, as in a terminal of 200 columns."""
    with as_users_run():
        return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


def in_a_terminal(command, environment):
    """Run a process in a terminal, require that it succeeds, and return its output."""
    import pty  # which Windows lacks

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
    """Return the updates of all entries of a file that another process may be writing to."""
    return [int(number) for number in re.findall(r'^{"update": (\d+),', metrics.read_text(), re.M)]


def z_scores(samples, expected) -> np.ndarray:
    """Return the distance of the samples' mean from its expectation, in standard errors."""
    samples = np.asarray(samples, np.float64)
    stderr = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return (samples.mean(axis=0) - np.asarray(expected)) / stderr


def chance(key, dtype):
    """Draw a number in [-2, 2) from the bits of the key: it compiles faster than jax.random."""
    return (jax.random.key_data(key)[1] >> jnp.uint32(9)).astype(dtype) * 2.0**-21 - 2.0


class Wave(nres.System):
    """A system with disturbances, whose initial state depends on theta and whose loss on t."""

    horizon: int = 10

    def init(self, theta, key):
        return jnp.stack([theta[0], chance(key, theta.dtype)])

    def step(self, state, theta, t, key):
        x, y = state
        x = 0.9 * x + 0.3 * y + theta[1]
        y = jnp.cos(x) + 0.2 * y + 0.1 * chance(key, theta.dtype)
        return jnp.stack([x, y]), (y - 0.1 * t.astype(x.dtype)) ** 2


class Faller(nres.System):
    """A system that ends early, at a step that depends on theta and on chance."""

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


def quadratic(horizon, parameters, seed=1, **options):
    return nres.systems.Quadratic.random(
        jax.random.key(seed), horizon=horizon, states=3, parameters=parameters, **options
    )


def quadratic_theta(parameters):
    return jnp.linspace(-0.6, 0.9, parameters)


def state_at_step_0(estimator, theta, key):
    """Put every worker at the beginning of its first episode.

    `init` moves workers apart, in a program that takes longer to compile than the estimate. Tests
    that do not depend on the starting points use this instead.
    """
    theta = estimator.check(theta)
    if isinstance(estimator.placement, nres.placement.Local):
        return blank_state(estimator, theta, key)
    return starting_points(estimator, theta, key)[0]  # compiled, and so laid out over the devices


def gradients(estimator, theta, updates):
    """Return the gradients of consecutive estimates at fixed parameters, from step 0 on."""
    state = state_at_step_0(estimator, theta, jax.random.key(11))
    result = []
    for _ in range(updates):
        estimate = estimator.estimate(theta, state)
        result.append(estimate.grad)
        state = estimate.state
    return jax.tree.map(lambda *g: np.stack(g), *result)


def assert_same(left, right, rtol=0.0):
    def same(x, y):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.abs(x).max())

    jax.tree.map(same, left, right)


def samples(estimator, theta, updates=None, groups=400):
    """Draw independent estimates, each the mean over workers with a history of their own.

    Each is the mean over the windows of one episode; or, with `updates`, the last of so many
    estimates after `init`, which puts every worker into a window at random.
    """

    def advance(state, _):
        estimate = estimator.estimate(theta, state)
        return estimate.state, estimate.grad

    @jax.jit
    def one(key):
        if updates is None:
            state, count = state_at_step_0(estimator, theta, key), estimator.windows
        else:
            state, count = estimator.init(theta, key), updates
        _, grads = jax.lax.scan(advance, state, length=count)
        return grads[-1] if updates else grads.mean(axis=0)

    return np.asarray(jax.lax.map(one, jax.random.split(jax.random.key(17), groups)))


def plain_loss(system, theta, key):
    """Compute the mean loss of one episode in a Python loop over steps."""
    state = system.init(theta, jax.random.fold_in(key, 0))
    total = 0.0
    for t in range(system.horizon):
        step_key = jax.random.fold_in(key, t + 1)
        state, loss, *end = system.step(state, theta, jnp.asarray(t), step_key)
        total += loss
        if end and end[0]:
            return (total + system.absorbing_loss * (system.horizon - t - 1)) / system.horizon
    return total / system.horizon


class Well(nres.System):
    """A smooth non-linear system without chance, whose initial state depends on theta."""

    horizon: int = 6

    def init(self, theta, key):
        return jnp.stack([jnp.sin(theta[0]), theta[1] ** 2])

    def step(self, state, theta, t, key):
        x, y = state
        x, y = x + 0.3 * y, jnp.tanh(y - 0.5 * jnp.sin(x) + 0.4 * theta[1] * x)
        return jnp.stack([x, y]), (x - theta[0]) ** 2 + 0.5 * y**2


def normal(i, shape, dtype=float):
    """Draw the i-th of some fixed arrays."""
    key = jax.random.fold_in(jax.random.key(2), i)
    return jax.random.normal(key, shape).astype(dtype)


def portions_drawn(monkeypatch):
    """Draw noise in portions, however few numbers it has; return the set of their sizes so far."""
    update_noise, portions = evolution.update_noise, set()

    def noted(*given, few, **options):
        portions.add(few)
        return update_noise(*given, few=few, **options)

    monkeypatch.setattr(evolution, "MANY_NUMBERS", 1)
    monkeypatch.setattr(evolution, "update_noise", noted)
    return portions
