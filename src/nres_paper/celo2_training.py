"""The Celo2 that comes with nres: its training, and its evaluation on unseen tasks."""

from typing import Any

from nres.figures import optimizers_figure
from nres.runs import Settings, evaluate_optimizers, evaluation_page, write_optimizer, write_text
from nres.systems.learned_optimizer import HELD_OUT, LearnedOptimizerSystem, read_optimizer
from nres_paper.celo2_comparisons import OPTIONS, SHAPE
from nres_paper.comparing import FinishedRun, find_run, read_runs, write_runs
from nres_paper.grades import FAILS, HOLDS, NOT_THERE, Check
from nres_paper.original import original
from nres_paper.reproduction import Context, PaperFigure, Result, first_and_others

# The run makes half of the inner steps of the recipe; the weights are those of its best evaluation.
UPDATES = 15_625
# Pilot runs of 5,000 updates still improved with the first rate, and no longer with a larger one.
RATE = "3e-4,8000:1e-4,13000:3e-5"
STEPS, SEEDS = 1000, 3
# On a CPU, the transformer alone would take hours.
TASKS = tuple(task for task in HELD_OUT if task != "transformer")
NAME = "celo2"


def _settings(quick: bool = False) -> Settings:
    if quick:
        options: dict[str, Any] = {"horizon": 20, "test_episodes": 2}
        return original(
            "celo2", "nres", updates=2, workers=2, window=5, seed=0, eval_every=1, options=options
        )
    return original(
        "celo2",
        "nres",
        updates=UPDATES,
        lr=RATE,
        seed=0,
        eval_every=UPDATES // 25,
        log_every=UPDATES // 125,
        options=OPTIONS,
        **SHAPE,
    )


def _trained(context: Context) -> Result:
    """Train Celo2 with NRES, and compare it with tuned optimizers on unseen tasks."""
    settings = _settings(context.quick)
    file, kept = context.folder / f"{NAME}.npz", context.folder / "metrics.jsonl"
    card = file.with_suffix(".md")
    run = find_run(settings, read_runs(kept))
    parts = context.folder / "evaluation"
    if run is None or not file.exists() or not card.exists():
        folder = context.finished(context.folder / "runs" / "nres", settings)
        system = folder.components.system
        assert isinstance(system, LearnedOptimizerSystem)
        write_optimizer(folder, system, file, best=True)
        run = FinishedRun.of("NRES", folder)
        write_runs(kept, [run])
        for old in parts.rglob(f"*-{NAME}.json"):  # of other weights
            old.unlink()
    context.say("comparing the trained optimizer with tuned ones")
    result = evaluate_optimizers(
        {NAME: read_optimizer(file)[:2]},
        parts,
        tasks=TASKS[:1] if context.quick else TASKS,
        steps=10 if context.quick else STEPS,
        seeds=1 if context.quick else SEEDS,
        report=lambda what, done, count: context.say(f"{what} ({done + 1} of {count})"),
    )
    optimizers_figure(result, [NAME], context.drawing)
    about, _, _ = card.read_text(encoding="utf-8").partition("\n## Evaluation")
    about = about.replace(f'("{file.name}")', f'("{NAME}", lr=0.005)')  # as it comes with nres
    write_text(card, f"{about.rstrip()}\n\n{evaluation_page(result).replace('# ', '## ')}")
    found = {task: each["optimizers"] for task, each in result["tasks"].items()}
    return Result(
        tuple(_check(task, optimizers) for task, optimizers in found.items()),
        {
            "final_loss": {
                t: {n: row["final_loss"] for n, row in o.items()} for t, o in found.items()
            }
        },
        run.entries[-1]["seconds"],
        1,
        first_and_others([run.device, result["device"]]),
        first_and_others([run.versions, result["versions"]]),
    )


def _check(task: str, optimizers: dict[str, Any]) -> Check:
    losses = {
        name: float("inf") if row["final_loss"] is None else row["final_loss"]
        for name, row in optimizers.items()
    }
    best = min((name for name in losses if name != NAME), key=losses.__getitem__)
    return Check(
        f"training loss on {task}, last {STEPS // 20} of {STEPS:,} steps",
        NOT_THERE,
        f"{NAME}: {losses[NAME]:.4g}; Adam: {losses['Adam']:.4g}; {best}: {losses[best]:.4g}",
        HOLDS if losses[NAME] < losses["Adam"] else FAILS,
    )


CELO2_TRAINED = PaperFigure(
    "",
    "The aim is that Celo2, trained with NRES in at most half of the inner steps of its recipe, "
    "trains unseen models better than Adam with a tuned rate.",
    "gpu",
    _trained,
    lambda: [_settings().to_json(), STEPS, SEEDS, list(TASKS)],
    "No paper makes this statement about NRES. All optimizers try their learning rates on every "
    'task. The weights come with nres, as `nres.load_optimizer("celo2")`.',
)
