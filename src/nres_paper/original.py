"""`original`: settings as in the paper, whose noises and starting points are independent."""

from collections.abc import Mapping
from typing import Any

from nres.runs import METHODS, Settings, resolve

_LIKE_THE_PAPER = {"noise": "gaussian", "phases": "independent"}
# Presets that differ from the paper, by system and method.
_RATES: Mapping[tuple[str, str], str] = {("lorenz", "nres"): "1e-5"}


def original(system: str, method: str, **given: Any) -> Settings:
    """Make settings as `nres.runs.resolve` does, but without what the paper does not have."""
    accepts = METHODS[method].accepts
    fixed = {name: value for name, value in _LIKE_THE_PAPER.items() if name in accepts}
    if (system, method) in _RATES:
        fixed["lr"] = _RATES[system, method]
    return resolve(system, method, **fixed | {n: v for n, v in given.items() if v is not None})
