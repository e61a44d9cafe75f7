"""The headline results, for README.md and docs/index.md."""

import re
from typing import Any

from rich.console import Console

import reproduction_page
from nres.cli.compare import times_table
from nres_paper.figures import FIGURES
from nres_paper.grades import NOT_RUN
from nres_paper.reproduction import read_summaries
from results import ROOT, load, table


def headlines() -> str:
    """Return a table of the main results, each beside what it compares with."""
    variance = _variance()
    return table(
        ["", "nres", "for comparison"],
        [
            ["Lorenz on 2 CPU cores, updates/s", *_lorenz()],
            ["Learned optimizer on an H200, updates/s", *_learned_optimizer()],
            ["HalfCheetah on 2 CPU cores, simulator steps/s", *_halfcheetah()],
            [
                "Time to meta-train an optimizer to a given loss",
                "1× (NRES)",
                f"PES {_times('lopt-es', 'PES')}, FullES {_times('lopt-es', 'FullES')}",
            ],
            [
                "Total steps to do so",
                "1× (NRES)",
                f"PES {_times('lopt-es', 'PES, total steps')}, "
                f"FullES {_times('lopt-es', 'FullES, total steps')}",
            ],
            [
                "Sequential steps to solve Swimmer and HalfCheetah",
                "1× (NRES)",
                f"FullES {_times('swimmer', 'FullES')} and {_times('halfcheetah', 'FullES')}",
            ],
            ["Variance of gradients of a learned optimizer", *variance],
            ["Memory of 10,000 workers with 100,000 parameters", *_memory()],
        ],
    ).replace("---:", "---")


def commands() -> str:
    """Return five commands, and parts of what two of them print."""
    summary = load("compare/comparison.json")
    shown = [row for row in summary["methods"] if row["method"] in ("nres", "fulles")]
    console = Console(width=100)
    with console.capture() as printed:
        console.print(times_table(summary | {"methods": shown}))
    costs = "\n".join(line.rstrip() for line in printed.get().strip().splitlines())
    (check,) = load("lorenz-surface/summary.json")["checks"]
    claim = " │ ".join(check[part] for part in ("about", "paper", "ours", "grade"))
    lines = [
        _command("train lorenz --out runs/first", "fit a chaotic system, and draw the curves"),
        _command("resume runs/first --updates 5000", "go on, or recover from a kill or a crash"),
        _command("advise lorenz --total-steps 1e8", "choose W, N, sigma and the learning rate"),
        _command("compare lorenz", "two of the four methods that it shows:"),
        costs,
        _command("reproduce lorenz-surface --out my", "check a claim of the paper:"),
        f"│ {claim} │",
    ]
    return "\n```console\n" + "\n".join(lines) + "\n```\n"


def _command(arguments: str, purpose: str) -> str:
    return f"$ nres {arguments:34}# {purpose}"


def verdicts() -> str:
    """Say in one sentence how much of the paper is reproduced."""
    return reproduction_page.counts().told()


def _lorenz() -> tuple[str, str]:
    rates: dict[tuple[str, int], float] = {
        (row["implementation"], row["workers"]): row["updates_per_second"]
        for row in load("bench/cpu.json")["throughput"]
    }
    sizes = (200, 20_000)
    ours = ", ".join(f"{rates['nres', n]:,.0f} ({n:,} workers)" for n in sizes)
    # The faster of two ways to run it: one call per step, or a loop that is compiled.
    best = (max(rates["evosax", n], rates["evosax, scanned", n]) for n in sizes)
    return ours, "evosax " + ", ".join(f"{rate:,.0f}" for rate in best)


def _learned_optimizer() -> tuple[str, str]:
    rates = {
        row["implementation"]: row["updates_per_second"]
        for row in load("bench/learned_optimizer_gpu.json")["rows"]
        if (row["workers"], row["width"], row["precision"]) == (100, 32, "default")
    }
    return f"{rates['nres']:,.0f}", f"plain JAX {rates['plain JAX']:,.0f}"


def _halfcheetah() -> tuple[str, str]:
    rows = load("bench/simulators.json")["simulators"]
    row = next(row for row in rows if row["task"] == "halfcheetah")
    return (
        f"{row['nres_steps_per_second']:,.0f}",
        f"gymnasium {row['gymnasium_steps_per_second']:,.0f}; MuJoCo without an estimator "
        f"{row['raw_steps_per_second']:,.0f}",
    )


def _times(figure: str, about: str) -> str:
    """Return how much longer a method takes than NRES, and what the paper says, if anything."""
    summary = _summaries().get(figure)
    if summary is None:
        return f"{NOT_RUN} ({figure})"
    check = next(check for check in summary["checks"] if check["about"].startswith(about))
    # The bound over all seeds, if NRES misses the level with some.
    shown = re.search(r"at most [\d.,e+]+×", check["ours"])
    shown = shown or re.search(r"(> )?[\d.,e+]+×", check["ours"])
    paper = f" (paper: {check['paper']})" if check["paper"] else ""
    return f"{shown[0] if shown else check['ours']}{paper}"


def _summaries() -> dict[str, dict[str, Any]]:
    return read_summaries(ROOT / "results", FIGURES)


def _variance() -> tuple[str, str]:
    if "variance-K" not in _summaries():
        return NOT_RUN, "`nres reproduce variance-K`"
    tables = [entry["rows"] for entry in load("variance-K/measured.json")["checkpoints"]]
    by_method = [{row["method"]: row["variance"] for row in rows} for rows in tables]
    least = sum(min(found, key=lambda name: found[name]) == "NRES" for found in by_method)
    ratios = [found["PES"] / found["NRES"] for found in by_method]
    return (
        f"NRES has the least at {least} of {len(tables)} checkpoints",
        f"PES has {min(ratios):.0f} to {max(ratios):.0f} times as much",
    )


def _memory() -> tuple[str, str]:
    peaks = {
        row["noise"]: row["peak_bytes"]
        for row in load("bench/cpu.json")["memory"]
        if (row["workers"], row["parameters"]) == (10_000, 100_000)
    }
    return (
        f"{peaks['regenerate'] / 1e6:,.0f} MB with `store_noise=False`",
        f"{peaks['keep'] / 1e6:,.0f} MB if noise is stored",
    )


PARTS = (headlines, commands, verdicts)
