"""Figure of HalfCheetah with different initial parameters, trained by NRES for 250 updates."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures import COLOURS, save_drawing
from nres.runs import resolve
from nres_paper.claims import Check
from nres_paper.comparing import FinishedRun, carry_out, read_runs
from nres_paper.comparisons import COMPARISONS, HALFCHEETAH_SOLVED, HALFCHEETAH_START
from nres_paper.reproduction import Context, PaperFigure, Result, metadata_of

STARTS = 15
THRESHOLD = HALFCHEETAH_SOLVED * COMPARISONS["halfcheetah"].scale


def _make(context: Context) -> Result:
    quick: dict[str, Any] = {"workers": 2, "updates": 4, "options": {"horizon": 40}}
    plan = [
        (
            f"start {start}",
            resolve(
                "halfcheetah",
                "nres",
                seed=0,
                start_seed=start,
                **quick if context.quick else {"updates": 250, "eval_every": 25, "log_every": 1},
            ),
        )
        for start in range(2 if context.quick else STARTS)
    ]
    known = read_runs(context.folder / "metrics.jsonl")
    runs = carry_out(plan, context.folder, known, context.finished, context.say)
    _draw(runs, context)
    returns = {start: _returns(run)[-1] for start, run in enumerate(runs)}
    solved = sum(bool((_returns(run) >= THRESHOLD).any()) for run in runs)
    still = sum(abs(value) < 10 for value in returns.values())
    check = Check(
        "initial parameters from which NRES solves HalfCheetah in 3 million steps",
        "solved in 5.81e+06 steps on average over 5 seeds",
        f"{solved} of {len(runs)}; from {still} of them, the policy does not move",
        "holds" if solved > len(runs) / 2 else "weaker" if solved else "fails",
    )
    return Result((check,), {"return_by_start": returns}, **metadata_of(runs))


def _returns(run: FinishedRun) -> np.ndarray:
    return run.evaluations.values * COMPARISONS["halfcheetah"].scale


def _draw(runs: list[FinishedRun], context: Context) -> None:
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    panel = figure.subplots()
    for start, run in enumerate(runs):
        chosen = start == HALFCHEETAH_START
        panel.plot(
            run.evaluations.at["total_steps"],
            _returns(run),
            color=COLOURS["NRES"] if chosen else "#888888",
            lw=2 if chosen else 1,
            zorder=3 if chosen else 2,
            label="best initial parameters" if chosen else "others" if start == 0 else None,
        )
    panel.axhline(THRESHOLD, color="black", lw=0.8, ls=":", label="solved")
    panel.set(xlabel="total unroll steps", ylabel="return")
    panel.set_title(f"NRES on HalfCheetah from {len(runs)} initial parameters")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, context.drawing)


STARTS_FIGURE = PaperFigure(
    "",
    "The speed of NRES on HalfCheetah depends on the initial parameters, which the paper does not "
    "state.",
    "cpu",
    _make,
)
