"""Arguments and processes of launch files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from robot_rl.util.errors import UnknownName, UserError


class LaunchError(UserError):
    """A launch argument that is missing, malformed or out of range; the message says what to write."""

    code = 2


@dataclass(frozen=True)
class Argument:
    """One `name:=value`.

    `default` None means it must be given; `minimum` makes it a number (a whole one if `minimum` is an int).
    """

    name: str
    default: str | None
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None

    def check(self, value: str) -> str:
        """Return the value; raise LaunchError with the allowed values."""
        if self.choices and value not in self.choices:
            raise UnknownName(f"value of {self.name}", value, self.choices)
        if self.minimum is not None and value:
            kind = "a whole number" if isinstance(self.minimum, int) else "a number"
            try:
                number = type(self.minimum)(value)
            except ValueError:
                number = None
            if number is None or not number >= self.minimum:
                raise LaunchError(f"{self.name}:={value} is not {kind} of {self.minimum} or more")
        return value


@dataclass(frozen=True)
class NodeProcess:
    """One process to start.

    Fields:
        name: unique in its launch file; the prefix of its output.
        command: arguments of the `robot-rl` executable.
        namespace, log_level, parameters: passed on as ROS arguments.
        environment: variables set on top of the launcher's own.
        condition: False skips the node.
        required: when it exits, everything stops, and its exit status is the launch's.
        respawn: start it again after a failure.
        start_after: name of the node to start before this one, if it is started.
        commands_robot: it sends commands to the robot; stopped first.
        guards_robot: it passes these commands on; stopped after the commanding nodes, before the rest.
        interactive: it reads the terminal.
        writes: time after SIGINT in which it may write its results before SIGTERM, s, on top of a node's usual.
    """

    name: str
    command: tuple[str, ...]
    namespace: str = ""
    log_level: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    condition: bool = True
    required: bool = False
    respawn: bool = False
    start_after: str = ""
    commands_robot: bool = False
    guards_robot: bool = False
    interactive: bool = False
    writes: float = 0.0

    def ros_arguments(self) -> tuple[str, ...]:
        """Return the ROS arguments after the command, as in ROS 2's launch; empty if all are default."""
        namespace = ["-r", f"__ns:={self.namespace}"] if self.namespace else []
        found = [*namespace, *self.own_arguments()]
        return ("--ros-args", *found) if found else ()

    def own_arguments(self) -> list[str]:
        """Return those besides the namespace."""
        parameters = [word for name, value in self.parameters.items() for word in ("-p", f"{name}:={value}")]
        return [*parameters, *(["--log-level", self.log_level] if self.log_level else [])]
