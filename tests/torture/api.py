"""Wrong uses of the Python API, each of which must work or raise a clear error."""

from collections.abc import Iterator
from random import Random

import cases
import faulty_pool
from context import Context, Failure, working

SECONDS = 60.0
ODD = ["0", "-1", "1", "2.5", "3.0", "float('nan')", "float('inf')", "'5'", "''", "None", "True"]
ODD += ["2**31", "2**63", "10**30", "np.int64(3)", "jnp.asarray(3)", "np.float32(3)", "[3]", "{}"]
ODD += ["b'3'", "1e400", "1+2j", "np.array([1, 2])", "object()", "jnp.ones(2)", "lambda x: x", "()"]
ODD += ["5", "'[/x]'", "10**5000", "np.datetime64('2020')", "jnp.asarray(np.nan)", "THETA", "nres"]
SIGMAS = ["nres.Piecewise.parse('0.1,5:0.2')", "'0.1,5:0.2'", "'0.1,5:'", "1e-300", "1e300"]
THETAS = ["1", "'theta'", "np.nan * THETA", "[]", "{}", "None", "[[THETA]]", "{'a': THETA}"]
THETAS += ["jnp.ones((2, 2))", "np.ones(2)", "np.ones(2, np.float16)", "jnp.ones(2, jnp.bfloat16)"]
THETAS += ["jnp.ones(2, int)", "[1.0, 2.0]", "jnp.ones(0)", "THETA[0]", "jnp.ones(3)", "(THETA, 1)"]
THETAS += ["np.array(['a', 'b'])", "np.ones(2, object)", "jnp.ones(2, complex)", "2.0", "Wave()"]
THETAS += [
    "np.ones(2, '>f4')",
    "THETA + np.inf",
    "np.ma.ones(2)",
    "1e30 * THETA",
    "KEY",
    "object()",
]
KEYS = ["0", "None", "jax.random.split(KEY)", "jax.random.PRNGKey(0)", "'key'", "np.zeros(2)"]
KEYS += ["jax.random.key(0, impl='rbg')", "jax.random.key_data(KEY)", "jnp.ones(())", "jax.random"]
OPTIMIZERS = ["optax.adam", "0.1", "None", "optax.sgd(float('nan'))", "optax.sgd('0.1')", "'adam'"]
OPTIMIZERS += [
    "optax.lbfgs()",
    "optax.adamw(1e-3)",
    "optax.sgd(1e400)",
    "optax",
    "optax.polyak_sgd()",
]
OPTIMIZERS += ["optax.contrib.prodigy()", "(lambda g: g, lambda g: g)"]
SYSTEMS = ["Wave", "None", "'lorenz'", "lambda x: x", "object()", "FaultyPool", "nres.System", "3"]
HORIZONS = ["12.0", "-1", "0", "'12'", "None", "1", "2**31", "10**30", "2**40", "jnp.asarray(12)"]
FUNCTIONS = ["None", "3", "'f'", "lambda: 0", "lambda x: 'x'", "lambda x: None", "lambda x: {}"]
FUNCTIONS += ["lambda x: {'a': 1, 2: 3}", "lambda x: jnp.ones(2)", "lambda x: 1j", "print"]
FUNCTIONS += ["lambda x: float('nan')", "lambda x: {'a': None}", "lambda x: [1, 2]", "max"]
STATES = ["None", "0", "'state'", "()", "KEY", "THETA"]
ES = {"workers": "3", "window": "4", "sigma": "0.1"}
ESTIMATORS = {
    "NRES": ES,
    "PES": ES,
    "GPES": ES | {"period": "8"},
    "TES": ES,
    "FullES": {"workers": "3", "sigma": "0.1"},
    "BPTT": {"workers": "3"},
    "TBPTT": {"workers": "3", "window": "4"},
    "DODGE": {"workers": "3", "window": "4"},
    "UORO": {"workers": "3", "window": "4"},
}
FILES = ["missing", "folder", "zeros", "pipe", "truncated", "flipped", "bytes", "good", "bomb"]
FILES += ["huge", "negative", "objects", "code", "text", "complex", "whole", "fields", "deep"]
FILES += ["nan", "long"]
SETTINGS = ["{}", "[]", "None", "{'depth': 10**9}", "{'depth': -1}", "{'hidden': 10**12}"]
SETTINGS += ["{'depth': 'x'}", "{'nonsense': 1}", "{'hidden': 0}", "{'depth': 1.5}", "{'x': []}"]


def attack(context: Context) -> Iterator[Failure | None]:
    """Make one wrong call after another, in a process without type checks."""
    # Without this, JAX would hide the origin of an error.
    with working(context, SECONDS, JAX_TRACEBACK_FILTERING="off") as worker:
        while True:
            source = drawn(context.random)
            answer = worker(source=source)
            outcome = answer.get("complaint")
            if answer["code"] is None:
                outcome = f"it did not end within {SECONDS:.0f} s"
            elif answer["code"] != 0:
                outcome = outcome or f"the process died with {answer['code']}"
            yield None if outcome is None else Failure(source, outcome)


def drawn(chance: Random) -> str:
    """Draw a call that is mostly right."""
    return chance.choices([_use, _train, _evaluate, _measure, _sweep, _advise, _file], WEIGHTS)[0](
        chance
    )


WEIGHTS = (5, 4, 2, 1, 1, 1, 3)


def _arguments(
    chance: Random, good: dict[str, str], odd: dict[str, list[str]] | None = None
) -> str:
    """Replace a few arguments, remove one, or add an unknown one."""
    given = dict(good)
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        name = chance.choice(list(given))
        given[name] = chance.choice((odd or {}).get(name, []) * 2 + ODD)
    if chance.random() < 0.03:
        del given[chance.choice(list(given))]
    if chance.random() < 0.03:
        given[chance.choice(["nonsense", "sigma", "period", "checkpoint_every"])] = "3"
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _mostly(chance: Random, good: str, odd: list[str], share: float = 0.75) -> str:
    return good if chance.random() < share else chance.choice(odd)


def _system(chance: Random) -> str:
    kind = chance.random()
    if kind < 0.5:
        return "Wave()"
    if kind < 0.6:
        return chance.choice(SYSTEMS)
    if kind < 0.7:
        return f"{chance.choice(['Wave(', 'FaultyPool(horizon='])}{chance.choice(HORIZONS)})"
    if kind < 0.8:
        return f"FaultyPool({chance.choice(list(faulty_pool.WINDOWS))!r})"
    start = _mostly(chance, "good", list(cases.STARTS), 0.5)
    return f"Broken({start!r}, {_mostly(chance, 'good', list(cases.ENDS), 0.3)!r})"


def _estimator(chance: Random) -> str:
    if chance.random() < 0.03:
        return chance.choice(["nres.NRES", "None", "Wave()", "'nres'"])
    name = chance.choice(list(ESTIMATORS))
    good = ESTIMATORS[name]
    arguments = good if chance.random() < 0.4 else None
    text = _arguments(chance, good, {"sigma": SIGMAS}) if arguments is None else _given(good)
    return f"nres.{name}({_system(chance)}, {text})"


def _given(arguments: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def _places(chance: Random) -> str:
    return f"{_mostly(chance, 'THETA', THETAS)}, {_mostly(chance, 'KEY', KEYS, 0.9)}"


def _use(chance: Random) -> str:
    return f"use({_estimator(chance)}, {_places(chance)})"


def _train(chance: Random) -> str:
    estimator = _mostly(chance, f"nres.NRES(Wave(), {_given(ES)})", [_estimator(chance)], 0.6)
    optimizer = _mostly(chance, "optax.sgd(0.1)", OPTIMIZERS, 0.6)
    theta = _mostly(chance, "THETA", THETAS, 0.85)
    good = {"updates": "3", "key": "KEY", "eval_fn": "lambda x: 1.0", "eval_every": "2"}
    good |= {"callback": "None", "progress": "False", "state": "None"}
    # A large number of updates is no mistake, and would take long.
    odd = {"key": KEYS, "eval_fn": FUNCTIONS, "callback": FUNCTIONS, "state": STATES}
    return f"nres.train({estimator}, {optimizer}, {theta}, {_arguments(chance, good, odd)})"


def _evaluate(chance: Random) -> str:
    arguments = _arguments(chance, {"episodes": "3", "sigma": "0.1"}, {"sigma": SIGMAS})
    return f"nres.evaluate({_system(chance)}, {_places(chance)}, {arguments})"


def _measure(chance: Random) -> str:
    arguments = _arguments(chance, {"samples": "8", "level": "0.9", "callback": "None"})
    return f"nres.variance.measure({_estimator(chance)}, {_places(chance)}, {arguments})"


def _sweep(chance: Random) -> str:
    good = {"sigmas": "[0.1]", "windows": "[4, 12]", "periods": "None", "workers": "(1,)"}
    lists = ["[]", "[0]", "[-1]", "['x']", "[2.5]", "[None]", "[10**30]", "4", "[5]", "'12'"]
    odd = dict.fromkeys(good, lists)
    arguments = _arguments(chance, good | {"samples": "8"}, odd)
    return f"nres.variance.sweep({_system(chance)}, {_places(chance)}, {arguments})"


def _advise(chance: Random) -> str:
    budgets = [
        "(0, 0)",
        "(1, 1)",
        "(1e4, 1e2)",
        "(10**30, 10**20)",
        "(-1, 2)",
        "('a', 'b')",
        "(1,)",
    ]
    good = {"budget": "(10000, 1000)", "sigmas": "[0.1, 0.3]", "samples": "8"}
    odd = {"budget": budgets, "sigmas": ["[]", "[0]", "['x']", "[nres]", "0.1"]}
    arguments = _arguments(chance, good, odd)
    return f"nres.variance.advise({_system(chance)}, {_places(chance)}, {arguments})"


def _file(chance: Random) -> str:
    if chance.random() < 0.3:
        text = chance.choice(["None", "'[' * 10**5", "'{}'", "'null'", "'[1]'"])
        kind = chance.choice(["'PerParameterMLP'", "'x'", "[]", "{}", "None"])
        settings = chance.choice(SETTINGS)
        version = chance.choice(["1", "2", "None", "'nres-optimizer-1'"])
        return (
            f"nres.load_optimizer(optimizer_file({settings}, {kind}, None, {version}, {text}), "
            f"{_mostly(chance, 'None', ODD, 0.9)})"
        )
    made = f"file({chance.choice(FILES)!r}, {chance.getrandbits(32)})"
    if chance.random() < 0.1:
        made = chance.choice(ODD)
    if chance.random() < 0.3:
        return f"nres.load_optimizer({made})"
    return f"nres.load({made}, {_mostly(chance, 'THETA', THETAS, 0.8)})"
