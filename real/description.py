"""URDF of a robot, from its model file or its spec, and the transforms of its links."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from robot_rl.interface.robot import RobotSpec

RADIUS, THIN = 0.03, 0.01
"""Radius of the cylinders between joints, and length below which two joints count as in one place, m."""
Quat = tuple[float, float, float, float]


@dataclass(frozen=True)
class Link:
    """A link's frame in its parent's frame."""

    parent: str
    child: str
    position: np.ndarray
    """Origin at joint position 0, (3,) m."""
    quat: Quat
    """Orientation at joint position 0, w x y z."""
    kind: str = "fixed"
    """URDF's type of the joint: revolute, continuous, prismatic, fixed."""
    axis: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """Unit vector in the link's frame."""
    joint: str = ""
    """Name in the URDF of the joint whose position moves the link; of a mimic joint, the one that it follows."""
    factor: float = 1.0
    offset: float = 0.0

    @property
    def fixed(self) -> bool:
        return self.kind not in ("revolute", "continuous", "prismatic")

    def at(self, position: float) -> tuple[np.ndarray, Quat]:
        """Return origin (3,), m, and orientation, w x y z, at a position of the joint, rad or m."""
        value = self.factor * position + self.offset
        if self.fixed:
            return self.position, self.quat
        if self.kind == "prismatic":
            return self.position + value * rotate(self.quat, np.array(self.axis)), self.quat
        sine, (x, y, z) = math.sin(value / 2), self.axis
        return self.position, product(self.quat, (math.cos(value / 2), sine * x, sine * y, sine * z))


def description(robot: RobotSpec, base: str = "base", prefix: str = "") -> str:
    """Return the robot's URDF; empty if neither its model file nor its spec gives one.

    A model file that is a URDF is returned as it is. Of an arm with another file the URDF has the spec's chain, with
    simple shapes. `base`: name of the first frame. `prefix`: of the driver's joint names, and then of all frames.
    """
    file = _file(robot.model)
    if file is not None and file.suffix.lower() == ".urdf":
        return ET.tostring(ET.fromstring(file.read_bytes()), encoding="unicode")
    return _from_spec(robot, base, prefix) if robot.tool is not None and robot.base is None else ""


def links(urdf: str) -> list[Link]:
    """Return all links of a URDF except the root, and those that float: nobody measures where they are."""
    found = []
    for joint in ET.fromstring(urdf).findall("joint"):
        if joint.attrib["type"] in ("floating", "planar"):
            continue
        origin, axis, mimic = joint.find("origin"), joint.find("axis"), joint.find("mimic")
        place = origin.attrib if origin is not None else {}
        along = _numbers(axis.attrib["xyz"] if axis is not None else "1 0 0")
        length = math.hypot(*along) or 1.0
        name, factor, offset = joint.attrib["name"], 1.0, 0.0
        if mimic is not None:
            name = mimic.attrib["joint"]
            factor, offset = float(mimic.get("multiplier", "1")), float(mimic.get("offset", "0"))
        found.append(
            Link(
                joint.find("parent").attrib["link"], joint.find("child").attrib["link"],  # type: ignore[union-attr]
                np.array(_numbers(place.get("xyz", "0 0 0"))), _quat(*_numbers(place.get("rpy", "0 0 0"))),
                joint.attrib["type"], (along[0] / length, along[1] / length, along[2] / length), name, factor, offset,
            )
        )  # fmt: skip
    return found


def tool_link(robot: RobotSpec, chain: list[Link]) -> Link | None:
    """Return the spec's tool at the end of a URDF's chain; None without a tool, or if the URDF has that frame."""
    if robot.tool is None or any(link.child == robot.tool.name for link in chain):
        return None
    last = robot.joints[-1]
    parents = [link.child for link in chain if link.joint in (last.name, last.model_name)]
    return Link(parents[0], robot.tool.name, np.array(robot.tool.position), _unit(robot.tool.quat)) if parents else None


def product(a: Quat, b: Quat) -> Quat:
    """Return the product of two quaternions, w x y z: the rotation `b`, then `a`."""
    (w, x, y, z), (i, j, k, m) = a, b
    return (
        w * i - x * j - y * k - z * m, w * j + x * i + y * m - z * k,
        w * k - x * m + y * i + z * j, w * m + x * k - y * j + z * i,
    )  # fmt: skip


def rotate(quat: Quat, vector: np.ndarray) -> np.ndarray:
    """Return a vector (3,) rotated by a unit quaternion, w x y z."""
    axis = np.array(quat[1:])
    twice = 2 * np.cross(axis, vector)
    return np.asarray(vector + quat[0] * twice + np.cross(axis, twice))


def _file(model: str) -> Path | None:
    """Return the path of a spec's model file; None where it is not installed, as on a robot's computer."""
    path = Path(model)
    if not path.is_absolute() and (genesis := importlib.util.find_spec("genesis")) and genesis.origin:
        path = Path(genesis.origin).parent / "assets" / model
    return path if path.is_file() else None


def _from_spec(robot: RobotSpec, base: str, prefix: str) -> str:
    assert robot.tool is not None
    root = ET.Element("robot", name=robot.name)
    paint = ET.SubElement(root, "material", name="grey")
    ET.SubElement(paint, "color", rgba="0.7 0.7 0.75 1")
    names = robot.driver_names(prefix)
    joints, fingers = names[: len(robot.joints)], names[len(robot.joints) :]
    frames = [base, *(f"{name.removesuffix('_joint')}_link" for name in joints), prefix + robot.tool.name]
    places = [(j.position, j.quat) for j in robot.joints] + [(robot.tool.position, robot.tool.quat)]
    for k, (frame, (after, _)) in enumerate(zip(frames, places, strict=False)):
        link = ET.SubElement(root, "link", name=frame)
        _rod(link, np.array(after), robot.joints[k - 1].axis if k else (0.0, 0.0, 1.0))
    ET.SubElement(root, "link", name=frames[-1])
    for k, (name, joint) in enumerate(zip(joints, robot.joints, strict=True)):
        element = _joint(root, name, "revolute", frames[k], frames[k + 1], joint.position, joint.quat)
        ET.SubElement(element, "axis", xyz=_text(*joint.axis))
        limits = {"lower": joint.low, "upper": joint.high, "effort": joint.effort, "velocity": joint.velocity}
        ET.SubElement(element, "limit", {key: _text(value) for key, value in limits.items()})
    _joint(root, f"{frames[-1]}_joint", "fixed", frames[-2], frames[-1], *places[-1])
    for k, name in enumerate(fingers):  # the spec does not say where they are: along y of the tool, to both sides
        assert robot.gripper is not None
        frame = f"{name.removesuffix('_joint')}_link"
        _shape(ET.SubElement(root, "link", name=frame), "box", {"size": "0.015 0.01 0.04"}, np.array([0, 0, -0.02]))
        element = _joint(root, name, "prismatic", frames[-1], frame, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
        ET.SubElement(element, "axis", xyz="0 -1 0" if k % 2 else "0 1 0")
        width = _text(robot.gripper.width / len(fingers))
        ET.SubElement(element, "limit", lower="0", upper=width, effort=_text(robot.gripper.force), velocity="0.1")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode")


def _joint(
    root: ET.Element, name: str, kind: str, parent: str, child: str, position: tuple[float, ...], quat: Quat
) -> ET.Element:
    joint = ET.SubElement(root, "joint", name=name, type=kind)
    ET.SubElement(joint, "parent", link=parent)
    ET.SubElement(joint, "child", link=child)
    ET.SubElement(joint, "origin", xyz=_text(*position), rpy=_text(*_rpy(_unit(quat))))
    return joint


def _rod(link: ET.Element, to: np.ndarray, axis: tuple[float, float, float]) -> None:
    """Draw a cylinder from a link's origin to the next joint; a short one along the axis if both are in one place."""
    length = float(np.linalg.norm(to))
    if length < THIN:
        to, length, middle = np.array(axis), 0.1, np.zeros(3)
    else:
        middle = to / 2
    x, y, z = to / np.linalg.norm(to)
    rpy = (0.0, math.atan2(math.hypot(x, y), z), math.atan2(y, x))  # turns z to the direction
    _shape(link, "cylinder", {"radius": _text(RADIUS), "length": _text(length)}, middle, rpy)


def _shape(
    link: ET.Element, kind: str, size: dict[str, str], at: np.ndarray, rpy: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> None:
    visual = ET.SubElement(link, "visual")
    ET.SubElement(visual, "origin", xyz=_text(*at), rpy=_text(*rpy))
    ET.SubElement(ET.SubElement(visual, "geometry"), kind, size)
    ET.SubElement(visual, "material", name="grey")


def _unit(quat: Quat) -> Quat:
    length = math.hypot(*quat)
    w, x, y, z = (value / length for value in quat)
    return w, x, y, z


def _quat(roll: float, pitch: float, yaw: float) -> Quat:
    """Return the quaternion, w x y z, of URDF's angles about the fixed axes x, then y, then z."""
    about_x, about_y, about_z = ((math.cos(angle / 2), math.sin(angle / 2)) for angle in (roll, pitch, yaw))
    return product((about_z[0], 0, 0, about_z[1]), product((about_y[0], 0, about_y[1], 0), (*about_x, 0, 0)))


def _rpy(quat: Quat) -> tuple[float, float, float]:
    """Return URDF's angles of a unit quaternion, w x y z; at a pitch of a quarter turn, roll is 0."""
    x, y, z = (rotate(quat, axis) for axis in np.eye(3))
    level = math.hypot(x[0], x[1])
    pitch = math.atan2(-x[2], level)
    if level < 1e-8:
        return 0.0, pitch, math.atan2(-y[0], y[1])
    return math.atan2(y[2], z[2]), pitch, math.atan2(x[1], x[0])


def _numbers(text: str) -> tuple[float, float, float]:
    x, y, z = (float(word) for word in text.split())
    return x, y, z


def _text(*values: float) -> str:
    return " ".join(f"{float(value) + 0.0:.15g}" for value in values)
