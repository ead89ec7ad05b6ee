"""The `robot-rl` command. Each subcommand is imported only when it runs, so that help is instant."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

from robot_rl.util.errors import INSTALL, Interrupted, UnknownName, UserError

if "OMP_WAIT_POLICY" not in os.environ:
    # PyTorch's threads spin for milliseconds by default, and MuJoCo's threads, which step the environments meanwhile,
    # take 1.3 times as long. The variable is read when PyTorch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("robot_rl.cli.demo:Demo", "the whole journey: collect, imitate, improve, deploy, correct, report"),
    "collect": ("robot_rl.cli.collect:Collect", "record demonstrations of a task"),
    "record": ("robot_rl.cli.record:Record", "record demonstrations by a person"),
    "train": ("robot_rl.cli.train:main", "train a policy with a recipe"),
    "evaluate": ("robot_rl.cli.evaluate:Evaluate", "measure a policy on held-out episodes"),
    "replay-nan": ("robot_rl.cli.replay_nan:ReplayNan", "show how an episode diverged"),
    "bundle": ("robot_rl.cli.bundle:MakeBundle", "make a bundle of a run's newest checkpoint"),
    "export": ("robot_rl.cli.export:Export", "write a bundle's policy as ONNX"),
    "serve": ("robot_rl.cli.serve:Serve", "serve a bundle's policy to robots over a websocket"),
    "twin": ("robot_rl.cli.twin:Twin", "a simulated robot behind real ROS 2 topics"),
    "view": ("robot_rl.cli.view:View", "watch a task, a policy, a twin or a robot in the browser"),
    "guard": ("robot_rl.cli.guard:Guard", "the one writer of a walking robot's motor commands"),
    "deploy": ("robot_rl.cli.deploy:Deploy", "run a policy on a robot, or on its twin"),
    "teleop": ("robot_rl.cli.teleop:Teleop", "publish a keyboard's, gamepad's or scripted operator's commands"),
    "tell": ("robot_rl.cli.tell:Tell", "tell a robot what to do, in words, while it runs"),
    "finetune": ("robot_rl.cli.finetune:main", "keep learning on the robot while a person corrects it"),
    "launch": ("robot_rl.cli.launch:main", "start a launch file's nodes without ROS 2"),
    "report": ("robot_rl.cli.report:Report", "write report.html from run folders"),
    "compare": ("robot_rl.cli.compare:Compare", "say whether one policy is better than another, with intervals"),
    "bench methods": ("robot_rl.cli.bench.methods:Methods", "measure each method against its control"),
    "bench sim": ("robot_rl.cli.bench:Sim", "measure the speed of simulation beside peers"),
    "bench vla": ("robot_rl.cli.bench.vla:Vla", "measure a half-billion-weight policy that sees and reads, on a GPU"),
    "bench loop": ("robot_rl.cli.bench.loop:Loop", "measure how late the command loop is, beside a bare one"),
    "classifier fit": ("robot_rl.cli.classifier:Fit", "fit a success classifier to a dataset's marked frames"),
    "classifier show": ("robot_rl.cli.classifier:ShowClassifier", "show a success classifier, and how well it judges"),
    "reward write": ("robot_rl.cli.reward:Write", "have a language model write a reward, and vet it"),
    "reward vet": ("robot_rl.cli.reward:Vet", "vet a reward that somebody wrote, on scripted episodes"),
    "reward show": ("robot_rl.cli.reward:ShowReward", "show a written reward's figures, and whether it may pay"),
    "reward prompt": ("robot_rl.cli.reward:Prompt", "print what a model would be asked"),
    "dataset info": ("robot_rl.cli.dataset:Info", "show what a dataset holds"),
    "dataset verify": ("robot_rl.cli.dataset:Verify", "check a dataset file by file"),
    "dataset stats": ("robot_rl.cli.dataset:Stats", "compute a dataset's statistics anew"),
    "dataset convert": ("robot_rl.cli.dataset:Convert", "make a LeRobot v3.0 dataset of an older one"),
    "tasks": ("robot_rl.cli.lists:tasks_main", "list the tasks"),
    "robots": ("robot_rl.cli.lists:robots_main", "list the robots"),
    "robots check": ("robot_rl.cli.check_robot:RobotsCheck", "compare a robot's spec with its model file"),
    "recipes": ("robot_rl.cli.lists:recipes_main", "list the recipes"),
    "doctor": ("robot_rl.cli.doctor:Doctor", "check this machine"),
}


OURS = ("robot_rl", "policies", "sim", "real")
"""Packages that cannot be missing unless by a defect."""
HELP = ("-h", "--help", "help")


def usage() -> str:
    lines = ["usage: robot-rl COMMAND [OPTIONS]      robot-rl COMMAND --help", "", *_listed(COMMANDS)]
    return "\n".join(
        [*lines, "", "  --debug         show the traceback of an error", "  --version       print the version"]
    )


def group_usage(group: str) -> str:
    """Return the help of a group of commands."""
    head = f"usage: robot-rl {group} COMMAND [OPTIONS]      robot-rl {group} COMMAND --help"
    return "\n".join([head, "", *_listed(_grouped(group))])


def _listed(names: Iterable[str]) -> list[str]:
    return [f"  {name:<15} {COMMANDS[name][1]}" for name in names]


def _grouped(group: str) -> list[str]:
    """Return the commands of two words that begin with `group`, and `group` itself if it is one too."""
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
    """Return the command's dataclass from its flags; raise ConfigError for a number out of its range."""
    import tyro

    from robot_rl.util.limits import check

    parsed = tyro.cli(command, args=argv, prog=f"robot-rl {name}")
    check(parsed)
    return parsed


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit status: 0 done, 1 failed, 2 wrong usage, 128 + n where signal n
    interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may have letters that a C locale lacks
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
    """Run a command; an error becomes one sentence on stderr and an exit status."""
    try:
        code = command()
        sys.stdout.flush()  # here, where a closed pipe is no error
        return code
    except UserError as error:
        if debug and not isinstance(error, Interrupted):
            raise
        return _say(str(error), error.code)
    except KeyboardInterrupt as error:  # with the signal's number if it is not SIGINT
        return _say("interrupted; finished work is on disk", 128 + (error.args[0] if error.args else signal.SIGINT))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if debug:
            raise
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the path and its permissions"
        return _say(f"{error.strerror or error}: {error.filename or 'no file named'}; {remedy}", 1)
    except Exception as error:
        if debug:
            raise
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing and missing not in OURS:
            return _say(f"this needs the package {missing}, which is not installed; {INSTALL}", 1)
        return _say(f"{type(error).__name__}: {error} (a defect; run again with --debug and report it)", 1)


def _say(sentence: str, code: int) -> int:
    sys.stderr.write(f"robot-rl: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
