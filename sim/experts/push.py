"""Demonstrator that pushes a block to a pose with both fingers of the open gripper, from observations alone.

Two contacts on one face hold a block by friction unless it turns too tightly (Lynch and Mason 1996, "Stable Pushing"),
so the block follows the hand.
"""

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.rotation import columns_to_matrix
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import STEADY, ScriptedExpert, Skill

BEHIND, ABOVE, LOW = 0.065, 0.09, 0.008
"""Start of a push, behind the block's centre, m; height of the tool for travelling and pushing, m above the centre."""
AHEAD, TOUCH = 0.03, 0.03
"""Largest distance of the tool's goal ahead of the tool, and its distance from the block's centre, in a push, m."""
LINE, STEEPEST = 0.05, 0.5
"""The block converges to the line through the goal, along the goal's heading, like exp(-distance / LINE), m, and its
heading differs from the goal's by at most STEEPEST, rad."""
TURN = 0.2
"""Largest turn of the block that the hand leads by, rad."""

SOFT = 0.4
"""Fraction of the remaining turn that is commanded in one action; delays make larger ones oscillate."""

CLUMSY = Skill(aim=0.004, tremor=0.06, haste=0.4, gain=0.7)
"""Skill of a fast demonstrator with smaller errors than in `sim.experts.lift`: tremor turns the block."""

__all__ = ["CLUMSY", "STEADY", "PushExpert"]


class PushExpert(ScriptedExpert):
    """Reach over the block, lower the hand behind its face, and steer it along the line that leads to the goal."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        super().__init__(controller, num_envs, skill, seed)
        self.turn = float(controller.twist_limit[3])
        names = ("block_to_tool", "goal_to_block", "block_heading", "goal_heading", "tool_rotation", "block_in_tool")
        self.columns = [observations.slice(name) for name in names]
        self.low = torch.zeros(num_envs, dtype=torch.bool)
        """Whether (n,) the tool is behind the block, at its height."""
        self.reset(torch.arange(num_envs))

    def reset(self, ids: Tensor) -> None:
        super().reset(ids)
        self.low[ids] = False

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for observations (n, D)."""
        block, rest, heading, final, axes, sides = (observation["observation.state"][:, c] for c in self.columns)
        along, across = (-(block[:, :2] * way).sum(1) for way in (heading, _left(heading)))  # tool in the block's frame
        forward, aside = ((rest[:, :2] * way).sum(1) for way in (final, _left(final)))
        short = torch.atan2((_left(heading) * final).sum(1), (heading * final).sum(1))
        lead = (short + (aside / LINE).atan().clamp(-STEEPEST, STEEPEST)).clamp(-TURN, TURN)
        behind = (along < 0) & (across.abs() < 0.04)
        self.low = (self.low | ((along + BEHIND).abs() < 0.02) & (across.abs() < 0.015)) & behind
        push = self.low & (-block[:, 2] < 0.02)
        lead = torch.where(push, lead, 0.0)
        way = lead.cos()[:, None] * heading + lead.sin()[:, None] * _left(heading)
        ahead = AHEAD * (forward / 0.06).clamp(0.3, 1) - TOUCH
        goal = block[:, :2] + torch.where(push, ahead, -BEHIND)[:, None] * way + self.aim * ~push[:, None]
        goal = torch.cat([goal, (block[:, 2] + torch.where(self.low, LOW, ABOVE))[:, None]], 1)
        done = push & (forward < 0.003)
        goal, lead = torch.where(done[:, None], 0.0, goal), torch.where(done, 0.0, lead)
        tool = columns_to_matrix(axes)
        tilt = torch.linalg.cross(tool[:, :, 2], tool.new_tensor([0.0, 0.0, -1.0]).expand(len(goal), 3))
        angle = torch.atan2(sides[:, 1], sides[:, 0]) - lead  # of the block, about the tool's z axis, which points down
        turn = SOFT * (tilt + angle[:, None] * tool[:, :, 2]) / self.turn
        turn = self.speed * turn / turn.abs().amax(-1, keepdim=True).clamp_min(1)
        twist = torch.cat([self.move(goal), turn + self.noise[:, 3:6]], 1)
        return self.controller.from_twist(twist, torch.ones(len(goal), 1))


def _left(heading: Tensor) -> Tensor:
    """Return unit vectors (n, 2) to the left of others (n, 2)."""
    return torch.stack([-heading[:, 1], heading[:, 0]], 1)
