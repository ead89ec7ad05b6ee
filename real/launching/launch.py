"""Descriptions of the launch files, for ROS 2's launch and for `robot-rl launch`.

A node is a `robot-rl` command. `launch/*.launch.py` turn the description into ROS 2 launch actions
(`real.launching.launch_actions`), `real.launching.processes` runs it without ROS 2: same arguments, same order.

>>> [node.name for node in describe("arm", {"policy": "runs/lift/bundle", "twin": "true"}) if node.condition]
['twin', 'deploy']
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from real.backends import BACKEND, BACKENDS
from real.topics import JOINT_PREFIX
from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName, UserError

_NAMESPACE = re.compile(r"/?[A-Za-z_]\w*(/[A-Za-z_]\w*)*/?")


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


_WRITES = 60.0
"""Time in which finetune ends its learner and writes dataset, video and bundle on a busy machine, s; the robot has
stopped before that."""
_BOOL = ("true", "false")
_DEVICES = ("none", "keyboard", "gamepad", "scripted")
_POLICY = Argument("policy", None, "policy bundle: the folder that training wrote")
_TWIN = Argument("twin", "false", "start the simulated twin in place of the robot", _BOOL)
_TASK = Argument(
    "task", "", "task of twin and operator, see `robot-rl tasks`; empty: the policy's, else the robot's first"
)
_OUT = Argument("out", "", "folder for what is recorded; empty: a new one under runs/")
_PREFIX = Argument(
    JOINT_PREFIX, "", "what the arm's driver puts before the names of joints and frames, such as fr3_ or a tf_prefix"
)
_COMMON = (
    Argument("robot", "panda", "robot to drive, of `robot-rl robots`, or its import path"),
    _TASK,
    Argument("camera", "true", "record the task's cameras; false without cameras", _BOOL),
    Argument("view", "false", "show the robot's live state in the browser, on this machine only", _BOOL),
    Argument("seed", "0", "seed of the twin, of a scripted operator and of learning", minimum=0),
    Argument("namespace", "", "ROS namespace of all nodes, for several robots on one network"),
    Argument("domain_id", "", "ROS_DOMAIN_ID of all nodes; empty: as in the environment", minimum=0),
    Argument("bus", "auto", "what carries the messages; auto: DDS for control, see docs/deploy.md", BACKENDS),
    Argument("log_level", "info", "least severe messages shown", ("debug", "info", "warn", "error", "fatal")),
)
_DEPLOY = (
    _POLICY,
    _TWIN,
    Argument("dry_run", "false", "compute, check and record commands, but send none", _BOOL),
    Argument("teleop", "none", "device with which a person can take over", _DEVICES),
    Argument("label", "", "name of the policy in the report"),
    Argument("episodes", "", "episodes to run; empty: 10", minimum=1),
    Argument("seconds", "0", "length of an episode, s; 0: the task's", minimum=0.0),
    Argument("runtime", "torch", "what computes the policy; onnx needs `robot-rl export` first", ("torch", "onnx")),
    Argument("first_episode", "", "seed of the first one: objects on a twin, commands; empty: 1000000000", minimum=0),
    _OUT,
)
_INSTRUCTION = Argument("instruction", "", "what the robot is asked, for a policy that reads instructions")
_THEN = Argument("then", "", "second instruction, said in the course of each episode")
_AFTER = Argument("after", "3", "time from the begin of an episode to that, s", minimum=0.1)
_CLASSIFIER = Argument("classifier", "", "success classifier that judges by the cameras; empty: the task's own test")
_EXECUTION = Argument(
    "execution",
    "receding",
    "what runs while inference takes time; receding: the robot holds, the others go on with the chunk before",
    ("receding", "ensemble", "asynchronous", "realtime"),
)


def _defaults(arguments: tuple[Argument, ...], **values: str) -> tuple[Argument, ...]:
    """Return the arguments with other defaults."""
    return tuple(replace(a, default=values[a.name]) if a.name in values else a for a in arguments)


def _twin(values: Mapping[str, str], condition: bool = True, *options: str) -> NodeProcess:
    command = ("twin", values["robot"], *_options(values, "task", "seed"), *_no_camera(values))
    return NodeProcess("twin", (*command, *options), condition=condition, required=True)


def _teleop(values: Mapping[str, str]) -> NodeProcess:
    device = values["teleop"]
    seed = ("--seed", values["seed"]) if device == "scripted" else ()
    return NodeProcess(
        "teleop",
        ("teleop", device, *_options(values, "robot", "task"), *seed),
        condition=device != "none",
        respawn=device == "gamepad",  # a radio link may drop out
        start_after="twin",
        interactive=device == "keyboard",
    )


def _tell(values: Mapping[str, str]) -> NodeProcess:
    first, second = values["instruction"], values["then"]
    if second and not first:
        raise LaunchError(f"then:={second} follows an instruction; name it with instruction:=")
    return NodeProcess("tell", ("tell", first, second, "--after", values["after"]), condition=bool(second))


def _view(values: Mapping[str, str]) -> NodeProcess:
    cameras = "on" if values["camera"] == "true" else "off"
    command = ("view", f"robot:{values['robot']}", *_options(values, "task"), "--cameras", cameras)
    return NodeProcess("view", command, condition=values["view"] == "true", start_after="twin")


def _options(values: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple(word for name in names if values[name] for word in _option(name, values[name]))


def _option(name: str, value: str) -> tuple[str, ...]:
    """Return an option's words: one if the value would pass for another option."""
    return (f"--{name}={value}",) if value.startswith("-") else (f"--{name}", value)


def _bundle(values: Mapping[str, str]) -> str:
    """Return the policy's path, which never passes for an option."""
    return f"./{values['policy']}" if values["policy"].startswith("-") else values["policy"]


def _no_camera(values: Mapping[str, str]) -> tuple[str, ...]:
    return ("--no-camera",) if values["camera"] == "false" else ()


def _describe_twin(values: Mapping[str, str]) -> list[NodeProcess]:
    return [_twin(values), _view(values)]


def _deploy(values: Mapping[str, str], start_after: str, *names: str) -> NodeProcess:
    command = ("deploy", _bundle(values), *_options(values, "robot", "episodes", "out", "label"))
    command += _options(values, "seconds", "runtime", *names)
    if values["first_episode"]:
        command += ("--seed", values["first_episode"])
    if values["dry_run"] == "true":
        command += ("--dry-run",)
    if values["camera"] == "false":
        command += ("--video-episodes", "0")
    return NodeProcess("deploy", command, required=True, start_after=start_after, commands_robot=True)


def _describe_arm(values: Mapping[str, str]) -> list[NodeProcess]:
    return [
        _twin(values, values["twin"] == "true"),
        _deploy(values, "twin", "execution", "instruction", "classifier"),
        _tell(values),
        _teleop(values),
        _view(values),
    ]


def _describe_quadruped(values: Mapping[str, str]) -> list[NodeProcess]:
    twin = _twin(values, values["twin"] == "true", "--push-every", values["push_every"])
    sends = values["dry_run"] == "false"  # a guard without commands damps the robot
    guard = NodeProcess(
        "guard", ("guard", values["robot"]), condition=sends, required=True, start_after="twin", guards_robot=True
    )
    if values["commands"] == "auto":
        values = {**values, "commands": "schedule" if values["twin"] == "true" else "person"}
    deploy = _deploy(values, "guard" if sends else "twin", "commands")
    return [twin, guard, deploy, _teleop(values), _view(values)]


def _describe_finetune(values: Mapping[str, str]) -> list[NodeProcess]:
    options = _options(values, "robot", "recipe", "instruction", "classifier", "minutes", "out", "dataset", "seed")
    resume = ("--resume",) if values["resume"] == "true" else ()
    command = ("finetune", _bundle(values), *options, *resume, *_no_camera(values))
    after = "twin" if values["teleop"] == "none" else "teleop"
    finetune = NodeProcess("finetune", command, required=True, start_after=after, commands_robot=True, writes=_WRITES)
    return [_twin(values, values["twin"] == "true"), _teleop(values), finetune, _view(values)]


def _describe_record(values: Mapping[str, str]) -> list[NodeProcess]:
    flags = {"resume": "--resume", "keep_failures": "--keep-failures"}
    options = tuple(flag for name, flag in flags.items() if values[name] == "true")
    command = (
        "record",
        values["task"],
        *_options(values, "robot", "instruction", "episodes", "seconds", "out", "seed"),
    )
    after = "twin" if values["teleop"] == "none" else "teleop"
    record = NodeProcess(
        "record", (*command, *options, *_no_camera(values)), required=True, start_after=after, commands_robot=True
    )
    return [_twin(values, values["twin"] == "true"), _teleop(values), record]


@dataclass(frozen=True)
class _File:
    summary: str
    arguments: tuple[Argument, ...]
    describe: Callable[[Mapping[str, str]], list[NodeProcess]]


_FILES = {
    "twin": _File("a simulated robot behind the robot's own topics", (_PREFIX, *_COMMON), _describe_twin),
    "arm": _File(
        "run a policy on an arm",
        (*_DEPLOY, _INSTRUCTION, _THEN, _AFTER, _CLASSIFIER, _EXECUTION, _PREFIX, *_COMMON),
        _describe_arm,
    ),
    "quadruped": _File(
        "run a policy on a walking robot, behind a guard",
        (
            *(argument for argument in _defaults(_DEPLOY, seconds="60") if argument.name != "teleop"),
            Argument("teleop", "none", "device with which a person can steer and stop", _DEVICES),
            Argument(
                "commands",
                "auto",
                "source of commands without a device and cmd_vel; auto: schedule on a twin, person on a robot",
                ("auto", "schedule", "person"),
            ),
            Argument("push_every", "0", "push the twin at this interval, s; 0: never", minimum=0.0),
            # Rendering takes the twin longer than a tick of its motors.
            *_defaults(_COMMON, robot="go2", camera="false"),
        ),
        _describe_quadruped,
    ),
    "finetune": _File(
        "improve a policy on the robot while a person corrects it",
        (
            _POLICY,
            _TWIN,
            Argument("teleop", "gamepad", "device with which the person corrects", _DEVICES),
            Argument("recipe", "hil-serl", "how to learn; `robot-rl recipes` lists them"),
            _INSTRUCTION,
            _CLASSIFIER,
            Argument("minutes", "3", "duration in minutes", minimum=0.0),
            Argument("dataset", "", "demonstrations; empty: those that the policy was trained on"),
            _OUT,
            Argument(
                "resume",
                "false",
                "continue the session in out, or the latest: its dataset, weights and learner",
                _BOOL,
            ),
            _PREFIX,
            *_COMMON,
        ),
        _describe_finetune,
    ),
    "record": _File(
        "record a person's demonstrations on an arm",
        (
            _TWIN,
            Argument("teleop", "keyboard", "device with which the person moves the robot", _DEVICES),
            replace(_INSTRUCTION, description="what to demonstrate, in a task with instructions"),
            Argument("episodes", "20", "demonstrations that the dataset is to hold", minimum=1),
            Argument("seconds", "30", "time limit of an episode, s; 0: the task's", minimum=0.0),
            Argument("out", "", "folder of the dataset; empty: datasets/<task>"),
            Argument("resume", "false", "continue the dataset", _BOOL),
            Argument("keep_failures", "false", "keep failed episodes too", _BOOL),
            _PREFIX,
            *(replace(a, default=None, description="task to demonstrate") if a is _TASK else a for a in _COMMON),
        ),
        _describe_record,
    ),
}


def files() -> dict[str, str]:
    """Return the name and one-line summary of each launch file."""
    return {name: file.summary for name, file in _FILES.items()}


def arguments(file: str) -> tuple[Argument, ...]:
    """Return the arguments that a launch file declares."""
    return _file(file).arguments


def describe(file: str, arguments: Mapping[str, str]) -> list[NodeProcess]:
    """Return the nodes of a launch file in starting order, with its arguments checked."""
    values = _resolve(file, arguments)
    environment = {"ROS_DOMAIN_ID": values["domain_id"]} if values["domain_id"] else {}
    environment |= {BACKEND: values["bus"]} if values["bus"] != "auto" else {}
    namespace = "/" + values["namespace"].strip("/") if values["namespace"] else ""
    level = "" if values["log_level"] == "info" else values["log_level"]
    prefix = values.get(JOINT_PREFIX, "")
    parameters = {JOINT_PREFIX: prefix} if prefix else {}
    return [
        replace(node, namespace=namespace, environment=environment, log_level=level, parameters=parameters)
        for node in _file(file).describe(values)
    ]


def require_device(arguments: Mapping[str, str]) -> None:
    """Raise LaunchError if a gamepad is to be started and there is none: its node would be started again for ever,
    and the robot would move without it."""
    if arguments.get("teleop") != "gamepad":
        return
    from real.teleop.gamepad import Gamepad

    try:
        Gamepad().close()
    except UserError as error:
        raise LaunchError(str(error)) from error


def _file(name: str) -> _File:
    if name not in _FILES:
        raise UnknownName("launch file", name, _FILES)
    return _FILES[name]


def _task_of(policy: Path) -> str:
    """Return the name of a policy's task; empty if there is none, for the process that loads the bundle to explain."""
    file = next((f for f in (policy / "bundle" / "policy.json", policy / "policy.json") if f.is_file()), None)
    try:
        name = json.loads(file.read_text())["interface"]["task"] if file else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) and re.fullmatch(r"[\w-]+", name) else ""  # a file names no import path


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
        raise LaunchError(f"{JOINT_PREFIX}:={prefix} begins no name; write letters, digits and _, such as fr3_")
    if values["domain_id"] and int(values["domain_id"]) > 232:
        raise LaunchError(f"domain_id:={values['domain_id']} is above 232, the last there is; take 0 to 101")
    return values
