"""Variance of PES and NRES on a small LSTM, for three kinds of text.

Vicol, Metz, Sohl-Dickstein (ICML 2021) measure the variance of PES on a text, on random characters
and on a repeated one, with 500 pairs, for the sum of all estimates of an episode.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from nres.figures import line_style, plain_numbers, save_drawing
from nres.runs import SettingsError, device, versions, write_json
from nres.systems import recurrent
from nres.variance import Row, sweep
from nres_paper.grades import BAND, DIFFERS, FAILS, HOLDS, SHOWN, UNKNOWN, Check, times
from nres_paper.pes_comparisons import PES_PAPER
from nres_paper.reproduction import Context, PaperFigure, Result

_SYMBOLS, _HIDDEN, _HORIZON, _SIGMA = 50, 5, 1000, 1e-3
_WINDOWS, _SAMPLES, _SEED = (1000, 500, 100, 50, 10, 5, 1), 1024, 0
_PAIRS = 500
# Read from a figure of that paper: 1, 10, 100 and 1000 windows.
_PUBLISHED = {
    "text": (1.4, 0.97, 1.8, 11.0),
    "random": (1.5, 6.7, 63.0, 520.0),
    "repeated": (1.5, 0.92, 0.87, 0.85),
}
_PUBLISHED_WINDOWS = (1, 10, 100, 1000)


@dataclasses.dataclass(frozen=True)
class LSTM:
    """The network of that paper: an embedding, one layer, and logits of the next symbol."""

    symbols: int = _SYMBOLS
    hidden: int = _HIDDEN

    def initial_theta(self, key: Any) -> dict[str, jax.Array]:
        """Draw all weights uniformly: the embedding up to 0.1, and others up to 1/√hidden."""
        n, m = self.hidden, self.symbols
        shapes = {
            "embedding": (m, n),
            "input": (n, 4 * n),
            "recurrent": (n, 4 * n),
            "bias": (4 * n,),
            "recurrent_bias": (4 * n,),
            "output": (n, m),
            "output_bias": (m,),
        }
        bounds = dict.fromkeys(shapes, n**-0.5) | {"embedding": 0.1}
        return {
            name: jax.random.uniform(k, shape, minval=-bounds[name], maxval=bounds[name])
            for k, (name, shape) in zip(jax.random.split(key, 7), shapes.items(), strict=True)
        }

    def init(self, theta: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Return zeros."""
        return jnp.zeros(self.hidden), jnp.zeros(self.hidden)

    def step(self, memory: Any, theta: dict[str, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
        """Take in a symbol, and return the memory and the logits."""
        hidden, cell = memory
        given = theta["embedding"][x] @ theta["input"] + theta["bias"]
        gates = given + hidden @ theta["recurrent"] + theta["recurrent_bias"]
        take, keep, new, show = jnp.split(gates, 4)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return (hidden, cell), hidden @ theta["output"] + theta["output_bias"]


def texts(length: int) -> dict[str, np.ndarray]:
    """Return the three sequences of symbols."""
    manual = recurrent.python_manual()
    ranks = np.argsort(np.argsort(-np.bincount(manual, minlength=64), kind="stable"))
    text = np.minimum(ranks[manual[:length]], _SYMBOLS - 1)
    chance = np.random.default_rng(_SEED)
    return {
        "text": text,
        "random": chance.integers(0, _SYMBOLS, length),
        "repeated": np.full(length, text[0]),
    }


@dataclasses.dataclass(frozen=True)
class _Point:
    """The variance of one method for one number of windows, relative to the squared gradient.

    It is that of one worker: N workers have an Nth of it.
    """

    windows: int
    method: str
    one: float
    """The variance of an estimate from one random window."""
    one_low: float
    one_high: float
    episode: float
    """The variance of the sum of all estimates of an episode."""


def _measure(tokens: np.ndarray, quick: bool) -> list[_Point]:
    horizon = len(tokens) - 1
    windows = [10, 2] if quick else list(_WINDOWS)
    stream = recurrent.Sequence(tokens[:-1], tokens[1:])
    system = recurrent.RecurrentNetwork(LSTM(), stream, horizon=horizon)
    theta = system.initial_theta(jax.random.key(42))
    table = sweep(
        system,
        theta,
        jax.random.key(_SEED),
        sigmas=[_SIGMA],
        windows=windows,
        periods=[*windows, horizon],
        samples=16 if quick else _SAMPLES,
    )
    exact = jax.grad(_loss, argnums=1)(system, theta)
    norm = float(sum(jnp.sum(x.astype(float) ** 2) for x in jax.tree.leaves(exact)))
    return [
        _point(row, method, horizon, norm)
        for row in table.rows
        for method in ("PES", "NRES")
        # With one window per episode, both are the same.
        if row.period == (row.window if method == "PES" else horizon)
    ]


def _point(row: Row, method: str, horizon: int, norm: float) -> _Point:
    one, low, high = (x / norm for x in (row.variance, row.low, row.high))
    return _Point(horizon // row.window, method, one, low, high, row.episode_variance / norm)


def _loss(system: Any, theta: Any) -> jax.Array:
    """Return the mean loss of the only episode."""
    key = jax.random.key(0)

    def step(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        return system.step(state, theta, t, key)

    return jax.lax.scan(step, system.init(theta, key), jnp.arange(system.horizon))[1].mean()


def _make(context: Context) -> Result:
    file = context.folder / "measured.json"
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    plan = [*_plan(), context.quick]
    if stored.get("plan", plan) != plan:
        raise SettingsError(
            f"{file} contains results with other settings: choose another folder with --out."
        )
    if not stored:
        began = time.monotonic()
        points = {}
        for name, tokens in texts(21 if context.quick else _HORIZON + 1).items():
            context.say(f"measuring the {name} sequence")
            points[name] = [dataclasses.asdict(p) for p in _measure(tokens, context.quick)]
        stored = {"plan": plan, "points": points, "seconds": time.monotonic() - began}
        stored |= {"device": device(), "versions": versions()}
        write_json(file, stored)
    found = {name: [_Point(**p) for p in points] for name, points in stored["points"].items()}
    _draw(found, context)
    metadata = {name: stored[name] for name in ("seconds", "device", "versions")}
    return Result(tuple(_checks(found)), stored["points"], **metadata)


def _line(points: list[_Point], method: str) -> list[_Point]:
    return sorted((p for p in points if p.method == method), key=lambda p: p.windows)


def _checks(found: Mapping[str, list[_Point]]) -> list[Check]:
    checks = []
    for name, points in found.items():
        pes, nres = (_line(points, method) for method in ("PES", "NRES"))
        growth = pes[-1].episode / pes[0].episode
        said = _PUBLISHED[name][-1] / _PUBLISHED[name][0]
        near = 1 / BAND <= growth / said <= BAND
        grade = HOLDS if near else DIFFERS if (growth > 1) == (said > 1) else FAILS
        about = f"PES, {name}: sum of an episode, {pes[-1].windows:,} windows relative to one"
        checks.append(Check(about, times(said), times(growth), grade))
        less = pes[-1].one / nres[-1].one
        apart = nres[-1].one_high < pes[-1].one_low or nres[-1].one_low > pes[-1].one_high
        grade = (HOLDS if less > 1 else FAILS) if apart else UNKNOWN
        about = f"{name}: one of {pes[-1].windows:,} windows, variance of PES relative to NRES"
        checks.append(Check(about, "not in the paper", times(less), grade))
        whole = pes[-1].episode / nres[-1].episode
        about = f"{name}: sum of an episode, variance of PES relative to NRES"
        checks.append(Check(about, "not in the paper", times(whole), SHOWN))
    return checks


def _draw(found: Mapping[str, list[_Point]], context: Context) -> None:
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = figure.subplots(2, len(found), sharex=True, sharey="row")
    for column, (name, points) in enumerate(found.items()):
        above, below = panels[:, column]
        for method in ("NRES", "PES"):
            line = _line(points, method)
            x = [p.windows for p in line]
            above.plot(x, [p.episode for p in line], marker="o", **line_style(method))
            middle = np.array([p.one for p in line])
            reach = np.abs([[p.one_low for p in line], [p.one_high for p in line]] - middle)
            below.errorbar(x, middle, reach, marker="o", capsize=3, **line_style(method))
        published = np.array(_PUBLISHED[name]) * _PAIRS
        above.plot(_PUBLISHED_WINDOWS, published, "x", color="black", ms=7)
        above.set_title({"text": "a text"}.get(name, f"{name} characters"))
        below.set_xlabel("number of windows in an episode")
        for panel in (above, below):
            panel.set(xscale="log", yscale="log")
            panel.grid(alpha=0.3)
            plain_numbers(panel.xaxis)
    panels[0, 0].set_ylabel("variance of the sum\nof an episode's estimates")
    panels[1, 0].set_ylabel("variance of the estimate\nof one random window")
    for method in ("NRES", "PES"):
        panels[0, 0].plot([], [], marker="o", label=method, **line_style(method))
    panels[0, 0].plot([], [], "x", color="black", ms=7, label="PES, published (other text)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    save_drawing(figure, context.drawing)


def _plan() -> list[Any]:
    return [_SYMBOLS, _HIDDEN, _HORIZON, _SIGMA, list(_WINDOWS), _SAMPLES, _SEED]


LSTM_VARIANCE = PaperFigure(
    PES_PAPER,
    "On a small LSTM, the variance of the sum of an episode's PES estimates grows with the number "
    "of windows for random characters, grows less for a text, and falls for a repeated character.",
    "cpu",
    _make,
    _plan,
    "Variances are those of one pair, relative to the squared norm of the exact gradient; d = 790. "
    "The text is the beginning of the manual that Python ships, instead of the Penn Treebank. The "
    "published numbers are read from a figure, for 500 pairs and a gradient estimated from 2,500 "
    "pairs, and are shown times 500.",
)
