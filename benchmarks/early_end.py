"""Hopper, which falls: the absorbing rule beside the naive one, where a pair starts over together.

python benchmarks/early_end.py [--quick] [--out FOLDER]

Under the naive rule both members begin a new episode as soon as one of them falls. Then the
member that would have stood is not paid for it: falling costs nothing but the fall.
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


class JointRestart(MujocoPool):
    """Restarts a pair when one of its members falls."""

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
    parser.add_argument("--quick", action="store_true", help="a few updates, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("results/early_end"))
    arguments = parser.parse_args()
    seeds, updates = (1, 2) if arguments.quick else (3, 200)
    curves = {rule: [curve(rule, seed, updates) for seed in range(seeds)] for rule in RULES}
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    for (rule, runs), colour in zip(curves.items(), ("#c8102e", "#0077bb"), strict=True):
        for i, one in enumerate(runs):
            label = rule if i == 0 else None
            panel.plot(one["update"], one["return"], color=colour, lw=1.5, alpha=0.8, label=label)
    panel.set(xlabel="updates", ylabel="return over 20 episodes", title="NRES on Hopper")
    panel.grid(alpha=0.3)
    panel.legend(title="when a member falls, the pair is")
    save_figure(figure, arguments.out / "figure.png")
    facts = {"machine": machine(), "settings": SETTINGS | {"adam": RATE, "updates": updates}}
    write_json(arguments.out / "early_end.json", facts | {"curves": curves})


if __name__ == "__main__":
    main()
