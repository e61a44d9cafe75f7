"""Figure of the memory that one update needs, over the length of an episode."""

import time
from collections.abc import Callable
from typing import Any

import jax
from matplotlib.figure import Figure

import nres
from nres.figures import line_style, plain_numbers, save_drawing
from nres.runs import write_json
from nres.systems import recurrent
from nres_paper.grades import FAILS, HOLDS, SHOWN, Check
from nres_paper.reproduction import Context, PaperFigure, Result

_HORIZONS, _QUICK_HORIZONS = (100, 1000, 10_000, 100_000), (8, 16)
_WORKERS, _WINDOW = 100, 4
_STORES_ALL = "BPTT, every state stored"
_METHODS: dict[str, Callable[[Any], nres.Estimator]] = {
    "NRES": lambda system: nres.NRES(system, workers=_WORKERS, window=_WINDOW, sigma=0.03),
    "PES": lambda system: nres.PES(system, workers=_WORKERS, window=_WINDOW, sigma=0.03),
    "TBPTT": lambda system: nres.TBPTT(system, workers=_WORKERS, window=_WINDOW),
    "BPTT": lambda system: nres.BPTT(system, workers=_WORKERS),
    _STORES_ALL: lambda system: nres.BPTT(
        system, workers=_WORKERS, checkpoint_every=system.horizon
    ),
}
_IN_WINDOWS = ("NRES", "PES", "TBPTT")
# A method's memory is flat if it grows by less than this factor.
_FLAT = 1.01


def memory_of(estimator: nres.Estimator, theta: Any) -> int:
    """Return the bytes that one compiled update needs: arguments, results and in between."""
    state = jax.eval_shape(estimator.init, theta, jax.random.key(0))
    plan: Any = jax.jit(estimator.estimate).lower(theta, state).compile().memory_analysis()
    return (
        plan.argument_size_in_bytes
        + plan.output_size_in_bytes
        - plan.alias_size_in_bytes
        + plan.temp_size_in_bytes
    )


def _make(context: Context) -> Result:
    began = time.monotonic()
    horizons = _QUICK_HORIZONS if context.quick else _HORIZONS
    found: dict[str, list[int]] = {name: [] for name in _METHODS}
    for horizon in horizons:
        context.say(f"compiling updates for T = {horizon:,}")
        system = recurrent.echo(horizon=horizon)
        theta = system.initial_theta(jax.random.key(0))
        for name, make in _METHODS.items():
            found[name].append(memory_of(make(system), theta))
    numbers = {"horizons": list(horizons), "bytes": found}
    write_json(context.folder / "measured.json", numbers)
    _draw(horizons, found, context)
    checks = [
        Check(_about(name, horizons), "does not grow", f"{_growth(sizes):.4g}×", _flat(sizes))
        if name in _IN_WINDOWS
        else Check(_about(name, horizons), "grows", f"{_growth(sizes):.4g}×", SHOWN)
        for name, sizes in found.items()
    ]
    return Result(tuple(checks), numbers, time.monotonic() - began)


def _about(name: str, horizons: tuple[int, ...]) -> str:
    return f"memory of {name} at T = {horizons[-1]:,}, relative to T = {horizons[0]:,}"


def _growth(sizes: list[int]) -> float:
    return sizes[-1] / sizes[0]


def _flat(sizes: list[int]) -> str:
    return HOLDS if _growth(sizes) < _FLAT else FAILS


def _draw(horizons: tuple[int, ...], found: dict[str, list[int]], context: Context) -> None:
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    panel = figure.subplots()
    for name, sizes in found.items():
        style = line_style(name.partition(",")[0])
        if name == _STORES_ALL:
            style |= {"ls": ":"}
        panel.plot(horizons, [size / 1e6 for size in sizes], marker="o", label=name, **style)
    panel.set(
        xscale="log",
        yscale="log",
        xlabel="T, the number of steps in an episode",
        ylabel="memory of one update (MB)",
        title=f"A recurrent network with {_WORKERS} workers and windows of {_WINDOW} steps",
    )
    for axis in (panel.xaxis, panel.yaxis):
        plain_numbers(axis)
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, context.drawing)


MEMORY = PaperFigure(
    "",
    "The memory of an update of NRES, PES and TBPTT does not depend on the length of an episode; "
    "that of backpropagation through time grows with it.",
    "cpu",
    _make,
    lambda: [_HORIZONS, _WORKERS, _WINDOW, list(_METHODS)],
    "The numbers are from the memory plans of the compiled updates, for a `GRU` with 32 hidden "
    "units and d = 3,426. BPTT stores about √T states, and computes the others again.",
)
