"""A recurrent network on a stream, which it reads step by step."""

import abc
import math
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import whole_number
from nres.system import System, Theta, at_least_single

# The number of episodes that a test runs.
TEST_EPISODES = 64


@runtime_checkable
class Cell(Protocol):
    """A recurrent network: any object with these methods."""

    def initial_theta(self, key: Any) -> Theta:
        """Return weights to start from."""

    def init(self, theta: Theta) -> PyTree:
        """Return the memory before the first input."""

    def step(self, memory: PyTree, theta: Theta, x: Array) -> tuple[PyTree, Array]:
        """Return the memory after an input, and the output."""


class Stream(eqx.Module):
    """Base class of streams: an input and a target for every step of an episode."""

    @abc.abstractmethod
    def begin(self, key: Key[Array, ""], horizon: int) -> Any:
        """Return whatever `at` needs to know about an episode, for example its place in a text."""

    @abc.abstractmethod
    def at(self, place: Any, t: Int[Array, ""]) -> tuple[Array, Array]:
        """Return the input and the target of step t."""


class Sequence(Stream):
    """Consecutive elements of arrays, from a random place in every episode.

    Args:
        inputs: The inputs, one per row.
        targets: The targets, one per row.

    Example:
        ```python
        text = jnp.frombuffer(open("text.txt", "rb").read(), jnp.uint8)
        stream = Sequence(text[:-1], text[1:])
        ```
    """

    inputs: Array
    targets: Array

    def __init__(self, inputs: Any, targets: Any):
        self.inputs, self.targets = jnp.asarray(inputs), jnp.asarray(targets)
        if self.inputs.shape[:1] != self.targets.shape[:1] or not self.inputs.size:
            raise ValueError(
                "inputs and targets must have equally many rows, and at least one; got shapes "
                f"{self.inputs.shape} and {self.targets.shape}."
            )

    def begin(self, key, horizon):
        rows = self.inputs.shape[0]
        if horizon > rows:
            raise ValueError(f"horizon must be at most the {rows} rows of the stream: {horizon}.")
        return jax.random.randint(key, (), 0, rows - horizon + 1, jnp.int32)

    def at(self, place, t):
        return self.inputs[place + t], self.targets[place + t]


class Echo(Stream):
    """Random symbols, each of which must be repeated after `lag` steps.

    The target of the first `lag` steps is 0. A symbol follows from the episode and the step alone,
    so that a stream of any length needs no memory.

    Args:
        lag: The number of steps for which a symbol must be remembered.
        symbols: The number of different symbols.
    """

    lag: int = eqx.field(static=True)
    symbols: int = eqx.field(static=True)

    def __init__(self, lag: int, symbols: int = 2):
        self.lag, self.symbols = whole_number("lag", lag), whole_number("symbols", symbols, 2)

    def begin(self, key, horizon):
        return key

    def at(self, place, t):
        def symbol(step):
            key = jax.random.fold_in(place, jnp.maximum(step, 0))
            drawn = jax.random.randint(key, (), 0, self.symbols, jnp.int32)
            return jnp.where(step < 0, 0, drawn)

        return symbol(t), symbol(t - self.lag)


def _manual() -> str:
    from pydoc_data.topics import topics  # imported here, since it is large

    return " ".join(topics[name] for name in sorted(topics))


def python_manual() -> Int[np.ndarray, " length"]:
    """Return the reference manual that Python ships for `help()`, as 64 symbols.

    The symbols are the characters from the space to the underscore, that is capital letters, digits
    and punctuation. Small letters count as capitals, and all other characters as spaces. The text
    has about half a million characters. It differs a little between versions of Python.

    Example:
        ```python
        text = recurrent.python_manual()
        stream = recurrent.Sequence(text[:-1], text[1:])
        ```
    """
    codes = np.frombuffer(_manual().upper().encode("utf-32-le"), np.int32) - ord(" ")
    return np.where((codes >= 0) & (codes < 64), codes, 0)


def text_bytes(file: str | Path | None = None) -> Int[np.ndarray, " length"]:
    """Return the bytes of a file; by default, of the reference manual that Python ships.

    Args:
        file: The path of the file.

    Raises:
        ValueError: If there is no such file.

    Example:
        ```python
        data = recurrent.text_bytes("book.txt")
        ```
    """
    if file is None:
        content = _manual().encode()
    else:
        path = Path(file).expanduser()
        if not path.is_file():
            raise ValueError(f"there is no text at {path.absolute()}: give the path of a file.")
        content = path.read_bytes()
    return np.frombuffer(content, np.uint8).astype(np.int32)


PRECISIONS = ("float32", "bfloat16")


class GRU(eqx.Module):
    """A gated recurrent network on symbols: one layer, and logits of the next symbol.

    Args:
        symbols: The number of different symbols.
        hidden: The number of hidden units.
        precision: `"bfloat16"` for memory and products in bfloat16; `"float32"` for the precision
            of the weights, whatever it is.

    Raises:
        ValueError: If `precision` is none of these.

    Reference:
        Cho et al., *Learning Phrase Representations using RNN Encoder-Decoder*, EMNLP 2014.
    """

    symbols: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)
    precision: str = eqx.field(static=True)

    def __init__(self, symbols: int, hidden: int, precision: str = "float32"):
        self.symbols = whole_number("symbols", symbols, 2)
        self.hidden = whole_number("hidden", hidden)
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}.")
        self.precision = precision

    def initial_theta(self, key: Key[Array, ""]) -> dict[str, Array]:
        """Draw weights of variance 1/hidden; biases are zero."""
        n, shapes = self.hidden, {"input": self.symbols, "recurrent": self.hidden}
        keys = jax.random.split(key, 3)
        weights = {
            name: jax.random.normal(k, (size, 3 * n)) / n**0.5
            for k, (name, size) in zip(keys[:2], shapes.items(), strict=True)
        }
        output = jax.random.normal(keys[2], (n, self.symbols)) / n**0.5
        biases = {"bias": jnp.zeros(3 * n), "output_bias": jnp.zeros(self.symbols)}
        return weights | {"output": output} | biases

    def init(self, theta: dict[str, Array]) -> Float[Array, " hidden"]:
        """Return zeros."""
        return jnp.zeros(self.hidden, self._dtype(theta))

    def _dtype(self, theta: dict[str, Array]) -> Any:
        """Return the precision of memory and products."""
        return theta["bias"].dtype if self.precision == "float32" else jnp.dtype(self.precision)

    def step(
        self, memory: Float[Array, " hidden"], theta: dict[str, Array], x: Int[Array, ""]
    ) -> tuple[Float[Array, " hidden"], Float[Array, " symbols"]]:
        """Take in a symbol, and return the hidden units and the logits."""
        theta = {name: leaf.astype(self._dtype(theta)) for name, leaf in theta.items()}
        given = theta["input"][x] + theta["bias"]
        before = memory @ theta["recurrent"]
        reset, update, new = jnp.split(given, 3)
        reset_h, update_h, new_h = jnp.split(before, 3)
        keep = jax.nn.sigmoid(update + update_h)
        candidate = jnp.tanh(new + jax.nn.sigmoid(reset + reset_h) * new_h)
        memory = keep * memory + (1 - keep) * candidate
        return memory, memory @ theta["output"] + theta["output_bias"]


def cross_entropy(logits: Float[Array, " symbols"], target: Int[Array, ""]) -> Float[Array, ""]:
    """Return the negative logarithm of the target's probability."""
    return -jax.nn.log_softmax(logits.astype(at_least_single(logits.dtype)))[target]


class RecurrentNetwork(System):
    r"""A recurrent network that reads a stream; its weights are the parameters $\theta$.

    Every step takes the next input, changes the network's memory, and costs the loss of its output.
    The memory lives as long as an episode, and windows of any length carry it on: what must be
    learned may lie far more than a window apart, and neither memory nor the time to a first update
    grows with the length of the stream.

    Args:
        cell: The network, any object with the methods of `Cell`; for example a `GRU`.
        stream: The inputs and targets, a `Stream`; for example a `Sequence` of a text.
        horizon: T, the number of steps in an episode.
        loss: A function from an output and a target to a scalar.

    Example:
        ```python
        from nres.systems import recurrent

        system = recurrent.RecurrentNetwork(
            recurrent.GRU(symbols=2, hidden=32), recurrent.Echo(lag=20), horizon=1000
        )
        estimator = nres.NRES(system, workers=100, window=10, sigma=0.01)
        ```
    """

    cell: Any
    stream: Stream
    horizon: int = eqx.field(static=True)
    loss: Any = eqx.field(static=True)

    def __init__(self, cell: Cell, stream: Stream, *, horizon: int, loss: Any = cross_entropy):
        self.cell, self.stream = cell, stream
        self.horizon = whole_number("horizon", horizon)
        self.loss = loss

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return initial weights of the network."""
        return self.cell.initial_theta(key)

    def init(self, theta: Theta, key: Key[Array, ""]) -> tuple[PyTree, Any]:
        return self.cell.init(theta), self.stream.begin(key, self.horizon)

    def step(self, state, theta, t, key):
        memory, place = state
        x, target = self.stream.at(place, t)
        memory, output = self.cell.step(memory, theta, x)
        return (memory, place), self.loss(output, target)


class HeldOutNetwork(RecurrentNetwork):
    """A `RecurrentNetwork` that predicts symbols, and is tested on a stream that is held out.

    Its `metrics` are the cross-entropy per step in bits (`bits`) and in nats (`loss`).

    Args:
        cell: The network.
        stream: The inputs and targets.
        held_out: The inputs and targets of the test.
        horizon: T, the number of steps in an episode.
    """

    held_out: Stream

    def __init__(self, cell: Cell, stream: Stream, held_out: Stream, *, horizon: int):
        super().__init__(cell, stream, horizon=horizon)
        self.held_out = held_out

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        return TEST_EPISODES * self.horizon

    def metrics(self, theta: Theta, key: Key[Array, ""]) -> dict[str, Float[Array, ""]]:
        """Return the mean cross-entropy of some episodes of the test, in bits and in nats."""
        system = RecurrentNetwork(self.cell, self.held_out, horizon=self.horizon)

        def episode(key):
            def step(state, t):
                return system.step(state, theta, t, key)

            steps = jnp.arange(self.horizon, dtype=jnp.int32)
            return jax.lax.scan(step, system.init(theta, key), steps)[1].mean()

        loss = jax.vmap(episode)(jax.random.split(key, TEST_EPISODES)).mean()
        return {"bits": loss / math.log(2), "loss": loss}


def echo(
    *, lag: int = 8, symbols: int = 2, hidden: int = 32, horizon: int = 200
) -> RecurrentNetwork:
    """Return a `GRU` that must repeat random symbols after `lag` steps.

    Gradients that are truncated after fewer than `lag` steps do not tell it what to remember.

    Args:
        lag: The number of steps for which a symbol must be remembered.
        symbols: The number of different symbols.
        hidden: The number of hidden units.
        horizon: T, the number of steps in an episode.
    """
    return RecurrentNetwork(GRU(symbols, hidden), Echo(lag, symbols), horizon=horizon)


def characters(*, hidden: int = 64, horizon: int = 1000) -> RecurrentNetwork:
    """Return a `GRU` that predicts the next character of `python_manual`.

    Args:
        hidden: The number of hidden units.
        horizon: T, the number of characters in an episode.
    """
    text = python_manual()
    stream = Sequence(text[:-1], text[1:])
    return RecurrentNetwork(GRU(64, hidden), stream, horizon=horizon)


def text(
    *,
    file: str | None = None,
    hidden: int = 512,
    horizon: int = 1000,
    precision: str = "bfloat16",
) -> HeldOutNetwork:
    """Return a `GRU` that predicts the next byte of a text; a tenth of the text is held out.

    Args:
        file: The text; by default, the reference manual that Python ships.
        hidden: The number of hidden units.
        horizon: T, the number of bytes in an episode.
        precision: The precision of products, `bfloat16` or `float32`.

    Raises:
        ValueError: If there is no such file, or its text is too short for episodes of this length.
    """
    data = text_bytes(file)
    split = len(data) - len(data) // 10
    if len(data) // 10 <= horizon:
        raise ValueError(
            f"the text must have at least {10 * (horizon + 1):,} bytes for episodes of "
            f"{horizon:,}, but has {len(data):,}: give a longer text or a smaller horizon."
        )
    train, test = (Sequence(part[:-1], part[1:]) for part in np.split(data, [split]))
    return HeldOutNetwork(GRU(256, hidden, precision), train, test, horizon=horizon)
