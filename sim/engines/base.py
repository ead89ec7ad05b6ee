"""Interface of physics engines: batched state, joint targets, parameters, cameras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import rotate_back
from sim.parameters import ROWS, parameters
from sim.scenes import SCENE, Scene

if TYPE_CHECKING:  # MuJoCo takes a while to import
    from sim.objects.parts import PartPoses
    from sim.rendering.gl import mujoco
    from sim.rendering.looks import Appearance
    from sim.rendering.render import Renderers

Setter = Callable[[np.ndarray, np.ndarray], None]
"""Function that writes values (k,) of one parameter to the environments with indices (k,)."""


class Engine(ABC):
    """n simulations of one scene. Arrays are live views or fresh tensors; their first dimension is the environment."""

    robot: RobotSpec
    scene: Scene
    num_envs: int
    model: mujoco.MjModel
    """MuJoCo model of the scene; every engine has this model, for rendering."""
    qpos: np.ndarray
    """Generalized positions (n, nq) in MuJoCo's order, on the host."""
    look: Callable[[int], Appearance] | None = None
    """Function from an environment's index to its randomized appearance; None: all environments look alike."""
    geom_sizes: np.ndarray | None = None
    """Sizes (n, ngeom, 3) of the geoms, m; None: all environments have the sizes of the model."""
    threads: int = 0
    """Threads of physics and of batches of pictures on the CPU; 0: one per core."""
    takes_device: ClassVar[bool] = False
    """Whether the engine can run on a GPU; False: the engine runs on the CPU only."""
    device: torch.device
    """Device of the simulation and of all tensors."""
    parameters: dict[str, Setter]
    """Setters by parameter; a value takes effect at its environment's next reset. Units: see `sim.parameters`."""
    settable: ClassVar[frozenset[str]] = frozenset(row.name for row in ROWS if row.owner == "engine")
    """Names and patterns in the table of parameters that the engine can set."""

    @classmethod
    def can_randomize(cls, robot: RobotSpec, scene: Scene) -> set[str]:
        """Return the names of the parameters that affect this robot and scene; the scene is not built for this."""
        rows = parameters(robot, scene, "engine")
        return {name for name, row in rows.items() if row.name in cls.settable}

    @abstractmethod
    def joint_state(self) -> tuple[Tensor, Tensor]:
        """Return joint positions and velocities (n, J), rad and rad/s, in the order of the robot spec."""

    @abstractmethod
    def gripper_width(self) -> Tensor:
        """Return the distance between the fingers (n, 1), m."""

    @abstractmethod
    def base_motion(self) -> tuple[Tensor, Tensor]:
        """Return pose (n, 7) and velocity (n, 6) of the trunk. The linear velocity is in the world frame, the angular
        velocity in the trunk's frame."""

    def base_state(self) -> dict[str, Tensor]:
        """Return the views base_position, base_quat, base_velocity and base_angular_velocity of `RobotState`."""
        pose, speed = self.base_motion()
        return {
            "base_position": pose[:, :3], "base_quat": pose[:, 3:],
            "base_velocity": rotate_back(pose[:, 3:], speed[:, :3]), "base_angular_velocity": speed[:, 3:],
        }  # fmt: skip

    @abstractmethod
    def foot_state(self) -> dict[str, Tensor]:
        """Return the views foot_position, foot_velocity and foot_force of `RobotState`, at most one physics step old.

        After a reset, the views are those of the initial posture, but engines that compute forces only in steps return
        zero force until the next step.
        """

    @abstractmethod
    def joint_torque(self) -> Tensor:
        """Return motor torques (n, J) in the last physics step, N m."""

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
        """Add velocities (n, 3), m/s, world frame, to the robots' trunks; a row of zeros has no effect."""

    @abstractmethod
    def object_qpos(self, name: str) -> Tensor:
        """Return the positions (n, 7 + J) of an object: position, m, quaternion w x y z, and its J own joints."""

    def object_pose(self, name: str) -> Tensor:
        """Return the poses (n, 7) of an object, or of a tracked part: position, m, and quaternion w x y z."""
        if name in self._part_poses:
            whole, poses = self._part_poses[name]
            return poses(name, self.object_qpos(whole))
        return self.object_qpos(name)[:, :7]

    def object_joints(self) -> dict[str, Tensor]:
        """Return the positions (n, J), rad and m, of the own joints of each object that has any."""
        return {name: self.object_qpos(name)[:, 7:] for name in self.scene.joints}

    @abstractmethod
    def step(self, joints: Tensor, gripper: Tensor) -> None:
        """Simulate joint targets (n, ticks, J), rad, and gripper widths (n, ticks, 1), m. A tick is one period of the
        robot's command rate, or one physics step if that is longer."""

    def set_springs(self, stiffness: np.ndarray, damping: np.ndarray, torque: np.ndarray) -> None:
        """Set motor gains (n, J), N m/rad and N m s/rad, and feedforward torques (n, J), N m, from the next step on.
        Twins of robots whose joint commands contain gains call this. Randomized scales apply to these gains, too."""
        raise NotImplementedError(f"{type(self).__name__} cannot change gains between steps")

    @abstractmethod
    def reset(
        self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray], origins: np.ndarray | None = None
    ) -> None:
        """Reset environments `ids`: robots at rest at joint positions (k, J), gripper open, trunk upright above
        `origins` (k, 3), or at these shifts and orientations (k, 7) from where it stands; objects at poses (k, 7), or
        positions (k, 7 + J) as of `object_qpos`."""

    def clone(self) -> Engine | None:
        """Return a second engine with n simulations of the scene, which are not reset and have nominal gains; None if
        cloning is too expensive."""
        return None

    def copy_from(self, ids: np.ndarray, other: Engine) -> None:
        """Copy environments `ids` from the clone `other`. The next physics step updates views of feet and motors."""
        raise NotImplementedError(f"{type(self).__name__} has no clones")

    def initial_qpos(
        self, joints: np.ndarray, objects: dict[str, np.ndarray], origins: np.ndarray | None = None
    ) -> np.ndarray:
        """Return positions (k, nq) in MuJoCo's order, with joints at (k, J), gripper open, trunk at `origins` (k, 3 or
        7) as of `reset`, default: on the first tile of uneven ground, and objects at poses (k, 7)."""
        qpos = np.tile(self.model.qpos0, (len(joints), 1))
        if origins is None and self.scene.ground is not None:
            origins = self.scene.ground.origins(np.zeros((1, 2), int))
        if origins is not None and self.robot.base:
            start = self.model.joint(self.robot.base.body).qposadr[0]
            qpos[:, start : start + 3] += origins[:, :3]
            if origins.shape[1] > 3:
                qpos[:, start + 3 : start + 7] = origins[:, 3:]
        qpos[:, self._joint_qpos] = joints
        if self.robot.gripper and self.robot.fingers:
            qpos[:, self._finger_qpos] = self.robot.gripper.width / len(self._finger_qpos)
        for name, pose in objects.items():
            start = self._object_qpos[name]
            qpos[:, start : start + pose.shape[1]] = pose
        return qpos

    def _qpos_of(self, joints: Iterable[str]) -> np.ndarray:
        return np.array([self.model.joint(name).qposadr[0] for name in joints], int)

    @cached_property
    def _joint_qpos(self) -> np.ndarray:
        return self._qpos_of(self.robot.joint_names)

    @cached_property
    def _finger_qpos(self) -> np.ndarray:
        return self._qpos_of(self.robot.gripper.joints if self.robot.gripper else ())

    @cached_property
    def _object_qpos(self) -> dict[str, int]:
        names = [thing.name for thing in self.scene.objects]
        return dict(zip(names, self._qpos_of(SCENE + name for name in names).tolist(), strict=True))

    @cached_property
    def _part_poses(self) -> dict[str, tuple[str, PartPoses]]:
        """Return the object of each tracked part, and the kinematics of its parts."""
        from sim.objects.parts import PartPoses

        made = {thing.name: PartPoses(thing, self.device) for thing in self.scene.objects if thing.tracked}
        return {name: (whole, poses) for whole, poses in made.items() for name in poses.parts}

    @abstractmethod
    def place(self, name: str, pose: np.ndarray) -> None:
        """Move an object to poses (n, 7), or positions (n, 7 + J), and stop it; the robots keep their state."""

    @abstractmethod
    def diverged(self) -> Tensor:
        """Return (n,) bool: True where physics diverged: a value is not finite, or a speed exceeds `max_speeds`."""

    def render_batch(
        self, ids: np.ndarray, camera: str, height: int, width: int, qpos: np.ndarray | None = None
    ) -> np.ndarray:
        """Render environments `ids` (k,) on `threads` threads; return RGB images (k, height, width, 3) uint8, fast.
        `qpos` (k, nq): positions to draw instead of the present ones."""
        sizes, looks = self.geom_sizes, None if self.look is None else [self.look(int(i)) for i in ids]
        sizes = None if sizes is None else sizes[ids]
        return self._renderers.batch(self.qpos[ids] if qpos is None else qpos, camera, height, width, sizes, looks)

    def render(self, index: int, camera: str, height: int, width: int, quality: str = "fast") -> np.ndarray:
        """Return an RGB image (height, width, 3) uint8 of one environment, in the quality "fast" (policies), "video" or
        "high" (stills)."""
        return self._renderers.frame(self.qpos[index], camera, height, width, quality, *self._drawn(index))

    def render_later(self, index: int, camera: str, height: int, width: int) -> Future[np.ndarray]:
        """Start a thread that renders one environment in its present state; return the future of an RGB image (height,
        width, 3) uint8 in fast quality."""
        return self._renderers.later(self.qpos[index], camera, height, width, *self._drawn(index))

    def _drawn(self, index: int) -> tuple[np.ndarray | None, Appearance | None]:
        """Return the geom sizes and the appearance of one environment."""
        sizes, look = self.geom_sizes, self.look
        return None if sizes is None else sizes[index], None if look is None else look(index)

    @cached_property
    def _renderers(self) -> Renderers:
        from sim.rendering.render import Renderers

        return Renderers(self.model, self.scene, self.threads)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, from which a resumed run is bit-identical."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Release threads and rendering contexts."""
        if renderers := vars(self).pop("_renderers", None):
            renderers.close()
