"""Summaries of a run: its end, and its losses at any time."""

import math

import numpy as np
from rich.console import Console

from nres.cli.console import say
from nres.runs import Outcome, Run

# The training loss, with the noise of the method, and the loss of `theta` itself.
TRAINING_LOSS, LOSS = "loss", "eval/loss"


def tell_outcome(console: Console, outcome: Outcome) -> None:
    """Print how a run ended, in a few lines."""
    run, result = outcome.run, outcome.result
    state, history = result.state, result.history
    made = f"{state.update:,} of {run.settings.updates:,} updates"
    if not len(history.update):
        say(f"{made}: the run was complete.", console)
    else:
        seconds = float(history.seconds[-1]) - history.began
        rate = len(history.update) / seconds if seconds else 0.0
        this_time = "" if outcome.resumed_at is None else f", {len(history.update):,} of them now,"
        say(
            f"{made}{this_time} in {seconds:.1f} s ({rate:,.0f}/s); evaluating took "
            f"{history.eval_time:.1f} s, compiling and unlocking {history.setup_time:.1f} s.",
            console,
        )
    say(
        f"{state.steps.total:.2e} unroll steps, {state.steps.sequential:.2e} of them sequential.",
        console,
    )
    for line in losses(run, state.update):
        say(line, console)
    say(f"Run: {run.path}", console)
    if outcome.unfinished and not outcome.diverged:
        say(f"Interrupted. Go on with: nres resume {run.path}", console)


def losses(run: Run, made: int | None = None) -> list[str]:
    """Describe the training loss and the evaluations of a run, from the first to the last.

    **Arguments:**

    - `run`: the run.
    - `made`: the number of updates made, if it is more than the metrics tell of.
    """
    metrics, lines = run.metrics, []
    training = metrics[TRAINING_LOSS]
    known = np.isfinite(training)
    if known.any():
        values = training[known]
        noise = " (with noise)" if run.settings.sigma is not None else ""
        lines.append(f"training loss{noise}: {values[0]:.5g} → {values[-1]:.5g}")
    made = max([made or 0, *metrics["update"][-1:].tolist()])
    measured = [name for name in metrics if name.startswith("eval/")]
    for name in measured:
        known = np.isfinite(metrics[name])
        if not known.any():
            continue
        values, updates = metrics[name][known], metrics["update"][known]
        label = name.removeprefix("eval/") + (" (without noise)" if name == LOSS else "")
        best = f", best {values.min():.5g}" if name == measured[0] and len(values) > 1 else ""
        if len(values) == 1:
            line = f"{label}: {values[0]:.5g} at update {updates[0]:,}"
        else:
            line = f"{label}: {values[0]:.5g} → {values[-1]:.5g}{best}"
        if updates[-1] < made:
            line += f" (evaluated after {updates[-1]:,} updates, not since)"
        lines.append(line)
    return lines + large_noise(run)


def large_noise(run: Run) -> list[str]:
    """Warn if the noise makes the loss a multiple of the loss without noise."""
    metrics = run.metrics
    if run.settings.sigma is None or LOSS not in metrics:
        return []
    both = np.isfinite(metrics[LOSS]) & np.isfinite(metrics[TRAINING_LOSS])
    if not both.any():
        return []
    with_noise, without = metrics[TRAINING_LOSS][both][-1], metrics[LOSS][both][-1]
    if not with_noise - without > abs(without):
        return []
    ratio = with_noise / without if without > 0 else math.inf
    times = f"{ratio:.3g} times as large" if math.isfinite(ratio) else "much worse"
    return [
        f"Note: with the noise of sigma = {run.settings.sigma} the loss is {times}, "
        f"{with_noise:.4g} instead of {without:.4g}. Training minimises the former; a smaller "
        "sigma brings them closer."
    ]


def diverged(outcome: Outcome) -> str:
    """Return the sentence for a run that has no finite worker any more."""
    run = outcome.run
    return (
        f"no worker of {run.path} gives a finite loss or gradient any more, so the run has ended "
        f"after {outcome.result.state.update:,} updates. Its newest checkpoint, of update "
        f"{run.updates_made():,}, is from before. Begin again from there with smaller steps: "
        f"nres train {run.settings.system} --from {run.path} --lr ..."
    )
