"""Clearance of an arm from itself and the table, by spheres that cover its links (as in cuRobo, arXiv 2310.17274)."""

import math

import torch
from torch import Tensor

from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec

TOUCH = 0.04
"""Depth to which spheres of fingers may enter the table, m: they are wider than the fingers, which may touch it. How
low the tool may go is a matter of the workspace. Of a gripper, the spheres less than this behind the tool are
fingers."""


class Clearance:
    """Smallest distances between those links of an arm that can collide, and between arm and table."""

    def __init__(self, robot: RobotSpec, kinematics: Kinematics, table: float | None):
        """Args: `table`: height of the table in the base frame, m; None: there is none."""
        rows = [(k, *row) for k, link in enumerate(robot.spheres) for row in link]
        turns = [torch.eye(3, dtype=torch.float64), *kinematics.turns]
        centers = [turns[k].T @ torch.tensor(place, dtype=torch.float64) for k, *place, _ in rows]
        self.centers = torch.stack(centers)[..., None, None].to(kinematics.links.dtype)
        self.links, self.table = torch.tensor([row[0] for row in rows]), table
        sides = zip(*robot.collision_pairs, strict=True)
        one, two = ([row for row in rows if row[0] in side] for side in sides)
        self.one, self.two = (torch.tensor([rows.index(row) for row in side]) for side in (one, two))
        """Spheres of the links that come first in pairs, and of those that come second."""
        pairs = {*robot.collision_pairs}
        self.reach = torch.tensor([[a[4] + b[4] if (a[0], b[0]) in pairs else -torch.inf for b in two] for a in one])
        """(A, B) distances of centers at which spheres touch, m; -inf where they are not compared."""
        above = [row for row in rows if row[0] > 1]  # base and first link stand on the table
        self.above = torch.tensor([rows.index(row) for row in above])
        self.depth = torch.tensor([row[4] - TOUCH * _is_finger(robot, row) for row in above])

    def farthest(self, joints: int) -> Tensor:
        """Return the largest distance (J,), m, of a sphere's center from the origin of its link, of each joint's."""
        away = self.centers[..., 0, 0].norm(dim=-1)
        return torch.stack([(away * (self.links == k)).amax() for k in range(1, joints + 1)])

    def places(self, origins: list[Tensor], axes: list[Tensor]) -> Tensor:
        """Return the spheres' centers (n, S, 3), m, in the base frame, from `Kinematics.chain`."""
        base, still = torch.zeros_like(origins[0]), torch.eye(3, dtype=axes[0].dtype, device=axes[0].device)
        origin = torch.stack([base, *origins])[self.links]
        frame = torch.stack([still[..., None].expand_as(axes[0]), *axes])[self.links]
        return (origin + (self.centers * frame).sum(1)).permute(2, 0, 1)

    def __call__(self, origins: list[Tensor], axes: list[Tensor]) -> Tensor:
        """Return the smallest distances (n,), m, negative where spheres overlap, from `Kinematics.chain`."""
        places = self.places(origins, axes)
        one, two = places[:, self.one], places[:, self.two]
        apart = torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = (apart - self.reach).flatten(1).amin(1)
        if self.table is None:
            return nearest
        return torch.minimum(nearest, (places[:, self.above, 2] - self.depth).amin(1) - self.table)


def _is_finger(robot: RobotSpec, row: tuple[float, ...]) -> bool:
    """Return whether a sphere (link, x, y, z, radius) is one of the gripper's fingers."""
    if not (robot.gripper and robot.tool and row[0] == len(robot.joints)):
        return False
    far = math.hypot(*robot.tool.position)
    return sum(a * b for a, b in zip(row[1:4], robot.tool.position, strict=True)) / far > far - TOUCH
