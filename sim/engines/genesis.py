"""Genesis on the CPU or a CUDA GPU: one batched scene, built from the same edited models as the MuJoCo engine.

Genesis imports bodies, inertias, joints with limits, damping, armature and friction, position servos with force limits,
joint equalities, and geoms with friction, condim and solref. It silently ignores other parts of an MJCF. This module
replaces those parts:

- <option>: time step, integrator, cone, impratio and iterations are passed to the scene.
- `gravcomp`: gravity compensation is per entity, so the arm is one entity and each object is another. A legged robot
  has no compensation.
- Contact `priority`: Genesis takes the larger friction of a contact pair, MuJoCo that of the object or foot. Ground and
  arm therefore get the minimum friction, 0.01; a finger slides over the table. Genesis averages solref and solimp, so
  ground and legged robot get the solref and solimp of the feet.
- Collision masks apply within an entity only: all colliding geoms collide with the scene.
- `nsample` and `delay` of actuators: commands pass a delay line with MuJoCo's semantics.
- Sensors: foot positions are those of the bodies. Foot force is the vertical contact force, which equals MuJoCo's touch
  sensor on level ground. Genesis solves contacts only in a step, so forces are 0 between a reset and the next step.
- Tendons: Genesis gives each finger the full gain and force of the gripper's tendon servo; this module distributes gain
  and force by the tendon's coefficients.

Differences that remain: torsional friction follows an object's randomized friction (in MuJoCo it is constant), and all
environments share an object's size, so `<object>.size` is not a parameter of this engine.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError
from sim.engines.base import Engine
from sim.engines.genesis_parameters import Parameters
from sim.engines.genesis_world import World, start
from sim.engines.model import MAX_ACTION_DELAY, max_speeds
from sim.scenes import Scene

_OWN = ("line", "lag", "torque", "broken")
"""Attributes to save besides the solver state and the parameters."""


class GenesisEngine(Engine):
    """Genesis physics in float32; MuJoCo renders the same scene at the same joint positions."""

    takes_device = True
    settable = Engine.settable - {"<object>.size", "<object>.joint_friction", "<object>.joint_damping"}

    def __init__(
        self, robot: RobotSpec, scene: Scene, num_envs: int, threads: int = 0, mjcf: str = "", device: str = "auto"
    ):
        if threads > 1:  # Genesis reads the number of threads once per process, when it starts
            raise ConfigError(
                f"engine 'genesis' runs on one thread of the CPU, not on {threads}; for more, set the environment "
                "variable QD_NUM_THREADS before the program starts, and leave `threads` at 0"
            )
        if scene.motors != "ideal":
            raise ConfigError("engine 'genesis' has ideal motors only; use engine mujoco or warp for DC motors")
        self.robot, self.scene, self.num_envs = robot, scene, num_envs
        self._gs = gs = start(device)
        self.device = torch.device(gs.device)
        self.world = world = World(gs, robot, scene, num_envs, mjcf)
        self.model, self.solver = world.model, world.solver
        self._base = self.model.joint(robot.base.body) if robot.base else None
        self._feet = [world.body.get_link(name) for name in (robot.base.feet if robot.base else ())]
        limits = np.empty(self.model.nv)  # in the order of Genesis
        limits[world.dofs] = max_speeds(self.model, robot)
        self._max_speeds = torch.from_numpy(limits).to(self.device)
        self._grip = torch.from_numpy(world.grip).float().to(self.device)
        self._substeps = max(1, round(1 / (robot.command_rate * scene.timestep)))
        depth, joints = math.ceil(MAX_ACTION_DELAY / scene.timestep), len(world.joints)
        self._line = torch.zeros(num_envs, depth, joints + len(world.fingers), device=self.device)
        self._lag = torch.ones(num_envs, dtype=torch.long, device=self.device)
        self._torque = torch.zeros(num_envs, joints, device=self.device)
        self._broken = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._parameters = Parameters(world, scene, num_envs, self.device)
        self.parameters = self._parameters.setters
        self.reset(np.arange(num_envs), np.tile(robot.home, (num_envs, 1)), {})

    @property
    def qpos(self) -> np.ndarray:  # type: ignore[override]
        """Return a copy of the positions (n, nq) in MuJoCo's order."""
        return self.solver.get_qpos().cpu().numpy()[:, self.world.qs]

    @property
    def qvel(self) -> np.ndarray:
        """Return a copy of the velocities (n, nv) in MuJoCo's order."""
        return self.solver.get_dofs_velocity().cpu().numpy()[:, self.world.dofs]

    def joint_state(self) -> tuple[Tensor, Tensor]:
        solver, at = self.solver, self.world.joints
        return solver.get_dofs_position(at).clone(), solver.get_dofs_velocity(at).clone()

    def gripper_width(self) -> Tensor:
        if not self.world.fingers:
            return torch.zeros(self.num_envs, 1, device=self.device)
        return self.solver.get_dofs_position(self.world.fingers).sum(1, keepdim=True)

    def base_motion(self) -> tuple[Tensor, Tensor]:
        assert self._base is not None
        pose = self.solver.get_qpos(self._at(self.world.qs, self._base.qposadr[0], 7))
        speed = self.solver.get_dofs_velocity(self._at(self.world.dofs, self._base.dofadr[0], 6))
        return pose.clone(), speed.clone()

    def foot_state(self) -> dict[str, Tensor]:
        at = [link.idx for link in self._feet]
        force = self.world.body.get_links_net_contact_force()[:, [link.idx_local for link in self._feet], 2]
        return {
            "foot_position": self.solver.get_links_pos(at).flatten(1).clone(),
            "foot_velocity": self.solver.get_links_vel(at).flatten(1).clone(),
            "foot_force": force.clone(),
        }

    @staticmethod
    def _at(places: np.ndarray, start: int, count: int) -> list[int]:
        return places[start : start + count].tolist()

    def joint_torque(self) -> Tensor:
        return self._torque.clone()

    def object_qpos(self, name: str) -> Tensor:
        return self.world.objects[name].get_qpos().clone()

    def diverged(self) -> Tensor:
        position, velocity = self.solver.get_qpos(), self.solver.get_dofs_velocity()
        sane = position.isfinite().all(1) & (velocity.abs() < self._max_speeds).all(1)  # False for NaN
        return ~sane | self._broken | self.solver.get_error_envs_mask()

    def step(self, joints: Tensor, gripper: Tensor) -> None:
        target = torch.cat([joints.float(), gripper.float() * self._grip], -1)
        target = target.repeat_interleave(self._substeps, 1)
        line, depth, ticks = torch.cat([self._line, target], 1), self._line.shape[1], target.shape[1]
        late = depth + torch.arange(ticks, device=self.device) - self._lag[:, None]
        delayed = line.gather(1, late[..., None].expand(-1, -1, line.shape[2]))
        self._line = line[:, -depth:].clone()
        dofs = self.world.joints + self.world.fingers
        for tick in range(ticks):
            self.solver.control_dofs_position(delayed[:, tick], dofs)
            if tick == ticks - 1:  # after the step, Genesis returns the torque of the next one
                self._torque = self.solver.get_dofs_control_force(self.world.joints).clone()
            self._advance()

    def _advance(self) -> None:
        try:
            self.world.step()
        except self._gs.GenesisException:
            # Genesis checks for divergence every tenth step, and raises if any environment diverged.
            broken = self.solver.get_error_envs_mask()
            if not broken.any():
                raise
            self._broken |= broken
            ids = broken.nonzero().squeeze(-1)
            self._put(ids, self.initial_qpos(np.tile(self.robot.home, (len(ids), 1)), {}))
            self.world.step()

    def _put(self, ids: Tensor, qpos: np.ndarray) -> None:
        """Set environments `ids` to positions (k, nq) in MuJoCo's order, at rest."""
        ordered = torch.empty(qpos.shape, device=self.device)
        ordered[:, self.world.qs] = torch.from_numpy(qpos).float().to(self.device)
        self.solver.collider.reset(ids)
        self.solver.set_qpos(ordered, envs_idx=ids)
        self.solver.set_dofs_velocity(torch.zeros(len(ids), self.solver.n_dofs, device=self.device), envs_idx=ids)

    def reset(
        self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray], origins: np.ndarray | None = None
    ) -> None:
        ids = np.asarray(ids)
        self._parameters.write(ids)
        at = torch.as_tensor(ids, device=self.device)
        self._put(at, self.initial_qpos(joints, objects, origins))
        # Commands in the delay line must hold this posture until the first new command arrives.
        width = self.robot.gripper.width if self.robot.gripper else 0.0
        posture = np.concatenate([joints, np.tile(self.world.grip * width, (len(ids), 1))], 1)
        self._line[at] = torch.from_numpy(posture).float().to(self.device)[:, None]
        # Delays are rounded up to whole physics steps.
        step, delay = self.scene.timestep, self._parameters.values["robot.action_delay"][ids]
        lag = np.ceil(np.clip(np.nan_to_num(delay), step, MAX_ACTION_DELAY) / step - 1e-6)
        self._lag[at] = torch.as_tensor(lag, device=self.device).long()
        self._torque[at], self._broken[at] = 0.0, False

    def push(self, velocity: Tensor) -> None:
        assert self._base is not None
        dofs = self._at(self.world.dofs, self._base.dofadr[0], 3)
        self.solver.set_dofs_velocity(self.solver.get_dofs_velocity(dofs) + velocity.float(), dofs)

    def place(self, name: str, pose: np.ndarray) -> None:
        entity = self.world.objects[name]
        moved = torch.cat([torch.from_numpy(pose).float().to(self.device), entity.get_qpos()[:, pose.shape[1] :]], 1)
        entity.set_qpos(moved, zero_velocity=True)

    def close(self) -> None:
        super().close()
        self.world.scene.destroy()

    def state_dict(self) -> dict[str, Any]:
        arrays = self.solver.__getstate__().arrays
        state = {f"solver.{k}": torch.as_tensor(v).cpu().numpy().copy() for k, v in arrays.items()}
        state |= {f"engine.{name}": getattr(self, f"_{name}").cpu().numpy().copy() for name in _OWN}
        return state | self._parameters.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from genesis.engine.states.solvers import SolverCheckpoint
        from genesis.utils.array_class import CHECKPOINT_KINDS

        arrays = {k.removeprefix("solver."): v for k, v in state.items() if k.startswith("solver.")}
        self.solver.__setstate__(SolverCheckpoint(arrays=arrays, configs={}, kinds=CHECKPOINT_KINDS))
        for name in _OWN:
            getattr(self, f"_{name}").copy_(torch.as_tensor(state[f"engine.{name}"]))
        self._parameters.load_state_dict(state)
