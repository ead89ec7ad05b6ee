"""The launch files twin, arm, quadruped, finetune and record: their arguments and processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from real.backends import BACKENDS
from real.launching.node import Argument, LaunchError, NodeProcess
from real.topics import JOINT_PREFIX

_WRITES = 60.0
"""Time for finetune to end its learner and write dataset, video and bundle on a busy machine, s. During this time the
robot has already stopped."""
_BOOL = ("true", "false")
_DEVICES = ("none", "keyboard", "gamepad", "spacemouse", "leader", "console", "scripted")
_POLICY = Argument("policy", None, "policy bundle: the folder that training wrote")
_TWIN = Argument("twin", "false", "start the simulated twin in place of the robot", _BOOL)
_LOCKSTEP = Argument(
    "lockstep", "auto", "twin in lockstep with the policy, not in real time; auto: unless a person takes part",
    ("auto", "true", "false"),
)  # fmt: skip
_HOST = Argument(
    "host", "", "address of a Franka arm, which `robot-rl robot` then holds; empty: the robot's driver runs already"
)
_PORT = Argument("port", "", "serial port of an arm of LeRobot, which `robot-rl robot` then holds, as with host")
_ID = Argument("id", "", "LeRobot's id of the arm at port, under which it was calibrated")
_HELD = (_HOST, _PORT, _ID)
_PROFILE = Argument(
    "profile", "", "driver of a real robot: a profile such as ur_robot_driver, or a YAML file; empty: the spec's driver"
)
_TASK = Argument("task", "", "task of twin and operator (`robot-rl tasks`); empty: the policy's or robot's first")
_OUT = Argument("out", "", "folder of the recording; empty: a new one under runs/")
_BAG = Argument("bag", "false", "write all messages, except pictures, to the run folder as a bag (MCAP)", _BOOL)
_PREFIX = Argument(JOINT_PREFIX, "", "prefix of joint and frame names in the arm's driver, such as fr3_ or a tf_prefix")
_COMMON = (
    Argument("robot", "panda", "robot to drive, of `robot-rl robots`, or its import path"),
    _TASK,
    Argument("camera", "true", "record the task's cameras; false without cameras", _BOOL),
    Argument("view", "false", "show the robot's live state in the browser, on this machine only", _BOOL),
    Argument("seed", "0", "seed of the twin, of a scripted operator and of learning", minimum=0),
    Argument("namespace", "", "ROS namespace of all nodes, for several robots on one network"),
    Argument("domain_id", "", "ROS_DOMAIN_ID of all nodes; empty: as in the environment", minimum=0),
    Argument("bus", "auto", "message transport; auto: DDS for control, see docs/deploy.md", BACKENDS),
    Argument("log_level", "info", "lowest level of messages shown", ("debug", "info", "warn", "error", "fatal")),
)
_DEPLOY = (
    _POLICY,
    _TWIN,
    _LOCKSTEP,
    Argument("dry_run", "false", "compute, check and record commands without sending them", _BOOL),
    Argument("teleop", "none", "device for a person to take over", _DEVICES),
    Argument("label", "", "name of the policy in the report"),
    Argument("episodes", "", "episodes to run; empty: 10", minimum=1),
    Argument("seconds", "0", "length of an episode, s; 0: the task's", minimum=0.0),
    Argument("runtime", "torch", "inference runtime; onnx needs `robot-rl export` first", ("torch", "onnx")),
    Argument("first_episode", "", "seed of the first episode (objects, commands); empty: 1000000000", minimum=0),
    _OUT,
    _BAG,
)
_OPERATOR = Argument(
    "operator", "steady", "teleop:=scripted: errors of an arm's operator", ("steady", "slow", "beside", "tired")
)
_INSTRUCTION = Argument("instruction", "", "instruction, for a policy that reads instructions")
_THEN = Argument("then", "", "second instruction, given during each episode")
_AFTER = Argument("after", "3", "time of the second instruction from the episode's start, s", minimum=0.1)
_SPEED = Argument("speed", "1", "share of the arm's speed; 0.05 for a policy's first run on a robot", minimum=0.01)
_CLASSIFIER = Argument("classifier", "", "success classifier on camera images; empty: the task's success test")
_EXECUTION = Argument(
    "execution",
    "receding",
    "behaviour during inference; receding: the robot holds, the others continue the previous chunk",
    ("receding", "ensemble", "asynchronous", "realtime"),
)
_COMMANDS = Argument(
    "commands", "auto", "command source without a device or cmd_vel; auto: schedule on a twin, person on a robot",
    ("auto", "schedule", "person"),
)  # fmt: skip


def _twin(values: Mapping[str, str], *options: str) -> NodeProcess:
    command = ("twin", values["robot"], *_options(values, "task", "seed"), *_no_camera(values), *options)
    return NodeProcess("twin", command, condition=values.get("twin", "true") == "true", required=True)


def _robot(values: Mapping[str, str]) -> NodeProcess:
    named = [name for name in ("host", "port") if values[name]]
    if named and values["twin"] == "true":
        raise LaunchError(f"{named[0]}:={values[named[0]]} is of a real robot; leave out twin:=true")
    if values["profile"] and (named or values["twin"] == "true"):
        other = (*named, "twin")[0]
        raise LaunchError(f"profile:={values['profile']} is the driver of a real robot; leave out {other}:=")
    command = ("robot", values["robot"], *_options(values, "host", "port", "id"))
    return NodeProcess("robot", command, condition=bool(named), required=True)


def in_lockstep(nodes: list[NodeProcess], values: Mapping[str, str]) -> list[NodeProcess]:
    """Return the nodes, in lockstep if `lockstep` says so: by default, if the robot is a twin and no person takes part,
    who cannot be waited for."""
    wanted, twin = values.get("lockstep", "false"), values.get("twin") == "true"
    person = values.get("teleop", "none") not in ("none", "scripted")
    if wanted == "true" and (not twin or person):
        reason = "needs twin:=true" if not twin else f"cannot wait for a person: teleop:={values['teleop']}"
        raise LaunchError(f"lockstep:=true {reason}")
    if wanted == "false" or not twin or person:
        return nodes
    followers = [node for node in nodes if node.follows and node.condition]
    speed = ("--speed", "1") if values["view"] == "true" else ()  # a person watches at the usual speed
    names = tuple(node.ros_name or node.name for node in followers)
    changed = []
    for node in nodes:
        if node.name == "twin":
            node = replace(node, command=(*node.command, "--lockstep", *names, *speed))
        elif node in followers:
            node = replace(node, parameters={**node.parameters, "use_sim_time": "true"})
        changed.append(node)
    return changed


def _teleop(values: Mapping[str, str]) -> NodeProcess:
    device = values["teleop"]
    command = ("teleop", device, *_options(values, "robot", "task"))
    if device == "scripted":
        errs = _options(values, "operator") if "operator" in values else ()  # not where a policy is deployed
        command += ("--seed", values["seed"], *errs)
    if device == "console":
        command = ("console", values["robot"], *_of_viewer(values), "--present")
    return NodeProcess(
        "teleop",
        command,
        condition=device != "none",
        respawn=device == "gamepad",  # a radio link may drop out
        start_after="twin",
        interactive=device in ("keyboard", "spacemouse", "leader"),  # the latter with the keyboard's marks
        follows=device == "scripted",
    )


def _tell(values: Mapping[str, str]) -> NodeProcess:
    first, second = values["instruction"], values["then"]
    if second and not first:
        raise LaunchError(f"then:={second} follows an instruction; name it with instruction:=")
    command = ("tell", first, second, "--after", values["after"])
    return NodeProcess("tell", command, condition=bool(second), follows=True)


def _view(values: Mapping[str, str]) -> NodeProcess:
    command = ("view", f"robot:{values['robot']}", *_of_viewer(values))
    return NodeProcess("view", command, condition=values["view"] == "true", start_after="twin")


def _of_viewer(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options that view and console share."""
    profile = _options(values, "profile") if values.get("profile") else ()
    return (*_options(values, "task"), *profile, "--cameras", "on" if values["camera"] == "true" else "off")


def _options(values: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple(word for name in names if values[name] for word in _option(name, values[name]))


def _option(name: str, value: str) -> tuple[str, ...]:
    """Return an option as command-line words; one word `--name=value` if the value looks like an option itself."""
    return (f"--{name}={value}",) if value.startswith("-") else (f"--{name}", value)


def _bundle(values: Mapping[str, str]) -> str:
    """Return the policy's path; prepend ./ if the path looks like an option."""
    return f"./{values['policy']}" if values["policy"].startswith("-") else values["policy"]


def _no_camera(values: Mapping[str, str]) -> tuple[str, ...]:
    return ("--no-camera",) if values["camera"] == "false" else ()


def _flags(values: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple("--" + name.replace("_", "-") for name in names if values[name] == "true")


def _after_operator(values: Mapping[str, str]) -> str:
    return "twin" if values["teleop"] == "none" else "teleop"


def _describe_twin(values: Mapping[str, str]) -> list[NodeProcess]:
    return [_twin(values), _view(values)]


def _deploy(values: Mapping[str, str], start_after: str, *names: str) -> NodeProcess:
    options = _options(values, "robot", "episodes", "out", "label", "seconds", "runtime", *names)
    command = ("deploy", _bundle(values), *options, *_flags(values, "dry_run", "bag"))
    if values["first_episode"]:
        command += ("--seed", values["first_episode"])
    if values["camera"] == "false":
        command += ("--video-episodes", "0")
    return NodeProcess("deploy", command, required=True, start_after=start_after, commands_robot=True, follows=True)


def _describe_arm(values: Mapping[str, str]) -> list[NodeProcess]:
    deploy = _deploy(values, "twin", "speed", "execution", "instruction", "classifier", "profile")
    return [_twin(values), _robot(values), deploy, _tell(values), _teleop(values), _view(values)]


def _describe_quadruped(values: Mapping[str, str]) -> list[NodeProcess]:
    twin = _twin(values, "--push-every", values["push_every"])
    sends = values["dry_run"] == "false"  # without commands a guard would damp the robot
    guard = NodeProcess(
        "guard", ("guard", values["robot"]), condition=sends, required=True, start_after="twin", guards_robot=True,
        follows=True,
    )
    if values["commands"] == "auto":
        values = {**values, "commands": "schedule" if values["twin"] == "true" else "person"}
    deploy = _deploy(values, "guard" if sends else "twin", "commands")
    return [twin, guard, deploy, _teleop(values), _view(values)]


def _describe_finetune(values: Mapping[str, str]) -> list[NodeProcess]:
    names = ("robot", "profile", "recipe", "instruction", "classifier", "minutes", "out", "dataset", "seed")
    options = _options(values, *names)
    command = ("finetune", _bundle(values), *options, *_flags(values, "resume", "bag"), *_no_camera(values))
    roles: dict[str, Any] = dict(required=True, start_after=_after_operator(values), commands_robot=True)
    finetune = NodeProcess("finetune", command, **roles, writes=_WRITES, follows=True)
    return [_twin(values), _robot(values), _teleop(values), finetune, _view(values)]


def _describe_record(values: Mapping[str, str]) -> list[NodeProcess]:
    options = _options(values, "robot", "profile", "instruction", "episodes", "seconds", "out", "seed")
    options += _flags(values, "resume", "keep_failures")
    command = ("record", values["task"], *options, *_no_camera(values))
    roles: dict[str, Any] = dict(required=True, start_after=_after_operator(values), commands_robot=True)
    record = NodeProcess("record", command, **roles, follows=True, ros_name="policy")
    return [_twin(values), _robot(values), _teleop(values), record]


def _changed(arguments: tuple[Argument, ...], **fields: dict[str, Any]) -> tuple[Argument, ...]:
    """Return the arguments with some fields replaced; `fields` maps an argument's name to its new fields."""
    return tuple(replace(a, **fields.get(a.name, {})) for a in arguments)


@dataclass(frozen=True)
class LaunchFile:
    summary: str
    arguments: tuple[Argument, ...]
    describe: Callable[[Mapping[str, str]], list[NodeProcess]]


FILES = {
    "twin": LaunchFile("a simulated robot behind the robot's own topics", (_PREFIX, *_COMMON), _describe_twin),
    "arm": LaunchFile(
        "run a policy on an arm",
        (
            *_DEPLOY, _OPERATOR, _SPEED, *_HELD, _PROFILE, _INSTRUCTION, _THEN, _AFTER, _CLASSIFIER, _EXECUTION,
            _PREFIX, *_COMMON,
        ),  # fmt: skip
        _describe_arm,
    ),
    "quadruped": LaunchFile(
        "run a policy on a walking robot, behind a guard",
        (
            *_changed(_DEPLOY, seconds={"default": "60"}, teleop={"description": "device of a person who steers"}),
            _COMMANDS,
            Argument("push_every", "0", "interval of pushes of the twin, s; 0: never", minimum=0.0),
            # Without cameras: rendering takes longer than a motor tick.
            *_changed(_COMMON, robot={"default": "go2"}, camera={"default": "false"}),
        ),
        _describe_quadruped,
    ),
    "finetune": LaunchFile(
        "improve a policy on the robot while a person corrects it",
        (
            _POLICY,
            _TWIN,
            _LOCKSTEP,
            *_HELD,
            _PROFILE,
            Argument("teleop", "gamepad", "device of the person who corrects", _DEVICES),
            _OPERATOR,
            Argument("recipe", "hil-serl", "learning recipe, see `robot-rl recipes`"),
            _INSTRUCTION,
            _CLASSIFIER,
            Argument("minutes", "3", "duration, min", minimum=0.0),
            Argument("dataset", "", "demonstrations; empty: the policy's training dataset"),
            _OUT,
            _BAG,
            Argument("resume", "false", "continue the session in out, else the latest", _BOOL),
            _PREFIX,
            *_COMMON,
        ),
        _describe_finetune,
    ),
    "record": LaunchFile(
        "record a person's demonstrations on an arm",
        (
            _TWIN,
            _LOCKSTEP,
            *_HELD,
            _PROFILE,
            Argument("teleop", "keyboard", "device of the person who moves the robot", _DEVICES),
            _OPERATOR,
            replace(_INSTRUCTION, description="instruction to demonstrate, in a task with instructions"),
            Argument("episodes", "20", "final number of demonstrations in the dataset", minimum=1),
            Argument("seconds", "30", "time limit of an episode, s; 0: the task's", minimum=0.0),
            Argument("out", "", "folder of the dataset; empty: datasets/<task>"),
            Argument("resume", "false", "continue the dataset", _BOOL),
            Argument("keep_failures", "false", "keep failed episodes too", _BOOL),
            _PREFIX,
            *_changed(_COMMON, task={"default": None, "description": "task to demonstrate"}),
        ),
        _describe_record,
    ),
}
