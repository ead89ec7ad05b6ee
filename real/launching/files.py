"""The launch files: their arguments, and the processes that each starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from real.backends import BACKENDS
from real.launching.node import Argument, LaunchError, NodeProcess
from real.topics import JOINT_PREFIX

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
class LaunchFile:
    summary: str
    arguments: tuple[Argument, ...]
    describe: Callable[[Mapping[str, str]], list[NodeProcess]]


FILES = {
    "twin": LaunchFile("a simulated robot behind the robot's own topics", (_PREFIX, *_COMMON), _describe_twin),
    "arm": LaunchFile(
        "run a policy on an arm",
        (*_DEPLOY, _INSTRUCTION, _THEN, _AFTER, _CLASSIFIER, _EXECUTION, _PREFIX, *_COMMON),
        _describe_arm,
    ),
    "quadruped": LaunchFile(
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
    "finetune": LaunchFile(
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
    "record": LaunchFile(
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
