"""Training on Hopper, which can fall, with the absorbing rule and with joint restarts.

python benchmarks/early_end.py [--quick] [--out FOLDER]

With joint restarts, both members of a pair begin a new episode as soon as one of them falls. The
member that still stands then gets no reward for it, so that falling has no further cost.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import nres
from nres.files import save_figure, write_json
from nres.pools import MujocoPool
from run import machine

SETTINGS: dict[str, Any] = {"workers": 100, "window": 50, "sigma": 0.1}
RATE = 0.02
RULES = ("absorbed", "joint restart")
LEGEND = {"absorbed": "only that member ends", "joint restart": "both members restart"}


class JointRestart(MujocoPool):
    """A pool that restarts both members of a pair when one of them falls."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seeds = itertools.count(2**32)

    def _end(self, f, ended, observation, position):
        workers = len(ended) // 2
        pairs = np.flatnonzero(ended[:workers] | ended[workers:])
        lanes = np.concatenate([pairs, pairs + workers]).astype(np.int32)
        self._reset(f, lanes, [next(self.seeds) for _ in pairs] * 2)
        ended[lanes] = False
        observation[lanes] = self.task.observe(f, lanes)
        position[lanes] = self.task.position(f, lanes)


def curve(rule: str, seed: int, updates: int) -> dict[str, list[float]]:
    pool = MujocoPool("hopper") if rule == "absorbed" else JointRestart("hopper")
    judge = MujocoPool("hopper")
    theta = judge.initial_theta(jax.random.key(0))
    result = nres.train(
        nres.NRES(pool, **SETTINGS),
        optax.adam(RATE),
        theta,
        updates=updates,
        key=jax.random.key(seed),
        eval_fn=lambda theta: judge.metrics(theta, jax.random.key(99)),
        eval_every=max(1, updates // 20),
    )
    history = result.history
    steps = np.concatenate([[history.unlock_steps.total], history.total_steps])
    return {
        "update": history.eval_update.tolist(),
        "total_steps": steps[history.eval_update].tolist(),
        "return": history.evals["return"].tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/early_end"), help="The folder to write to."
    )
    arguments = parser.parse_args()
    seeds, updates = (1, 2) if arguments.quick else (3, 200)
    curves = {rule: [curve(rule, seed, updates) for seed in range(seeds)] for rule in RULES}
    draw(curves, arguments.out / "figure.png")
    facts = {"machine": machine(), "settings": SETTINGS | {"adam": RATE, "updates": updates}}
    write_json(arguments.out / "early_end.json", facts | {"curves": curves})


def draw(curves: dict[str, list[dict[str, list[float]]]], path: Path) -> None:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    for (rule, runs), colour in zip(curves.items(), ("#c8102e", "#0077bb"), strict=True):
        for i, one in enumerate(runs):
            label = LEGEND[rule] if i == 0 else None
            panel.plot(one["update"], one["return"], color=colour, lw=1.5, alpha=0.8, label=label)
    panel.set(xlabel="updates", ylabel="return over 20 episodes", title="NRES on Hopper")
    panel.grid(alpha=0.3)
    panel.legend(title="when a member falls")
    save_figure(figure, path)


if __name__ == "__main__":
    main()
