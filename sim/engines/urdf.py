"""Read a URDF as a MuJoCo model; mesh paths are relative to the file or begin with package://, model:// or file://.

MuJoCo reads links, inertias, shapes, and revolute, prismatic, fixed and mimic joints with limits, damping and dry
friction. Safety controllers, transmissions, sensors and Gazebo tags are ignored. Simulation uses the velocity limits of
the robot's spec; `robots check` compares them with the file's.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from robot_rl.util.errors import ConfigError
from sim.rendering.gl import mujoco

_MESHES = (".obj", ".stl", ".msh")
_UNSUPPORTED = ("planar", "floating")
_SEARCHED = {
    "ROS_PACKAGE_PATH": "", "AMENT_PREFIX_PATH": "share", "GAZEBO_MODEL_PATH": "", "GZ_SIM_RESOURCE_PATH": "",
}  # fmt: skip
"""Environment variables that list folders, and the subfolder of each listed folder that contains the packages."""


def refuse_xacro(path: Path) -> None:
    """Raise ConfigError for a file with macros, which xacro turns into a URDF."""
    text = re.sub(rb"<!--.*?-->", b"", path.read_bytes(), flags=re.S)  # xacro itself leaves comments with macros
    if path.suffix.lower() == ".xacro" or re.search(rb"""<xacro:|=["'][^"']*\$[{(]""", text):
        raise ConfigError(f"{path} is a xacro file; run `xacro {path.name} > robot.urdf` and name robot.urdf")


def is_urdf(path: Path) -> bool:
    """Return whether a model file is a URDF, by its suffix or its root element; some URDFs end with .xml."""
    if path.suffix.lower() == ".urdf":
        return True
    with suppress(ElementTree.ParseError, LookupError, ValueError), path.open("rb") as file:
        for _, element in ElementTree.iterparse(file, events=("start",)):
            return element.tag == "robot"
    return False


def read_urdf(path: Path) -> tuple[mujoco.MjSpec, list[str]]:
    """Return the model of a URDF, and the names of visual meshes that are missing or in an unsupported format. For an
    unusable file, raise ConfigError with file, element and remedy, or ValueError with the reason."""
    try:
        root = ElementTree.fromstring(path.read_bytes())  # the parser detects the encoding
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(str(error)) from None
    if root.tag != "robot":
        raise ValueError(f"its root element is <{root.tag}> and not <robot>")
    for tag in ("link", "joint"):
        names = [element.get("name") for element in root.findall(tag)]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ConfigError(f"{path}: {tag} {twice[0]!r} is there {names.count(twice[0])} times; rename all but one")
    for joint in root.iter("joint"):
        if (kind := joint.get("type")) in _UNSUPPORTED:
            raise ConfigError(f"{path}: joint {joint.get('name')!r} is {kind}, which is not supported; make it fixed")
    compiler = root.find("mujoco/compiler")
    meshdir = "" if compiler is None else compiler.get("meshdir", "")
    undrawn = _resolve_meshes(root, path, meshdir)
    settings = {"strippath": "false", "meshdir": "", "discardvisual": "true" if undrawn else "false"}
    if compiler is None:
        extension = root.find("mujoco")
        extension = ElementTree.SubElement(root, "mujoco") if extension is None else extension
        compiler = ElementTree.SubElement(extension, "compiler")
    compiler.attrib.update(settings)
    spec: mujoco.MjSpec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))
    for mesh in spec.meshes:  # inertias are in the file; flat meshes have no volume
        mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    for geom in () if undrawn else spec.geoms:
        if geom.contype or geom.conaffinity:
            geom.group = 3  # hide it, since visual geoms are drawn
    return spec, undrawn


def limits_of(path: Path) -> dict[str, tuple[float, float]]:
    """Return the limits of a URDF's joints: speed, rad/s or m/s, and effort, N m or N; inf where it has none."""
    out = {}
    for joint in ElementTree.fromstring(path.read_bytes()).findall("joint"):
        limit, found = joint.find("limit"), []
        for name in ("velocity", "effort"):
            value = math.inf
            with suppress(ValueError):
                value = float(limit.get(name, "inf") if limit is not None else "inf")
            found.append(value if 0 < value < 1e9 else math.inf)
        out[joint.get("name", "")] = (found[0], found[1])
    return out


def exclude_base(spec: mujoco.MjSpec) -> None:
    """Disable collisions between the base of a fixed robot and its first links. MuJoCo itself disables collisions
    between other neighbours."""
    for body in spec.bodies[1:]:
        if len(body.joints) and _fixed(body.parent):
            spec.add_exclude(bodyname1=body.parent.name, bodyname2=body.name)


def _fixed(body: mujoco.MjsBody) -> bool:
    """Return whether a body is fixed to the world."""
    return body.name != "world" and not len(body.joints) and (body.parent.name == "world" or _fixed(body.parent))


def _resolve_meshes(root: ElementTree.Element, path: Path, meshdir: str) -> list[str]:
    """Make the file names of meshes absolute; return the names of visual meshes that cannot be drawn. Raise ConfigError
    for a collision mesh that is missing or in an unsupported format."""
    undrawn = []
    for link in root.iter("link"):
        for shape in (*link.iter("visual"), *link.iter("collision")):
            mesh = shape.find("geometry/mesh")
            if mesh is None:
                continue
            name = mesh.get("filename", "")
            file = next((file.resolve() for file in _candidates(name, path, meshdir) if file.is_file()), None)
            what = f"{path}: the collision mesh {name!r} of link {link.get('name')!r}"
            if file is not None and file.suffix.lower() in _MESHES:
                mesh.set("filename", str(file))
            elif shape.tag == "visual":
                undrawn.append(name)
            elif file is None:
                raise ConfigError(
                    f"{what} is not there; put it beside the file, or the folder of its package beside the file, above "
                    f"it, or in a folder that {', '.join(_SEARCHED)} names"
                )
            else:
                raise ConfigError(f"{what} is a {file.suffix} file; convert it to one of {', '.join(_MESHES)}")
    return undrawn


def _candidates(name: str, path: Path, meshdir: str) -> Iterator[Path]:
    """Yield the files that a mesh's name or URI may mean; the name or URI may be percent-encoded."""
    for uri in dict.fromkeys((name, unquote(name))):
        scheme, separator, rest = uri.partition("://")
        if scheme in ("package", "model") and separator:
            package, _, inside = rest.partition("/")
            for folder in _package_folders(path):
                yield folder / package / inside
                if folder.name == package:
                    yield folder / inside
        else:
            local = uri.startswith("file:")
            file = uri.removeprefix("file:").removeprefix("//").removeprefix("localhost") if local else uri
            yield from (path.parent / meshdir / file, path.parent / file)


def _package_folders(path: Path) -> Iterator[Path]:
    """Yield folders that may contain packages: the parents of the file, the parents of its target if it is a link, then
    the folders of ROS and Gazebo."""
    yield from dict.fromkeys((*path.absolute().parents, *path.resolve().parents))
    for variable, inside in _SEARCHED.items():
        yield from (Path(folder) / inside for folder in os.environ.get(variable, "").split(os.pathsep) if folder)
