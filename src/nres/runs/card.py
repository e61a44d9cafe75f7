"""Export of a learned optimizer: its file, and a card that describes it."""

import json
from pathlib import Path

import jax
import numpy as np

from nres.files import read_plain, write_text
from nres.runs.folder import Run
from nres.runs.optimizer_evaluation import EVALUATION_FILE, digest, evaluation_page
from nres.system import Theta
from nres.systems.learned_optimizer import LearnedOptimizerSystem, write_for


def write_optimizer(
    run: Run, system: LearnedOptimizerSystem, out: Path, *, best: bool = False, to: str = "optax"
) -> tuple[Path, ...]:
    """Write the optimizer of a run's newest or best checkpoint, and a card beside it.

    Args:
        run: A run of a learned optimizer.
        system: The system of the run.
        out: The file to write; the card has the same name with the ending `.md`.
        best: Use the parameters of the best evaluation.
        to: The library to write for, from `nres.systems.learned_optimizer.FORMATS`.

    Returns:
        The paths of the files and of the card.
    """
    updates, theta = run.newest(best=best)
    about = {"settings": run.settings.to_json(), "versions": run.config["versions"]}
    written = write_for(to, out, system.optimizer, theta, about)
    card = out.with_suffix(".md")
    write_text(card, _card(run, system, updates, theta, out.name, to, best))
    return *written, card


LARGEST_EVALUATION = 10_000_000
_USES = {
    "optax": """import nres, optax

optimizer = nres.load_optimizer("{name}")
state = optimizer.init(params)
updates, state = optimizer.update(grads, state, params)
params = optax.apply_updates(params, updates)""",
    "torch": """from {stem} import LearnedOptimizer

optimizer = LearnedOptimizer(model.parameters())
loss.backward()
optimizer.step()""",
    "pylo": """from safetensors.torch import load_file

network.load_state_dict(load_file("{name}"))     # a CELO2MLP""",
    "celo2": """from nres.systems.learned_optimizer import Celo2, read_celo2

optimizer = Celo2{settings}.as_optax(read_celo2("{name}"))""",
}


def _card(
    run: Run,
    system: LearnedOptimizerSystem,
    updates: int,
    theta: Theta,
    name: str,
    to: str,
    best: bool,
) -> str:
    """Return a description of an optimizer in Markdown: its use, training and results."""
    settings, metrics = run.settings, run.metrics
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(theta))
    model = jax.eval_shape(system.task.init, jax.random.key(0))
    shapes = ", ".join("x".join(map(str, leaf.shape)) for leaf in jax.tree.leaves(model))
    kept = metrics["update"] <= updates
    lines = [
        f"# {name}",
        "",
        f"A learned optimizer ({type(system.optimizer).__name__}, {size:,} parameters), trained "
        f"with {settings.method} for {updates:,} updates."
        + " These are the parameters of the run's best evaluation."
        * best,
        "",
        "```python",
        _USES[to].format(
            name=name, stem=Path(name).stem, settings=repr(system.optimizer).removeprefix("Celo2")
        ),
        "```",
        "",
        "## Training task",
        "",
        f"- system: `{settings.system}`"
        + "".join(f", {k} = {v}" for k, v in settings.options.items()),
        f"- models of {sum(np.size(leaf) for leaf in jax.tree.leaves(model)):,} parameters "
        f"({shapes}), trained for {_lengths(system)} steps with batches of {system.task.batch}",
        "- data: "
        + (
            "the same initial model and the same sequence of batches in every episode"
            if system.table is not None
            else "a new initial model and new batches in every episode"
        ),
        *_differences(system),
        "",
        "It may perform badly on other models, on other data and in longer training.",
        "",
        "## Results",
        "",
    ]
    for column in [name for name in metrics if name.startswith("eval/")]:
        values = metrics[column][kept & np.isfinite(metrics[column])]
        if values.size:
            lines.append(f"- {column[5:]}: {values[-1]:.5g} (at the start {values[0]:.5g})")
    lines += _evaluated(run, system, theta)
    lines += ["", "## Settings of the meta-training", ""]
    used = settings.to_json()
    fields = ["method", "workers", "window", "sigma", "optimizer", "lr", "seed"]
    fields += [field for field in ("warmup", "clip") if used[field] is not None]
    lines += [f"- {field}: {used[field]}" for field in fields]
    versions = ", ".join(f"{k} {v}" for k, v in run.config["versions"].items())
    return "\n".join([*lines, f"- versions: {versions}", ""])


def _lengths(system: LearnedOptimizerSystem) -> str:
    if system.lengths is None:
        return f"{system.horizon:,}"
    possible = np.flatnonzero(system.lengths.probabilities())
    return f"{possible[0]:,} to {possible[-1]:,}"


def _differences(system: LearnedOptimizerSystem) -> list[str]:
    """Return what else differs between episodes, and how losses are bounded."""
    lines = []
    if (count := len(system.task.parts)) > 1:
        lines.append(f"- every episode draws one of {count} data sets")
    if system.scales is not None:
        least, most = system.scales
        lines.append(f"- every episode draws a scale of the model, from {least:g} to {most:g}")
    if system.cap is not None:
        lines.append(f"- losses count as at most {system.cap:.4g}")
    return lines


def _evaluated(run: Run, system: LearnedOptimizerSystem, theta: Theta) -> list[str]:
    """Return the evaluation of these parameters in the folder of the run, if there is one."""
    folder = run.path / "evaluation"
    try:
        result = json.loads(read_plain(folder / EVALUATION_FILE, LARGEST_EVALUATION))
        if digest(system.optimizer, theta) not in result["digests"].values():
            return []
        return ["", *evaluation_page(result).replace("# ", "## ").splitlines()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # none, or not one of ours
