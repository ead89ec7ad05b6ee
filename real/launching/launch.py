"""Launch descriptions, for ROS 2's launch and `robot-rl launch`.

A node is a `robot-rl` command. `launch/*.launch.py` convert a description to ROS 2 launch actions
(`real.launching.launch_actions`). `real.launching.processes` runs the same description without ROS 2.

>>> [node.name for node in describe("arm", {"policy": "runs/lift/bundle", "twin": "true"}) if node.condition]
['twin', 'deploy']
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from real.backends import BACKEND
from real.launching.files import FILES, LaunchFile, in_lockstep
from real.launching.node import Argument, LaunchError, NodeProcess
from real.topics import JOINT_PREFIX
from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName, UserError

_NAMESPACE = re.compile(r"/?[A-Za-z_]\w*(/[A-Za-z_]\w*)*/?")


def files() -> dict[str, str]:
    """Return each launch file's name and summary."""
    return {name: file.summary for name, file in FILES.items()}


def arguments(file: str) -> tuple[Argument, ...]:
    """Return a launch file's arguments."""
    return _file(file).arguments


def describe(file: str, arguments: Mapping[str, str]) -> list[NodeProcess]:
    """Check the arguments of a launch file and return its nodes in starting order."""
    values = _resolve(file, arguments)
    environment = {"ROS_DOMAIN_ID": values["domain_id"]} if values["domain_id"] else {}
    environment |= {BACKEND: values["bus"]} if values["bus"] != "auto" else {}
    namespace = "/" + values["namespace"].strip("/") if values["namespace"] else ""
    level = "" if values["log_level"] == "info" else values["log_level"]
    prefix = values.get(JOINT_PREFIX, "")
    parameters = {JOINT_PREFIX: prefix} if prefix else {}
    return [
        replace(
            node, namespace=namespace, environment=environment, log_level=level,
            parameters={**parameters, **node.parameters},
        )
        for node in in_lockstep(_file(file).describe(values), values)
    ]  # fmt: skip


def require_device(arguments: Mapping[str, str]) -> None:
    """Raise LaunchError if the launch needs a gamepad or SpaceMouse and none is usable. The teleop node would respawn
    forever, or end, and the robot would move without an operator."""
    if arguments.get("teleop") not in ("gamepad", "spacemouse"):
        return
    from real.teleop.gamepad import Gamepad
    from real.teleop.spacemouse import connect

    try:
        (Gamepad() if arguments["teleop"] == "gamepad" else connect()).close()
    except UserError as error:
        raise LaunchError(str(error)) from error


def _file(name: str) -> LaunchFile:
    if name not in FILES:
        raise UnknownName("launch file", name, FILES)
    return FILES[name]


def _task_of(policy: Path) -> str:
    """Return the name of a policy's task; empty if the bundle is unusable, for which `deploy` reports the error."""
    file = next((f for f in (policy / "bundle" / "policy.json", policy / "policy.json") if f.is_file()), None)
    try:
        name = json.loads(file.read_text())["interface"]["task"] if file else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) and re.fullmatch(r"[\w-]+", name) else ""  # never an import path from a file


def _resolve(file: str, given: Mapping[str, str]) -> dict[str, str]:
    declared = {argument.name: argument for argument in _file(file).arguments}
    for name in given:
        if name not in declared:
            raise UnknownName(f"argument of {file}.launch", name, declared)
    values = {}
    for name, argument in declared.items():
        value = given.get(name, argument.default)
        if value is None or (not value and argument.default is None):
            raise LaunchError(f"{file}.launch needs {name}:=VALUE, the {argument.description}")
        values[name] = argument.check(value)
    if values.get("twin") == "true" and not values.get("task"):
        values["task"] = _task_of(Path(values.get("policy") or ""))
    robot = values.get("robot", "")
    if robot and ":" not in robot and robot not in robots:  # the nodes check import paths
        raise UnknownName("robot", robot, robots)
    if values["namespace"] and not _NAMESPACE.fullmatch(values["namespace"]):
        raise LaunchError(
            f"namespace:={values['namespace']} is no ROS namespace; "
            "write names of letters, digits and _, joined by /, such as arm_left"
        )
    prefix = values.get(JOINT_PREFIX, "")
    if not re.fullmatch(r"([A-Za-z_][\w./-]*)?", prefix):
        raise LaunchError(f"{JOINT_PREFIX}:={prefix} is no prefix of a name; write letters, digits and _, such as fr3_")
    if values["domain_id"] and int(values["domain_id"]) > 232:
        raise LaunchError(f"domain_id:={values['domain_id']} is above 232, the highest domain; take 0 to 101")
    return values
