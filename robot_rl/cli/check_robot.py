"""`robot-rl robots check`: compare a robot's spec with its model file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from json import dumps

import tyro

from robot_rl.cli.options import Json


@dataclass
class RobotsCheck:
    """Compare a robot's spec with its model file and list corrections; exit status 2 if there are errors."""

    robot: tyro.conf.Positional[str]
    """Robot name, see `robot-rl robots`, or import path, my_lab.arm:ARM."""
    mjcf: str = ""
    """Model file (MJCF or URDF) instead of the spec's."""
    json: Json = False

    def run(self) -> int:
        """Print the findings, errors first; return the exit status."""
        from robot_rl.cli.console import print_table
        from robot_rl.robots import robots
        from sim.engines.robot_check import check_robot

        found = check_robot(robots.get(self.robot), self.mjcf)
        wrong = any(finding.severity == "error" for finding in found)
        if self.json:
            sys.stdout.write(dumps({"ok": not wrong, "findings": [f._asdict() for f in found]}) + "\n")
        else:
            head = ("", "what", "found", "remedy")
            print_table(self.robot, head, [(f.severity, f.what, f.found, f.remedy) for f in found], left=head)
        return 2 if wrong else 0
