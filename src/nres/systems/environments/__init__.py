"""Policies in environments that JAX can trace: Brax, MuJoCo Playground and gymnax."""

from nres.systems.environments.base import EnvironmentSystem
from nres.systems.environments.brax import BraxEnvironment, PlaygroundEnvironment
from nres.systems.environments.gymnax import GymnaxEnvironment

__all__ = ["BraxEnvironment", "EnvironmentSystem", "GymnaxEnvironment", "PlaygroundEnvironment"]
