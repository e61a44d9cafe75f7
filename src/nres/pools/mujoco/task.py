"""`MujocoTask`: observations, rewards and ends of episodes in a MuJoCo model, for many lanes."""

import abc
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np


class MujocoTask(abc.ABC):
    """A MuJoCo model with its observations, rewards and ends of episodes, as in gymnasium.

    All methods take `f`, which has the fields of the simulation as arrays with one row per lane,
    and `ids`, the lanes to use. As in gymnasium, derived fields are one substep behind the state.

    Args:
        version: The version of gymnasium's environment to follow, 4 or 5.
    """

    model_file: str
    """The name of the model in gymnasium's folder of assets."""
    frame_skip: ClassVar[int]
    """The number of simulation steps per step of the task."""
    reset_noise: ClassVar[float]
    """The scale of the random initial state."""
    normal_velocity: ClassVar[bool] = False
    """True if initial velocities are normally distributed, false if uniformly."""
    healthy_reward: ClassVar[float] = 1.0
    """The reward per step for being healthy."""
    camera: ClassVar[dict[str, Any]] = {"distance": 4.0, "trackbodyid": 1, "elevation": -20.0}
    """The settings of the camera for films."""

    def __init__(self, version: int = 4):
        if version not in (4, 5):
            raise ValueError(f"version must be 4 or 5, got {version}.")
        self.version = version

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the derived fields that the task reads."""
        return ()

    @property
    def contact_forces(self) -> bool:
        """True if the task reads `cfrc_ext`, which MuJoCo does not compute in a step."""
        return False

    @abc.abstractmethod
    def position(self, f: SimpleNamespace, ids: Any) -> np.ndarray:
        """Return each lane's position along the rewarded axis."""

    @abc.abstractmethod
    def observe(self, f: SimpleNamespace, ids: Any) -> np.ndarray:
        """Return the policy's observations, one row per lane."""

    @abc.abstractmethod
    def reward(
        self, f: SimpleNamespace, ids: Any, velocity: np.ndarray, action: np.ndarray
    ) -> np.ndarray:
        """Return each lane's reward of a step."""

    def healthy(self, f: SimpleNamespace, ids: Any) -> np.ndarray | None:
        """Return true for each lane whose episode goes on; `None` if episodes never end early."""
        return None

    def survival(self, f: SimpleNamespace, ids: Any) -> np.ndarray | float:
        """Return the reward for being healthy; version 4 pays it even in the last step."""
        healthy = self.healthy(f, ids)
        return self.healthy_reward * (1.0 if self.version == 4 or healthy is None else healthy)

    def reset(self, model: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw a random initial state, with the same random numbers as gymnasium."""
        noise = self.reset_noise
        qpos = model.qpos0 + rng.uniform(low=-noise, high=noise, size=model.nq)
        if self.normal_velocity:
            return qpos, noise * rng.standard_normal(model.nv)
        return qpos, rng.uniform(low=-noise, high=noise, size=model.nv)

    def model(self) -> Any:
        """Compile the model from the files of the installed gymnasium."""
        mujoco = require_mujoco()
        # Gymnasium's files use deprecated MuJoCo features, which users cannot change.
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)
        try:
            return mujoco.MjModel.from_xml_path(str(assets() / self.model_file))
        finally:
            mujoco.set_mju_user_warning(before)


def control_cost(action: np.ndarray, weight: float) -> np.ndarray:
    """Return the cost of each lane's action."""
    return weight * np.einsum("la,la->l", action, action)


def assets() -> Path:
    """Return the folder of gymnasium's model files."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise ImportError(INSTALL)
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"


INSTALL = "MuJoCo tasks need gymnasium and mujoco 4 or newer: pip install 'nres[mujoco]'."


def require_mujoco() -> Any:
    """Import the mujoco package, or raise an error that says how to install it."""
    try:
        import mujoco
        import mujoco.batch
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return mujoco
