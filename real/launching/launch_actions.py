"""Convert a launch description to ROS 2 launch actions. ROS 2's `launch` is imported inside functions only."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from real.launching.launch import arguments, describe, require_device
from real.launching.node import LaunchError, NodeProcess
from real.launching.processes import RESPAWN_DELAY, Grace


def launch_description(file: str) -> Any:
    """Return a launch file's ROS 2 launch description, which declares the arguments and then starts the nodes."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction

    declared = [
        DeclareLaunchArgument(
            a.name, default_value=a.default, description=a.description, choices=list(a.choices) or None
        )
        for a in arguments(file)
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=_start, kwargs={"file": file})])


def _start(context: Any, *, file: str) -> list[Any]:
    from launch.actions import LogInfo, RegisterEventHandler
    from launch.event_handlers import OnProcessStart
    from launch.substitutions import LaunchConfiguration

    names = [argument.name for argument in arguments(file)]
    values = {name: LaunchConfiguration(name).perform(context) for name in names}
    nodes = [node for node in describe(file, values) if node.condition]
    require_device(values)
    actions: list[Any] = []
    terminal = shutil.which("xterm")
    for node in [node for node in nodes if node.interactive and not terminal]:
        # A process of ROS 2's launch has no terminal.
        command = " ".join(("robot-rl", *node.command, *node.ros_arguments()))
        actions.append(LogInfo(msg=f"no xterm to open a window with; in a second terminal, run: {command}"))
        nodes.remove(node)
    processes = {node.name: _process(node) for node in nodes}
    first = []
    for node in nodes:
        if node.start_after in processes:
            target = processes[node.start_after]
            handler = OnProcessStart(target_action=target, on_start=[processes[node.name]])
            actions.append(RegisterEventHandler(handler))  # before the target starts
        else:
            first.append(processes[node.name])
    return actions + first


def _process(node: NodeProcess) -> Any:
    from launch.actions import ExecuteProcess
    from launch_ros.actions import Node

    grace = Grace().of(node)
    options: dict[str, Any] = {
        "output": "screen",
        "additional_env": dict(node.environment) or None,
        "respawn": node.respawn,
        "respawn_delay": RESPAWN_DELAY,
        "sigterm_timeout": str(grace.interrupt),
        "sigkill_timeout": str(grace.terminate),
    }
    if node.interactive:
        options["prefix"] = "xterm -e"
    if node.required:
        options["on_exit"] = _on_exit(node.name)
    if _in_ament_index():
        options |= {"arguments": list(node.command), "ros_arguments": node.own_arguments()}
        return Node(package="robot_rl", executable="robot-rl", namespace=node.namespace or None, **options)
    command = [sys.executable, "-m", "robot_rl.cli.main", *node.command, *node.ros_arguments()]
    return ExecuteProcess(cmd=command, name=node.name, **options)


def _on_exit(name: str) -> Any:
    """Return an exit handler that shuts the launch down when the required node `name` exits.

    After a failure the handler raises, since `ros2 launch` returns 1 only after an exception. ROS 2 sends SIGINT to all
    nodes at once; guard and twin themselves wait for the commanding node.
    """
    from launch.actions import OpaqueFunction, Shutdown

    def fail(_context: Any, code: int) -> None:
        raise LaunchError(f"{name} exited with code {code}")

    def on_exit(event: Any, context: Any) -> list[Any]:
        if event.returncode and not context.is_shutdown:
            return [OpaqueFunction(function=fail, args=[event.returncode])]
        return [Shutdown(reason=f"{name} exited")]

    return on_exit


def _in_ament_index() -> bool:
    """Return whether colcon installed robot_rl. After pip, the ament index may list robot_rl without its executable."""
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        prefix = get_package_prefix("robot_rl")
    except PackageNotFoundError:
        return False
    return Path(prefix, "lib", "robot_rl", "robot-rl").exists()
