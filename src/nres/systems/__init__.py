"""Ready-made systems."""

import importlib
from typing import TYPE_CHECKING, Any

from nres.systems import hyperparameters as hyperparameters
from nres.systems import recurrent as recurrent
from nres.systems.environments import BraxEnvironment as BraxEnvironment
from nres.systems.environments import GymnaxEnvironment as GymnaxEnvironment
from nres.systems.environments import PlaygroundEnvironment as PlaygroundEnvironment
from nres.systems.influence import InfluenceBalancing as InfluenceBalancing
from nres.systems.lorenz import Lorenz as Lorenz
from nres.systems.lorenz import LorenzTest as LorenzTest
from nres.systems.quadratic import Quadratic as Quadratic
from nres.systems.together import Together as Together
from nres.systems.toy_schedule import ToySchedule as ToySchedule
from nres.systems.training_run import TrainingRun as TrainingRun

# Its kernels import Pallas, which is slow: import it on first use (PEP 562).
if TYPE_CHECKING:
    from nres.systems import learned_optimizer as learned_optimizer


def __getattr__(name: str) -> Any:
    if name == "learned_optimizer":
        return importlib.import_module("nres.systems.learned_optimizer")
    raise AttributeError(f"module 'nres.systems' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "learned_optimizer"})
