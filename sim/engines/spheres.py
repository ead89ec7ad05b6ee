"""Spheres that cover the links of an arm's model file."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from robot_rl.interface.collision import Clearance
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from sim.engines.model import compile_model
from sim.rendering.gl import mujoco
from sim.scenes import Scene

LINK, HAND = 0.07, 0.04
"""Radius up to which spheres are divided, of links and of what is mounted on the last one, m."""
MOST = 8
"""Largest number of spheres of a body."""
POSTURES = 20000
"""Number of postures in which links are tested for contact."""
NEAR = 0.02
"""Smallest distance at home of spheres of links that are compared, m."""
SAMPLES, MARGIN = 2000, 0.002
"""Points on the surface of a body; what spheres reach beyond them, m."""


def cover(robot: RobotSpec, mjcf: str = "") -> tuple[tuple[tuple[float, float, float, float], ...], ...]:
    """Return spheres x, y, z, radius, m, that contain the surface of each link, in the link's frame, the base first.

    Fingers are covered open and closed.
    """
    model = compile_model(robot, Scene(), mjcf)
    data, joints = mujoco.MjData(model), [model.joint(name) for name in robot.joint_names]
    fingers = [model.joint(name).qposadr[0] for name in (robot.gripper.joints if robot.gripper else ())]
    bodies = [int(joint.bodyid[0]) for joint in joints]
    points: dict[tuple[int, int], list[np.ndarray]] = {}
    for share in (0.0, 1.0) if fingers and robot.gripper else (0.0,):
        data.qpos[fingers] = share * robot.gripper.width / len(fingers) if robot.gripper else 0.0
        mujoco.mj_kinematics(model, data)
        frames = _frames(robot, data.qpos[[joint.qposadr[0] for joint in joints]])
        for geom in range(model.ngeom):
            body = int(model.geom_bodyid[geom])
            if (k := _link(model, body, bodies)) is not None:
                origin, rotation = frames[k]
                place = data.geom_xpos[geom] + _surface(model, geom) @ data.geom_xmat[geom].reshape(3, 3).T
                points.setdefault((k, body), []).append((place - origin) @ rotation)
    spheres: list[list[tuple[float, float, float, float]]] = [[] for _ in range(len(joints) + 1)]
    for (k, body), parts in sorted(points.items()):
        mounted = k == len(joints) and body != bodies[-1]
        spheres[k] += _spheres(np.concatenate(parts), HAND if mounted else LINK)
    return tuple(map(tuple, spheres))


class Contacts:
    """Contacts between the links of an arm in its model file, all of whose shapes collide."""

    def __init__(self, robot: RobotSpec, mjcf: str = ""):
        self.model = compile_model(replace(robot, collision_bodies=()), Scene(), mjcf)
        self.data, joints = mujoco.MjData(self.model), [self.model.joint(name) for name in robot.joint_names]
        self.at, bodies = [joint.qposadr[0] for joint in joints], [int(joint.bodyid[0]) for joint in joints]
        links = [_link(self.model, body, bodies) for body in range(self.model.nbody)]
        self.links = np.array([-1 if link is None else link for link in links])
        fingers = [self.model.joint(name).bodyid[0] for name in (robot.gripper.joints if robot.gripper else ())]
        self.fingers = {self.model.body(body).name for body in fingers}
        """Names of the fingers' bodies."""

    def pairs(self, q: np.ndarray) -> set[tuple[int, int]]:
        """Return the pairs of links in contact at joint positions (J,), rad; -1 is the table."""
        self.data.qpos[self.at] = q
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_collision(self.model, self.data)
        contact = self.data.contact
        touching = np.sort(self.links[self.model.geom_bodyid[contact.geom[contact.dist <= 0]]])
        return {(int(a), int(b)) for a, b in touching}

    def in_table(self) -> dict[str, float]:
        """Return how deep bodies of the arm, except its base, are in the table where `pairs` looked last: m, by
        name."""
        found: dict[str, float] = {}
        contact = self.data.contact
        for pair, distance in zip(self.model.geom_bodyid[contact.geom], contact.dist, strict=True):
            scene, arm = sorted(pair, key=lambda body: int(self.links[body]))
            if distance <= 0 and self.links[scene] < 0 < self.links[arm]:
                name = self.model.body(arm).name
                found[name] = max(found.get(name, 0.0), -float(distance))
        return found


def pairs(robot: RobotSpec, mjcf: str = "") -> tuple[tuple[int, int], ...]:
    """Return the pairs of links that collide in any of POSTURES random postures. Left out are neighbours, and pairs
    whose spheres are closer than NEAR at home: their check would refuse useful postures."""
    contacts = Contacts(robot, mjcf)
    low, high = (np.array([getattr(joint, end) for joint in robot.joints]) for end in ("low", "high"))
    found: set[tuple[int, int]] = set()
    for q in np.random.default_rng(0).uniform(low, high, (POSTURES, len(low))):
        found |= contacts.pairs(q)
    kinematics = Kinematics(robot)
    chain = kinematics.chain(torch.tensor(robot.home)[None])[2:]
    apart = {
        pair: float(Clearance(replace(robot, collision_pairs=(pair,)), kinematics, None)(*chain))
        for pair in found if pair[0] >= 0 and pair[1] - pair[0] > 1
    }  # fmt: skip
    return tuple(sorted(pair for pair, distance in apart.items() if distance >= NEAR))


def _frames(robot: RobotSpec, q: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return origin (3,) and rotation (3, 3) of each link's frame in the base frame, the base first."""
    kinematics = Kinematics(robot, torch.float64)
    _, _, origins, axes = kinematics.chain(torch.from_numpy(q)[None])
    links = zip(origins, axes, kinematics.turns, strict=True)
    turned = [(origin[:, 0].numpy(), axis[..., 0].numpy().T @ turn.numpy().T) for origin, axis, turn in links]
    return [(np.zeros(3), np.eye(3)), *turned]


def _link(model: mujoco.MjModel, body: int, joints: list[int]) -> int | None:
    """Return the number of joints between the base and a body; None for a body of the scene. `joints`: their bodies."""
    above = body
    while above and above not in joints:
        above = int(model.body_parentid[above])
    if above:
        return joints.index(above) + 1
    first = int(model.body_parentid[joints[0]])
    while first and first != body:
        first = int(model.body_parentid[first])
    return 0 if body and first == body else None


def _surface(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Return points (S, 3) on the surface of a geom, in its frame, m."""
    rng, kind, size = np.random.default_rng(geom), int(model.geom_type[geom]), model.geom_size[geom]
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        vertices = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]]
        faces = vertices[model.mesh_face[model.mesh_faceadr[mesh] :][: model.mesh_facenum[mesh]]]
        areas = np.linalg.norm(np.cross(faces[:, 1] - faces[:, 0], faces[:, 2] - faces[:, 0]), axis=1)
        chosen = faces[rng.choice(len(faces), SAMPLES, p=areas / areas.sum())]
        weights = rng.dirichlet((1, 1, 1), SAMPLES)
        return (chosen * weights[..., None]).sum(1)
    unit = rng.normal(size=(SAMPLES, 3))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return size * unit / np.abs(unit).max(1, keepdims=True)
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return size * unit
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        across = unit / np.maximum(np.linalg.norm(unit[:, :2], axis=1, keepdims=True), np.abs(unit[:, 2:]))
        return across * [size[0], size[0], size[1]]
    points = size[0] * unit  # a sphere, or the ends of a capsule
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        points[:, 2] += size[1] * rng.uniform(-1, 1, SAMPLES)
        points[:, 2] += np.sign(unit[:, 2]) * (size[1] - np.abs(points[:, 2])).clip(0) * (np.abs(unit[:, 2]) > 0.5)
    return points


def _spheres(points: np.ndarray, size: float) -> Iterator[tuple[float, float, float, float]]:
    """Yield spheres that contain points (S, 3): the largest is divided across its longest direction until all have at
    most the radius `size`, m, or there are MOST."""
    groups = [(points, *_ball(points))]
    while len(groups) < MOST:
        groups.sort(key=lambda group: group[2])
        if groups[-1][2] <= size:
            break
        largest = groups.pop()[0]
        centered = largest - largest.mean(0)
        along = centered @ np.linalg.svd(centered, full_matrices=False)[2][0]
        middle = (along.min() + along.max()) / 2
        groups += [(part, *_ball(part)) for part in (largest[along <= middle], largest[along > middle])]
    for _, center, radius in groups:
        x, y, z = (round(float(v), 3) for v in center)
        yield x, y, z, round(float(radius) + MARGIN, 3)


def _ball(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return center and radius of a small ball around points (Badoiu and Clarkson 2003)."""
    center = points.mean(0)
    for k in range(1, 200):
        far = points[np.linalg.norm(points - center, axis=1).argmax()]
        center = center + (far - center) / (k + 1)
    return center, float(np.linalg.norm(points - center, axis=1).max())
