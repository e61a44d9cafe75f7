"""Figures about the variance of estimators along a training run with PES."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nres.figures import periods_figure
from nres.runs import Settings, SettingsError, build, device, versions, write_json
from nres.variance import Row, sweep_along
from nres_paper import variance
from nres_paper.grades import BAND, DIFFERS, FAILS, HOLDS, NOT_THERE, SHOWN, UNKNOWN, Check
from nres_paper.reproduction import Context, PaperFigure, Result
from nres_paper.trajectory import pes_settings, pes_trajectory

_Rows = dict[int, tuple[Row, ...]]
_NAMES = {"learned-optimizer": "the learned optimizer", "lorenz": "Lorenz"}

# After 10,000, 20,000, ..., 80,000 updates, from Figure 4 (b) of the paper.
PAPER_NRES = (1.47, 15.74, 4.28, 3.20, 4.47, 4.42, 5.33, 6.62)
PAPER_FULLES = (864.34, 513.50, 201.38, 684.85, 181.06, 288.61, 448.30, 154.86)
PAPER_RATIOS = [full / nres for full, nres in zip(PAPER_FULLES, PAPER_NRES, strict=True)]


def of_periods(system: str, tier: str, label: str = "") -> PaperFigure:
    """Return the figure of the total variance of GPES over its period.

    Args:
        system: The name of the system.
        tier: The device that the figure needs: `cpu` or `gpu`.
        label: The figure of the paper; empty if the paper has none.
    """

    def make(context: Context) -> Result:
        study, horizon, rows, metadata = _along_pes(context, system, with_fulles=False)
        title = _title(system, horizon, study)
        periods_figure(rows, title, context.drawing)
        falls = [_order(list(some)) for some in rows.values()]
        least = [_order([min(some[:-1], key=_total), some[-1]]) for some in rows.values()]
        checks = (
            _share("checkpoints at which the variance falls as K grows", falls, label),
            _share("checkpoints at which NRES has the least variance", least, label),
        )
        ratios = [_variance(some, "PES") / _variance(some, "NRES") for some in rows.values()]
        return Result(checks, {"pes_over_nres": ratios}, **metadata)

    claim = (
        f"On {_NAMES[system]}, the total variance falls as K grows at every checkpoint, and NRES "
        "has the least."
    )
    return PaperFigure(label, claim, tier, make, lambda: _plan(system, with_fulles=False)[1])


def of_full_es(system: str, tier: str, label: str = "") -> PaperFigure:
    """Return the figure of the variance of T/W estimates of NRES and one estimate of FullES.

    The arguments are those of `of_periods`.
    """
    low, high = min(PAPER_RATIOS), max(PAPER_RATIOS)

    def make(context: Context) -> Result:
        study, horizon, rows, metadata = _along_pes(context, system, with_fulles=True)
        pairs = {update: variance.equal_compute(some, horizon) for update, some in rows.items()}
        title = _title(system, horizon, study)
        variance.fulles_figure(pairs, title, context.drawing)
        ratios = [full.variance / nres.variance for nres, full in pairs.values()]
        less = [_order([full, nres]) for nres, full in pairs.values()]
        checks = [_share("checkpoints at which NRES has less variance than FullES", less, label)]
        if label:
            found = {"NRES": [pair[0].variance for pair in pairs.values()]}
            found |= {"FullES": [pair[1].variance for pair in pairs.values()]}
            checks += [
                _number("FullES / NRES", PAPER_RATIOS, ratios),
                _number("variance of T/W estimates of NRES", PAPER_NRES, found["NRES"]),
                _number("variance of FullES", PAPER_FULLES, found["FullES"]),
            ]
        else:
            text = f"{min(ratios):.3g} to {max(ratios):.3g}×"
            checks.append(Check("FullES / NRES", NOT_THERE, text, SHOWN))
        return Result(tuple(checks), {"fulles_over_nres": ratios}, **metadata)

    claim = (
        f"On {_NAMES[system]}, the average of T/W estimates of NRES has less variance than one "
        "estimate of FullES"
    )
    claim += f": {low:.3g} to {high:.3g} times less." if label else "."
    remark = (
        "Variances depend on the parameters. They come from a run of PES from the paper's initial "
        "parameters, with another order of the images. Numbers are compared by their geometric "
        "means over the checkpoints."
        if label
        else "The theorem guarantees less variance where the gradients of an episode's windows "
        "point in similar directions. NRES has less variance at most of these parameters, but not "
        "at all of them."
    )
    return PaperFigure(label, claim, tier, make, lambda: _plan(system, with_fulles=True)[1], remark)


def _title(system: str, horizon: int, study: variance.Study) -> str:
    name = _NAMES[system].removeprefix("the ").capitalize()
    return f"{name}: T = {horizon}, W = {study.window}, sigma = {study.sigma:g}"


def _order(rows: Sequence[Row]) -> bool | None:
    """Return whether the variances fall, or `None` if their intervals do not tell."""
    pairs = list(itertools.pairwise(rows))
    if all(a.low > b.high for a, b in pairs):
        return True
    return False if any(a.high < b.low for a, b in pairs) else None


def _total(row: Row) -> float:
    return row.variance


def _share(about: str, right: list[bool | None], label: str) -> Check:
    """Grade an order of variances that should hold at all checkpoints."""
    grade = HOLDS if all(right) else FAILS if False in right else UNKNOWN
    paper = "all" if label else NOT_THERE
    text = f"{right.count(True)} of {len(right)}"
    if None in right:
        text += f"; {right.count(None)} not established, because intervals overlap"
    return Check(about, paper, text, grade)


def _number(about: str, paper: Sequence[float], ours: Sequence[float]) -> Check:
    """Compare the geometric means of positive numbers at the checkpoints."""
    factor = float(np.exp(np.log(ours).mean() - np.log(paper).mean()))
    said = f"{min(paper):.3g} to {max(paper):.3g}"
    text = f"{min(ours):.3g} to {max(ours):.3g}; {factor:.2g} of the paper's"
    return Check(about, said, text, HOLDS if 1 / BAND <= factor <= BAND else DIFFERS)


def _variance(rows: tuple[Row, ...], method: str) -> float:
    return next(row.variance for row in rows if row.method == method)


def _training(settings: dict[str, Any]) -> dict[str, Any]:
    """Select the settings that determine the checkpoints of a run but not its evaluations."""
    names = ("system", "updates", "keep_every")
    options = {k: v for k, v in settings["options"].items() if k != "test_episodes"}
    found = Settings.from_json(settings).determining() | {"options": options}
    return found | {name: settings[name] for name in names}


def _plan(system: str, with_fulles: bool, quick: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """Return the arguments of the sweeps, and all settings that determine the measurements."""
    study, settings = variance.study(system, quick), pes_settings(system, quick)
    horizon = settings.options.get("horizon", variance.HORIZONS[system])
    periods = [k for k in study.periods if k < horizon] if not with_fulles else []
    wanted: dict[str, Any] = {
        "windows": [study.window, horizon] if with_fulles else [study.window],
        "periods": [*periods, horizon],
        "sigmas": [study.sigma],
        "samples": study.samples,
    }
    return wanted, [wanted, _training(settings.to_json())]


def _along_pes(
    context: Context, system: str, with_fulles: bool
) -> tuple[variance.Study, int, _Rows, dict[str, Any]]:
    """Train with PES, then measure at the checkpoints that have no measurements yet."""
    study, settings = variance.study(system, context.quick), pes_settings(system, context.quick)
    wanted, _ = _plan(system, with_fulles, context.quick)
    components = build(settings)
    horizon = components.system.horizon
    file = context.folder / "measured.json"
    about: dict[str, Any] = {
        "measured": wanted,
        "pes": settings.to_json(),
        "device": device(),
        "versions": versions(),
        "seconds": 0.0,
        "checkpoints": [],
    }
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before["measured"] != wanted or _training(before["pes"]) != _training(about["pes"]):
            raise SettingsError(
                f"{file} contains results with other settings: choose another folder with --out."
            )
        about = before
    updates = range(study.keep_every, study.updates + 1, study.keep_every)
    known = {entry["update"]: entry["rows"] for entry in about["checkpoints"]}
    trajectory: dict[int, Any] = dict.fromkeys(updates)
    if not known.keys() >= set(updates):
        found = pes_trajectory(context, system)
        trajectory = {update: jnp.asarray(theta) for update, theta in found.thetas.items()}
    key = jax.random.key(study.seed)
    rows = sweep_along(
        components.system, trajectory, key, known, _keeper(context, file, about), **wanted
    )
    metadata = {name: about[name] for name in ("seconds", "device", "versions")}
    return study, horizon, rows, metadata


def _keeper(
    context: Context, file: Any, about: dict[str, Any]
) -> Callable[[int, list[dict[str, Any]]], None]:
    """Return a function that writes the rows measured at a checkpoint to the file."""
    last = time.monotonic()

    def keep(update: int, rows: list[dict[str, Any]]) -> None:
        nonlocal last
        now = time.monotonic()
        if about["seconds"] is not None:  # otherwise the earlier seconds are unknown
            about["seconds"] += now - last
        last = now
        about["checkpoints"].append({"update": update, "rows": rows})
        write_json(file, about)
        context.say(f"measured after {update:,} updates")

    return keep
