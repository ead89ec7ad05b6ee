"""The interface of physics engines: batched state, joint targets, parameters, cameras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from sim.engines.trunk import NOMINAL as TRUNK
from sim.scenes import Scene

if TYPE_CHECKING:  # MuJoCo takes a while to import
    from sim.rendering.gl import mujoco
    from sim.rendering.looks import Appearance
    from sim.rendering.render import Renderers

"""Devices of engines."""
Setter = Callable[[np.ndarray, np.ndarray], None]
"""Write values (k,) of one parameter to environments ids (k,)."""


class Engine(ABC):
    """n simulations of one scene. All arrays are live views or fresh tensors with the environment first."""

    robot: RobotSpec
    scene: Scene
    num_envs: int
    model: mujoco.MjModel
    """MuJoCo's model of the scene in every engine, for rendering."""
    qpos: np.ndarray
    """Positions (n, nq) in the model's order, on the host."""
    look: Callable[[int], Appearance] | None = None
    """Return what is drawn differently in an environment; None: nothing."""
    geom_sizes: np.ndarray | None = None
    """Sizes (n, ngeom, 3) of the model's shapes, if they differ between environments, m."""
    takes_device: ClassVar[bool] = False
    """It runs on the device that it is given; others run on the CPU."""
    device: torch.device
    """Device of the physics and of all tensors."""
    parameters: dict[str, Setter]
    """Setters of parameters per environment, effective from the next reset; units in `sim.randomization`."""
    robot_parameters: ClassVar[tuple[str, ...]] = (
        "robot.action_delay", "robot.stiffness_scale", "robot.damping_scale", "robot.strength_scale",
        "robot.joint_friction", "robot.armature_scale",
    )  # fmt: skip
    base_parameters: ClassVar[tuple[str, ...]] = (*TRUNK, "robot.link_mass_scale", "ground.friction")
    """For walking robots."""
    longest_delay: ClassVar[float] = 0.08
    """Largest delay of an action, s."""
    object_parameters: ClassVar[tuple[str, ...]] = ("mass", "size", "friction")

    @classmethod
    def can_randomize(cls, robot: RobotSpec, scene: Scene) -> set[str]:
        """Return the names in `parameters` that have an effect, before anything is built."""
        base = cls.base_parameters if robot.base else ()
        touched = ("mass", "friction")  # nothing rests on objects that are not solid
        objects = {
            f"{o.name}.{n}" for o in scene.objects if o.shape != "tray"
            for n in cls.object_parameters if o.solid or n not in touched
        }  # fmt: skip
        return {*cls.robot_parameters, *base} | objects

    @abstractmethod
    def joint_state(self) -> tuple[Tensor, Tensor]:
        """Return joint positions and velocities (n, J), rad and rad/s, in the spec's order."""

    @abstractmethod
    def gripper_width(self) -> Tensor:
        """Return the distance between the fingers (n, 1), m."""

    @abstractmethod
    def base_state(self) -> dict[str, Tensor]:
        """Return base_position, base_quat, base_velocity and base_angular_velocity of `RobotState`."""

    @abstractmethod
    def foot_state(self) -> dict[str, Tensor]:
        """Return foot_position, foot_velocity and foot_force of `RobotState`, at most one physics step old. After a
        reset they belong to the initial posture; engines that compute forces only in steps give 0 until the next step.
        """

    @abstractmethod
    def joint_torque(self) -> Tensor:
        """Return the torque of the motors (n, J) in the last physics step, N m."""

    def views(self) -> dict[str, Tensor]:
        """Return all views of `RobotState` that the engine provides, by name."""
        position, velocity = self.joint_state()
        views = {"joint_position": position, "joint_velocity": velocity}
        if self.robot.gripper:
            views["gripper_width"] = self.gripper_width()
        if self.robot.base:
            views |= self.base_state() | self.foot_state() | {"joint_torque": self.joint_torque()}
        return views

    @abstractmethod
    def push(self, velocity: Tensor) -> None:
        """Add velocities (n, 3), m/s, world, to the robots' trunks; rows of zeros change nothing."""

    @abstractmethod
    def object_pose(self, name: str) -> Tensor:
        """Return the pose (n, 7) of an object: position in m, quaternion w x y z."""

    @abstractmethod
    def step(self, joints: Tensor, gripper: Tensor) -> None:
        """Step through joint targets (n, ticks, J) and gripper widths (n, ticks, 1).

        A tick lasts a period of the robot's commands, or a physics step where that is longer.
        """

    def set_springs(self, stiffness: np.ndarray, damping: np.ndarray, torque: np.ndarray) -> None:
        """Set motor gains (n, J), N m/rad and N m s/rad, and a torque (n, J), N m, from the next step on. For twins of
        robots whose commands carry gains; parameters scale them like the spec's.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot change gains between steps")

    @abstractmethod
    def reset(self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray]) -> None:
        """Reset robots `ids`: at rest at joints (k, J), gripper open, trunk upright; objects at (k, 7)."""

    def clone(self) -> Engine | None:
        """Return another engine with as many simulations of the scene, not yet reset; None if that costs too much. It
        has the spec's springs, even after `set_springs` here.
        """
        return None

    def copy_from(self, ids: np.ndarray, other: Engine) -> None:
        """Copy simulations `ids` from a sibling; foot and motor views follow one physics step later."""
        raise NotImplementedError(f"{type(self).__name__} has no siblings")

    @abstractmethod
    def place(self, name: str, pose: np.ndarray) -> None:
        """Move an object to poses (n, 7), at rest; the robots keep their state."""

    @abstractmethod
    def diverged(self) -> Tensor:
        """Return (n,) bool, where physics diverged: a value is not finite, or above `fastest`."""

    def render_batch(self, ids: np.ndarray, camera: str, height: int, width: int) -> np.ndarray:
        """Return fast RGB frames (k, height, width, 3) uint8 of environments `ids` (k,), rendered on all cores."""
        sizes, looks = self.geom_sizes, None if self.look is None else [self.look(int(i)) for i in ids]
        sizes = None if sizes is None else sizes[ids]
        return self._renderers.batch(self.qpos[ids], camera, height, width, sizes, looks)

    def render(self, index: int, camera: str, height: int, width: int, quality: str = "fast") -> np.ndarray:
        """Return an RGB frame (height, width, 3) uint8 of one environment; quality "fast" for policies, "video" for
        videos, "high" for stills."""
        sizes = None if self.geom_sizes is None else self.geom_sizes[index]
        look = None if self.look is None else self.look(index)
        return self._renderers.frame(self.qpos[index], camera, height, width, quality, sizes, look)

    def render_later(self, index: int, camera: str, height: int, width: int) -> Future[np.ndarray]:
        """Return the future of a fast RGB frame (height, width, 3) uint8 of one environment as it is now; a thread
        renders it while the simulation goes on."""
        sizes = None if self.geom_sizes is None else self.geom_sizes[index]
        look = None if self.look is None else self.look(index)
        return self._renderers.later(self.qpos[index], camera, height, width, sizes, look)

    @cached_property
    def _renderers(self) -> Renderers:
        from sim.rendering.render import Renderers

        return Renderers(self.model, self.scene)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs for bit-identical results."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Release resources that outlive the object."""
        if renderers := vars(self).pop("_renderers", None):
            renderers.close()
