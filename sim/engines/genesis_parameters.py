"""Randomized parameters of a Genesis scene: values by name, and functions that write them to the solver."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sim.engines.base import Setter
from sim.engines.genesis_world import World
from sim.engines.servos import find_servos
from sim.engines.trunk import trunk_inertia
from sim.objects.base import Object
from sim.parameters import TRUNK, nominal
from sim.rendering.gl import mujoco
from sim.scenes import SCENE, Scene

_SERVO = ("robot.stiffness_scale", "robot.damping_scale", "robot.strength_scale")
_TOGETHER = (*_SERVO, *TRUNK)
"""Parameters that are written in groups, because they determine the same quantity."""


class Parameters:
    """Values (n,) of every parameter, written to the solver when an environment is reset.

    Genesis recomputes the robot whenever masses or inertias are written, so new values are marked as `_due` first and
    written together."""

    def __init__(self, world: World, scene: Scene, num_envs: int, device: torch.device):
        self._world, self._solver, self._device = world, world.solver, device
        self._nominal()
        writers: dict[tuple[str, ...], Callable[[np.ndarray], None]] = {
            ("robot.action_delay",): lambda ids: None,  # read by the engine's delay line
            _SERVO: self._servos,
            ("robot.joint_friction",): self._joint_friction,
            ("robot.armature_scale",): self._armature,
        }
        if base := world.robot.base:
            feet = [g for name in base.feet for g in world.body.get_link(name).geoms]
            writers[TRUNK] = self._trunk
            writers[("robot.link_mass_scale",)] = self._links
            writers[("ground.friction",)] = partial(self._friction, "ground.friction", feet)
        for thing in scene.objects:
            friction, mass = f"{thing.name}.friction", f"{thing.name}.mass"
            own = {
                friction: partial(self._friction, friction, world.objects[thing.name].geoms),
                mass: partial(self._mass, thing),
            }
            writers |= {(name,): write for name, write in own.items() if name.rpartition(".")[2] in thing.acting}
        self._writers = writers
        names = [name for group in writers for name in group]
        self.values = {name: np.full(num_envs, nominal(name) if name in _TOGETHER else np.nan) for name in names}
        self._due = {name: np.zeros(num_envs, bool) for name in names}
        self.setters: dict[str, Setter] = {name: partial(self._put, name) for name in names}

    def _nominal(self) -> None:
        world, m = self._world, self._world.model
        servos = find_servos(m, world.robot.joint_names, world.robot.name)
        self._kp, self._kv = m.actuator_gainprm[servos, 0], -m.actuator_biasprm[servos, 2]
        self._limits = [limit[0].cpu().numpy() for limit in self._solver.get_dofs_force_range(world.joints)]
        self._motors = m.dof_armature[[m.joint(name).dofadr[0] for name in world.robot.joint_names]]
        links = [link for link in world.body.links if not link.is_fixed and m.body(link.name).mass[0] > 0]
        self._inertia = {link.name: self._solver.get_links_inertia([link.idx])[0, 0].cpu().numpy() for link in links}

    def _put(self, name: str, ids: np.ndarray, values: np.ndarray) -> None:
        self.values[name][ids], self._due[name][ids] = values, True

    def write(self, ids: np.ndarray) -> None:
        """Write the new values of environments `ids` to the solver."""
        for names, write in self._writers.items():
            due = ids[np.any([self._due[name][ids] for name in names], 0)]
            if len(due):
                write(due)
            for name in names:
                self._due[name][ids] = False

    def _column(self, name: str, ids: np.ndarray) -> np.ndarray:
        return self.values[name][ids][:, None]

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self._device)

    def _servos(self, ids: np.ndarray) -> None:
        """Write the servos' gains and force limits; the strength scale applies to both."""
        stiffness, damping, strength = (self._column(name, ids) for name in _SERVO)
        solver, at = self._solver, self._world.joints
        solver.set_dofs_kp(self._tensor(self._kp * stiffness * strength), at, ids)
        solver.set_dofs_kv(self._tensor(self._kv * damping * strength), at, ids)
        solver.set_dofs_force_range(*(self._tensor(limit * strength) for limit in self._limits), at, ids)

    def _joint_friction(self, ids: np.ndarray) -> None:
        torque = np.repeat(self._column("robot.joint_friction", ids), len(self._world.joints), 1)
        self._solver.set_dofs_frictionloss(self._tensor(torque), self._world.joints, ids)

    def _armature(self, ids: np.ndarray) -> None:
        inertia = self._column("robot.armature_scale", ids) * self._motors
        self._solver.set_dofs_armature(self._tensor(inertia), self._world.joints, ids)

    def _trunk(self, ids: np.ndarray) -> None:
        assert self._world.robot.base is not None
        link = self._world.body.get_link(self._world.robot.base.body)
        body, axes = self._world.model.body(link.name), np.zeros(9)
        mujoco.mju_quat2Mat(axes, np.asarray(link.desc.inertial_quat, float))
        turn = axes.reshape(3, 3)  # Genesis keeps the inertia in the axes of the model file
        nominal = turn @ self._inertia[link.name] @ turn.T
        values = {name: self.values[name][ids] for name in TRUNK}
        mass, centre, inertia = trunk_inertia(float(body.mass[0]), body.ipos, nominal, values)
        self._solver.set_links_mass(self._tensor(mass[:, None]), [link.idx], ids)
        self._solver.set_links_COM(self._tensor(centre[:, None]), [link.idx], ids)
        self._solver.set_links_inertia(self._tensor((turn.T @ inertia @ turn)[:, None]), [link.idx], ids)

    def _links(self, ids: np.ndarray) -> None:
        """Scale masses and inertias of all bodies except the trunk."""
        assert self._world.robot.base is not None
        inertia = {name: i for name, i in self._inertia.items() if name != self._world.robot.base.body}
        scale = self.values["robot.link_mass_scale"][ids]
        at = [self._world.body.get_link(name).idx for name in inertia]
        mass = np.array([self._world.model.body(name).mass[0] for name in inertia])
        self._solver.set_links_mass(self._tensor(np.outer(scale, mass)), at, ids)
        scaled = scale[:, None, None, None] * np.stack(list(inertia.values()))
        self._solver.set_links_inertia(self._tensor(scaled), at, ids)

    def _mass(self, thing: Object, ids: np.ndarray) -> None:
        at, mass = [self._world.objects[thing.name].links[-1].idx], self._column(f"{thing.name}.mass", ids)
        self._solver.set_links_mass(self._tensor(mass), at, ids)
        self._solver.set_links_inertia(self._tensor(inertia_at(self._world.model, thing.name, mass)), at, ids)

    def _friction(self, name: str, geoms: list[Any], ids: np.ndarray) -> None:
        ratio = self._column(name, ids) / np.array([geom.desc.friction for geom in geoms])
        self._solver.set_geoms_friction_ratio(self._tensor(ratio), [geom.idx for geom in geoms], ids)

    def state_dict(self) -> dict[str, np.ndarray]:
        both = {"value": self.values, "due": self._due}
        return {f"{kind}.{name}": array.copy() for kind, arrays in both.items() for name, array in arrays.items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        for kind, arrays in (("value", self.values), ("due", self._due)):
            for name, array in arrays.items():
                array[:] = np.asarray(state[f"{kind}.{name}"])


def inertia_at(model: mujoco.MjModel, thing: str, mass: np.ndarray) -> np.ndarray:
    """Return inertias (k, 1, 3, 3), kg m^2, of an object with masses (k, 1), kg, in its principal axes."""
    body = model.body(SCENE + thing)
    scaled: np.ndarray = (mass / body.mass)[..., None, None] * np.diag(body.inertia)
    return scaled
