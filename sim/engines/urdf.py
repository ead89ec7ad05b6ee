"""Read a URDF as a MuJoCo model: meshes relative to the file or by package://; other mesh formats raise an error.

MuJoCo reads links, inertias, shapes, and revolute, prismatic, fixed and mimic joints with limits, damping and dry
friction. Velocity limits, safety controllers, transmissions, sensors and Gazebo tags are ignored; the spec has limits.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from robot_rl.util.errors import ConfigError
from sim.gl import mujoco

_MESHES = (".obj", ".stl", ".msh")
_XACRO = "{http://www.ros.org/wiki/xacro}"
_UNSUPPORTED = ("planar", "floating")


def read_urdf(path: Path) -> mujoco.MjSpec:
    """Return the model of a URDF; raise ConfigError with file, link and remedy, or MuJoCo's ValueError."""
    try:
        root = ElementTree.fromstring(path.read_text())
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if root.tag != "robot":
        raise ValueError(f"its root element is <{root.tag}> and not <robot>")
    if any(element.tag.startswith(_XACRO) for element in root.iter()):
        raise ConfigError(f"{path} is a xacro file; run `xacro {path.name} > robot.urdf` and name robot.urdf")
    for joint in root.iter("joint"):
        if (kind := joint.get("type")) in _UNSUPPORTED:
            raise ConfigError(f"{path}: joint {joint.get('name')!r} is {kind}, which is not supported; make it fixed")
    compiler = root.find("mujoco/compiler")
    meshdir = "" if compiler is None else compiler.get("meshdir", "")
    drawn = _resolve_meshes(root, path, meshdir)
    settings = {"strippath": "false", "meshdir": "", "discardvisual": "false" if drawn else "true"}
    if compiler is None:
        extension = root.find("mujoco")
        extension = ElementTree.SubElement(root, "mujoco") if extension is None else extension
        compiler = ElementTree.SubElement(extension, "compiler")
    compiler.attrib.update(settings)
    spec: mujoco.MjSpec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))
    for geom in spec.geoms if drawn else ():
        if geom.contype or geom.conaffinity:
            geom.group = 3  # hidden, since the visual shapes are drawn
    return spec


def exclude_base(spec: mujoco.MjSpec) -> None:
    """Let the first links of a fixed robot overlap with its base; MuJoCo itself excludes moving neighbours."""
    for body in spec.bodies[1:]:
        if len(body.joints) and _fixed(body.parent):
            spec.add_exclude(bodyname1=body.parent.name, bodyname2=body.name)


def _fixed(body: mujoco.MjsBody) -> bool:
    """Return whether a body of the robot is fixed to the world."""
    return body.name != "world" and not len(body.joints) and (body.parent.name == "world" or _fixed(body.parent))


def _resolve_meshes(root: ElementTree.Element, path: Path, meshdir: str) -> bool:
    """Make the file names of meshes absolute; return whether all visual shapes can be drawn."""
    drawn = True
    for link in root.iter("link"):
        for shape in (*link.iter("visual"), *link.iter("collision")):
            mesh = shape.find("geometry/mesh")
            if mesh is None:
                continue
            name = mesh.get("filename", "")
            file = _find(name, path, meshdir)
            readable = file is not None and file.suffix.lower() in _MESHES
            if readable:
                mesh.set("filename", str(file))
            elif shape.tag == "visual":
                drawn = False
            elif file is None:
                raise ConfigError(
                    f"{path}: the collision mesh {name!r} of link {link.get('name')!r} is not there; put it beside the "
                    "file, or in a folder named like its package"
                )
            else:
                raise ConfigError(
                    f"{path}: the collision mesh {name!r} of link {link.get('name')!r} is a {file.suffix} file; "
                    f"convert it to one of {', '.join(_MESHES)}"
                )
    return drawn


def _find(name: str, path: Path, meshdir: str) -> Path | None:
    """Find a mesh: relative to the file, or package://NAME/... in a folder NAME beside the file or above it."""
    relative = name.removeprefix("file://")
    places = [path.parent / meshdir / relative, path.parent / relative]
    if name.startswith("package://"):
        package, _, inside = name.removeprefix("package://").partition("/")
        places = [path.parent / package / inside]
        for folder in path.absolute().parents:
            places += [folder / package / inside] + [folder / inside] * (folder.name == package)
    return next((place.resolve() for place in places if place.is_file()), None)
