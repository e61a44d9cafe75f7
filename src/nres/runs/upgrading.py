"""`upgraded`: the settings of runs that earlier versions wrote."""

from typing import Any

from nres.runs.methods import METHODS
from nres.workers import INDEPENDENT


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Translate the settings of a run that an earlier version may have written.

    Noises were independent then, and so were the starting points of workers. The setting `noise`
    said whether noise was kept in memory.
    """
    if "phases" in values or "noise" not in values:
        return values
    method = METHODS.get(values.get("method", ""))
    accepts = () if method is None else method.accepts
    return values | {
        "noise": "gaussian" if "noise" in accepts else None,
        "phases": INDEPENDENT if "phases" in accepts else None,
        "regenerate_noise": values["noise"] == "regenerate",
    }
