"""Genesis on the CPU or a CUDA GPU: one batched scene, built from the same edited models as MuJoCo's.

What Genesis reads of them: bodies, inertias, joints with limits, damping, armature and friction, position servos with
force limits, joint equalities, shapes with their masks, friction, condim and solref. What it ignores without a word,
and what is done about it here:

- everything under <option>: time step, integrator, cone, impratio and iterations are handed to the scene again;
- `gravcomp` of bodies: an entity compensates as a whole, so the robot is one entity and each box another;
- contact `priority`: Genesis takes the larger friction of a pair where MuJoCo asks the box alone. Robot and table get
  the smallest friction there is, 0.01, so that a box's own friction decides; a finger slides over the table;
- torsional friction follows a box's randomized friction, in MuJoCo it stays;
- masks between entities: the ones of an MJCF hold inside it only, so all shapes that collide, collide with the scene;
- `nsample` and `delay` of actuators: the commands pass an explicit delay line with MuJoCo's semantics;
- tendons: the servo of the gripper's tendon is put on each finger with its full gain and force, so that two fingers
  press twice as hard; they are divided by the tendon's coefficients here.

A box's size is shared by all environments, so `<box>.size` is no parameter of this engine.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from robot_rl.errors import UserError
from robot_rl.spec import RobotSpec
from sim.engines.base import Engine, Setter
from sim.engines.model import MAX_ACTION_DELAY, box_model_spec, compile_model, find_servos, robot_model_spec
from sim.scenes import Box, Scene

SLIPPERY = 0.01
"""Smallest friction coefficient that Genesis takes."""


def start(device: str) -> Any:
    """Import and initialize Genesis, once per process; "auto" is the GPU where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device {device!r}; use cpu, cuda or auto")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA GPU is usable by PyTorch here; use --device cpu, or install PyTorch with CUDA")
    hook = sys.excepthook
    try:
        import genesis as gs
    except ImportError as error:
        raise UserError(f'engine genesis needs genesis-world ({error}): pip install "robot-rl[sim]"') from None
    sys.excepthook = hook  # Genesis puts its own there, which prints every error twice
    wanted = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    if not gs._initialized:
        gs.init(backend=getattr(gs, wanted), logging_level="error")
    elif device != "auto" and gs.backend != getattr(gs, wanted):
        raise UserError(
            f"Genesis runs on {gs.backend.name} in this process already; use --device auto, or a new process"
        )
    return gs


class GenesisEngine(Engine):
    """Physics in float32. Pictures are MuJoCo's, of the same scene at the same joint positions."""

    box_parameters = ("mass", "friction")

    def __init__(
        self, robot: RobotSpec, scene: Scene, num_envs: int, threads: int = 0, mjcf: str = "", device: str = "auto"
    ):
        self.robot, self.scene, self.num_envs = robot, scene, num_envs
        self._gs = gs = start(device)
        self.device = torch.device(gs.device)
        self.model = compile_model(robot, scene, mjcf)
        self._build(mjcf)
        self.solver = self.world.rigid_solver
        self._map_joints()
        self._arm = [self._dof(name) for name in robot.joint_names]
        self._hand = [self._dof(name) for name in (robot.gripper.joints if robot.gripper else ())]
        self._stiffness, self._damping = self._servo_gains()
        self._grip = self._set_gripper()
        self._substeps = max(1, round(1 / (robot.command_rate * scene.timestep)))
        depth = math.ceil(MAX_ACTION_DELAY / scene.timestep)
        self._line = torch.zeros(num_envs, depth, len(self._arm) + len(self._hand), device=self.device)
        self._lag = torch.ones(num_envs, dtype=torch.long, device=self.device)
        self._broken = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.parameters = self._make_parameters()
        self._renderers: dict[tuple[int, int, str], Any] = {}
        self.reset(np.arange(num_envs), np.tile(robot.home, (num_envs, 1)), {})

    # ---- building ----------------------------------------------------------------------------------------------
    def _build(self, mjcf: str) -> None:
        gs, option = self._gs, self.model.opt
        self.world = gs.Scene(
            sim_options=gs.options.SimOptions(dt=option.timestep, substeps=1, gravity=tuple(option.gravity)),
            rigid_options=gs.options.RigidOptions(
                batch_dofs_info=True,
                batch_links_info=True,
                integrator=gs.integrator.implicitfast,
                friction_cone=gs.friction_cone.elliptic,
                contact_resolution=gs.contact_resolution.convex,
                enable_torsional_friction=True,
                impratio=option.impratio,
                iterations=option.iterations,
                ls_iterations=option.ls_iterations,
            ),
            profiling_options=gs.options.ProfilingOptions(show_FPS=False),
            show_viewer=False,
        )
        rigid, slippery = gs.materials.Rigid, {"friction": SLIPPERY, "friction_torsional": 0.0}
        self.world.add_entity(gs.morphs.Plane(), material=rigid(**slippery))
        spec = robot_model_spec(self.robot, self.scene, mjcf)
        for name in ("meshdir", "texturedir"):  # from memory there is no folder that these could be relative to
            setattr(spec, name, str(Path(spec.modelfiledir) / getattr(spec, name)))
        entities = [(spec, rigid(**slippery, gravity_compensation=1.0))]
        entities += [(box_model_spec(box), rigid()) for box in self.scene.boxes]
        self._entities = []
        for model, material in entities:
            model.compile()
            morph = gs.morphs.MJCF(file=model.to_xml(), visualization=False, align=False, default_armature=None)
            self._entities.append(self.world.add_entity(morph, material=material))
        self._boxes = {b.name: e for b, e in zip(self.scene.boxes, self._entities[1:], strict=True)}
        self.world.build(n_envs=self.num_envs)

    def _map_joints(self) -> None:
        """Where each of MuJoCo's positions (nq,) and velocities (nv,) stands in Genesis's order."""
        self._qs, self._dofs = np.zeros(self.model.nq, int), np.zeros(self.model.nv, int)
        for entity in self._entities:
            for joint in entity.joints:
                if joint.n_dofs:
                    of = self.model.joint(joint.name)
                    self._qs[of.qposadr[0] + np.arange(joint.n_qs)] = joint.qs_idx
                    self._dofs[of.dofadr[0] + np.arange(joint.n_dofs)] = joint.dofs_idx
                    # Softness of limits and dry friction: Genesis has its own where the file does not say any.
                    joint.set_sol_params(np.concatenate([self.model.jnt_solref[of.id], self.model.jnt_solimp[of.id]]))

    def _dof(self, joint: str) -> int:
        return int(self._dofs[self.model.joint(joint).dofadr[0]])

    def _servo_gains(self) -> tuple[np.ndarray, np.ndarray]:
        """Stiffness and damping (J,) of the arm's position servos, N m/rad and N m s/rad."""
        servos = find_servos(self.model, self.robot.joint_names, self.robot.name)
        return self.model.actuator_gainprm[servos, 0], -self.model.actuator_biasprm[servos, 2]

    def _set_gripper(self) -> np.ndarray:
        """Give every finger its share of the servo it hangs on; target positions (F,) per opening of the gripper."""
        m, gripper, grip = self.model, self.robot.gripper, np.zeros(len(self._hand))
        for k, name in enumerate(gripper.joints if gripper else ()):
            for a in range(m.nu):
                joints, shares = _transmission(m, a)
                if m.joint(name).id not in joints:
                    continue
                share, total, at = shares[joints.index(m.joint(name).id)], sum(shares), [self._hand[k]]
                stiffness, damping = -m.actuator_biasprm[a, 1:3]
                self.solver.set_dofs_kp([stiffness * share * total], at)
                self.solver.set_dofs_kv([damping * share * total], at)
                if m.actuator_forcelimited[a]:
                    low, high = m.actuator_forcerange[a] * share
                    self.solver.set_dofs_force_range([low], [high], at)
                assert gripper is not None
                grip[k] = m.actuator_ctrlrange[a, 1] * m.actuator_gainprm[a, 0] / stiffness / total / gripper.width
        return grip

    # ---- state -------------------------------------------------------------------------------------------------
    @property
    def qpos(self) -> np.ndarray:
        """Positions (n, nq) in MuJoCo's order; a copy."""
        return self.solver.get_qpos().cpu().numpy()[:, self._qs]

    @property
    def qvel(self) -> np.ndarray:
        """Velocities (n, nv) in MuJoCo's order; a copy."""
        return self.solver.get_dofs_velocity().cpu().numpy()[:, self._dofs]

    def joint_state(self) -> tuple[Tensor, Tensor]:
        solver = self.solver
        return solver.get_dofs_position(self._arm).cpu().clone(), solver.get_dofs_velocity(self._arm).cpu().clone()

    def gripper_width(self) -> Tensor:
        if not self._hand:
            return torch.zeros(self.num_envs, 1)
        return self.solver.get_dofs_position(self._hand).sum(1, keepdim=True).cpu()

    def object_pose(self, name: str) -> Tensor:
        return self._boxes[name].get_qpos().cpu().clone()

    def diverged(self) -> np.ndarray:
        finite = np.isfinite(self.qpos).all(1) & (np.abs(self.qvel).max(1) < 1e3)  # false for NaN, too
        return ~finite | (self._broken | self.solver.get_error_envs_mask()).cpu().numpy()

    # ---- motion ------------------------------------------------------------------------------------------------
    def step(self, joints: Tensor, gripper: Tensor) -> None:
        grip = torch.as_tensor(self._grip, dtype=torch.float32)
        target = torch.cat([joints.float(), gripper.float() * grip], -1).to(self.device)
        target = target.repeat_interleave(self._substeps, 1)
        line, depth, ticks = torch.cat([self._line, target], 1), self._line.shape[1], target.shape[1]
        late = depth + torch.arange(ticks, device=self.device) - self._lag[:, None]
        delayed = line.gather(1, late[..., None].expand(-1, -1, line.shape[2]))
        self._line = line[:, -depth:].clone()
        dofs = self._arm + self._hand
        for tick in range(ticks):
            self.solver.control_dofs_position(delayed[:, tick], dofs)
            self._advance()

    def _advance(self) -> None:
        try:
            self.world.step(update_visualizer=False)
        except self._gs.GenesisException:
            # Every tenth step Genesis looks for environments that blew up, and stops all of them for the sake of one.
            broken = self.solver.get_error_envs_mask()
            if not broken.any():
                raise
            self._broken |= broken
            ids = broken.nonzero().squeeze(-1)
            self._put(ids, torch.from_numpy(self.model.qpos0).float().expand(len(ids), -1))
            self.world.step(update_visualizer=False)

    def _put(self, ids: Tensor, qpos: Tensor) -> None:
        """Put environments `ids` at rest at positions (k, nq) in MuJoCo's order."""
        ordered = torch.empty(qpos.shape, device=self.device)
        ordered[:, self._qs] = qpos.to(self.device)
        self.solver.collider.reset(ids)
        self.solver.set_qpos(ordered, envs_idx=ids)
        self.solver.set_dofs_velocity(torch.zeros(len(ids), self.solver.n_dofs, device=self.device), envs_idx=ids)

    def reset(self, ids: np.ndarray, joints: np.ndarray, objects: dict[str, np.ndarray]) -> None:
        qpos = np.tile(self.model.qpos0, (len(ids), 1))
        qpos[:, [self.model.joint(name).qposadr[0] for name in self.robot.joint_names]] = joints
        width = self.robot.gripper.width if self.robot.gripper else 0.0
        for name in self.robot.gripper.joints if self.robot.gripper else ():
            qpos[:, self.model.joint(name).qposadr[0]] = width / len(self._hand)
        for name, pose in objects.items():
            start = self.model.joint(name).qposadr[0]
            qpos[:, start : start + 7] = pose
        at = torch.as_tensor(np.asarray(ids), device=self.device)
        self._put(at, torch.from_numpy(qpos).float())
        # The delay line holds commands: until new ones arrive, they must ask for the present posture.
        posture = np.concatenate([joints, np.tile(self._grip * width, (len(ids), 1))], 1)
        self._line[at] = torch.from_numpy(posture).float().to(self.device)[:, None]
        self._broken[at] = False

    def place(self, name: str, pose: np.ndarray) -> None:
        self._boxes[name].set_qpos(torch.from_numpy(pose).float().to(self.device), zero_velocity=True)

    # ---- parameters --------------------------------------------------------------------------------------------
    def _make_parameters(self) -> dict[str, Setter]:
        solver, arm = self.solver, self._arm
        armature = self.model.dof_armature[[self.model.joint(n).dofadr[0] for n in self.robot.joint_names]]
        out: dict[str, Setter] = {
            "robot.action_delay": self._set_delay,
            "robot.stiffness_scale": lambda ids, v: solver.set_dofs_kp(
                self._tensor(v[:, None] * self._stiffness), arm, ids
            ),
            "robot.damping_scale": lambda ids, v: solver.set_dofs_kv(
                self._tensor(v[:, None] * self._damping), arm, ids
            ),
            "robot.joint_friction": lambda ids, v: solver.set_dofs_frictionloss(
                self._tensor(np.repeat(v[:, None], len(arm), 1)), arm, ids
            ),
            "robot.armature_scale": lambda ids, v: solver.set_dofs_armature(
                self._tensor(v[:, None] * armature), arm, ids
            ),
        }
        for box in self.scene.boxes:
            out[f"{box.name}.mass"] = self._mass(box)
            out[f"{box.name}.friction"] = self._friction(box)
        return out

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def _set_delay(self, ids: np.ndarray, values: np.ndarray) -> None:
        step = self.scene.timestep
        lag = np.ceil(np.clip(values, step, MAX_ACTION_DELAY) / step - 1e-6)  # the newest command that is old enough
        self._lag[torch.as_tensor(ids, device=self.device)] = torch.as_tensor(lag, device=self.device).long()

    def _mass(self, box: Box) -> Setter:
        link = self._boxes[box.name].links[-1].idx

        def write(ids: np.ndarray, values: np.ndarray) -> None:
            self.solver.set_links_mass(self._tensor(values[:, None]), [link], ids)
            inertia = values[:, None, None, None] * (2 * box.size) ** 2 / 6 * np.eye(3)
            self.solver.set_links_inertia(self._tensor(inertia), [link], ids)

        return write

    def _friction(self, box: Box) -> Setter:
        geoms = [geom.idx for geom in self._boxes[box.name].geoms]

        def write(ids: np.ndarray, values: np.ndarray) -> None:
            ratio = np.repeat(values[:, None] / box.friction, len(geoms), 1)
            self.solver.set_geoms_friction_ratio(self._tensor(ratio), geoms, ids)

        return write

    # ---- pictures ----------------------------------------------------------------------------------------------
    def render(self, index: int, camera: str, height: int, width: int, quality: str = "fast") -> np.ndarray:
        key = (height, width, quality)
        if key not in self._renderers:
            from sim.render import SceneRenderer

            self._renderers[key] = SceneRenderer(self.model, height, width, quality)
        return self._renderers[key].render(self.qpos[index], camera, None)

    def close(self) -> None:
        self.world.destroy()

    # ---- resume ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        arrays = self.solver.__getstate__().arrays
        state = {f"solver.{k}": torch.as_tensor(v).cpu().numpy().copy() for k, v in arrays.items()}
        own = {"line": self._line, "lag": self._lag, "broken": self._broken}
        return state | {f"engine.{k}": v.cpu().numpy().copy() for k, v in own.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from genesis.engine.states.solvers import SolverCheckpoint
        from genesis.utils.array_class import CHECKPOINT_KINDS

        arrays = {k.removeprefix("solver."): v for k, v in state.items() if k.startswith("solver.")}
        self.solver.__setstate__(SolverCheckpoint(arrays=arrays, configs={}, kinds=CHECKPOINT_KINDS))
        for name in ("line", "lag", "broken"):
            getattr(self, f"_{name}").copy_(torch.as_tensor(state[f"engine.{name}"]))


def _transmission(model: mujoco.MjModel, actuator: int) -> tuple[list[int], list[float]]:
    """The joints that an actuator pulls, and with which coefficients."""
    target = int(model.actuator_trnid[actuator, 0])
    if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_JOINT:
        return [target], [1.0]
    if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_TENDON:
        of = slice(model.tendon_adr[target], model.tendon_adr[target] + model.tendon_num[target])
        return model.wrap_objid[of].tolist(), model.wrap_prm[of].tolist()
    return [], []
