"""Methods and optimizers, by their names on the command line."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import optax

from nres import estimators
from nres.estimators import Estimator
from nres.noise import Gaussian, LowRank, Noise, Orthogonal


@dataclasses.dataclass(frozen=True)
class MethodInfo:
    """Description of a method for the command line."""

    estimator: Callable[..., Estimator]
    accepts: tuple[str, ...]
    """The settings that are arguments of the estimator."""
    summary: str
    members: int = 2
    """The number of unrolls per worker."""


_ES = ("workers", "sigma", "adapt_sigma", "noise", "regenerate_noise", "shaping")
_ONLINE = ("window", "phases")
METHODS: Mapping[str, MethodInfo] = MappingProxyType(
    {
        "nres": MethodInfo(estimators.NRES, (*_ES, *_ONLINE), "unbiased; one noise per episode"),
        "pes": MethodInfo(estimators.PES, (*_ES, *_ONLINE), "unbiased; new noise in every window"),
        "gpes": MethodInfo(
            estimators.GPES, (*_ES, *_ONLINE, "period"), "unbiased; new noise every K steps"
        ),
        "tes": MethodInfo(estimators.TES, (*_ES, *_ONLINE), "biased; every window on its own", 3),
        "fulles": MethodInfo(estimators.FullES, _ES, "unbiased; whole episodes"),
        "bptt": MethodInfo(estimators.BPTT, ("workers",), "exact; backpropagation", 1),
        "tbptt": MethodInfo(
            estimators.TBPTT, ("workers", *_ONLINE), "biased; backpropagation in windows", 1
        ),
        "dodge": MethodInfo(
            estimators.DODGE,
            ("workers", "noise", *_ONLINE, "period"),
            "unbiased; random forward mode",
            1,
        ),
        "uoro": MethodInfo(
            estimators.UORO, ("workers", *_ONLINE), "unbiased; rank-one forward mode", 1
        ),
        "rtrl": MethodInfo(
            estimators.RTRL, ("workers", *_ONLINE), "exact; forward mode, for few parameters", 1
        ),
    }
)

LAWS: Mapping[str, Callable[[], Noise]] = MappingProxyType(
    {"gaussian": Gaussian, "orthogonal": Orthogonal, "low-rank": LowRank}
    | {f"low-rank-{rank}": functools.partial(LowRank, rank) for rank in (2, 4, 8)}
)

# Settings that only some methods accept.
ESTIMATOR_SETTINGS = frozenset(name for info in METHODS.values() for name in info.accepts)

OPTIMIZERS: Mapping[str, Callable[..., optax.GradientTransformation]] = MappingProxyType(
    {
        name: getattr(optax, name)
        for name in ("sgd", "adam", "adamw", "rmsprop", "adagrad", "lion", "lamb", "nadam")
    }
    # With a constant under the square root, as in the paper's runs with learned optimizers.
    | {"adam_root": functools.partial(optax.adam, eps_root=1e-8)}
)
