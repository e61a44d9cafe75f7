"""Methods and optimizers by their names on the command line."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import optax

from nres import estimators
from nres.estimators import Estimator


@dataclasses.dataclass(frozen=True)
class MethodInfo:
    """A method by its name on the command line."""

    estimator: Callable[..., Estimator]
    accepts: tuple[str, ...]
    """The settings that are arguments of the estimator."""
    summary: str
    members: int = 2
    """Unrolls per worker."""


_ES = ("workers", "sigma", "noise")
METHODS: Mapping[str, MethodInfo] = MappingProxyType(
    {
        "nres": MethodInfo(
            estimators.NRES, (*_ES, "window"), "one noise per episode: unbiased, least variance"
        ),
        "pes": MethodInfo(estimators.PES, (*_ES, "window"), "a new noise every window: unbiased"),
        "gpes": MethodInfo(
            estimators.GPES, (*_ES, "window", "period"), "a new noise every period: unbiased"
        ),
        "tes": MethodInfo(estimators.TES, (*_ES, "window"), "each window on its own: biased", 3),
        "fulles": MethodInfo(estimators.FullES, _ES, "whole episodes: unbiased, offline"),
        "bptt": MethodInfo(estimators.BPTT, ("workers",), "backpropagation: exact", 1),
        "tbptt": MethodInfo(
            estimators.TBPTT, ("workers", "window"), "backpropagation in each window: biased", 1
        ),
        "dodge": MethodInfo(
            estimators.DODGE,
            ("workers", "window", "period"),
            "forward mode along a random direction: unbiased",
            1,
        ),
        "uoro": MethodInfo(
            estimators.UORO, ("workers", "window"), "forward mode of rank one: unbiased", 1
        ),
    }
)

# Settings that not every method has.
ESTIMATOR_SETTINGS = frozenset(name for info in METHODS.values() for name in info.accepts)

OPTIMIZERS: Mapping[str, Callable[..., optax.GradientTransformation]] = MappingProxyType(
    {
        name: getattr(optax, name)
        for name in ("sgd", "adam", "adamw", "rmsprop", "adagrad", "lion", "lamb", "nadam")
    }
)
