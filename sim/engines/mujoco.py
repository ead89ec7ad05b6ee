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
from sim.scenes import Scene, robot_model

MAX_ACTION_DELAY = 0.08
"""Longest action delay that the compiled ring buffers hold, s."""
_STATE = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl")


def compile_model(robot: RobotSpec, scene: Scene, mjcf: str = "") -> mujoco.MjModel:
    """Compile the scene around the robot's own MJCF."""
    path = robot_model(robot, mjcf)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise UserError(f"{path} is not a readable MJCF file: {' '.join(str(error).split())}") from None
    spec.option.timestep = scene.timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10  # stops grasped objects from creeping out of the fingers
    spec.option.iterations, spec.option.ls_iterations = 10, 20
    for key in list(spec.keys):
        spec.delete(key)
    fingers = robot.gripper.joints if robot.gripper else ()
    missing = {*robot.joint_names, *fingers} - {j.name for j in spec.joints}
    if missing:
        raise UserError(f"{path} lacks the joints {sorted(missing)} of robot {robot.name!r}")
    for body in spec.bodies[1:]:
        body.gravcomp = 1.0  # real arms compensate their own weight
        if robot.collision_bodies and body.name not in robot.collision_bodies:
            for geom in body.geoms:
                geom.contype = geom.conaffinity = 0
    for actuator in spec.actuators:
        actuator.nsample = math.ceil(MAX_ACTION_DELAY / scene.timestep) + 1
        actuator.delay = scene.timestep
        actuator.interp = 0  # a robot holds the last command that arrived
        if robot.gripper and actuator.target not in robot.joint_names:
            # The model's fingers press with 2 N; stiffen them until the real gripper's force is the limit.
            actuator.gainprm, actuator.biasprm = actuator.gainprm * 10, actuator.biasprm * 10
            actuator.forcerange = [-robot.gripper.force, robot.gripper.force]
    for joint in spec.joints:
        if robot.gripper and joint.name in robot.gripper.joints:
            joint.armature = 0.3  # kg, the geared motor behind 15 g fingers; without it contacts are soft
    _furnish(spec, scene)
    try:
        return spec.compile()
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} does not compile: {reason}; do its meshes lie where it says?") from None


def _furnish(spec: mujoco.MjSpec, scene: Scene) -> None:
    world = spec.worldbody
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1280, 960
    spec.visual.headlight.ambient = [0.4, 0.4, 0.4]
    spec.add_texture(
        name="table", type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.55, 0.57, 0.6], rgb2=[0.5, 0.52, 0.55], width=256, height=256,
    )  # fmt: skip
    material = spec.add_material(name="table", texrepeat=[8, 8])
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "table"
    world.add_geom(name="table", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[2, 2, 0.1], material="table")
    world.add_light(pos=[0.6, -0.6, 2.0], dir=[-0.2, 0.3, -1], castshadow=True)
    for box in scene.boxes:
        body = world.add_body(name=box.name, pos=[0.5, 0, box.size])
        body.add_freejoint(name=box.name)
        body.add_geom(
            name=box.name, type=mujoco.mjtGeom.mjGEOM_BOX, size=[box.size] * 3, mass=box.mass, condim=4,
            friction=[box.friction, 0.02, 0.001], solref=[0.01, 1], rgba=box.rgba, priority=1,
        )  # fmt: skip
    for camera in scene.cameras:
        forward = np.subtract(camera.target, camera.position)
        right = np.cross(forward, [0, 0, 1])
        up = np.cross(right, forward)
        frame = np.stack(
            [right / np.linalg.norm(right), up / np.linalg.norm(up), -forward / np.linalg.norm(forward)], 1
        )
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, frame.ravel())
        world.add_camera(name=camera.name, pos=camera.position, quat=quat, fovy=camera.fovy)


class MujocoEngine(Engine):
    """Results are the same floats at any number of threads."""

    def __init__(self, robot: RobotSpec, scene: Scene, num_envs: int, threads: int = 0, mjcf: str = ""):
        self.robot, self.scene, self.num_envs = robot, scene, num_envs
        self.model = model = compile_model(robot, scene, mjcf)
        self.batch = batch.Batch(model, nsim=num_envs, nthread=threads)
        self.qpos, self.qvel = self.batch.bind("qpos"), self.batch.bind("qvel")
        joints = [model.joint(name) for name in robot.joint_names]
        self._q = np.array([j.qposadr[0] for j in joints])
        self._v = np.array([j.dofadr[0] for j in joints])
        fingers = robot.gripper.joints if robot.gripper else ()
        self._fingers = np.array([model.joint(name).qposadr[0] for name in fingers])
        self._objects = {b.name: model.joint(b.name).qposadr[0] for b in scene.boxes}
        self._actuators, self._gripper_actuators = self._find_actuators()
        self._substeps = max(1, round(1 / (robot.command_rate * scene.timestep)))
        self._moved: set[int] = set()
        self.parameters = self._make_parameters()
        self._renderers: dict[tuple[int, int, str], Any] = {}

    def _find_actuators(self) -> tuple[np.ndarray, list[int]]:
        m = self.model
        of_joint = {
            m.joint(m.actuator_trnid[a, 0]).name: a
            for a in range(m.nu)
            if m.actuator_trntype[a] == mujoco.mjtTrn.mjTRN_JOINT
        }
        absent = [name for name in self.robot.joint_names if name not in of_joint]
        if absent:
            raise UserError(f"the model of {self.robot.name!r} has no position actuator for the joints {absent}")
        arm = [of_joint[name] for name in self.robot.joint_names]
        return np.array(arm), [a for a in range(m.nu) if a not in arm]

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
        """Put an object at rest at poses (n, 7) while the robots go on."""
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
