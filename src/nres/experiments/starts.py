"""HalfCheetah from different starts: how far NRES gets in the first 250 updates."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.experiments.claims import Check
from nres.experiments.exhibits import Exhibit, Findings, Work, facts_of
from nres.experiments.races import HALFCHEETAH_SOLVED, HALFCHEETAH_START, RACES
from nres.experiments.racing import Record, carry_out, read_records
from nres.figures import COLOURS
from nres.files import save_drawing
from nres.runs import resolve

STARTS = 15
THRESHOLD = HALFCHEETAH_SOLVED * RACES["halfcheetah"].scale


def _make(work: Work) -> Findings:
    quick: dict[str, Any] = {"workers": 2, "updates": 4, "options": {"horizon": 40}}
    plan = [
        (
            f"start {start}",
            resolve(
                "halfcheetah",
                "nres",
                seed=0,
                start_seed=start,
                **quick if work.quick else {"updates": 250, "eval_every": 25, "log_every": 1},
            ),
        )
        for start in range(2 if work.quick else STARTS)
    ]
    known = read_records(work.folder / "metrics.jsonl")
    records = carry_out(plan, work.folder, known, work.finished, work.say)
    _draw(records, work)
    returns = {start: _returns(record)[-1] for start, record in enumerate(records)}
    solved = sum(bool((_returns(record) >= THRESHOLD).any()) for record in records)
    still = sum(abs(value) < 10 for value in returns.values())
    check = Check(
        "starts from which HalfCheetah is solved in 3 million steps",
        "solved in 5.81e+06 steps on average over 5 seeds",
        f"{solved} of {len(records)}; from {still} the policy does not move",
        "holds" if solved > len(records) / 2 else "weaker" if solved else "fails",
    )
    return Findings((check,), {"return_by_start": returns}, **facts_of(records))


def _returns(record: Record) -> np.ndarray:
    return record.evaluations.values * RACES["halfcheetah"].scale


def _draw(records: list[Record], work: Work) -> None:
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    panel = figure.subplots()
    for start, record in enumerate(records):
        chosen = start == HALFCHEETAH_START
        panel.plot(
            record.evaluations.at["total_steps"],
            _returns(record),
            color=COLOURS["NRES"] if chosen else "#888888",
            lw=2 if chosen else 1,
            zorder=3 if chosen else 2,
            label=f"start {start}" if chosen else "other starts" if start == 0 else None,
        )
    panel.axhline(THRESHOLD, color="black", lw=0.8, ls=":", label="solved")
    panel.set(xlabel="total unroll steps", ylabel="return", title="NRES on HalfCheetah")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, work.drawing)


STARTS_EXHIBIT = Exhibit(
    "",
    "How fast NRES solves HalfCheetah depends on where it starts, of which the paper says nothing.",
    "cpu",
    _make,
)
