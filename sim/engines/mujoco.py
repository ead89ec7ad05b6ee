"""MuJoCo on the CPU: one `mujoco.batch.Batch`, native threads, per-environment model parameters."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import batch
from torch import Tensor

from robot_rl.errors import UserError
from robot_rl.spec import RobotSpec
from sim.engines.base import Engine, Setter
from sim.engines.model import MAX_ACTION_DELAY, compile_model, find_servos
from sim.scenes import Scene

_STATE = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl")


class MujocoEngine(Engine):
    """Results are the same floats at any number of threads."""

    def __init__(
        self, robot: RobotSpec, scene: Scene, num_envs: int, threads: int = 0, mjcf: str = "", device: str = "auto"
    ):
        if device not in ("auto", "cpu"):
            raise UserError(f"engine 'mujoco' runs on the CPU, not on {device!r}; use --engine genesis for a GPU")
        self.robot, self.scene, self.num_envs, self.device = robot, scene, num_envs, torch.device("cpu")
        self.model = model = compile_model(robot, scene, mjcf)
        self.batch = batch.Batch(model, nsim=num_envs, nthread=threads)
        self.qpos, self.qvel = self.batch.bind("qpos"), self.batch.bind("qvel")
        joints = [model.joint(name) for name in robot.joint_names]
        self._q = np.array([j.qposadr[0] for j in joints])
        self._v = np.array([j.dofadr[0] for j in joints])
        fingers = robot.gripper.joints if robot.gripper else ()
        self._fingers = np.array([model.joint(name).qposadr[0] for name in fingers], int)
        self._objects = {b.name: model.joint(b.name).qposadr[0] for b in scene.boxes}
        self._actuators = find_servos(model, robot.joint_names, robot.name)
        self._gripper_actuators = [a for a in range(model.nu) if a not in self._actuators]
        self._substeps = max(1, round(1 / (robot.command_rate * scene.timestep)))
        self._moved: set[int] = set()
        self.parameters = self._make_parameters()
        self._renderers: dict[tuple[int, int, str], Any] = {}

    # ---- state -------------------------------------------------------------------------------------------------
    def joint_state(self) -> tuple[Tensor, Tensor]:
        q, v = self.qpos[:, self._q], self.qvel[:, self._v]
        return torch.from_numpy(q).float(), torch.from_numpy(v).float()

    def gripper_width(self) -> Tensor:
        return torch.from_numpy(self.qpos[:, self._fingers].sum(1, keepdims=True)).float()

    def object_pose(self, name: str) -> Tensor:
        start = self._objects[name]
        return torch.from_numpy(self.qpos[:, start : start + 7].astype(np.float32))

    def diverged(self) -> np.ndarray:
        # MuJoCo resets a simulation that blows up and goes on; all it leaves behind is a warning.
        bad = [mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC]
        finite = np.isfinite(self.qpos).all(1) & (np.abs(self.qvel).max(1) < 1e3)
        return ~finite | (self.batch.warning[:, [int(w) for w in bad], 1] > 0).any(1)

    # ---- motion ------------------------------------------------------------------------------------------------
    def step(self, joints: Tensor, gripper: Tensor) -> None:
        ticks = joints.shape[1]
        control = np.empty((self.num_envs, ticks, self.model.nu))
        control[..., self._actuators] = joints.numpy()
        if self._gripper_actuators:
            assert self.robot.gripper is not None
            scale = self.model.actuator_ctrlrange[self._gripper_actuators, 1] / self.robot.gripper.width
            control[..., self._gripper_actuators] = gripper.numpy() * scale
        control = np.repeat(control, self._substeps, axis=1)
        self.batch.rollout(control.shape[1], control=control, record=())

    def reset(self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray]) -> None:
        if self._moved:
            self.batch.set_const(np.sort(ids))
        ids = np.asarray(ids)
        self.batch.reset(np.sort(ids), stage=mujoco.mjtStage.mjSTAGE_NONE)
        self.qpos[ids[:, None], self._q] = joints
        if self.robot.gripper:
            self.qpos[ids[:, None], self._fingers] = self.robot.gripper.width / len(self._fingers)
        for name, pose in objects.items():
            start = self._objects[name]
            self.qpos[ids, start : start + 7] = pose
        # The delay lines hold commands: until new ones arrive, they must ask for the present posture.
        control = np.zeros((len(ids), self.model.nu))
        control[:, self._actuators] = joints
        control[:, self._gripper_actuators] = self.model.actuator_ctrlrange[self._gripper_actuators, 1]
        self.batch.bind("ctrl")[ids] = control
        history = self.batch.bind("history")
        for a in range(self.model.nu):
            adr, n = self.model.actuator_historyadr[a], self.model.actuator_history[a, 0]
            # Layout of a delay line: user, cursor, n times, n values (mjModel, actuator_history).
            history[ids, adr + 2 + n : adr + 2 + 2 * n] = control[:, a : a + 1]

    def place(self, name: str, pose: np.ndarray) -> None:
        start, speed = self._objects[name], self.model.joint(name).dofadr[0]
        self.qpos[:, start : start + 7] = pose
        self.qvel[:, speed : speed + 6] = 0

    # ---- parameters --------------------------------------------------------------------------------------------
    def _make_parameters(self) -> dict[str, Setter]:
        b, m = self.batch, self.model
        out: dict[str, Setter] = {
            "robot.action_delay": lambda ids, v: b.expand("actuator_delay").__setitem__(
                ids, np.clip(v, self.scene.timestep, MAX_ACTION_DELAY)[:, None]
            ),
            "robot.stiffness_scale": self._scaler("actuator_gainprm", self._actuators, 0, "actuator_biasprm", 1),
            "robot.damping_scale": self._scaler("actuator_biasprm", self._actuators, 2),
            "robot.joint_friction": self._writer("dof_frictionloss", self._v),
            "robot.armature_scale": self._scaler("dof_armature", self._v, None),
        }
        for box in self.scene.boxes:
            body, geom = m.body(box.name).id, m.geom(box.name).id
            out[f"{box.name}.mass"] = self._mass(body)
            out[f"{box.name}.size"] = self._size(body, geom)
            out[f"{box.name}.friction"] = self._writer("geom_friction", np.array([geom]), 0)
        return out

    def _writer(self, name: str, rows: np.ndarray, column: int | None = None) -> Setter:
        def write(ids: np.ndarray, values: np.ndarray) -> None:
            array = self.batch.expand(name)
            if column is None:
                array[ids[:, None], rows] = values[:, None]
            else:
                array[ids[:, None], rows, column] = values[:, None]

        return write

    def _scaler(self, name: str, rows: np.ndarray, column: int | None, twin: str = "", twin_column: int = 0) -> Setter:
        """Scale a model field; a position servo's stiffness stands in two fields, kp and -kp."""

        def write(ids: np.ndarray, values: np.ndarray) -> None:
            for field, col in ((name, column), (twin, twin_column)):
                if field:
                    key = (rows,) if col is None else (rows, col)
                    nominal = getattr(self.model, field)[key]
                    self.batch.expand(field)[(ids[:, None], *key)] = nominal * values[:, None]

        return write

    def _mass(self, body: int) -> Setter:
        def write(ids: np.ndarray, values: np.ndarray) -> None:
            self.batch.expand("body_mass")[ids, body] = values
            self._set_inertia(ids, body)

        return write

    def _size(self, body: int, geom: int) -> Setter:
        def write(ids: np.ndarray, values: np.ndarray) -> None:
            expand = self.batch.expand
            expand("geom_size")[ids, geom] = values[:, None]
            expand("geom_rbound")[ids, geom] = values * math.sqrt(3)
            expand("geom_aabb")[ids, geom, 3:] = values[:, None]
            expand("bvh_aabb")[ids, self.model.body_bvhadr[body], 3:] = values[:, None]
            self._set_inertia(ids, body)

        return write

    def _set_inertia(self, ids: np.ndarray, body: int) -> None:
        """A cube's inertia, from its mass and size alone: a running product would remember earlier episodes."""
        mass = self.batch.expand("body_mass")[ids, body]
        edge = 2 * self.batch.expand("geom_size")[ids, self.model.body_geomadr[body], 0]
        self.batch.expand("body_inertia")[ids, body] = (mass * edge**2 / 6)[:, None]
        self._moved.add(body)

    # ---- pictures ----------------------------------------------------------------------------------------------
    def render(self, index: int, camera: str, height: int, width: int, quality: str = "fast") -> np.ndarray:
        key = (height, width, quality)
        if key not in self._renderers:
            from sim.render import SceneRenderer

            self._renderers[key] = SceneRenderer(self.model, height, width, quality)
        sizes = self.batch.expanded("geom_size")
        return self._renderers[key].render(self.qpos[index], camera, None if sizes is None else sizes[index])

    # ---- resume ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        state = {f"state.{k}": self.batch.bind(k).copy() for k in _STATE}
        for field in sorted(batch.MODEL_FIELDS):
            values = self.batch.expanded(field)
            if values is not None:
                state[f"model.{field}"] = np.array(values)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, values in state.items():
            kind, field = key.split(".", 1)
            if kind == "state":
                self.batch.bind(field)[:] = values
            else:
                self.batch.expand(field)[:] = values
