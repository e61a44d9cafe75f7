"""`MujocoTask`: what is observed, rewarded and ended in a MuJoCo model, for many lanes at once."""

import abc
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np


class MujocoTask(abc.ABC):
    """A model with its observations, rewards and ends, as in gymnasium.

    All methods take `f`, which has the fields of the simulation as arrays with a row for each
    lane, and `ids`, the lanes that are meant. Derived fields lie one substep behind the state,
    as they do in gymnasium.

    **Arguments:**

    - `version`: 4 or 5, the version of gymnasium's environment to follow.
    """

    model_file: str
    frame_skip: ClassVar[int]
    reset_noise: ClassVar[float]
    normal_velocity: ClassVar[bool] = False
    """Whether initial velocities are normal rather than uniform."""
    healthy_reward: ClassVar[float] = 1.0
    camera: ClassVar[dict[str, Any]] = {"distance": 4.0, "trackbodyid": 1, "elevation": -20.0}

    def __init__(self, version: int = 4):
        if version not in (4, 5):
            raise ValueError(f"version must be 4 or 5, got {version}.")
        self.version = version

    @property
    def fields(self) -> tuple[str, ...]:
        """The derived fields that are read."""
        return ()

    @property
    def contact_forces(self) -> bool:
        """Whether `cfrc_ext` is read, which MuJoCo does not compute in a step."""
        return False

    @abc.abstractmethod
    def position(self, f: SimpleNamespace, ids: Any) -> np.ndarray:
        """Where each lane is along the axis that counts."""

    @abc.abstractmethod
    def observe(self, f: SimpleNamespace, ids: Any) -> np.ndarray:
        """What the policy sees, a row for each lane."""

    @abc.abstractmethod
    def reward(
        self, f: SimpleNamespace, ids: Any, velocity: np.ndarray, action: np.ndarray
    ) -> np.ndarray:
        """The reward of a step."""

    def healthy(self, f: SimpleNamespace, ids: Any) -> np.ndarray | None:
        """Which lanes go on; `None` if all always do."""
        return None

    def survival(self, f: SimpleNamespace, ids: Any) -> np.ndarray | float:
        """The reward for being healthy: version 4 pays it for the last, unhealthy step, too."""
        healthy = self.healthy(f, ids)
        return self.healthy_reward * (1.0 if self.version == 4 or healthy is None else healthy)

    def reset(self, model: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A random initial state, from the same draws as gymnasium's."""
        noise = self.reset_noise
        qpos = model.qpos0 + rng.uniform(low=-noise, high=noise, size=model.nq)
        if self.normal_velocity:
            return qpos, noise * rng.standard_normal(model.nv)
        return qpos, rng.uniform(low=-noise, high=noise, size=model.nv)

    def model(self) -> Any:
        """The compiled model, from the files of the installed gymnasium."""
        mujoco = require_mujoco()
        # Gymnasium's files use what MuJoCo deprecates: nothing that a user could mend.
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)
        try:
            return mujoco.MjModel.from_xml_path(str(assets() / self.model_file))
        finally:
            mujoco.set_mju_user_warning(before)


def control_cost(action: np.ndarray, weight: float) -> np.ndarray:
    """The cost of each lane's action."""
    return weight * np.einsum("la,la->l", action, action)


def assets() -> Path:
    """The folder of gymnasium's model files."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise ImportError(INSTALL)
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"


INSTALL = "MuJoCo tasks need gymnasium and mujoco 4 or newer: pip install 'nres[mujoco]'."


def require_mujoco() -> Any:
    """The mujoco package, or an error that says how to get it."""
    try:
        import mujoco
        import mujoco.batch
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return mujoco
