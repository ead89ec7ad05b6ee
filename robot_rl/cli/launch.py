"""`robot-rl launch arm robot:=panda twin:=true`: run launch files on a machine without ROS 2."""

from __future__ import annotations

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
    """A console that raises if its pipe is closed instead of exiting: the caller has processes to stop."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def main(argv: list[str]) -> int:
    """Run the launch file that the arguments name; return the exit status. Raises UserError, code 2."""
    console = _Output(highlight=False, soft_wrap=True)
    flags = {word for word in argv if word.startswith("-")}
    words = [word for word in argv if word not in flags]
    asked = bool(flags & {"-h", "--help"})
    if asked or not words:
        return _help(console, asked)
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
    """Return environment variables for nodes in a private domain of this machine."""
    domain = random.SystemRandom().randint(100, 199)
    return {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": str(domain)}


def parse(words: list[str]) -> dict[str, str]:
    """Parse `name:=value` words; the last one of a name wins, as in ROS 2."""
    found = {}
    for word in words:
        name, separator, value = word.partition(":=")
        if not separator or not name:
            guess = word.replace("=", ":=", 1) if "=" in word else f"{word}:=VALUE"
            raise LaunchError(f"{word!r} is not name:=value; did you mean {guess}?")
        found[name] = value
    return found


def _check_robot(name: str, nodes: Sequence[NodeProcess]) -> None:
    """Raise if a walking robot has no guard in this launch file, or an arm has one."""
    legged, guarded = robots.get(name).base is not None, any(node.guards_robot for node in nodes)
    if any(node.commands_robot for node in nodes) and legged != guarded:
        raise LaunchError(f"this launch file is not for robot {name!r}, {_fitting(legged)}, or name another robot:=")


def _fitting(legged: bool) -> str:
    """Return which launch file is for a robot."""
    return "which walks: use launch quadruped" if legged else "which does not walk: use launch arm"


def _check_known(values: Mapping[str, str]) -> None:
    """Raise for a policy or task that one of the processes would refuse later."""
    if "policy" in values:
        _check_policy(Path(values["policy"]), values["robot"])
    if values["task"]:
        from sim.tasks import task_of  # imported late: a robot's computer has no tasks

        task_of(values["robot"], values["task"])


def _check_policy(folder: Path, robot: str) -> None:
    """Check that the bundle exists and is for the robot; the process that runs it checks the rest, with torch."""
    file = next((f for f in (folder / "bundle" / "policy.json", folder / "policy.json") if f.is_file()), None)
    if file is None:
        raise NoBundle(folder)
    try:
        meant = str(json.loads(file.read_text())["interface"]["robot"])
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{file} is damaged or foreign ({error!r}); copy the bundle again") from None
    if meant in robots and (legged := robots.get(meant).base is not None) != (robots.get(robot).base is not None):
        raise LaunchError(f"bundle {file.parent} is for robot {meant!r}, {_fitting(legged)} robot:={meant}")
    if meant != robot:
        raise LaunchError(f"bundle {file.parent} is for robot {meant!r}, not for {robot!r}; add robot:={meant}")


def _run(console: Console, nodes: list[NodeProcess]) -> int:
    from real.bus.domain import describe as bound  # imported late: --show-args needs no bus

    environment = {**os.environ, **nodes[0].environment}
    console.print(Text(f"[launch] {bound(environment)}", style="bright_black"))
    width = max(len(node.name) for node in nodes if node.condition)
    colours = {node.name: _COLOURS[place % len(_COLOURS)] for place, node in enumerate(nodes)}

    def sink(name: str, line: str) -> None:
        prefix = Text(f"[{name}]".ljust(max(width, len("launch")) + 3), style=colours.get(name, "bright_black"))
        console.print(prefix + Text.from_ansi(line))

    return ProcessRunner(nodes, EXECUTABLE, sink).run()


def _help(console: Console, asked: bool) -> int:
    console.print(USAGE, markup=False)
    for name, summary in files().items():
        console.print(f"  {name:<10} {summary}", markup=False)
    return 0 if asked else 2


def _show(console: Console, file: str) -> int:
    table = Table("argument", "default", "meaning", title=f"{file}.launch: {files().get(file, '')}", box=None)
    for argument in arguments(file):
        choices = f" ({', '.join(argument.choices)})" if argument.choices else ""
        default = "must be given" if argument.default is None else argument.default or "-"
        table.add_row(argument.name, default, argument.description + choices)
    console.print(table)
    return 0
