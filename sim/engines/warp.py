"""MuJoCo Warp on the CPU or a CUDA GPU: the MuJoCo engine's model, parameters and resets, other physics steps.

Steps, commands and views stay on the device. At a reset, `MujocoEngine` sets up the environments on the host with their
parameters, masses, derived constants and delay lines, and their rows are copied to the device. Differences to MuJoCo:

- float32, not float64: see `docs/results.md` for how far trajectories part.
- Action delays are rounded up to whole physics steps, as times in float32 are not exact.
- A world has room for a fixed number of contacts (`warp_world.capacity`); an environment that needs more diverged.
- A diverged environment stays as it is until its reset; MuJoCo resets it by itself.
"""

import copy
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.rows import copy_rows
from sim.engines.base import Engine
from sim.engines.model import max_speeds
from sim.engines.mujoco import MujocoEngine, foot_sensors
from sim.engines.servos import find_servos
from sim.engines.warp_world import World, capacity, nominal
from sim.scenes import SCENE, Scene

logger = logging.getLogger(__name__)


class WarpEngine(Engine):
    """MuJoCo Warp physics in float32, captured in one graph per physics step."""

    takes_device = True

    def __init__(
        self, robot: RobotSpec, scene: Scene, num_envs: int, threads: int = 0, mjcf: str = "", device: str = "auto"
    ):
        """`threads`: threads of the host that set up environments at a reset; 0: all."""
        self.robot, self.scene, self.num_envs = robot, scene, num_envs
        self._host = host = MujocoEngine(robot, scene, num_envs, threads, mjcf)
        self.model, self.parameters = host.model, host.parameters
        model = host.model
        self.world = world = World(model, num_envs, device)
        self.device = world.device
        self.state, self.seen, self.fields = world.state, world.views, world.fields
        self._q = self._indices(self._joint_qpos)
        self._fingers = self._indices(self._finger_qpos)
        self._v = self._indices([model.joint(name).dofadr[0] for name in robot.joint_names])
        servos = find_servos(model, robot.joint_names, robot.name)
        grippers = np.setdiff1d(np.arange(model.nu), servos)
        self._servos, self._grippers = self._indices(servos), self._indices(grippers)
        width = robot.gripper.width if robot.gripper else 1.0
        self._grip = torch.from_numpy(model.actuator_ctrlrange[grippers, 1] / width).float().to(self.device)
        self._base = model.joint(robot.base.body) if robot.base else None
        sensors = foot_sensors(model, robot.base.feet) if robot.base else {}
        self._feet = {view: self._indices(places) for view, places in sensors.items()}
        self._max_speeds = torch.from_numpy(max_speeds(model, robot)).float().to(self.device)
        self._substeps = max(1, round(1 / (robot.command_rate * scene.timestep)))
        self._warned = False

    def _indices(self, places: Any) -> Tensor:
        return torch.as_tensor(np.asarray(places, np.int64), device=self.device)

    # ---- views: copies, on the device --------------------------------------------------------------------------
    @property
    def qpos(self) -> np.ndarray:  # type: ignore[override]
        """Return a copy of the positions (n, nq)."""
        return self.state["qpos"].cpu().numpy().copy()

    @property
    def qvel(self) -> np.ndarray:
        """Return a copy of the velocities (n, nv)."""
        return self.state["qvel"].cpu().numpy().copy()

    @property
    def geom_sizes(self) -> np.ndarray | None:  # type: ignore[override]
        return self._host.geom_sizes

    def joint_state(self) -> tuple[Tensor, Tensor]:
        return self.state["qpos"].index_select(1, self._q), self.state["qvel"].index_select(1, self._v)

    def gripper_width(self) -> Tensor:
        return self.state["qpos"].index_select(1, self._fingers).sum(1, keepdim=True)

    def base_motion(self) -> tuple[Tensor, Tensor]:
        assert self._base is not None
        q, v = self._base.qposadr[0], self._base.dofadr[0]
        return self.state["qpos"][:, q : q + 7].clone(), self.state["qvel"][:, v : v + 6].clone()

    def foot_state(self) -> dict[str, Tensor]:
        return {view: self.seen["sensordata"].index_select(1, places) for view, places in self._feet.items()}

    def joint_torque(self) -> Tensor:
        return self.seen["actuator_force"].index_select(1, self._servos)

    def object_qpos(self, name: str) -> Tensor:
        start = self._object_qpos[name]
        return self.state["qpos"][:, start : start + 7 + self.scene.joints.get(name, 0)].clone()

    def diverged(self) -> Tensor:
        """Return (n,) bool: True where physics diverged, or where a world had no room for all of its contacts."""
        position, velocity = self.state["qpos"], self.state["qvel"]
        sane = position.isfinite().all(1) & (velocity.abs() < self._max_speeds).all(1)  # False for NaN
        return ~sane | self.world.full()

    # ---- commands ----------------------------------------------------------------------------------------------
    def step(self, joints: Tensor, gripper: Tensor) -> None:
        control = self.state["ctrl"]
        for target, width in zip(joints.float().unbind(1), gripper.float().unbind(1), strict=True):
            control.index_copy_(1, self._servos, target)
            control.index_copy_(1, self._grippers, width * self._grip)
            for _ in range(self._substeps):
                self.world.step()

    def push(self, velocity: Tensor) -> None:
        assert self._base is not None
        start = self._base.dofadr[0]
        self.state["qvel"][:, start : start + 3] += velocity.float()

    def place(self, name: str, pose: np.ndarray) -> None:
        start, speed = self._object_qpos[name], self.model.joint(SCENE + name).dofadr[0]
        self.state["qpos"][:, start : start + pose.shape[1]] = self._tensor(pose)
        self.state["qvel"][:, speed : speed + 6 + self.scene.joints.get(name, 0)] = 0.0

    def set_springs(self, stiffness: np.ndarray, damping: np.ndarray, torque: np.ndarray) -> None:
        if self.scene.motors == "dc" and torque.any():
            raise ConfigError("engine 'warp' has no feedforward torque of DC motors; use engine mujoco")
        self._host.set_springs(stiffness, damping, torque)
        self._write_fields(np.arange(self.num_envs))

    # ---- resets ------------------------------------------------------------------------------------------------
    def reset(
        self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray], origins: np.ndarray | None = None
    ) -> None:
        ids = np.asarray(ids)
        self._host.reset(ids, joints, objects, origins)
        self._write_fields(ids)
        at = self._indices(ids)
        for name, rows in (self.state | self.seen).items():
            rows[at] = self._tensor(self._host.batch.bind(name)[ids]).view(len(ids), *rows.shape[1:])
        self._empty(at)

    def _empty(self, at: Tensor) -> None:
        """Forget that worlds `at` (k,) had no room for their contacts, and say so once."""
        if not self._warned and bool(self.world.full()[at].any()):
            self._warned = True
            logger.warning(
                "engine 'warp' dropped contacts and ended the episode: a world has room for %d contacts and %d "
                "constraints; use engine mujoco, or let fewer shapes collide", *capacity(self.model)
            )  # fmt: skip
        self.world.overflow[at] = 0

    def _write_fields(self, ids: np.ndarray) -> None:
        """Copy the parameters of environments `ids` from the host to the device."""
        at, expanded = self._indices(ids), self._host.batch.expanded
        for name in self.world.shared:
            if (values := expanded(name)) is not None:
                rows = values[ids]
                self._field(name)[at] = self._tensor(self._whole_steps(rows) if name == "actuator_delay" else rows)
        if fixed := [name for name in self.world.fixed if expanded(name) is not None]:
            raise ConfigError(f"engine 'warp' has one value of {', '.join(fixed)} for all environments; take mujoco")

    def _whole_steps(self, delay: np.ndarray) -> np.ndarray:
        """Round delays up to whole physics steps, less half a step: the command held at that time is the right one,
        whatever the rounding of times."""
        step = self.scene.timestep
        return (np.ceil(delay / step - 1e-6) - 0.5) * step

    def _field(self, name: str) -> Tensor:
        """Return the rows (n, ...) of a model field."""
        if name not in self.fields:
            if self.fields is self.world.fields:
                return self.world.field(name)
            values = torch.as_tensor(nominal(self.model, name), dtype=torch.float32, device=self.device)
            self.fields[name] = values.repeat(self.num_envs, *[1] * values.dim())
        return self.fields[name]

    def _tensor(self, values: np.ndarray) -> Tensor:
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.asarray(values, np.float32)).to(self.device)

    def clone(self) -> Engine:
        """Return a second engine for resets, which has no worlds and cannot step."""
        other = copy.copy(self)
        other._host = self._host.clone()
        other.parameters = other._host.parameters
        other.state, other.seen = ({k: v.clone() for k, v in of.items()} for of in (self.state, self.seen))
        other.fields = {}
        return other

    def copy_from(self, ids: np.ndarray, other: Engine) -> None:
        assert isinstance(other, WarpEngine)
        self._host.copy_from(ids, other._host)
        at = self._indices(ids)
        for mine, theirs in ((self.state, other.state), (self.seen, other.seen)):
            for name, rows in mine.items():
                copy_rows(rows, at, theirs[name])
        for name, rows in other.fields.items():
            copy_rows(self._field(name), at, rows)
        self._empty(at)

    # ---- resume ------------------------------------------------------------------------------------------------
    @property
    def _parts(self) -> dict[str, dict[str, Tensor]]:
        return {"state": self.state, "seen": self.seen, "full": {"overflow": self.world.overflow}}

    def state_dict(self) -> dict[str, Any]:
        state = {f"host.{k}": v for k, v in self._host.state_dict().items() if not k.startswith("state.")}
        parts = self._parts | {"field": self.fields}
        return state | {f"{k}.{name}": v.cpu().numpy().copy() for k, part in parts.items() for name, v in part.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Any]] = {}
        for key, values in state.items():
            kind, name = key.split(".", 1)
            parts.setdefault(kind, {})[name] = values
        self._host.load_state_dict(parts["host"])
        for kind, mine in self._parts.items():
            for name, rows in mine.items():
                rows.copy_(torch.as_tensor(parts[kind][name]))
        saved = parts.get("field", {})
        for name in {*saved, *self.fields}:
            self._field(name).copy_(torch.as_tensor(saved.get(name, nominal(self.model, name))))

    def close(self) -> None:
        super().close()
        self._host.close()
        self.parameters = {}
