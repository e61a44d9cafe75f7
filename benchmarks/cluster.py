"""Simulation of an update on a cluster of up to a thousand machines.

python benchmarks/cluster.py [--quick] [--out FOLDER]

`python benchmarks/actors.py` measured the costs on one machine; `NETWORK` and `MACHINES` are
assumptions. One driver sends requests to the actors one after another, the actors unroll in
parallel, and the driver receives their replies one after another, in order of arrival.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from nres.files import save_figure, write_json
from run import show

ROOT = Path(__file__).parent.parent
# Assumptions: bytes per second and seconds of latency of a link; cores per machine, the variation
# of the time of one window between machines (log-normal), and the rate and cost of failures.
NETWORK = {"bandwidth": 1.25e9, "latency": 1e-4}
MACHINES = {"cores": 32, "spread": 0.1, "days_between_failures": 30.0, "replacement_seconds": 10.0}
HORIZON = 1000
PER_MACHINE = 1_000
# HalfCheetah with a linear policy, with longer windows, and with many more parameters. Then the
# first and the last again, if the driver had to draw all noise a second time.
SETTINGS = (
    (102, 20, True),
    (102, 200, True),
    (100_000, 20, True),
    (102, 20, False),
    (100_000, 20, False),
)
# The phases of an update, with their names in the figure.
PHASES = {
    "ask": "send requests",
    "theta out": "send theta",
    "unroll": "unroll",
    "stragglers": "wait for stragglers",
    "replies": "receive replies",
    "driver": "work of the driver",
    "failures": "failures",
}


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs in seconds."""

    ask: float
    """The fixed time of the driver to send requests."""
    ask_actor: float
    ask_worker: float
    reply_actor: float
    reply_worker: float
    here: float
    """The fixed time of the driver's bookkeeping."""
    here_worker: float
    draw: float
    """The time to draw one random number of noise on all cores of the measuring machine."""
    draw_cores: int
    step: float
    """The time of one simulator step on one core."""


def measured(file: Path) -> Costs:
    """Derive the costs from differences of measurements, which cancel common overhead."""
    found = json.loads(file.read_text())
    rows = {(r["actors"], r["workers"], r["parameters"]): r for r in found["overhead"]}
    few, many, crowd = rows[1, 100, 100], rows[4, 100, 100], rows[2, 10_000, 100]
    pair = rows[2, 100, 100]

    def per_actor(name):
        return (many[name] - few[name]) / 3

    def per_worker(name):
        return (crowd[name] - pair[name]) / 9_900

    one = found["scaling"][0]
    return Costs(
        ask=few["send"] - per_actor("send"),
        ask_actor=per_actor("send"),
        ask_worker=per_worker("send"),
        reply_actor=per_actor("ray"),
        reply_worker=per_worker("ray"),
        here=pair["here"],
        here_worker=per_worker("here"),
        draw=found["drawing"]["seconds_a_number"],
        draw_cores=found["machine"]["cores"],
        step=one["unroll"] / (2 * one["workers"] * 20),
    )


def update(
    costs: Costs,
    machines: int,
    workers: int,
    parameters: int,
    window: int,
    sums: bool,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Simulate one update, and return its seconds by phase, which add up to the whole.

    Args:
        costs: The measured costs.
        machines: The number of machines.
        workers: The number of workers on all machines.
        parameters: The number of parameters.
        window: The number of steps per window.
        sums: Whether actors sum contributions, as nres does. Otherwise the driver draws the noise
            of all workers again, which sends less and computes more.
        rng: The generator for the variation between machines.
    """
    share, cores = workers / machines, MACHINES["cores"]
    size = 4 * parameters
    ask_actor = costs.ask_actor + costs.ask_worker * share
    asked = costs.ask + ask_actor * np.arange(1, machines + 1)
    # Machines forward theta to each other.
    rounds = math.ceil(math.log2(machines + 1))
    theta_out = rounds * (NETWORK["latency"] + size / NETWORK["bandwidth"])
    draws = share * parameters * costs.draw * costs.draw_cores
    usual = (2 * share * window * costs.step + draws) / cores
    work = usual * rng.lognormal(0, MACHINES["spread"], machines)
    done = asked + theta_out + work
    reply = costs.reply_actor + costs.reply_worker * share
    reply += (30 * share + (size if sums else 0)) / NETWORK["bandwidth"]
    now = 0.0
    for moment in np.sort(done):
        now = max(now, moment) + reply
    last, ask = float(np.max(done)), float(asked[-1])
    unroll = min(float(np.mean(work)), last - ask - theta_out)
    here = costs.here + costs.here_worker * workers
    here += 0 if sums else workers * parameters * costs.draw
    # A failure costs a replacement, and half an episode of all workers of the machine.
    again = MACHINES["replacement_seconds"] + share * HORIZON * costs.step / cores
    lost = machines * (now + here) / (MACHINES["days_between_failures"] * 86_400)
    return {
        "ask": ask,
        "theta out": theta_out,
        "unroll": unroll,
        "stragglers": last - ask - theta_out - unroll,
        "replies": now - last,
        "driver": here,
        "failures": lost * again,
    }


def simulate(costs: Costs, updates: int) -> list[dict]:
    """Simulate up to a thousand machines with a thousand workers each."""
    rows = []
    for parameters, window, sums in SETTINGS:
        for machines in (1, 10, 30, 100, 300, 1_000):
            rng = np.random.default_rng(0)
            found = [
                update(costs, machines, PER_MACHINE * machines, parameters, window, sums, rng)
                for _ in range(updates)
            ]
            spent = {name: float(np.mean([row[name] for row in found])) for name in PHASES}
            seconds = sum(spent.values())
            rows.append(
                {
                    "parameters": parameters,
                    "window": window,
                    "actors_sum": sums,
                    "machines": machines,
                    "workers": PER_MACHINE * machines,
                    **spent,
                    "seconds": seconds,
                    "unrolling": spent["unroll"] / seconds,
                }
            )
    return rows


def draw_figure(rows: list[dict], path: Path) -> None:
    """Draw the share of each phase in an update as the number of machines grows."""
    rows = [row for row in rows if row["actors_sum"]]
    settings = list(dict.fromkeys((row["parameters"], row["window"]) for row in rows))
    figure, axes = plt.subplots(1, len(settings), figsize=(12, 4), constrained_layout=True)
    colors = plt.get_cmap("tab10")
    for axis, (parameters, window) in zip(axes, settings, strict=True):
        own = [r for r in rows if (r["parameters"], r["window"]) == (parameters, window)]
        bottom = np.zeros(len(own))
        for i, (name, label) in enumerate(PHASES.items()):
            heights = np.array([r[name] / r["seconds"] for r in own])
            axis.bar(range(len(own)), heights, bottom=bottom, color=colors(i), label=label)
            bottom += heights
        for x, row in enumerate(own):
            axis.text(x, 1.01, f"{row['seconds']:.2g} s", ha="center", va="bottom", fontsize=8)
        axis.set_xticks(range(len(own)), [f"{r['machines']:,}" for r in own])
        axis.set_ylim(0, 1.08)
        axis.set_title(f"d = {parameters:,}, W = {window}", loc="left", fontsize=10)
        axis.set_xlabel("number of machines, with 1,000 workers each")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of an update")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7)
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/scaling"), help="The folder to write to."
    )
    parser.add_argument(
        "--measured",
        type=Path,
        default=ROOT / "results/bench/actors.json",
        help="The measured costs.",
    )
    arguments = parser.parse_args()
    costs = measured(arguments.measured)
    rows = simulate(costs, 1 if arguments.quick else 50)
    show("Simulated update on a cluster: seconds", rows)
    assumed = {"network": NETWORK, "machines": MACHINES}
    facts = {"assumed": assumed, "measured": dataclasses.asdict(costs), "rows": rows}
    write_json(arguments.out / "cluster.json", facts)
    draw_figure(rows, arguments.out / "cluster.png")


if __name__ == "__main__":
    main()
