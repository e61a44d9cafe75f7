"""Ready-made systems."""

from nres.systems import learned_optimizer as learned_optimizer
from nres.systems.lorenz import Lorenz as Lorenz
from nres.systems.lorenz import LorenzTest as LorenzTest
from nres.systems.quadratic import Quadratic as Quadratic
