"""The trajectory of PES along which variances and landscapes are measured."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from nres.runs import Settings, write_json
from nres_paper import variance
from nres_paper.comparing import FinishedRun
from nres_paper.original import original
from nres_paper.reproduction import Context

FILE = "trajectory.json"


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Parameters after some numbers of updates, and the seconds of the training."""

    thetas: dict[int, np.ndarray]
    seconds: float


def pes_settings(system: str, quick: bool = False) -> Settings:
    """Return the settings of the training run with PES."""
    study = variance.study(system, quick)
    options: dict[str, Any] = {"horizon": 20 * study.window} if quick else {}
    return original(
        system,
        "pes",
        updates=study.updates,
        seed=study.seed,
        keep_every=study.keep_every,
        eval_every=study.keep_every,
        options=options,
    )


def pes_trajectory(context: Context, system: str) -> Trajectory:
    """Train with PES, or read the trajectory that this or another figure has stored."""
    settings = pes_settings(system, context.quick)
    for file in sorted(context.folder.parent.glob(f"*/{FILE}")):
        found = _read(file, settings)
        if found is not None:
            return found
    context.say("training with PES")
    run = context.finished(context.folder / "runs" / "pes", settings)
    seconds = FinishedRun.of("PES", run).entries[-1]["seconds"]
    # The paper does not measure at the initial parameters.
    thetas = {u: np.asarray(theta) for u, theta in run.trajectory().items() if u}
    lists = {str(update): theta.tolist() for update, theta in thetas.items()}
    about = {"settings": settings.to_json(), "seconds": seconds}
    write_json(context.folder / FILE, about | {"thetas": lists})
    return Trajectory(thetas, seconds)


def _read(file: Path, settings: Settings) -> Trajectory | None:
    stored = json.loads(file.read_text(encoding="utf-8"))
    # Not compared as JSON, since an earlier version may have had fewer settings.
    if Settings.from_json(stored["settings"]) != settings:
        return None
    thetas = {int(u): np.array(theta, np.float32) for u, theta in stored["thetas"].items()}
    return Trajectory(thetas, stored["seconds"])
