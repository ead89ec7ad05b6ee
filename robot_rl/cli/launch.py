"""`robot-rl launch arm robot:=panda twin:=true`: run ROS 2 launch files without ROS 2."""

import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from policies.errors import NoBundle
from real.launching.launch import arguments, describe, files, require_device
from real.launching.node import LaunchError, NodeProcess
from real.launching.processes import ProcessRunner
from robot_rl.robots import robots

USAGE = """usage: robot-rl launch FILE [name:=value ...]
       robot-rl launch FILE --show-args    list the file's arguments

Start the nodes of a ROS 2 launch file without ROS 2. Ctrl-C stops them: first those that command the robot.
"""
EXECUTABLE = (sys.executable, "-m", "robot_rl.cli.main")
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue")


class _Output(Console):
    """Console that raises, instead of exiting, if its pipe is closed: the caller must then stop what it launched."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def main(argv: list[str]) -> int:
    """Run the launch file named in the arguments; return the exit status. Raises UserError with code 2."""
    console = _Output(highlight=False, soft_wrap=True)
    flags = {word for word in argv if word.startswith("-")}
    words = [word for word in argv if word not in flags]
    wants_help = bool(flags & {"-h", "--help"})
    if wants_help or not words:
        console.print(USAGE, markup=False)
        for name, summary in files().items():
            console.print(f"  {name:<10} {summary}", markup=False)
        return 0 if wants_help else 2
    if unknown := sorted(flags - {"--show-args", "-s"}):
        raise LaunchError(f"unknown flag {unknown[0]}; arguments are written name:=value, see --show-args")
    file = words[0].removesuffix(".py").removesuffix(".launch")
    if flags:
        return _show(console, file)
    given = parse(words[1:])
    nodes = describe(file, given)
    values = {argument.name: argument.default or "" for argument in arguments(file)} | given
    _check_robot(values["robot"], nodes)
    _check_known(values)
    require_device(values)
    return _run(console, nodes)


def private_domain() -> dict[str, str]:
    """Return environment variables of a random ROS domain that is limited to this machine."""
    domain = random.SystemRandom().randint(100, 199)
    return {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": str(domain)}


def parse(words: list[str]) -> dict[str, str]:
    """Parse `name:=value` words; the last value of a name wins, as in ROS 2."""
    found = {}
    for word in words:
        name, separator, value = word.partition(":=")
        if not separator or not name:
            guess = word.replace("=", ":=", 1) if "=" in word else f"{word}:=VALUE"
            raise LaunchError(f"{word!r} is not name:=value; did you mean {guess}?")
        found[name] = value
    return found


def _check_robot(name: str, nodes: Sequence[NodeProcess]) -> None:
    """Raise LaunchError if the launch file starts no guard although the robot is legged, or a guard for an arm."""
    legged, guarded = robots.get(name).base is not None, any(node.guards_robot for node in nodes)
    if any(node.commands_robot for node in nodes) and legged != guarded:
        raise LaunchError(f"this launch file is not for robot {name!r}, {_fitting(legged)}, or name another robot:=")


def _fitting(legged: bool) -> str:
    """Return a hint that names the launch file for legged robots or for arms."""
    return "which walks: use launch quadruped" if legged else "which does not walk: use launch arm"


def _check_known(values: Mapping[str, str]) -> None:
    """Raise an error for a policy, folder or task that a launched process would refuse later."""
    if "policy" in values:
        _check_policy(Path(values["policy"]), values["robot"])
    out, kept = values.get("out", ""), ("config.json", "meta/info.json")  # of a session, and of a dataset
    if out and values.get("resume") == "false" and any((Path(out) / name).exists() for name in kept):
        raise LaunchError(f"out:={out} holds a session or dataset; add resume:=true, or name another folder")
    if values["task"]:
        from sim.tasks import task_of  # imported here: a robot's computer has no simulator

        task_of(values["robot"], values["task"])


def _check_policy(folder: Path, robot: str) -> None:
    """Raise unless the bundle exists and is for the robot. The process that loads the bundle checks its other parts."""
    file = next((f for f in (folder / "bundle" / "policy.json", folder / "policy.json") if f.is_file()), None)
    if file is None:
        raise NoBundle(folder)
    try:
        owner = str(json.loads(file.read_text())["interface"]["robot"])
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{file} is damaged or foreign ({error!r}); copy the bundle again") from None
    spec = robots.get(robot)
    if owner in robots and (legged := robots.get(owner).base is not None) != (spec.base is not None):
        raise LaunchError(f"bundle {file.parent} is for robot {owner!r}, {_fitting(legged)} robot:={owner}")
    if not spec.runs(owner):
        raise LaunchError(f"bundle {file.parent} is for robot {owner!r}, not for {robot!r}; add robot:={owner}")


def _run(console: Console, nodes: list[NodeProcess]) -> int:
    from real.bus.domain import describe as describe_domain  # imported here: --show-args needs no bus

    environment = {**os.environ, **nodes[0].environment}
    console.print(Text(f"[launch] {describe_domain(environment)}", style="bright_black"))
    width = max(len(node.name) for node in nodes if node.condition)
    colours = {node.name: _COLOURS[place % len(_COLOURS)] for place, node in enumerate(nodes)}

    def sink(name: str, line: str) -> None:
        prefix = Text(f"[{name}]".ljust(max(width, len("launch")) + 3), style=colours.get(name, "bright_black"))
        console.print(prefix + Text.from_ansi(line))

    return ProcessRunner(nodes, EXECUTABLE, sink).run()


def _show(console: Console, file: str) -> int:
    table = Table("argument", "default", "meaning", title=f"{file}.launch: {files().get(file, '')}", box=None)
    for argument in arguments(file):
        choices = f" ({', '.join(argument.choices)})" if argument.choices else ""
        default = "must be given" if argument.default is None else argument.default or "-"
        table.add_row(argument.name, default, argument.description + choices)
    console.print(table)
    return 0
