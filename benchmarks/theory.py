"""Accuracy of the variance theory on a chaotic system, and the bias from hysteresis.

python benchmarks/theory.py [--quick] [--out FOLDER]
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import nres
from nres.files import save_figure, write_json
from nres.variance import hysteresis, predict, sweep
from run import machine

WINDOW, SIGMA, WORKERS = 100, 0.04, 200
PLACES = {"at the start": (3.7, 3.116), "near the truth": (3.3, 2.35)}


def theory(system: nres.systems.Lorenz, quick: bool) -> dict[str, Any]:
    """Measure the variance of NRES over sigma, and predict it with and without derivatives."""
    sigmas = np.geomspace(1e-6, 1e-1, 3 if quick else 16).tolist()
    samples = 64 if quick else 16_384
    result = {}
    for name, place in PLACES.items():
        theta, key = jnp.array(place), jax.random.key(0)
        table = sweep(system, theta, key, sigmas=sigmas, windows=[WINDOW], samples=samples)
        smoothed = [
            predict(
                system,
                theta,
                key,
                period=system.horizon,
                window=WINDOW,
                sigma=sigma,
                episodes=4,
                samples=16 if quick else 1024,
            )
            for sigma in sigmas
        ]
        result[name] = {
            "theta": place,
            "by_derivatives": predict(system, theta, period=system.horizon, window=WINDOW).nres,
            "measured": table.to_json(),
            "smoothed": [p.nres for p in smoothed],
            "linearity": [p.linearity for p in smoothed],
        }
    return result


def old_histories(system: nres.systems.Lorenz, quick: bool) -> list[dict[str, float]]:
    """Measure the bias of a running pool over the learning rate."""
    estimator = nres.NRES(system, workers=WORKERS, window=WINDOW, sigma=SIGMA)
    rows = hysteresis(
        estimator,
        optax.sgd,
        system.initial_theta(),
        jax.random.key(0),
        rates=[1e-6, 1e-4] if quick else np.geomspace(1e-7, 1e-4, 7).tolist(),
        updates=20 if quick else 100,
        samples=64 if quick else 65_536,
    )
    names = ("rate", "drift", "bias", "bias_stderr", "norm", "cosine")
    return [{name: getattr(row, name) for name in names} for row in rows]


def speed(system: nres.systems.Lorenz, quick: bool) -> dict[str, float]:
    """Measure unroll steps per second of a sweep, and of plain unrolls in equal batches."""
    samples = 64 if quick else 65_536
    theta, key = system.initial_theta(), jax.random.key(0)

    def swept() -> None:
        sweep(system, theta, key, sigmas=[SIGMA], windows=[WINDOW], samples=samples)

    def plain() -> None:
        # The number of pairs per batch of a sweep on a CPU.
        for i in range(64):
            at = jax.random.fold_in(key, i)
            episodes = nres.evaluate(system, theta, at, episodes=2 * samples // 64, sigma=SIGMA)
            jax.block_until_ready(episodes.losses)

    rates = {}
    for name, run in {"sweep": swept, "plain unrolls": plain}.items():
        run()
        seconds = []
        for _ in range(1 if quick else 5):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        rates[name] = 2 * samples * system.horizon / min(seconds)
    return rates


def draw(results: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, part), colour in zip(results["theory"].items(), ("#c8102e", "#0077bb"), strict=True):
        rows = part["measured"]
        sigmas = [row["sigma"] for row in rows]
        left.plot(sigmas, [r["variance"] for r in rows], "o", ms=4, color=colour, label=name)
        left.axhline(part["by_derivatives"], color=colour, lw=1.2, ls="--")
        left.plot(sigmas, part["smoothed"], color=colour, lw=1.2)
    grey = {"color": "#666666", "lw": 1.2}
    left.plot([], [], ls="--", **grey, label="predicted from derivatives")
    left.plot([], [], **grey, label="predicted from smoothed gradients")
    left.set(
        xlabel="sigma",
        ylabel="total variance of one worker's estimate",
        xscale="log",
        yscale="log",
        title="NRES on Lorenz, W = 100: measured (dots) and predicted (lines)",
    )
    left.legend(frameon=False, fontsize="small")
    rows = results["hysteresis"]
    rates = [row["rate"] for row in rows]
    right.errorbar(
        rates,
        [row["bias"] / row["norm"] for row in rows],
        [2 * row["bias_stderr"] / row["norm"] for row in rows],
        fmt="o-",
        capsize=3,
        color="#c8102e",
        label="bias, relative to the gradient's norm",
    )
    right.plot(
        rates,
        [row["cosine"] for row in rows],
        "s-",
        color="#0077bb",
        label="cosine similarity",
    )
    right.axvline(1e-5, color="black", lw=0.8, ls=":", label="learning rate of the paper")
    right.set(
        xlabel="learning rate",
        xscale="log",
        ylim=(-0.05, None),
        title="Gradients of a running pool, compared with fresh episodes",
    )
    right.legend(frameon=False, fontsize="small")
    for panel in (left, right):
        panel.grid(alpha=0.3)
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a small version.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/theory"), help="The folder to write to."
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    system = nres.systems.Lorenz(200 if quick else 2000)
    results = {
        "machine": machine(),
        "theory": theory(system, quick),
        "hysteresis": old_histories(system, quick),
        "steps_per_second": speed(system, quick),
    }
    write_json(arguments.out / "theory.json", results)
    draw(results, arguments.out / "figure.png")
    print(results["hysteresis"], results["steps_per_second"])


if __name__ == "__main__":
    main()
