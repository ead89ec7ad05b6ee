"""Genesis scene of robot, ground and objects, with the mapping from MuJoCo's to Genesis's indices."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.devices import find_device
from robot_rl.util.errors import ConfigError, UserError
from sim.engines.model import add_ground, compile_model, foot_shapes, object_model_spec, robot_model_spec
from sim.rendering.gl import mujoco
from sim.scenes import SCENE, Scene

SLIPPERY = 0.01
"""Smallest friction coefficient of Genesis."""


def start(device: str) -> Any:
    """Import and initialize Genesis once per process; "auto" selects the GPU if there is one. Raise ConfigError for an
    unsupported device, UserError if Genesis is not installed or already runs on another device."""
    found = torch.device(find_device(device))
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(f"engine 'genesis' runs on cpu and cuda, not on {device!r}")
    if found.index:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        number = seen[found.index] if found.index < len(seen) else found.index
        raise ConfigError(
            f"engine 'genesis' runs on the first GPU that it sees, not on {device!r}; set "
            f"CUDA_VISIBLE_DEVICES={number} and give --device cuda"
        )
    hook = sys.excepthook
    try:
        import genesis as gs
    except ImportError as error:
        raise UserError(f'engine genesis needs genesis-world ({error}): pip install "robot-rl[sim]"') from None
    sys.excepthook = hook  # Genesis's own hook prints every error twice
    backend = getattr(gs, found.type)
    if not gs._initialized:
        gs.init(backend=backend, logging_level="error")
    elif device != "auto" and gs.backend != backend:
        raise UserError(
            f"Genesis runs on {gs.backend.name} in this process already; use --device auto, or a new process"
        )
    return gs


class World:
    """n copies of a scene; `qs` (nq,) and `dofs` (nv,) map MuJoCo's positions and velocities to solver indices."""

    def __init__(self, gs: Any, robot: RobotSpec, scene: Scene, num_envs: int, mjcf: str):
        self.robot, self.model = robot, compile_model(robot, scene, mjcf)
        self.scene = self._empty(gs)
        rigid, slippery = gs.materials.Rigid, {"friction": SLIPPERY, "friction_torsional": 0.0}
        ground = self.scene.add_entity(_ground(gs, scene), material=rigid(**slippery))
        spec = robot_model_spec(robot, scene, mjcf)
        for name in ("meshdir", "texturedir"):  # relative folders are lost when the model is read from memory
            setattr(spec, name, str(Path(spec.modelfiledir) / getattr(spec, name)))
        entities = [(spec, rigid() if robot.base else rigid(**slippery, gravity_compensation=1.0))]
        entities += [(object_model_spec(box), rigid()) for box in scene.objects]
        built = []
        for part, material in entities:
            part.compile()
            morph = gs.morphs.MJCF(file=part.to_xml(), visualization=False, align=False, default_armature=None)
            built.append(self.scene.add_entity(morph, material=material))
        self.body, self.objects = built[0], {b.name: e for b, e in zip(scene.objects, built[1:], strict=True)}
        self.scene.build(n_envs=num_envs)
        self.solver = self.scene.rigid_solver
        self.qs, self.dofs = np.zeros(self.model.nq, int), np.zeros(self.model.nv, int)
        for entity in built:
            self._map(entity, "" if entity is self.body else SCENE)
        if robot.base:
            self._soften(robot.base.feet[0], [*ground.geoms, *self.body.geoms])
        self.joints = [self._dof(name) for name in robot.joint_names]
        self.fingers = [self._dof(name) for name in (robot.gripper.joints if robot.gripper else ())]
        self.grip = self._set_gripper()
        """Finger positions (F,) per meter of gripper width."""

    def step(self) -> None:
        """Simulate one physics step of all environments."""
        self.scene.step(update_visualizer=False)

    def _empty(self, gs: Any) -> Any:
        option = self.model.opt
        return gs.Scene(
            sim_options=gs.options.SimOptions(dt=option.timestep, substeps=1, gravity=tuple(option.gravity)),
            rigid_options=gs.options.RigidOptions(
                batch_dofs_info=True,
                batch_links_info=True,
                integrator=gs.integrator.implicitfast,
                friction_cone=gs.friction_cone(option.cone),  # in both enums, pyramidal is 0 and elliptic 1
                contact_resolution=gs.contact_resolution.convex,
                enable_torsional_friction=bool((self.model.geom_condim > 3).any()),
                impratio=option.impratio,
                iterations=option.iterations,
                ls_iterations=option.ls_iterations,
            ),
            profiling_options=gs.options.ProfilingOptions(show_FPS=False),
            show_viewer=False,
        )

    def _map(self, entity: Any, prefix: str) -> None:
        for joint in entity.joints:
            if joint.n_dofs:
                ours = self.model.joint(prefix + joint.name)
                self.qs[ours.qposadr[0] + np.arange(joint.n_qs)] = joint.qs_idx
                self.dofs[ours.dofadr[0] + np.arange(joint.n_dofs)] = joint.dofs_idx
                # Genesis's defaults for the softness of limits and dry friction differ from MuJoCo's.
                joint.set_sol_params(np.concatenate([self.model.jnt_solref[ours.id], self.model.jnt_solimp[ours.id]]))

    def _soften(self, foot: str, geoms: list[Any]) -> None:
        """Give geoms the softness of the foot: Genesis averages that of both geoms, MuJoCo takes that of the foot."""
        at = foot_shapes(self.model, foot)[0]
        soft = np.concatenate([self.model.geom_solref[at], self.model.geom_solimp[at]])
        self.solver.set_sol_params(np.tile(soft, (len(geoms), 1)), [g.idx for g in geoms])

    def _dof(self, joint: str) -> int:
        return int(self.dofs[self.model.joint(joint).dofadr[0]])

    def _set_gripper(self) -> np.ndarray:
        """Distribute the gripper's servo over the fingers; return finger positions (F,) per meter of gripper width."""
        m, gripper, grip = self.model, self.robot.gripper, np.zeros(len(self.fingers))
        for k, name in enumerate(gripper.joints if gripper else ()):
            for a in range(m.nu):
                joints, shares = _transmission(m, a)
                if m.joint(name).id not in joints:
                    continue
                share, total, at = shares[joints.index(m.joint(name).id)], sum(shares), [self.fingers[k]]
                stiffness, damping = -m.actuator_biasprm[a, 1:3]
                self.solver.set_dofs_kp([stiffness * share * total], at)
                self.solver.set_dofs_kv([damping * share * total], at)
                if m.actuator_forcelimited[a]:
                    low, high = m.actuator_forcerange[a] * share
                    self.solver.set_dofs_force_range([low], [high], at)
                assert gripper is not None
                grip[k] = m.actuator_ctrlrange[a, 1] * m.actuator_gainprm[a, 0] / stiffness / total / gripper.width
        return grip


def _ground(gs: Any, scene: Scene) -> Any:
    """Return the plane or the uneven ground of a scene."""
    if scene.ground is None:
        return gs.morphs.Plane()
    spec = mujoco.MjSpec()
    add_ground(spec, spec.worldbody.add_body(name="ground"), scene.ground, material="")
    spec.compile()
    return gs.morphs.MJCF(file=spec.to_xml(), visualization=False, align=False, default_armature=None)


def _transmission(model: mujoco.MjModel, actuator: int) -> tuple[list[int], list[float]]:
    """Return the joints that an actuator drives and their coefficients."""
    target = int(model.actuator_trnid[actuator, 0])
    if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_JOINT:
        return [target], [1.0]
    if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_TENDON:
        of = slice(model.tendon_adr[target], model.tendon_adr[target] + model.tendon_num[target])
        return model.wrap_objid[of].tolist(), model.wrap_prm[of].tolist()
    return [], []
