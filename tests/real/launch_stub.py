"""Minimal `launch` and `launch_ros` of ROS 2, to execute our launch files without ROS.

Parameter names and checks are those of the real classes.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, make_dataclass
from types import ModuleType
from typing import Any


class Context:
    def __init__(self, configurations: dict[str, str]):
        self.launch_configurations = dict(configurations)


class Action:
    def execute(self, context: Context) -> list[Any] | None:
        return None


@dataclass
class LaunchDescription:
    entities: list[Any]


@dataclass
class DeclareLaunchArgument(Action):
    name: str
    _: KW_ONLY
    default_value: str | None = None
    description: str | None = None
    choices: list[str] | None = None

    def __post_init__(self) -> None:
        assert self.description
        assert self.choices is None or (self.choices and self.default_value in (None, *self.choices))

    def execute(self, context: Context) -> None:
        values = context.launch_configurations
        if self.name not in values:
            if self.default_value is None:
                raise RuntimeError(f'Required launch argument "{self.name}" was not provided.')
            values[self.name] = self.default_value
        if self.choices is not None and values[self.name] not in self.choices:
            raise RuntimeError(f'Argument "{self.name}" provided value "{values[self.name]}" is not valid.')


@dataclass
class LaunchConfiguration:
    variable_name: str

    def perform(self, context: Context) -> str:
        return context.launch_configurations[self.variable_name]


@dataclass(kw_only=True)
class OpaqueFunction(Action):
    function: Callable[..., list[Any]]
    args: Any = ()
    kwargs: Any = field(default_factory=dict)

    def execute(self, context: Context) -> list[Any]:
        return self.function(context, *self.args, **self.kwargs)


LogInfo = make_dataclass("LogInfo", [("msg", str)], bases=(Action,), kw_only=True)
Shutdown = make_dataclass("Shutdown", [("reason", str, "reason not given")], bases=(Action,), kw_only=True)


@dataclass(kw_only=True, eq=False)
class _Process(Action):
    prefix: str | None = None
    name: str | None = None
    additional_env: dict[str, str] | None = None
    output: str = "log"
    on_exit: Any = None
    respawn: bool = False
    respawn_delay: float | None = None
    sigterm_timeout: str = "5"
    sigkill_timeout: str = "5"

    def __post_init__(self) -> None:
        assert isinstance(self.sigterm_timeout, str) and isinstance(self.sigkill_timeout, str)


ExecuteProcess = make_dataclass("ExecuteProcess", [("cmd", list)], bases=(_Process,), kw_only=True, eq=False)


@dataclass(kw_only=True, eq=False)
class Node(_Process):
    executable: str
    package: str | None = None
    namespace: str | None = None
    remappings: list[tuple[str, str]] | None = None
    ros_arguments: list[str] | None = None
    arguments: list[str] | None = None


OnProcessStart = make_dataclass("OnProcessStart", [("target_action", Action), ("on_start", list)], kw_only=True)
RegisterEventHandler = make_dataclass("RegisterEventHandler", [("event_handler", OnProcessStart)], bases=(Action,))


class PackageNotFoundError(KeyError):
    pass


def run(description: LaunchDescription, configurations: dict[str, str]) -> list[Any]:
    """Return all actions in a LaunchService's order; each process starts at once."""
    context = Context(configurations)
    waiting = list(description.entities)
    visited: list[Any] = []
    handlers: list[Any] = []
    while waiting:
        action = waiting.pop(0)
        visited.append(action)
        if isinstance(action, RegisterEventHandler):
            handlers.append(action.event_handler)
        waiting = list(action.execute(context) or []) + waiting
        if isinstance(action, _Process):
            waiting = [a for h in handlers if h.target_action is action for a in h.on_start] + waiting
    return visited


@contextmanager
def installed(prefix: str | None) -> Iterator[None]:
    """Install the stub as `launch` and `launch_ros`; `prefix` is the package's folder in the ament index."""

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
