"""Arguments and processes of launch files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from robot_rl.util.errors import UnknownName, UserError


class LaunchError(UserError):
    """Launch argument that is missing, malformed or out of range; the message names valid values."""

    code = 2


@dataclass(frozen=True)
class Argument:
    """Launch argument `name:=value`. `default` None: the argument is required. `minimum`: the value is a number of at
    least this; an integer if `minimum` is an int."""

    name: str
    default: str | None
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None

    def check(self, value: str) -> str:
        """Return the value unchanged; raise LaunchError or UnknownName if it is not valid."""
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
    """Process of a launch file.

    Fields:
        name: unique in the launch file; prefix of the node's output.
        command: arguments of the `robot-rl` executable.
        namespace, log_level, parameters: passed as ROS arguments.
        environment: variables added to the launcher's environment.
        condition: False skips the node.
        required: the node's exit stops the launch; the launch ends with the node's exit status.
        respawn: restart after a failure.
        start_after: name of the node that starts before this one, if both start.
        commands_robot: sends commands to the robot; stops first.
        guards_robot: forwards commands to the robot; stops after the commanding nodes and before all other nodes.
        interactive: reads the terminal.
        follows: takes part in lockstep with a twin, in which the node goes by its ROS name `ros_name`.
        writes: additional time between SIGINT and SIGTERM for writing results, s.
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
    follows: bool = False
    ros_name: str = ""
    writes: float = 0.0

    def ros_arguments(self) -> tuple[str, ...]:
        """Return the ROS arguments to append to the command; empty if all have their defaults."""
        namespace = ["-r", f"__ns:={self.namespace}"] if self.namespace else []
        arguments = [*namespace, *self.own_arguments()]
        return ("--ros-args", *arguments) if arguments else ()

    def own_arguments(self) -> list[str]:
        """Return the ROS arguments except the namespace."""
        parameters = [word for name, value in self.parameters.items() for word in ("-p", f"{name}:={value}")]
        return [*parameters, *(["--log-level", self.log_level] if self.log_level else [])]
