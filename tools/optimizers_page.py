"""The parts of the pages about learned optimizers that come from results/."""

import json
import math

from nres.runs.optimizer_evaluation import loss_text, times_text
from results import DEVICES, ROOT, has_results, load, table


def learned_speed() -> str:
    rows = []
    for backend, device in DEVICES.items():
        results = load(f"bench/learned_optimizer_{backend}.json")["rows"]
        for row in results:
            numbers = {"default": "TF32", "highest": "single"} if backend == "gpu" else {}
            d = {32: 1762, 128: 19_330}[row["width"]]
            rows.append(
                [
                    device,
                    f"{row['workers']:,}",
                    f"{d:,}",
                    row["implementation"],
                    numbers.get(row["precision"], "single"),
                    f"{row['updates_per_second']:,.{1 if row['updates_per_second'] < 100 else 0}f}",
                    f"{row['inner_steps_per_second']:.2e}",
                    f"{row['of_floor']:.2f}",
                ]
            )
    heading = ["", "N", "d", "", "precision", "updates/s", "steps of models/s", "of the floor"]
    return table(heading, rows)


def tuned_optimizers() -> str:
    results = load("learned-optimizer/summary.json")["numbers"]
    rows = [
        [
            name,
            f"{results['mean_loss'][name]:.3f}",
            f"{results['final_loss'][name]:.3f}",
            f"{sum(others) / len(others):.3f}",
        ]
        for name, others in results["mean_loss_on_other_sequences"].items()
    ]
    return table(
        [
            "",
            "mean over 1,000 steps",
            "last 100 steps",
            "mean, from other models with other batches",
        ],
        rows,
    )


def learned() -> str:
    text = (ROOT / "results/learned-optimizer/metrics.jsonl").read_text()
    evals = [json.loads(line) for line in text.splitlines()][1:]
    first = next(row for row in evals if row["value"] < math.log(10))
    best = min(row["value"] for row in evals)
    told = (
        f"fell from {evals[0]['value']:.0f} to {evals[-1]['value']:.3f} (best: {best:.3f}) in "
        f"{evals[-1]['update']:,} updates, which took {evals[-1]['seconds']:.0f} seconds on an "
        f"H200. After {first['update']:,} updates it was below the loss of guessing, ln 10"
    )
    if not has_results("learned-optimizer"):
        told += (
            ". This run and the optimizer in results/ are older than the preset, and started from "
            "other initial parameters than the paper's"
        )
    return told


def meta_training() -> str:
    rows = [
        [
            DEVICES[backend],
            row["optimizer"],
            f"{row['workers']:,}",
            f"{row['window']:,}",
            *(f"{row[f'{who}_steps_per_second']:,.0f}" for who in ("nres", "bare")),
            f"{row['of_bare']:.2f}",
            f"{row['of_floor']:.3f}",
        ]
        for backend in DEVICES
        if (ROOT / f"results/bench/meta_training_{backend}.json").exists()
        for row in load(f"bench/meta_training_{backend}.json")["meta_training"]
    ]
    return table(["", "", "N", "W", "nres", "plain JAX", "nres / plain JAX", "of the floor"], rows)


def celo2_methods() -> str:
    summary = load("celo2/summary.json")["numbers"]["methods"]
    least = {name: summary[name]["best"] for name in ("NRES", "PES")}
    pairs = "; ".join(
        f"{nres:.3g} and {pes:.3g}" for nres, pes in zip(*least.values(), strict=True)
    )
    return f"the least losses of NRES and of PES are {pairs}, seed by seed"


def celo2_training() -> str:
    text = (ROOT / "results/celo2-trained/metrics.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines()][1:]
    best = min(entries, key=lambda entry: entry["value"])
    last = entries[-1]
    return (
        f"{last['total_steps'] / 1e6:,.0f} million training steps took "
        f"{last['seconds'] / 60:.1f} minutes on an H200. The weights are those of the best of "
        f"{len(entries)} evaluations, after {best['total_steps'] / 1e6:,.0f} million steps: the "
        f"mean loss is {best['value']:.2f}, from {entries[0]['value']:.2f} at the start"
    )


def celo2_tasks() -> str:
    tasks = load("celo2-trained/evaluation/evaluation.json")["tasks"]
    names = list(next(iter(tasks.values()))["optimizers"])
    rows = []
    for name, task in tasks.items():
        found = task["optimizers"]
        losses = [found[each]["final_loss"] for each in names]
        best = min(loss for loss in losses if loss is not None)
        texts = [f"**{loss_text(x)}**" if x == best else loss_text(x) for x in losses]
        times = [times_text(found[each]) for each in ("celo2", "Adam")]
        rows.append([f"{name}: {task['what']}", *texts, *times])
    return table(["", *names, "speedup of celo2", "speedup of Adam"], rows)


def celo2_wins() -> str:
    tasks = load("celo2-trained/evaluation/evaluation.json")["tasks"]
    losses = [
        {name: row["final_loss"] for name, row in task["optimizers"].items()}
        for task in tasks.values()
    ]
    others = [name for name in losses[0] if name != "celo2"]
    wins = {name: sum(loss["celo2"] < loss[name] for loss in losses) for name in others}
    counts = ", ".join(f"{name} on {count}" for name, count in wins.items())
    return f"Of the {len(tasks)} tasks, it ends below {counts}."


PARTS = (
    learned_speed,
    tuned_optimizers,
    learned,
    meta_training,
    celo2_methods,
    celo2_training,
    celo2_tasks,
    celo2_wins,
)
