"""`robot-rl robots cover`: spheres that cover an arm's links, and the pairs of links that can collide."""

import sys
from dataclasses import dataclass, replace

import tyro


@dataclass
class Cover:
    """Print `spheres` and `collision_pairs` for an arm's spec, from its model file.

    With them, goals that bring links of the arm together, or the arm into the table, are refused."""

    robot: tyro.conf.Positional[str]
    """Robot name, see `robot-rl robots`, or import path, my_lab.arm:ARM."""
    mjcf: str = ""
    """Model file (MJCF or URDF) instead of the spec's model file."""

    def run(self) -> int:
        from robot_rl.robots import robots
        from robot_rl.util.errors import ConfigError
        from sim.engines.spheres import cover, pairs

        robot = robots.get(self.robot)
        if robot.tool is None:
            raise ConfigError(f"robot {robot.name!r} is no arm: it has no tool at the end of a chain")
        spheres = cover(robot, self.mjcf)
        lines = ["spheres=("]
        for link in spheres:
            rows = [", ".join(map(str, link[k : k + 3])) for k in range(0, len(link), 3)]
            lines += ["    (", *(f"        {row}," for row in rows), "    ),"]
        lines += ["),  # fmt: skip", f"collision_pairs={pairs(replace(robot, spheres=spheres), self.mjcf)},"]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
