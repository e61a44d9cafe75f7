"""HalfCheetah from different starts: how far NRES gets in the first 250 updates."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nres.experiments.claims import Check
from nres.experiments.exhibits import Exhibit, Findings, Work
from nres.experiments.races import HALFCHEETAH_SOLVED, HALFCHEETAH_START, RACES
from nres.experiments.racing import Record, like, read_records, write_records
from nres.figures import COLOURS
from nres.files import save_drawing
from nres.runs import resolve

STARTS = 15


def _make(work: Work) -> Findings:
    quick: dict[str, Any] = {"workers": 2, "updates": 4, "options": {"horizon": 40}}
    settings = {
        start: resolve(
            "halfcheetah",
            "nres",
            seed=0,
            start_seed=start,
            **quick if work.quick else {"updates": 250, "eval_every": 25, "log_every": 1},
        )
        for start in range(2 if work.quick else STARTS)
    }
    file = work.folder / "metrics.jsonl"
    there, records = read_records(file), {}
    for start, wanted in settings.items():
        found = like(wanted, there)
        if found is None:
            work.say(f"start {start + 1} of {len(settings)}")
            run = work.finished(work.folder / "runs" / str(start), wanted)
            found = Record.of(f"start {start}", run)
        records[start] = found
        made = list(records.values())
        write_records(file, made + [r for r in there if like(r.settings, made) is None])
    solved = _draw({start: record.entries for start, record in records.items()}, work)
    returns = {start: _returns(record.entries)[-1] for start, record in records.items()}
    still = sum(abs(value) < 10 for value in returns.values())
    check = Check(
        "starts from which HalfCheetah is solved in 3 million steps",
        "solved in 5.81e+06 steps on average over 5 seeds",
        f"{solved} of {len(records)}; from {still} the policy does not move",
        "holds" if solved > len(records) / 2 else "weaker" if solved else "fails",
    )
    first = records[0]
    seconds = sum(record.entries[-1]["seconds"] for record in records.values())
    return Findings(
        (check,), {"return_by_start": returns}, seconds, 1, first.device, first.versions
    )


def _returns(entries: tuple[dict[str, Any], ...]) -> np.ndarray:
    return RACES["halfcheetah"].scale * np.array([entry["value"] for entry in entries], float)


def _draw(starts: dict[int, tuple[dict[str, Any], ...]], work: Work) -> int:
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    panel = figure.subplots()
    threshold = HALFCHEETAH_SOLVED * RACES["halfcheetah"].scale
    solved = 0
    for start, entries in starts.items():
        chosen = start == HALFCHEETAH_START
        returns = _returns(entries)
        solved += bool((returns >= threshold).any())
        panel.plot(
            [entry["total_steps"] for entry in entries],
            returns,
            color=COLOURS["NRES"] if chosen else "#888888",
            lw=2 if chosen else 1,
            zorder=3 if chosen else 2,
            label=f"start {start}" if chosen else "other starts" if start == 0 else None,
        )
    panel.axhline(threshold, color="black", lw=0.8, ls=":", label="solved")
    panel.set(xlabel="total unroll steps", ylabel="return", title="NRES on HalfCheetah")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    save_drawing(figure, work.drawing)
    return solved


STARTS_EXHIBIT = Exhibit(
    "",
    "How fast NRES solves HalfCheetah depends on where it starts, of which the paper says nothing.",
    "cpu",
    _make,
)
