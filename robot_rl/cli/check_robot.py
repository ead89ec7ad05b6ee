"""`robot-rl robots check`: compare a robot's spec with its model file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from json import dumps

import tyro


@dataclass
class RobotsCheck:
    """Compare a robot's spec with its model file, and list what to correct; exit status 2 if anything is wrong."""

    robot: tyro.conf.Positional[str]
    """Name of the robot, see `robot-rl robots`, or its import path, my_lab.arm:ARM."""
    mjcf: str = ""
    """Model file, MJCF or URDF, in place of the spec's."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print what was found, errors first; return the exit status."""
        from rich.table import Table
        from rich.text import Text

        from robot_rl.cli.console import printer
        from robot_rl.robots import robots
        from sim.engines.robot_check import check_robot

        found = check_robot(robots.get(self.robot), self.mjcf)
        wrong = any(finding.severity == "error" for finding in found)
        if self.json:
            sys.stdout.write(dumps({"ok": not wrong, "findings": [f._asdict() for f in found]}) + "\n")
        else:
            colours = {"ok": "green", "warning": "yellow", "error": "red"}
            table = Table("", "what", "found", "remedy", title=self.robot, box=None)
            for finding in found:
                cells = (finding.what, finding.found, finding.remedy)
                table.add_row(Text(finding.severity, colours[finding.severity]), *map(Text, cells))
            printer().print(table)
        return 2 if wrong else 0
