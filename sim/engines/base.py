"""The face that every physics engine shows to environments: batched state, joint targets, parameters, cameras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from robot_rl.spec import RobotSpec
from sim.scenes import Scene

Setter = Callable[[np.ndarray, np.ndarray], None]
"""Writes values (k,) of one parameter to environments ids (k,)."""


class Engine(ABC):
    """n simulations of one scene. All arrays are live views or fresh tensors with the environment first."""

    robot: RobotSpec
    scene: Scene
    num_envs: int
    device: torch.device
    """Where the physics runs; the views are on the CPU."""
    parameters: dict[str, Setter]
    """What can differ between environments, by name; units in `sim.randomization`."""
    robot_parameters: ClassVar[tuple[str, ...]] = (
        "action_delay", "stiffness_scale", "damping_scale", "joint_friction", "armature_scale",
    )  # fmt: skip
    box_parameters: ClassVar[tuple[str, ...]] = ("mass", "size", "friction")

    @classmethod
    def can_randomize(cls, scene: Scene) -> set[str]:
        """The names in `parameters`, known before anything is built."""
        boxes = {f"{box.name}.{name}" for box in scene.boxes for name in cls.box_parameters}
        return {f"robot.{name}" for name in cls.robot_parameters} | boxes

    @abstractmethod
    def joint_state(self) -> tuple[Tensor, Tensor]:
        """Joint positions and velocities (n, J), rad and rad/s, in the spec's order."""

    @abstractmethod
    def gripper_width(self) -> Tensor:
        """Distance between the fingers (n, 1), m."""

    @abstractmethod
    def object_pose(self, name: str) -> Tensor:
        """Pose (n, 7) of an object: position in m, quaternion w x y z."""

    @abstractmethod
    def step(self, joints: Tensor, gripper: Tensor) -> None:
        """Advance by a train of joint targets (n, ticks, J) and gripper widths (n, ticks, 1), one command tick each."""

    @abstractmethod
    def reset(self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray]) -> None:
        """Put robots `ids` at rest at joints (k, J), gripper open, and objects at poses (k, 7)."""

    @abstractmethod
    def place(self, name: str, pose: np.ndarray) -> None:
        """Put an object at rest at poses (n, 7) while the robots go on."""

    @abstractmethod
    def diverged(self) -> np.ndarray:
        """Environments (n,) bool whose physics became non-finite."""

    @abstractmethod
    def render(self, index: int, camera: str, height: int, width: int, quality: str = "fast") -> np.ndarray:
        """RGB image (height, width, 3) uint8 of one environment; quality "fast" for training, "high" for videos."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on with the same floats."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Let go of what the process could not reclaim."""
