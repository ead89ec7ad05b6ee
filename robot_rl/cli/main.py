"""The `robot-rl` command. Each subcommand is imported only when it runs, which keeps --help fast."""

import errno
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from robot_rl.util.errors import INSTALL, Interrupted, UnknownName, UserError

if "OMP_WAIT_POLICY" not in os.environ:
    # By default, idle PyTorch threads spin for milliseconds, which slows MuJoCo's stepping threads down 1.3 times.
    # PyTorch reads the variable at import.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("robot_rl.cli.demo:Demo", "run a demonstration from data collection to the twin and a report"),
    "collect": ("robot_rl.cli.collect:Collect", "record demonstrations of a task"),
    "record": ("robot_rl.cli.record:Record", "record demonstrations by a person"),
    "train": ("robot_rl.cli.train:main", "train a policy with a recipe"),
    "evaluate": ("robot_rl.cli.evaluate:Evaluate", "measure a policy on held-out episodes"),
    "transfer": ("robot_rl.cli.transfer:Transfer", "measure a policy in other simulations and on the twin"),
    "replay-nan": ("robot_rl.cli.replay_nan:ReplayNan", "replay an episode whose physics diverged"),
    "bundle": ("robot_rl.cli.bundle:MakeBundle", "make a bundle from a run's latest checkpoint"),
    "prompt": ("robot_rl.cli.prompt:Prompt", "tell a policy of recipe hilp what to do, without training"),
    "export": ("robot_rl.cli.bundle:Export", "write a bundle's policy as ONNX"),
    "serve": ("robot_rl.cli.remote:Serve", "serve a bundle's policy to robots over a websocket"),
    "twin": ("robot_rl.cli.twin:Twin", "run a simulated robot behind the real robot's ROS 2 topics"),
    "robot": ("robot_rl.cli.robot:Robot", "hold a Franka arm through its own protocol, behind the twin's topics"),
    "drive": ("robot_rl.cli.drive:Drive", "drive a robot that walks by itself, as a Go2 in sport mode, by cmd_vel"),
    "view": ("robot_rl.cli.view:View", "watch a task, a policy, a twin or a robot in the browser"),
    "replay": ("robot_rl.cli.replay:Replay", "watch a recorded session in the browser"),
    "console": ("robot_rl.cli.seat:Console", "watch and move a robot or its twin in the browser"),
    "guard": ("robot_rl.cli.twin:Guard", "check a legged robot's motor commands and forward them"),
    "deploy": ("robot_rl.cli.deploy:Deploy", "run a policy on a robot or its twin"),
    "excite": ("robot_rl.cli.excite:Excite", "move a robot so that its log shows its parameters"),
    "sysid": ("robot_rl.cli.sysid:Sysid", "fit the simulation to a robot's log, and write ranges for training"),
    "teleop": ("robot_rl.cli.teleop:Teleop", "publish an operator's input, of a keyboard, a gamepad and others"),
    "tell": ("robot_rl.cli.teleop:Tell", "send language instructions to a running robot"),
    "finetune": ("robot_rl.cli.finetune:main", "fine-tune on a robot while a person corrects it"),
    "launch": ("robot_rl.cli.launch:main", "start the nodes of a launch file without ROS 2"),
    "report": ("robot_rl.cli.report:Report", "write report.html from run folders"),
    "compare": ("robot_rl.cli.report:Compare", "compare policies with confidence intervals"),
    "bench methods": ("robot_rl.cli.bench:Methods", "measure each method against its control"),
    "bench peers": ("robot_rl.cli.bench:Peers", "measure our learners against those of other libraries"),
    "bench sim": ("robot_rl.cli.bench:Sim", "measure simulation speed against other libraries"),
    "bench gpu": ("robot_rl.cli.bench.gpu:Gpu", "measure physics, environments and learning on a GPU"),
    "bench vla": ("robot_rl.cli.bench.vla:Vla", "measure a 500M-parameter vision-language-action model on a GPU"),
    "bench loop": ("robot_rl.cli.bench.loop:Loop", "measure the command loop's lateness against a bare loop"),
    "classifier fit": ("robot_rl.cli.reward:Fit", "fit a success classifier to a dataset's marked frames"),
    "classifier show": ("robot_rl.cli.reward:ShowClassifier", "show a success classifier and its held-out metrics"),
    "reward write": ("robot_rl.cli.reward:Write", "let a language model write a reward, then vet it"),
    "reward stages": ("robot_rl.cli.reward:Stages", "write a reward from demonstrations, then vet it"),
    "reward vet": ("robot_rl.cli.reward:Vet", "vet a reward on scripted episodes"),
    "reward show": ("robot_rl.cli.reward:ShowReward", "show a written reward's metrics and verdict"),
    "reward prompt": ("robot_rl.cli.reward:Prompt", "print the prompt for a language model"),
    "dataset info": ("robot_rl.cli.dataset:Info", "show a dataset's contents"),
    "dataset verify": ("robot_rl.cli.dataset:Verify", "check every file of a dataset"),
    "dataset stats": ("robot_rl.cli.dataset:Stats", "recompute a dataset's statistics"),
    "dataset convert": ("robot_rl.cli.dataset:Convert", "convert an older LeRobot dataset to v3.0"),
    "tasks": ("robot_rl.cli.lists:tasks_main", "list the tasks"),
    "robots": ("robot_rl.cli.lists:robots_main", "list the robots"),
    "robots draft": ("robot_rl.cli.draft:RobotsDraft", "write a robot's spec from its model file"),
    "robots check": ("robot_rl.cli.doctor:RobotsCheck", "compare a robot's spec with its model file"),
    "robots cover": ("robot_rl.cli.cover:Cover", "cover an arm's links with spheres, for the check against collisions"),
    "recipes": ("robot_rl.cli.lists:recipes_main", "list the recipes"),
    "doctor": ("robot_rl.cli.doctor:Doctor", "check this machine"),
}

OURS = ("robot_rl", "policies", "sim", "real")
"""Packages of robot-rl itself: if one of these cannot be imported, that is a defect, not a missing dependency."""
HELP = ("-h", "--help", "help")


def usage() -> str:
    lines = ["usage: robot-rl COMMAND [OPTIONS]      robot-rl COMMAND --help", "", *_listed(COMMANDS), ""]
    return "\n".join([*lines, "  --debug         show the traceback of an error\n  --version       print the version"])


def group_usage(group: str) -> str:
    """Return the help of a group of commands."""
    head = f"usage: robot-rl {group} COMMAND [OPTIONS]      robot-rl {group} COMMAND --help"
    return "\n".join([head, "", *_listed(_grouped(group))])


def _listed(names: Iterable[str]) -> list[str]:
    return [f"  {name:<15} {COMMANDS[name][1]}" for name in names]


def _grouped(group: str) -> list[str]:
    """Return the two-word commands of `group`, and `group` itself if it is also a command."""
    within = [name for name in COMMANDS if name.startswith(f"{group} ")]
    return [name for name in COMMANDS if name == group] + within if within else []


def _find(argv: list[str]) -> tuple[str, list[str]]:
    name = " ".join(argv[:2])
    if name in COMMANDS:
        return name, argv[2:]
    if argv[0] in COMMANDS:
        return argv[0], argv[1:]
    if within := _grouped(argv[0]):
        raise UnknownName("command", name, within)
    raise UnknownName("command", argv[0], COMMANDS)


def _run(argv: list[str]) -> int:
    name, rest = _find(argv)
    module, attribute = COMMANDS[name][0].split(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, type):
        return int(command(rest))
    if "--ros-args" not in rest or "ros_args" not in vars(command)["__dataclass_fields__"]:
        return int(parse(command, rest, name).run())
    ros = rest.index("--ros-args")
    parsed = parse(command, rest[:ros], name)
    parsed.ros_args = rest[ros:]
    return int(parsed.run())


def parse(command: Any, argv: list[str], name: str) -> Any:
    """Return the command's dataclass from its flags. Raises ConfigError for a number out of range."""
    import tyro

    from robot_rl.util.limits import check

    parsed = tyro.cli(command, args=argv, prog=f"robot-rl {name}")
    check(parsed)
    return parsed


def main(argv: list[str] | None = None) -> int:
    """Run one command. Return its exit status: 0 success, 1 failure, 2 wrong usage, 128 + n for signal n."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a C locale cannot encode every name
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [a for a in argv if a != "--debug"]
    if not argv or argv[0] in HELP:
        sys.stdout.write(usage() + "\n")
        return 0 if argv else 2
    if argv[1:2] and argv[1] in HELP and _grouped(argv[0]):
        sys.stdout.write(group_usage(argv[0]) + "\n")
        return 0
    if argv[0] == "--version":
        from robot_rl import __version__

        sys.stdout.write(f"robot-rl {__version__}\n")
        return 0
    return answer(lambda: _run(argv), debug)


def answer(command: Callable[[], int], debug: bool = False) -> int:
    """Run a command; report an error as one sentence on stderr and an exit status."""
    try:
        code = command()
        sys.stdout.flush()  # here, a BrokenPipeError is handled
        return code
    except UserError as error:
        if debug and not isinstance(error, Interrupted):
            raise
        return _say(str(error), error.code)
    except KeyboardInterrupt as error:  # its argument is the signal's number, unless SIGINT
        return _say("interrupted; finished work is on disk", 128 + (error.args[0] if error.args else signal.SIGINT))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if debug:
            raise
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the path and its permissions"
        wrong = isinstance(error, (FileExistsError, IsADirectoryError, NotADirectoryError))  # for example, --out FILE
        return _say(f"{error.strerror or error}: {error.filename or 'no file named'}; {remedy}", 2 if wrong else 1)
    except Exception as error:
        if debug:
            raise
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing and missing not in OURS:
            return _say(f"this needs the package {missing}, which is not installed; {INSTALL}", 1)
        place = _place_outside(error)
        advice = f"in {place}; --debug shows more" if place else "a defect; run again with --debug and report it"
        return _say(f"{type(error).__name__}: {error} ({advice})", 1)


def _place_outside(error: BaseException) -> str:
    """Return file and line of a user's own code that raised an error, or "" if robot-rl or a library called it last."""
    ours = tuple(str(Path(__file__).parents[2] / package) + os.sep for package in OURS)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(ours):
            return ""
        if not frame.filename.startswith((sys.prefix, sys.base_prefix, "<")):
            return f"{frame.filename}, line {frame.lineno}"
    return ""


def _say(sentence: str, code: int) -> int:
    sys.stderr.write(f"robot-rl: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
