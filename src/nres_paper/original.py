"""`original`: settings as in the paper, whose noises and starting points are independent."""

from typing import Any

from nres.runs import METHODS, Settings, resolve

_LIKE_THE_PAPER = {"noise": "gaussian", "phases": "independent"}


def original(system: str, method: str, **given: Any) -> Settings:
    """Make settings as `nres.runs.resolve` does, but without what the paper does not have."""
    accepts = METHODS[method].accepts
    fixed = {name: value for name, value in _LIKE_THE_PAPER.items() if name in accepts}
    return resolve(system, method, **fixed | {n: v for n, v in given.items() if v is not None})
