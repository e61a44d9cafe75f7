"""Summaries of a run: its outcome and its losses."""

import collections
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from nres.cli.console import say
from nres.runs import Outcome, Run
from nres.seeds import mean_and_spread
from nres.workers import Steps

# The columns of the training loss, with the noise of the method, and of the loss of `theta`.
TRAINING_LOSS, LOSS = "loss", "eval/loss"


def tell_outcome(console: Console, outcome: Outcome) -> None:
    """Print a summary of a run that has ended, in a few lines."""
    run, result = outcome.run, outcome.result
    state, history = result.state, result.history
    made = f"{state.update:,} of {run.settings.updates:,} updates"
    if not len(history.update):
        complete = state.update == run.settings.updates and not outcome.stopped_early
        say(f"{made}: the run was complete already." if complete else made, console)
    else:
        seconds = float(history.seconds[-1]) - history.began
        rate = len(history.update) / seconds if seconds else 0.0
        this_time = "" if outcome.resumed_at is None else f", {len(history.update):,} of them now,"
        say(
            f"{made}{this_time} in {seconds:.1f} s ({rate:,.0f}/s)\n"
            f"evaluation {history.eval_time:.1f} s, "
            f"compilation and setup {history.setup_time:.1f} s",
            console,
        )
    total, sequential = Steps.added([state.steps, run.tuning_steps])
    say(f"unroll steps: {total:.2e} in total, {sequential:.2e} sequential", console)
    for line in losses(run, state.update):
        say(line, console)
    say(f"Run: {run.path}", console)
    if outcome.stopped_early and outcome.settled is not None:
        why = {
            "converged": "the signal in the gradients has sunk into noise",
            "diverged": "the loss has risen far above its start",
        }[outcome.settled]
        say(
            f"Stopped early: {why}. To go on: nres resume {run.path} --auto-stop off",
            console,
        )
    elif outcome.stopped_early:
        say(
            f"Stopped early: no improvement in {run.settings.stop_after} evaluations. To go on, "
            f"give a larger number: nres resume {run.path} --stop-after ...",
            console,
        )
    if outcome.unfinished and not outcome.diverged:
        say(f"Interrupted. Resume with: nres resume {run.path}", console)


def tell_seeds(console: Console, runs: Sequence[Run], folder: Path) -> None:
    """Print the mean and the spread of the losses of runs that differ only in their seed.

    Args:
        console: The console to print to.
        runs: The runs.
        folder: The folder that contains them.
    """
    columns = [run.metrics for run in runs]
    made = [int(max(each["update"], default=0)) for each in columns]
    say(f"{_seeds_and_updates(runs, made)}:", console)
    evaluated = [name for name in columns[0] if name.startswith("eval/")]
    noise = " (with noise)" if runs[0].settings.sigma is not None else ""
    labels = {TRAINING_LOSS: f"training loss{noise}", LOSS: "loss (without noise)"}
    for name in (TRAINING_LOSS, *evaluated):
        known = [each[name][np.isfinite(each[name])] for each in columns if name in each]
        ends = np.array([(one[0], one[-1], one.min()) for one in known if one.size])
        if not len(ends):
            continue
        first, last, best = (mean_and_spread(values, digits=5) for values in ends.T)
        line = f"{labels.get(name, name.removeprefix('eval/'))}: {first} → {last}"
        say(line + f", best {best}" * (name in evaluated[:1]), console)
    say(f"Runs: {folder}", console)
    say(f"Compare the seeds on one page: nres report {folder}", console)


def _seeds_and_updates(runs: Sequence[Run], made: Sequence[int]) -> str:
    """Describe the number of seeds, the range of updates made, and the runs that ended early."""
    fewest, most = f"{min(made):,}", f"{max(made):,}"
    updates = most if fewest == most else f"{fewest} to {most}"
    reasons = collections.Counter(run.ended_early for run in runs if run.ended_early is not None)
    early = "".join(f", {count} {reason}" for reason, count in reasons.items())
    if len(runs) == 1:
        return f"1 seed, {updates} updates{early}"
    return f"{len(runs)} seeds, {updates} updates each{early}, mean ± deviation"


def losses(run: Run, made: int | None = None) -> list[str]:
    """Describe the training loss and the evaluations of a run, from the first to the last.

    Args:
        run: The run.
        made: The number of updates made, if it is larger than in the metrics.

    Returns:
        Lines of text.
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
            line += f" (last evaluated after {updates[-1]:,} updates)"
        lines.append(line)
    return lines + large_noise(run)


def large_noise(run: Run) -> list[str]:
    """Return a note if the noise at least doubles the loss."""
    metrics = run.metrics
    options = run.settings.options
    if run.settings.sigma is None or LOSS not in metrics:
        return []
    if options.get("shift") or options.get("test_horizon"):
        return []  # the two losses are not about the same rewards or episodes
    both = np.isfinite(metrics[LOSS]) & np.isfinite(metrics[TRAINING_LOSS])
    if not both.any():
        return []
    with_noise, without = metrics[TRAINING_LOSS][both][-1], metrics[LOSS][both][-1]
    if not with_noise - without > abs(without):
        return []
    ratio = with_noise / without if without > 0 else math.inf
    times = f"{ratio:.3g} times as large" if math.isfinite(ratio) else "much larger"
    return [
        f"Note: noise with sigma = {run.settings.sigma} makes the loss {times}: {with_noise:.4g} "
        f"instead of {without:.4g}. Training minimises the loss with noise; reduce sigma to bring "
        "the two closer."
    ]


def diverged(outcome: Outcome) -> str:
    """Return the error message for a run that has diverged."""
    run = outcome.run
    return (
        f"{run.path} has diverged: after {outcome.result.state.update:,} updates no worker gives a "
        f"finite loss or gradient. The newest checkpoint, of update {run.updates_made():,}, is "
        "still finite. Start a new run from it with a smaller learning rate: "
        f"nres train {run.settings.system} --from {run.path} --lr ..."
    )
