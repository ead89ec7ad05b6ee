"""Just enough of ROS 2's `launch` and `launch_ros` to execute our launch files where they are not installed.

Keyword names and checks are those of the real classes, so that a call the real ones refuse fails here too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Context:
    def __init__(self, configurations: dict[str, str]):
        self.launch_configurations = dict(configurations)


class Action:
    def execute(self, context: Context) -> list[Any] | None:
        return None


class LaunchDescription:
    def __init__(self, initial_entities: list[Any] | None = None):
        self.entities = list(initial_entities or [])


class DeclareLaunchArgument(Action):
    def __init__(
        self,
        name: str,
        *,
        default_value: str | None = None,
        description: str | None = None,
        choices: list[str] | None = None,
    ):
        assert choices is None or (choices and (default_value is None or default_value in choices))
        self.name, self.default_value, self.choices = name, default_value, choices
        self.description = description

    def execute(self, context: Context) -> None:
        values = context.launch_configurations
        if self.name not in values:
            if self.default_value is None:
                raise RuntimeError(f'Required launch argument "{self.name}" was not provided.')
            values[self.name] = self.default_value
        if self.choices is not None and values[self.name] not in self.choices:
            raise RuntimeError(f'Argument "{self.name}" provided value "{values[self.name]}" is not valid.')


class LaunchConfiguration:
    def __init__(self, variable_name: str):
        self.variable_name = variable_name

    def perform(self, context: Context) -> str:
        return context.launch_configurations[self.variable_name]


class OpaqueFunction(Action):
    def __init__(self, *, function: Callable[..., list[Any]], args: Any = None, kwargs: Any = None):
        self.function, self.args, self.kwargs = function, args or [], kwargs or {}

    def execute(self, context: Context) -> list[Any]:
        return self.function(context, *self.args, **self.kwargs)


class LogInfo(Action):
    def __init__(self, *, msg: str):
        self.msg = msg


class Shutdown(Action):
    def __init__(self, *, reason: str = "reason not given"):
        self.reason = reason


class ExecuteProcess(Action):
    def __init__(
        self,
        *,
        cmd: list[str],
        prefix: str | None = None,
        name: str | None = None,
        additional_env: dict[str, str] | None = None,
        output: str = "log",
        on_exit: Any = None,
        respawn: bool = False,
        respawn_delay: float | None = None,
        sigterm_timeout: str = "5",
        sigkill_timeout: str = "5",
    ):
        assert all(isinstance(word, str) for word in cmd)
        assert isinstance(sigterm_timeout, str) and isinstance(sigkill_timeout, str)
        self.cmd, self.prefix, self.name, self.additional_env = cmd, prefix, name, additional_env
        self.sigterm_timeout = sigterm_timeout
        self.output, self.on_exit, self.respawn, self.respawn_delay = output, on_exit, respawn, respawn_delay


class Node(ExecuteProcess):
    def __init__(
        self,
        *,
        executable: str,
        package: str | None = None,
        name: str | None = None,
        namespace: str | None = None,
        remappings: list[tuple[str, str]] | None = None,
        ros_arguments: list[str] | None = None,
        arguments: list[str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(cmd=[executable, *(arguments or [])], name=name, **kwargs)
        self.package, self.executable, self.arguments = package, executable, arguments
        self.namespace, self.remappings, self.ros_arguments = namespace, remappings, ros_arguments


class OnProcessStart:
    def __init__(self, *, target_action: Action, on_start: list[Action]):
        self.target_action, self.on_start = target_action, on_start


class RegisterEventHandler(Action):
    def __init__(self, event_handler: OnProcessStart):
        self.event_handler = event_handler


class PackageNotFoundError(KeyError):
    pass


def run(description: LaunchDescription, configurations: dict[str, str]) -> list[Any]:
    """Visit all actions in a LaunchService's order, each process starting at once, and return them."""
    context = Context(configurations)
    waiting = list(description.entities)
    visited: list[Any] = []
    handlers: list[OnProcessStart] = []
    while waiting:
        action = waiting.pop(0)
        visited.append(action)
        if isinstance(action, RegisterEventHandler):
            handlers.append(action.event_handler)
        waiting = list(action.execute(context) or []) + waiting
        if isinstance(action, ExecuteProcess):
            waiting = [a for h in handlers if h.target_action is action for a in h.on_start] + waiting
    return visited


@contextmanager
def installed(prefix: str | None) -> Iterator[None]:
    """Make the stub importable as `launch` and `launch_ros` for a while; `prefix` is where ament finds us."""

    def get_package_prefix(name: str) -> str:
        if prefix is None:
            raise PackageNotFoundError(name)
        return prefix

    actions = (DeclareLaunchArgument, ExecuteProcess, LogInfo, OpaqueFunction, RegisterEventHandler, Shutdown)
    contents: dict[str, tuple[Any, ...]] = {
        "launch": (LaunchDescription,),
        "launch.actions": actions,
        "launch.event_handlers": (OnProcessStart,),
        "launch.substitutions": (LaunchConfiguration,),
        "launch_ros": (),
        "launch_ros.actions": (Node,),
        "ament_index_python": (),
        "ament_index_python.packages": (PackageNotFoundError, get_package_prefix),
    }
    before = {name: sys.modules.pop(name, None) for name in contents}
    for name, members in contents.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member.__name__, member)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
