"""Learned optimizers: systems in which an optimizer with parameters trains a model."""

from nres.systems.learned_optimizer.adafactor_mlp import AdafactorMLP as AdafactorMLP
from nres.systems.learned_optimizer.celo2 import Celo2 as Celo2
from nres.systems.learned_optimizer.export import load_optimizer as load_optimizer
from nres.systems.learned_optimizer.export import read_optimizer as read_optimizer
from nres.systems.learned_optimizer.export import save_optimizer as save_optimizer
from nres.systems.learned_optimizer.optimizers import SGD as SGD
from nres.systems.learned_optimizer.optimizers import Adam as Adam
from nres.systems.learned_optimizer.optimizers import LearnableOptimizer as LearnableOptimizer
from nres.systems.learned_optimizer.optimizers import Momentum as Momentum
from nres.systems.learned_optimizer.optimizers import PerParameterMLP as PerParameterMLP
from nres.systems.learned_optimizer.system import LearnedOptimizerSystem as LearnedOptimizerSystem
from nres.systems.learned_optimizer.tasks import Task as Task
from nres.systems.learned_optimizer.tasks import cifar10_task as cifar10_task
from nres.systems.learned_optimizer.tasks import classification as classification
from nres.systems.learned_optimizer.tasks import fashion_mnist_task as fashion_mnist_task
from nres.systems.learned_optimizer.tasks import small_images_task as small_images_task
