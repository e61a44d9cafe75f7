"""`nres compare`: compare several methods on one system, over several seeds."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nres.cli.console import compact_table, say
from nres.cli.errors import explained
from nres.cli.options import Quiet, System, expand, setting_options, system_options, whole
from nres.cli.train import finished
from nres.figures import DISPLAY_NAMES, comparison_figure
from nres.files import write_json
from nres.runs import (
    METHODS,
    Evaluations,
    Run,
    Settings,
    SettingsError,
    build,
    curves,
    early_level,
    new_path,
    resolve,
    times_to_level,
)
from nres.runs.compare import AXES, COMPARISON_FILE, Curve, headline, relative_times
from nres.runs.defaults import EVALUATIONS
from nres.runs.methods import ESTIMATOR_SETTINGS
from nres.runs.settings import DECLARATIONS, EVERYDAY, METRICS, checked

# The number of updates of a run that a budget of seconds ends.
ENDLESS = 10**9


@explained
@expand(given=setting_options("compare"), options=system_options)
def compare(
    system: System,
    *,
    methods: Annotated[
        str,
        typer.Option(
            help="Compare these methods, separated by commas.",
            metavar="NAMES",
            rich_help_panel=EVERYDAY,
        ),
    ] = "nres,pes,tes,fulles",
    seeds: Annotated[
        int,
        typer.Option(
            help="Run each method with N seeds.",
            callback=whole(),
            metavar="N",
            rich_help_panel=EVERYDAY,
        ),
    ] = 3,
    options: dict[str, Any],
    given: dict[str, Any],
    budget_steps: Annotated[
        float | None,
        typer.Option(
            help="Stop each run after N unroll steps, for example 1e8, instead of after --updates.",
            metavar="STEPS",
            rich_help_panel=DECLARATIONS["budget_seconds"].panel,
            show_default="no limit",
        ),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(
            help="Report when each method first reaches this loss.",
            metavar="LOSS",
            rich_help_panel=METRICS,
            show_default="the best loss of NRES in the first half of its updates",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the comparison to this folder, or resume the one in it.",
            metavar="FOLDER",
            show_default="runs/SYSTEM-compare-TIME",
            rich_help_panel=EVERYDAY,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run several methods in turn; print a table and draw a figure that compare them.

    The same command with the same --out resumes a comparison that was interrupted.

    Example: nres compare lorenz --methods nres,pes,fulles --seeds 3 --budget-steps 1e8
    """
    names = [name.strip().lower() for name in methods.split(",") if name.strip()]
    if len(set(names)) < len(names) or not names:
        raise SettingsError(f"--methods must name each method once, got {methods!r}.")
    updates, budget_seconds = given.pop("updates"), given.pop("budget_seconds")
    if sum(budget is not None for budget in (updates, budget_steps, budget_seconds)) > 1:
        raise SettingsError("give only one of --updates, --budget-steps and --budget-seconds.")
    for option, budget in ("steps", budget_steps), ("seconds", budget_seconds):
        if budget is not None and not 0 < budget < math.inf:
            raise SettingsError(f"--budget-{option} must be positive, got {budget}.")
    common = given | {"options": system_options(**options)}
    planned: dict[str, list[Settings]] = {}
    for name in names:
        other = ESTIMATOR_SETTINGS - set(METHODS[checked("method", name)].accepts)
        own = {k: v for k, v in common.items() if k not in other}
        own["updates"] = _updates(system, name, own, updates, budget_steps, budget_seconds)
        # A comparison needs all of its evaluations, whatever they cost.
        made = own["updates"] or resolve(system, name, eval_every=1, **own).updates
        own["eval_every"] = max(1, made // EVALUATIONS)
        if budget_seconds is not None:
            own |= {"budget_seconds": budget_seconds, "log_every": 1000, "eval_every": ENDLESS}
        planned[name] = [resolve(system, name, seed=seed, **own) for seed in range(seeds)]
    # Build everything once before the first run, so that all mistakes show at once.
    for settings in planned.values():
        build(settings[0])
    folder = out or new_path(system, "compare")
    console = Console()
    again = f"Resume with the same command and --out {folder}"
    runs = {
        name: [
            finished(folder / f"{name}-{s.seed}", s, console, again=again, quiet=quiet)
            for s in settings
        ]
        for name, settings in planned.items()
    }
    found = {name: [Evaluations.of(run) for run in group] for name, group in runs.items()}
    drawn = curves(found)
    summary = _summarise(runs, found, drawn, level)
    comparison_figure(drawn, summary["measured"].replace("_", " "), folder / "figure.png")
    write_json(folder / COMPARISON_FILE, summary)
    if not quiet:
        console.print(_losses(summary), times_table(summary))
        say(f"Comparison: {folder}", console)


def _updates(
    system: str,
    method: str,
    own: dict[str, Any],
    updates: int | None,
    budget_steps: float | None,
    budget_seconds: float | None,
) -> int | None:
    if budget_seconds is not None:
        return ENDLESS
    if budget_steps is None:
        return updates
    # Many updates, so that any warm-up fits: their number is not known yet.
    estimator = build(resolve(system, method, eval_every=1, updates=ENDLESS, **own)).estimator
    each = estimator.members * estimator.workers * estimator.window
    if budget_steps < each:
        raise SettingsError(
            f"--budget-steps must allow at least one update of {method}, which takes {each} steps; "
            f"got {budget_steps:g}."
        )
    return int(budget_steps // each)


def _summarise(
    runs: dict[str, list[Run]],
    found: dict[str, list[Evaluations]],
    drawn: dict[str, dict[str, Curve]],
    level: float | None,
) -> dict[str, Any]:
    reference = "nres" if "nres" in runs else next(iter(runs))
    level = early_level(found[reference]) if level is None else level
    times = times_to_level(found, level)
    ratios = relative_times(times, reference)
    rows = []
    for method, group in runs.items():
        last = [run.metrics for run in group]
        measured = drawn[method]["update"]
        rows.append(
            {
                "method": method,
                "seeds": len(group),
                "updates": [int(m["update"][-1]) for m in last],
                "total_steps": [int(m["total_steps"][-1]) for m in last],
                "sequential_steps": [int(m["sequential_steps"][-1]) for m in last],
                "seconds": [float(m["seconds"][-1]) for m in last],
                "final": _number(float(measured.mean[-1])),
                "best": _number(float(measured.mean.min())),
                "reached": {axis: _number(x) for axis, x in times[method].items()},
                "times_longer": {axis: _number(x) for axis, x in ratios[method].items()},
            }
        )
    first = runs[reference][0]
    return {
        "system": first.settings.system,
        "measured": headline(first).removeprefix("eval/"),
        "reference": reference,
        "level": level,
        "device": first.config["device"],
        "versions": first.config["versions"],
        "methods": rows,
    }


def _number(value: float | None) -> float | None:
    """Return a number for JSON; `None` stands for infinity, which JSON lacks, and means never."""
    return value if value is not None and math.isfinite(value) else None


def _losses(summary: dict[str, Any]) -> Table:
    """Return a table of the losses that each method reached."""
    measured = summary["measured"].replace("_", " ")
    table = compact_table(
        f"{measured.capitalize()} on {summary['system']}, mean over seeds",
        "method", "seeds", "final", "best",
    )  # fmt: skip
    for row in summary["methods"]:
        reached = ("diverged" if x is None else f"{x:.4g}" for x in (row["final"], row["best"]))
        table.add_row(DISPLAY_NAMES[row["method"]], str(row["seeds"]), *reached)
    return table


def _times_longer(ratio: float) -> str:
    """Format a ratio with three digits, and with all digits from 1000 on."""
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def times_table(summary: dict[str, Any]) -> Table:
    """Return a table of the cost at which each method first reached the level."""
    measured = summary["measured"].replace("_", " ")
    reference = DISPLAY_NAMES[summary["reference"]]
    table = compact_table(
        f"\nCost to reach a {measured} of {summary['level']:.4g} (relative to {reference})",
        "method", "updates", "sequential steps", "total steps", "seconds",
    )  # fmt: skip
    for row in summary["methods"]:
        cells = (
            "never" if x is None else f"{x:.3g}" + ("" if r is None else f" ({_times_longer(r)}×)")
            for x, r in ((row["reached"][axis], row["times_longer"][axis]) for axis in AXES)
        )
        table.add_row(DISPLAY_NAMES[row["method"]], *cells)
    return table
