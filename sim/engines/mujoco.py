"""MuJoCo on the CPU: one `mujoco.batch.Batch` with native threads and model parameters per environment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from sim.engines.base import Engine, Setter
from sim.engines.model import MAX_ACTION_DELAY, compile_model, foot_shapes, max_speeds
from sim.engines.servos import DC_DAMPING, DC_RESISTANCE, DC_STIFFNESS, find_servos, springs_of
from sim.engines.trunk import trunk_inertia
from sim.parameters import TRUNK, nominal
from sim.rendering.gl import batch, mujoco
from sim.scenes import SCENE, Scene

_SERVO = ("stiffness", "damping", "strength")
_BAD = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADQACC) + 1)
"""MuJoCo's warnings about divergence of positions, velocities and accelerations."""
_STATE = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl")


class MujocoEngine(Engine):
    """MuJoCo physics; results are bit-identical for any number of threads."""

    def __init__(
        self, robot: RobotSpec, scene: Scene, num_envs: int, threads: int = 0, mjcf: str = "", device: str = "auto"
    ):
        self.robot, self.scene, self.num_envs, self.device = robot, scene, num_envs, torch.device("cpu")
        self.model = model = compile_model(robot, scene, mjcf)
        self.threads = threads
        joints = [model.joint(name) for name in robot.joint_names]
        self._v = np.array([j.dofadr[0] for j in joints])
        self._at, self._speed_at = _span(self._joint_qpos), _span(self._v)
        self._base = model.joint(robot.base.body) if robot.base else None
        feet = foot_sensors(model, robot.base.feet) if robot.base else {}
        self._feet = {view: _span(places) for view, places in feet.items()}
        self._actuators = find_servos(model, robot.joint_names, robot.name)
        self._max_speeds = max_speeds(model, robot)
        self._driven = _span(np.array(self._actuators))
        self._gripper_actuators = [a for a in range(model.nu) if a not in self._actuators]
        self._substeps = max(1, round(1 / (robot.command_rate * scene.timestep)))
        self._recorded: list[np.ndarray] | None = None
        self._allocate()

    def _allocate(self) -> None:
        """Create n simulations with nominal parameters."""
        model, num_envs = self.model, self.num_envs
        self.batch = batch.Batch(model, nsim=num_envs, nthread=self.threads)
        self.qpos, self.qvel = self.batch.bind("qpos"), self.batch.bind("qvel")
        self._forces, self._sensed = self.batch.bind("actuator_force"), self.batch.bind("sensordata")
        self._servo = {f"robot.{name}_scale": np.ones(num_envs) for name in _SERVO}
        kp, kd = springs_of(model, self._actuators)
        self._springs = [np.tile(values, (num_envs, 1)) for values in (kp, kd, np.zeros_like(kp))]
        """Stiffness, damping and feedforward torque (n, J) of the servos, before randomized scales."""
        self._shift = np.zeros_like(self._springs[0])
        """Offset (n, J) of the set-points of DC motors, rad, which stands for the feedforward torque."""
        self._trunk = {name: np.full(num_envs, nominal(name)) for name in TRUNK} if self.robot.base else {}
        self._adopted: dict[str, np.ndarray] = {}
        """Model fields that `copy_from` writes."""
        self._changed: set[str] = set()
        """Names of parameters that were set at least once."""
        self._stale = False
        """Whether masses or inertias have changed since MuJoCo's derived constants were computed."""
        self.parameters = self._make_parameters()

    def clone(self) -> MujocoEngine:
        other = copy.copy(self)
        other._allocate()
        return other

    def copy_from(self, ids: np.ndarray, other: Engine) -> None:
        assert isinstance(other, MujocoEngine)
        warned = ids[(self.batch.warning[ids, :, 1] > 0).any(1)]
        if len(warned):
            self.batch.reset(np.sort(warned), stage=mujoco.mjtStage.mjSTAGE_NONE)
        self.batch.state[ids] = other.batch.state[ids]
        for field, values in other._varied.items():
            if field not in self._adopted:
                self._adopted[field] = self.batch.expand(field)
            self._adopted[field][ids] = values[ids]
        for mine, theirs in ((self._servo, other._servo), (self._trunk, other._trunk)):
            for name, values in mine.items():
                values[ids] = theirs[name][ids]

    @cached_property
    def _varied(self) -> dict[str, np.ndarray]:
        """Return the model fields that differ between simulations."""
        fields = {field: self.batch.expanded(field) for field in sorted(batch.MODEL_FIELDS)}
        return {field: values for field, values in fields.items() if values is not None}

    def joint_state(self) -> tuple[Tensor, Tensor]:
        return _view(self.qpos[:, self._at]), _view(self.qvel[:, self._speed_at])

    def gripper_width(self) -> Tensor:
        return _view(self.qpos[:, self._finger_qpos].sum(1, keepdims=True))

    def base_motion(self) -> tuple[Tensor, Tensor]:
        assert self._base is not None
        q, v = self._base.qposadr[0], self._base.dofadr[0]
        return _view(self.qpos[:, q : q + 7]), _view(self.qvel[:, v : v + 6])

    def foot_state(self) -> dict[str, Tensor]:
        data = _view(self._sensed)
        return {view: data[:, places] for view, places in self._feet.items()}

    def joint_torque(self) -> Tensor:
        return _view(self._forces[:, self._driven])

    def push(self, velocity: Tensor) -> None:
        assert self._base is not None
        start, pushed = self._base.dofadr[0], velocity.numpy()
        ids = np.flatnonzero(pushed.any(1))
        self.qvel[ids, start : start + 3] += pushed[ids]

    def object_qpos(self, name: str) -> Tensor:
        start = self._object_qpos[name]
        return _view(self.qpos[:, start : start + 7 + self.scene.joints.get(name, 0)])

    def diverged(self) -> Tensor:
        sane = np.isfinite(self.qpos).all(1) & (np.abs(self.qvel) < self._max_speeds).all(1)  # False for NaN
        # MuJoCo resets a diverged simulation by itself and only sets a warning.
        return torch.from_numpy(~sane | (self.batch.warning[:, _BAD, 1] > 0).any(1))

    def step(self, joints: Tensor, gripper: Tensor) -> None:
        control = self._control(joints, gripper)
        if self._recorded is not None:
            self._recorded.append(control)
        self.batch.rollout(control.shape[1], control=control, record=())

    def track(self, joints: Tensor, gripper: Tensor) -> np.ndarray:
        """Do as `step`, and return the joint positions (n, T, J), rad, at the end of each of the T commands."""
        control = self._control(joints, gripper)
        places = self.batch.rollout(control.shape[1], control=control, record=("qpos",))["qpos"]
        every: np.ndarray = places[:, self._substeps - 1 :: self._substeps, self._at]
        return every

    def _control(self, joints: Tensor, gripper: Tensor) -> np.ndarray:
        """Return the actuators' controls (n, physics steps, actuators)."""
        control = np.empty((self.num_envs, joints.shape[1], self._substeps, self.model.nu))
        control[..., self._driven] = joints.numpy()[:, :, None]
        if self.scene.motors == "dc":
            control[..., self._actuators] += self._shift[:, None, None]
        if self._gripper_actuators:
            assert self.robot.gripper is not None
            scale = self.model.actuator_ctrlrange[self._gripper_actuators, 1] / self.robot.gripper.width
            control[..., self._gripper_actuators] = (gripper.numpy() * scale)[:, :, None]
        return control.reshape(self.num_envs, -1, self.model.nu)

    @contextmanager
    def recording(self, commands: list[np.ndarray]) -> Iterator[None]:
        """Append the controls (n, physics steps, actuators) of every `step` to a list, for replay in plain MuJoCo."""
        self._recorded = commands
        yield
        self._recorded = None

    def reset(
        self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray], origins: np.ndarray | None = None
    ) -> None:
        ids = np.asarray(ids)
        if self._changed & set(self._servo):
            self._write_servos(ids)
        if self._changed & set(self._trunk):
            self._write_trunk(ids)
        if self._stale:
            self.batch.set_const(np.sort(ids))
            # It gives simulations a derived field each once the field's values differ, which wider ranges may bring.
            self.__dict__.pop("_varied", None)
        self.batch.reset(np.sort(ids), stage=mujoco.mjtStage.mjSTAGE_NONE)
        self.qpos[ids] = self.initial_qpos(joints, objects, origins)
        # Commands in the delay lines must hold this posture until the first new command arrives.
        control = np.zeros((len(ids), self.model.nu))
        control[:, self._actuators] = joints + self._shift[ids]
        control[:, self._gripper_actuators] = self.model.actuator_ctrlrange[self._gripper_actuators, 1]
        self.batch.bind("ctrl")[ids] = control
        history = self.batch.bind("history")
        for a in range(self.model.nu):
            adr, n = self.model.actuator_historyadr[a], self.model.actuator_history[a, 0]
            # Layout of a delay line: user, cursor, n times, n values (mjModel, actuator_history).
            history[ids, adr + 2 + n : adr + 2 + 2 * n] = control[:, a : a + 1]
        if self._feet:
            self.batch.forward(np.sort(ids))  # update the sensors, which are computed in physics steps only

    def set_springs(self, stiffness: np.ndarray, damping: np.ndarray, torque: np.ndarray) -> None:
        self._springs = [stiffness, damping, torque]
        self._write_servos(np.arange(self.num_envs))

    def place(self, name: str, pose: np.ndarray) -> None:
        start, speed = self._object_qpos[name], self.model.joint(SCENE + name).dofadr[0]
        self.qpos[:, start : start + pose.shape[1]] = pose
        self.qvel[:, speed : speed + 6 + self.scene.joints.get(name, 0)] = 0

    def _make_parameters(self) -> dict[str, Setter]:
        m = self.model
        out: dict[str, Setter] = {
            "robot.action_delay": self._delay,
            "robot.joint_friction": partial(self._write, "dof_frictionloss", (self._v,)),
            "robot.armature_scale": self._armature,
        }
        for name in self._servo:
            out[name] = partial(self._store, self._servo, name)
        if self.robot.base:
            for name in self._trunk:
                out[name] = partial(self._store, self._trunk, name)
            others = [self.robot.base.body, *(SCENE + name for name in self._object_qpos)]
            trunk, *objects = [m.body(name).id for name in others]
            self._links = np.setdiff1d(m.body_mass.nonzero()[0], [trunk])
            self._links = self._links[~np.isin(m.body_rootid[self._links], objects)]
            out["robot.link_mass_scale"] = self._link_mass
            feet = [g for foot in self.robot.base.feet for g in foot_shapes(m, foot)]
            out["ground.friction"] = partial(self._write, "geom_friction", (np.array(feet), 0))
        for thing in self.scene.objects:
            root = m.body(SCENE + thing.name).id
            bodies = np.flatnonzero(m.body_rootid == root)
            dofs = np.flatnonzero(np.isin(m.dof_bodyid, bodies))[6:]
            setters: dict[str, Setter] = {
                "mass": partial(self._mass, bodies[1:] if thing.fixed and len(bodies) > 1 else bodies),
                "friction": partial(self._write, "geom_friction", (np.isin(m.geom_bodyid, bodies).nonzero()[0], 0)),
                "joint_friction": partial(self._write, "dof_frictionloss", (dofs,)),
                "joint_damping": partial(self._write, "dof_damping", (dofs,)),
            }
            if "size" in thing.parameters:
                setters["size"] = partial(self._size, root, thing.width)
            out |= {f"{thing.name}.{name}": setters[name] for name in thing.acting}
        return out

    def _delay(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Delay commands by at least a step. At a whole number of steps MuJoCo would round now up, now down."""
        steps = values / self.scene.timestep
        whole = (steps > 1.5) & (np.abs(steps - steps.round()) < 1e-6)
        delay = np.clip(values, self.scene.timestep, MAX_ACTION_DELAY)
        self.batch.expand("actuator_delay")[ids] = np.where(whole, delay - 1e-6, delay)[:, None]

    def _write(self, field: str, index: tuple[Any, ...], ids: np.ndarray, values: np.ndarray) -> None:
        """Write one value per environment to all elements of a model field at `index`."""
        self.batch.expand(field)[(ids[:, None], *index)] = values[:, None]

    def _store(self, parameters: dict[str, np.ndarray], name: str, ids: np.ndarray, values: np.ndarray) -> None:
        """Store a parameter's values; `reset` writes them together with other parameters of the same model fields."""
        parameters[name][ids] = values
        self._changed.add(name)

    def _write_servos(self, ids: np.ndarray) -> None:
        """Write the servos' gains, feedforward torques and force limits; the strength scale applies to all of these."""
        m, expand, rows, at = self.model, self.batch.expand, self._actuators, ids[:, None]
        stiffness, damping, strength = (self._servo[f"robot.{n}_scale"][ids][:, None] for n in _SERVO)
        kp, kd, torque = (values[ids] for values in self._springs)
        expand("actuator_forcerange")[at, rows] = m.actuator_forcerange[rows] * strength[..., None]
        if self.scene.motors == "dc":
            kp = np.maximum(kp, 1e-3)  # without stiffness no set-point would give a torque
            self._shift[ids] = torque / (kp * stiffness)
            expand("actuator_gainprm")[at, rows, DC_RESISTANCE] = m.actuator_gainprm[rows, DC_RESISTANCE] / strength
            expand("actuator_gainprm")[at, rows, DC_STIFFNESS] = kp * stiffness * strength
            expand("actuator_gainprm")[at, rows, DC_DAMPING] = kd * damping * strength
            return
        expand("actuator_gainprm")[at, rows, 0] = kp * stiffness * strength
        expand("actuator_biasprm")[at, rows, 0] = torque * strength
        expand("actuator_biasprm")[at, rows, 1] = -kp * stiffness * strength
        expand("actuator_biasprm")[at, rows, 2] = -kd * damping * strength

    def _armature(self, ids: np.ndarray, values: np.ndarray) -> None:
        self.batch.expand("dof_armature")[ids[:, None], self._v] = self.model.dof_armature[self._v] * values[:, None]
        self._stale = True

    def _write_trunk(self, ids: np.ndarray) -> None:
        assert self.robot.base is not None
        body = self.model.body(self.robot.base.body)
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, body.iquat)
        turn = axes.reshape(3, 3)
        nominal = turn @ np.diag(body.inertia) @ turn.T
        values = {name: v[ids] for name, v in self._trunk.items()}
        mass, centre, inertia = trunk_inertia(float(body.mass[0]), body.ipos, nominal, values)
        principal, frame = np.linalg.eigh(inertia)
        frame[np.linalg.det(frame) < 0, :, 0] *= -1  # make it right-handed
        expand = self.batch.expand
        expand("body_mass")[ids, body.id], expand("body_ipos")[ids, body.id] = mass, centre
        expand("body_inertia")[ids, body.id] = principal
        quats = np.empty((len(ids), 4))
        for quat, axes in zip(quats, frame.reshape(-1, 9), strict=True):
            mujoco.mju_mat2Quat(quat, axes)
        expand("body_iquat")[ids, body.id] = quats
        self._stale = True

    def _link_mass(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Scale masses and inertias of all bodies of the robot except the trunk."""
        expand, links = self.batch.expand, self._links
        expand("body_mass")[ids[:, None], links] = self.model.body_mass[links] * values[:, None]
        expand("body_inertia")[ids[:, None], links] = self.model.body_inertia[links] * values[:, None, None]
        self._stale = True

    def _mass(self, bodies: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        """Give the bodies of an object a total mass, with the distribution of the model."""
        share = self.model.body_mass[bodies] / self.model.body_mass[bodies].sum()
        self.batch.expand("body_mass")[ids[:, None], bodies] = values[:, None] * share
        self._set_inertia(ids, bodies)

    def _size(self, body: int, nominal: float, ids: np.ndarray, values: np.ndarray) -> None:
        """Scale all geoms of an object to half a width."""
        expand, m, scale = self.batch.expand, self.model, (values / nominal)[:, None, None]
        geoms = slice(m.body_geomadr[body], m.body_geomadr[body] + m.body_geomnum[body])
        boxes = slice(m.body_bvhadr[body], m.body_bvhadr[body] + m.body_bvhnum[body])
        for field, rows in (("geom_size", geoms), ("geom_aabb", geoms), ("bvh_aabb", boxes)):
            expand(field)[ids, rows] = getattr(m, field)[rows] * scale
        expand("geom_rbound")[ids, geoms] = m.geom_rbound[geoms] * scale[..., 0]
        self._set_inertia(ids, np.array([body]))

    def _set_inertia(self, ids: np.ndarray, bodies: np.ndarray) -> None:
        """Scale the compiled inertias of an object's bodies with their masses and squared sizes."""
        m, geoms = self.model, self.model.body_geomadr[bodies]
        mass = self.batch.expand("body_mass")[ids[:, None], bodies] / m.body_mass[bodies]
        size = self.batch.expand("geom_size")[ids[:, None], geoms, 0] / m.geom_size[geoms, 0]
        self.batch.expand("body_inertia")[ids[:, None], bodies] = (mass * size**2)[..., None] * m.body_inertia[bodies]
        self._stale = True

    @property
    def geom_sizes(self) -> np.ndarray | None:  # type: ignore[override]
        return self.batch.expanded("geom_size")

    def close(self) -> None:
        super().close()
        # The setters refer to this engine. Without that cycle, its threads end with the last reference and not in a
        # garbage collection, which would wait for them forever in a forked process.
        self.parameters = {}

    def state_dict(self) -> dict[str, Any]:
        state = {f"state.{k}": self.batch.bind(k).copy() for k in _STATE}
        for field in sorted(batch.MODEL_FIELDS):
            values = self.batch.expanded(field)
            if values is not None:
                state[f"model.{field}"] = np.array(values)
        stored = self._servo | self._trunk
        return state | {f"value.{name}": values.copy() for name, values in stored.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, values in state.items():
            kind, field = key.split(".", 1)
            if kind == "state":
                self.batch.bind(field)[:] = values
            elif kind == "value":
                (self._servo if field in self._servo else self._trunk)[field][:] = values
            else:
                self.batch.expand(field)[:] = values


def foot_sensors(model: mujoco.MjModel, feet: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the indices of each foot view in MuJoCo's sensordata, by view."""
    at: dict[str, list[int]] = {}
    for view in ("position", "velocity", "force"):
        for foot in feet:
            sensor = model.sensor(f"{foot}.{view}")
            at.setdefault(f"foot_{view}", []).extend(range(sensor.adr[0], sensor.adr[0] + sensor.dim[0]))
    return {view: np.array(places) for view, places in at.items()}


def _view(values: np.ndarray) -> Tensor:
    """Return a copy in single precision. For few environments torch takes three times as long as numpy."""
    with np.errstate(over="ignore"):  # of a diverged simulation
        return torch.from_numpy(values.astype(np.float32))


def _span(indices: np.ndarray) -> slice | np.ndarray:
    """Return contiguous indices as a slice, since indexing with a slice copies nothing."""
    contiguous = len(indices) and (np.diff(indices) == 1).all()
    return slice(int(indices[0]), int(indices[-1]) + 1) if contiguous else indices
