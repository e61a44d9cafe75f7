"""Wrong uses of the Python API, each with the culprits that its error must name."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from typer.testing import CliRunner

import nres
from nres.cli import app
from torture.faulty_pool import FaultyPool


class Fine(nres.System):
    """A system without a mistake."""

    horizon: int = 10

    def init(self, theta, key):
        return theta

    def step(self, state, theta, t, key):
        return state * 0.9, jnp.sum(state * theta)


class FloatLoss(Fine):
    def step(self, state, theta, t, key):
        return state, 1.0


class TextLoss(Fine):
    def step(self, state, theta, t, key):
        return state, "low"


class TextState(Fine):
    def init(self, theta, key):
        return "state"


class Single(Fine):
    def step(self, state, theta, t, key):
        return jnp.sum(state)


class Branching(Fine):
    def step(self, state, theta, t, key):
        if state[0] > 0:
            state = -state
        return state, jnp.sum(state)


class ThroughNumpy(Fine):
    def step(self, state, theta, t, key):
        return state, jnp.asarray(np.sum(np.asarray(state)))


class Undeclared(Fine):
    def __init__(self):
        self.horizon = 10
        self.mass = 2.0


class Long(Fine):
    horizon: float = 10.5


GOOD = {"workers": 3, "window": 5, "sigma": 0.1}
THETA = jnp.ones(2)
KEY = jax.random.key(0)


def make(system=None, **changes):
    return nres.NRES(Fine() if system is None else system, **(GOOD | changes))


def begin(system=None, theta=THETA, **changes):
    return make(system, **changes).init(theta, KEY)


def train(**changes):
    given = {"estimator": make(), "optimizer": optax.sgd(0.1), "theta": THETA}
    given |= {"updates": 2, "key": KEY} | changes
    positional = [given.pop(name) for name in ("estimator", "optimizer", "theta")]
    return nres.train(*positional, **given)


def advance(mistake):
    estimator = make(FaultyPool(mistake))
    return estimator.estimate(THETA, estimator.init(THETA, KEY))


def evaluate(**changes):
    return nres.evaluate(Fine(), THETA, KEY, **changes)


# The call, the type of its error, and the culprits: names, values, and code that mends it.
CASES = {
    "float loss": (lambda: begin(FloatLoss()), "ValueError", "FloatLoss.step", "jax.numpy"),
    "text loss": (lambda: begin(TextLoss()), "ValueError", "TextLoss.step", "str"),
    "text state": (lambda: begin(TextState()), "ValueError", "TextState.init", "str"),
    "no state": (lambda: begin(Single()), "ValueError", "Single.step", "(state, loss)"),
    "a Python if": (lambda: begin(Branching()), "ValueError", "wrong_uses.py, line", "jnp.where"),
    "NumPy": (lambda: begin(ThroughNumpy()), "ValueError", "ThroughNumpy.step", "jax.numpy"),
    "undeclared field": (Undeclared, "TypeError", "mass", "mass: float"),
    "a horizon of 10.5": (lambda: make(Long()), "TypeError", "Long.horizon", "10.5"),
    "a horizon of text": (lambda: make(Fine("ten")), "TypeError", "Fine.horizon", "'ten'"),
    "a negative horizon": (lambda: make(Fine(-1)), "ValueError", "Fine.horizon", "-1"),
    "a huge horizon": (lambda: make(Fine(10**12)), "ValueError", "Fine.horizon", str(10**12)),
    "a window of 5.0": (lambda: make(window=5.0), "TypeError", "window", "5.0"),
    "a window of 2.5": (lambda: make(window=2.5), "TypeError", "window", "2.5"),
    "a window of text": (lambda: make(window="5"), "TypeError", "window", "'5'"),
    "workers of None": (lambda: make(workers=None), "TypeError", "workers", "None"),
    "workers of True": (lambda: make(workers=True), "TypeError", "workers", "True"),
    "workers of 10.0": (lambda: make(workers=10.0), "TypeError", "workers", "10.0"),
    "10^30 workers": (lambda: make(workers=10**30), "ValueError", "workers", str(10**30)),
    "10^9 workers": (lambda: begin(workers=10**9), "MemoryError", "workers", "GiB"),
    "sigma of text": (lambda: make(sigma="big"), "ValueError", "sigma", "'big'"),
    "sigma of None": (lambda: make(sigma=None), "ValueError", "sigma", "None"),
    "infinite sigma": (lambda: make(sigma=math.inf), "ValueError", "sigma", "inf"),
    "period of 10.0": (
        lambda: nres.GPES(Fine(), period=10.0, **GOOD), "TypeError", "period", "10.0",
    ),
    "unroll of 1.5": (lambda: nres.JaxPool(Fine(), unroll=1.5), "TypeError", "unroll", "1.5"),
    "theta with NaN": (
        lambda: begin(theta=jnp.array([1.0, jnp.nan])), "ValueError", "theta", "1",
    ),
    "theta of text": (lambda: begin(theta="theta"), "ValueError", "theta", "str"),
    "theta of None": (lambda: begin(theta=None), "ValueError", "theta"),
    "optax.adam": (
        lambda: train(optimizer=optax.adam), "TypeError", "optimizer", "optax.adam(1e-3)",
    ),
    "a rate as optimizer": (lambda: train(optimizer=0.1), "TypeError", "optimizer", "0.1"),
    "a system to train": (lambda: train(estimator=Fine()), "TypeError", "estimator", "nres.NRES"),
    "updates of 2.0": (lambda: train(updates=2.0), "TypeError", "updates", "2.0"),
    "eval_every of 1.5": (lambda: train(eval_every=1.5), "TypeError", "eval_every", "1.5"),
    "eval_fn of 3": (lambda: train(eval_fn=3), "TypeError", "eval_fn", "int"),
    "a key of 0": (lambda: train(key=0), "TypeError", "key", "jax.random.key(0)"),
    "training from NaN": (
        lambda: train(theta=jnp.full(2, jnp.nan)), "ValueError", "theta", "2",
    ),
    "smoothing of inf": (lambda: evaluate(sigma=math.inf), "ValueError", "sigma", "inf"),
    "smoothing of NaN": (lambda: evaluate(sigma=math.nan), "ValueError", "sigma", "nan"),
    "2.5 episodes": (lambda: evaluate(episodes=2.5), "TypeError", "episodes", "2.5"),
    "10^9 episodes": (lambda: evaluate(episodes=2 * 10**9), "MemoryError", "episodes", "GiB"),
    "a tuple": (lambda: advance("tuple"), "ValueError", "FaultyPool.advance", "nres.Window("),
    "integer losses": (lambda: advance("whole"), "ValueError", "FaultyPool.advance", "float"),
    "negative steps": (
        lambda: advance("negative"), "ValueError", "FaultyPool.advance", "steps",
    ),
    "too many steps": (
        lambda: advance("many"), "ValueError", "FaultyPool.advance", "steps",
    ),
    "half steps": (lambda: advance("half-steps"), "ValueError", "FaultyPool.advance", "steps"),
    "flat losses": (lambda: advance("shape"), "ValueError", "FaultyPool.advance", "(2, 3)"),
}  # fmt: skip


LORENZ = ["lorenz", "--set", "horizon=40", "--window", "10", "--updates", "2", "--workers", "4"]
# Command lines, and the culprits that the sentence which refuses them names.
COMMANDS = [
    (["train", *LORENZ, "--seed", f"{10**30}"], "seed"),
    (["train", *LORENZ, "--updates", f"{10**30}"], "updates"),
    (["train", *LORENZ, "--workers", f"{10**30}"], "workers"),
    (["train", *LORENZ, "--workers", f"{10**9}"], "GiB"),
    (["train", "lorenz", "--set", "horizon=-1"], "horizon", "-1"),
    (["train", "lorenz", "--set", "horizon=10.5"], "horizon", "10.5"),
    (["train", "lorenz", "--set", "horizon=abc"], "horizon", "abc"),
    (["train", "lorenz", "--set", f"horizon={10**12}"], "horizon", str(10**12)),
    (["train", "lorenz", "--set", "horizon={}"], "horizon", "{}"),
    (["train", "lorenz", "--set", "horizon=" + "9" * 5000], "horizon"),
    (["train", "lorenz", "--set", "horizon=" + "[" * 5000], "horizon"),
    (["train", "lorenz", "--set", "test_episodes=0"], "test_episodes", "0"),
    (["train", "swimmer", "--policy", "mlp:0"], "mlp:0"),
    (["train", "swimmer", "--policy", "mlp:99999999999"], "mlp:99999999999"),
    (["train", "swimmer", "--set", "threads=some"], "threads", "some"),
    (["train", *LORENZ, "--checkpoint-seconds", "nan"], "checkpoint_seconds"),
    (["train", *LORENZ, "--lr", "nan"], "lr"),
    (["train", "gym:evil:Env-v0", "--sigma", "1", "--lr", "1"], "evil"),
    (["compare", "lorenz", "--budget-seconds", "nan"], "--budget-seconds"),
    (["compare", "lorenz", "--budget-steps", "nan"], "--budget-steps"),
    (["compare", "lorenz", "--budget-steps", "inf"], "--budget-steps"),
    (["evaluate", "nowhere", "--episodes", f"{10**40}"], "--episodes"),
]


def command_outcomes() -> list[tuple[int, str, str]]:
    """Return the exit status, standard error and exception of each command line."""
    found = []
    for arguments, *_ in COMMANDS:
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        kind = type(result.exception).__name__
        found.append((result.exit_code, result.stderr, kind))
    return found


def outcomes() -> dict[str, tuple[str, str]]:
    """Return the type and the message of the error of each case."""
    found = {}
    for name, (call, *_) in CASES.items():
        try:
            call()
            found[name] = ("nothing", "")
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
    return found
