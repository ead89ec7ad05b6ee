"""`robot-rl robots draft`: write a robot's spec from its model file."""

import json
import re
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import tyro


@dataclass
class RobotsDraft:
    """Write a first spec for an arm or a robot on legs from its MJCF or URDF file, and list what is assumed in it.

    Print it, or with --out write it to a module whose robot has the import path my_lab.arm:ARM. Correct the assumed
    facts from the manufacturer's data, then run `robot-rl robots check`."""

    model: tyro.conf.Positional[str]
    """Model file, MJCF or URDF, or a name like menagerie:franka_fr3 of MuJoCo Menagerie."""
    name: str = ""
    """Name of the robot; default: the file's name."""
    out: Path | None = None
    """Python file to write, which must not exist; default: print."""

    def run(self) -> int:
        from robot_rl.util.errors import ConfigError
        from robot_rl.util.files import replace_file
        from sim.engines.draft import draft
        from sim.menagerie import PREFIX, menagerie_file

        known = self.model.startswith(PREFIX)
        file = menagerie_file(self.model) if known else Path(self.model)
        name = self.name or re.sub(r"\W", "_", file.stem.lower())
        if not name.isidentifier():
            raise ConfigError(f"--name {name}: take letters, digits and underscores")
        if self.out and self.out.exists():
            raise ConfigError(f"{self.out} is there already; name another --out")
        made = draft(file, name)
        robot = replace(made.robot, model=self.model) if known else made.robot
        if self.out and not known and file.resolve().is_relative_to(self.out.resolve().parent):
            robot = replace(robot, model=str(file.resolve().relative_to(self.out.resolve().parent)))
        text = module(robot, file.name, made.assumed)
        if self.out is None:
            sys.stdout.write(text)
        else:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.out, text.encode())
            sys.stdout.write("\n".join([f"{self.out}: {len(robot.joints)} joints; assumed:", *made.assumed]) + "\n")
        return 0


def module(robot: Any, source: str, assumed: list[str]) -> str:
    """Return a Python module with a robot's spec."""
    used: set[str] = set()
    body = expression(robot, used)
    notes = "\n".join(f"- {note}" for note in assumed)
    head = f'"""Drafted from {source}.\n\nAssumed, to be corrected from the manufacturer\'s data:\n\n{notes}\n"""\n'
    imported = ", ".join(sorted(used))
    return f"{head}\nfrom robot_rl.interface.robot import {imported}\n\n{robot.name.upper()} = {body}\n"


def expression(value: Any, used: set[str], depth: int = 0) -> str:
    """Return Python source of a dataclass without its default values, or of a tuple, number or text. `used` gets the
    names of the classes."""
    pad = "    " * (depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        used.add(type(value).__name__)
        parts = []
        for each in fields(value):
            mine = getattr(value, each.name)
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.default is MISSING and each.default_factory is MISSING or mine != default:
                parts.append(f"{each.name}={expression(mine, used, depth + 1)}")
        line = f"{type(value).__name__}({', '.join(parts)})"
        if len(line) + 4 * depth < 100 and "\n" not in line:
            return line
        inner = "".join(f"{pad}{part},\n" for part in parts)
        return f"{type(value).__name__}(\n{inner}{'    ' * depth})"
    if isinstance(value, tuple) and any(is_dataclass(each) for each in value):
        inner = "".join(f"{pad}{expression(each, used, depth + 1)},\n" for each in value)
        return f"(\n{inner}{'    ' * depth})"
    if isinstance(value, tuple):
        return f"({', '.join(expression(each, used) for each in value)}{',' * (len(value) == 1)})"
    return json.dumps(value) if isinstance(value, str) else repr(value)
