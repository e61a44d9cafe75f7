"""Figure of HalfCheetah with different initial parameters, trained by NRES."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.figures import COLOURS, save_drawing
from nres.runs import Settings
from nres_paper.comparing import FinishedRun, carry_out, read_runs
from nres_paper.comparisons import COMPARISONS
from nres_paper.grades import NOT_THERE, SHOWN, Check
from nres_paper.mujoco_comparisons import HALFCHEETAH_SOLVED
from nres_paper.original import original
from nres_paper.reproduction import Context, PaperFigure, Result, metadata_of

STARTS = 10
PAPER_START = 1
THRESHOLD = HALFCHEETAH_SOLVED * COMPARISONS["halfcheetah"].scale


def _settings(start: int, quick: bool = False) -> Settings:
    full: dict[str, Any] = {"updates": 1000, "eval_every": 10, "log_every": 1}
    small: dict[str, Any] = {"workers": 2, "updates": 4, "options": {"horizon": 40}}
    return original("halfcheetah", "nres", seed=0, start_seed=start, **small if quick else full)


def _make(context: Context) -> Result:
    starts = range(2 if context.quick else STARTS)
    plan = [(f"start {start}", _settings(start, context.quick)) for start in starts]
    known = read_runs(context.folder / "metrics.jsonl")
    runs = carry_out(plan, context.folder, known, context.finished, context.say)
    _draw(runs, context)
    returns = {start: _returns(run)[-1] for start, run in enumerate(runs)}
    solved = sum(bool((_returns(run) >= THRESHOLD).any()) for run in runs)
    check = Check(
        "initial parameters from which NRES solves HalfCheetah in 1,000 updates",
        NOT_THERE,
        f"{solved} of {len(runs)}",
        SHOWN,
    )
    return Result((check,), {"return_by_start": returns}, **metadata_of(runs))


def _returns(run: FinishedRun) -> np.ndarray:
    return run.evaluations.values * COMPARISONS["halfcheetah"].scale


def _draw(runs: list[FinishedRun], context: Context) -> None:
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    panel = figure.subplots()
    for start, run in enumerate(runs):
        chosen = start == PAPER_START
        panel.plot(
            run.evaluations.at["total_steps"],
            _returns(run),
            color=COLOURS["NRES"] if chosen else "#888888",
            lw=2 if chosen else 1,
            zorder=3 if chosen else 2,
            label="the paper's initial parameters" if chosen else "others" if start == 0 else None,
        )
    panel.axhline(THRESHOLD, color="black", lw=0.8, ls=":", label="solved")
    panel.set(xlabel="total unroll steps", ylabel="return")
    panel.set_title(f"NRES on HalfCheetah from {len(runs)} initial parameters")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, context.drawing)


STARTS_FIGURE = PaperFigure(
    "",
    "The speed of NRES on HalfCheetah depends on the initial parameters. All other results start "
    "from the paper's.",
    "cpu",
    _make,
    lambda: [_settings(start).to_json() for start in range(STARTS)],
)
