"""Recurrent networks in the studies: the texts, the LSTM, and the memory of an update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nres
from helpers import raises_naming
from nres.systems import recurrent
from nres_paper.large_comparisons import BIGRAM, UNIGRAM
from nres_paper.memory import memory_of
from nres_paper.recurrent_variance import LSTM, texts

KEY = jax.random.key(4)


def test_the_manual_is_text():
    text = recurrent.python_manual()
    assert text.size > 100_000
    assert (text.min(), text.max()) == (0, 63)
    words = "".join(map(chr, text[:5000] + 32)).split()
    assert {"THE", "STATEMENT", "ASSERT"} <= set(words)
    # English prose has about a fifth of spaces, and E is its most frequent letter.
    counts = np.bincount(text, minlength=64)
    assert 0.1 < counts[0] / text.size < 0.4
    assert chr(counts[1:].argmax() + 33) == "E"


def test_the_named_networks():
    echo = recurrent.echo(lag=3, symbols=4, hidden=5, horizon=7)
    assert (echo.stream.lag, echo.cell.symbols, echo.cell.hidden, echo.horizon) == (3, 4, 5, 7)
    system = recurrent.characters()
    theta = system.initial_theta(KEY)
    assert sum(x.size for x in jax.tree.leaves(theta)) == 28_928
    place = system.stream.begin(KEY, system.horizon)
    (_, after), (following, _) = (system.stream.at(place, t) for t in (5, 6))
    assert after == following


def test_a_text_is_tested_on_its_last_tenth(tmp_path):
    """The bits per byte of a file whose end differs from its beginning."""
    file = tmp_path / "text"
    file.write_bytes(b"ab" * 450 + b"xy" * 50)
    np.testing.assert_array_equal(recurrent.text_bytes(file)[:3], [97, 98, 97])
    system = recurrent.text(file=str(file), hidden=4, horizon=9, precision="float32")
    assert system.stream.inputs.shape == (899,)
    theta = jax.tree.map(jnp.zeros_like, system.initial_theta(KEY))
    # The logits are the biases: p(x) = p(y) = 0.25 and p = 0.5 / 254 otherwise.
    bias = np.full(256, np.log(0.5 / 254), np.float32)
    bias[[ord("x"), ord("y")]] = np.log(0.25)
    found = system.metrics({**theta, "output_bias": jnp.asarray(bias)}, KEY)
    assert float(found["bits"]) == pytest.approx(2.0, rel=1e-5)
    assert float(found["loss"]) == pytest.approx(2.0 * np.log(2), rel=1e-5)
    assert system.metrics_steps == 64 * 9
    with raises_naming(ValueError, "1,000", "2,010"):
        recurrent.text(file=str(file), horizon=200)
    with raises_naming(ValueError, "int8"):
        recurrent.GRU(3, 4, precision="int8")


def test_the_levels_of_the_text_are_those_of_counts():
    """Cross-entropies of the last tenth; the text differs a little between versions of Python."""
    text = recurrent.text_bytes()
    train, test = np.split(text, [text.size - text.size // 10])
    single = np.bincount(train, minlength=256) + 0.5
    single /= single.sum()
    assert -np.log2(single[test]).mean() == pytest.approx(UNIGRAM, abs=0.03)
    pairs = np.zeros((256, 256))
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    pairs = (pairs + 5 * single) / (pairs.sum(axis=1, keepdims=True) + 5)
    assert -np.log2(pairs[test[:-1], test[1:]]).mean() == pytest.approx(BIGRAM, abs=0.03)


def test_half_precision_keeps_weights_in_single_precision():
    losses = []
    for precision in ("float32", "bfloat16"):
        system = recurrent.text(hidden=8, horizon=20, precision=precision)
        theta = system.initial_theta(KEY)
        assert {leaf.dtype for leaf in jax.tree.leaves(theta)} == {np.dtype("float32")}
        state, loss = system.step(system.init(theta, KEY), theta, np.int32(0), KEY)
        assert (state[0].dtype, loss.dtype) == (precision, "float32")
        losses.append(float(loss))
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def test_the_texts_of_the_variance_study():
    found = texts(300)
    assert {len(tokens) for tokens in found.values()} == {300}
    assert max(tokens.max() for tokens in found.values()) == 49
    assert len(set(found["random"].tolist())) == 50
    assert len(set(found["repeated"].tolist())) == 1
    # Symbols are numbered by how often they occur in the manual: the space is the first.
    assert np.bincount(found["text"]).argmax() < 5


def test_the_lstm_agrees_with_numpy():
    cell = LSTM()
    theta = cell.initial_theta(KEY)
    assert sum(x.size for x in jax.tree.leaves(theta)) == 790
    weights = jax.tree.map(np.asarray, theta)
    memory, h, c = cell.init(theta), np.zeros(5), np.zeros(5)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    for symbol in (3, 0, 49):
        memory, logits = cell.step(memory, theta, symbol)
        gates = weights["embedding"][symbol] @ weights["input"] + weights["bias"]
        gates = gates + h @ weights["recurrent"] + weights["recurrent_bias"]
        take, keep, new, show = gates.reshape(4, 5)
        c = sigmoid(keep) * c + sigmoid(take) * np.tanh(new)
        h = sigmoid(show) * np.tanh(c)
    expected = h @ weights["output"] + weights["output_bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_memory_of_nres_does_not_grow():
    def memory(make, horizon):
        system = recurrent.echo(hidden=4, horizon=horizon)
        return memory_of(make(system), system.initial_theta(KEY))

    def strategy(system):
        return nres.NRES(system, workers=2, window=2, sigma=0.1)

    def backpropagation(system):
        return nres.BPTT(system, workers=2, checkpoint_every=system.horizon)

    assert memory(strategy, 1000) < 1.01 * memory(strategy, 10)
    assert memory(backpropagation, 1000) > 10 * memory(backpropagation, 10)
