"""Gradients for long unrolls: online evolution strategies and related estimators, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from nres import callbacks as callbacks
from nres import lengths as lengths
from nres import measured as measured
from nres import noise as noise
from nres import placement as placement
from nres import policies as policies
from nres import pools as pools
from nres.caching import cache_compilations as cache_compilations
from nres.diagnosis import Diagnosis as Diagnosis
from nres.diagnosis import diagnose as diagnose
from nres.estimators import BPTT as BPTT
from nres.estimators import DODGE as DODGE
from nres.estimators import GPES as GPES
from nres.estimators import NRES as NRES
from nres.estimators import PES as PES
from nres.estimators import RTRL as RTRL
from nres.estimators import TBPTT as TBPTT
from nres.estimators import TES as TES
from nres.estimators import UORO as UORO
from nres.estimators import Carry as Carry
from nres.estimators import Estimate as Estimate
from nres.estimators import Estimator as Estimator
from nres.estimators import FullES as FullES
from nres.estimators import NonFiniteError as NonFiniteError
from nres.estimators import Response as Response
from nres.estimators import Steps as Steps
from nres.estimators import Workers as Workers
from nres.evaluation import Evaluation as Evaluation
from nres.evaluation import evaluate as evaluate
from nres.history import History as History
from nres.history import NonFiniteWarning as NonFiniteWarning
from nres.monitor import NoSignalWarning as NoSignalWarning
from nres.noise import AdaptiveSigma as AdaptiveSigma
from nres.noise import Gaussian as Gaussian
from nres.noise import Noise as Noise
from nres.noise import Orthogonal as Orthogonal
from nres.pools import JaxPool as JaxPool
from nres.pools import Pool as Pool
from nres.pools import Window as Window
from nres.progress import Progress as Progress
from nres.progress import Reporter as Reporter
from nres.progress import TrainState as TrainState
from nres.results import SeedsResult as SeedsResult
from nres.results import TrainResult as TrainResult
from nres.schedule import Piecewise as Piecewise
from nres.seeds import SeedsHistory as SeedsHistory
from nres.system import System as System
from nres.training import train as train
from nres.tuning import Probe as Probe
from nres.tuning import Trial as Trial
from nres.tuning import Tuned as Tuned
from nres.tuning import tune as tune
from nres.weights import load as load
from nres.weights import save as save

__version__ = "0.1.0"

# These modules are slow to import and not always needed: import them on first use (PEP 562).
if TYPE_CHECKING:
    from nres import checkpoint as checkpoint
    from nres import data as data
    from nres import figures as figures
    from nres import report as report
    from nres import runs as runs
    from nres import systems as systems
    from nres import variance as variance
    from nres.systems.learned_optimizer import load_optimizer as load_optimizer
    from nres.systems.learned_optimizer import load_torch_optimizer as load_torch_optimizer

_LOADERS = ("load_optimizer", "load_torch_optimizer")
_LAZY_MODULES = ("checkpoint", "data", "figures", "report", "runs", "systems", "variance")


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"nres.{name}")
    if name in _LOADERS:
        return getattr(importlib.import_module("nres.systems.learned_optimizer"), name)
    raise AttributeError(f"module 'nres' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LOADERS})
