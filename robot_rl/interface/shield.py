"""Limits on joint targets: the last computation before a command is sent, the same in simulation, twin and robot.

`admit` checks that each new target is finite and within position limits and workspace. `follow` computes the next
command towards the admitted target, within speed and acceleration limits. No command bypasses the two.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFraction, validate


@dataclass(frozen=True)
class ShieldConfig:
    """Limits of a policy's joint commands, relative to the robot's own limits."""

    velocity: PositiveFraction = 0.5
    """Share of the joints' speed limits that commands may use."""
    acceleration: PositiveFraction = 0.8
    """Share of the joints' acceleration limits that commands may use; not applied to setpoints of compliant joints."""
    margin: NonNegativeFloat = 0.05
    """Distance that commands keep to the joints' position limits, rad."""
    workspace_slack: Annotated[float, Interval(ge=0, le=0.1)] = 0.02
    """Distance by which the tool may leave the workspace box, m."""

    def __post_init__(self) -> None:
        validate(self, "shield.")


class Shield:
    """Limits on the joint targets of a batch of robots of one type; keeps no state between calls."""

    def __init__(self, robot: RobotSpec, config: ShieldConfig | None = None):
        config = config or ShieldConfig()
        self.config = config
        self.low = robot.limit("low") + config.margin
        self.high = robot.limit("high") - config.margin
        for joint in robot.joints:
            if not joint.high - joint.low > 2 * config.margin:
                raise ValueError(
                    f"shield.margin is {config.margin:g} rad, which leaves joint {joint.name!r} nothing of its "
                    f"{joint.high - joint.low:g} rad"
                )
        self.velocity = robot.limit("velocity") * config.velocity
        self.acceleration = robot.limit("acceleration") * config.acceleration
        self.compliant = robot.compliant
        self.kinematics = None
        if robot.tool:
            low, high = torch.tensor(robot.tool.workspace)
            self.box = low - config.workspace_slack, high + config.workspace_slack
            self.kinematics = Kinematics(robot)

    def admit(self, goal: Tensor, previous: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Accept, clip or reject goals (n, J), rad; a rejected row is replaced by its row of `previous` (n, J).

        Returns the goals, and for each reason a mask (n,) of the changed rows. If the tool is already outside the
        workspace box, only goals no closer to the box than `previous` are rejected, so the tool can return.
        """
        finite = goal.isfinite().all(-1)
        goal = torch.where(finite[:, None], goal, previous)
        clipped = goal.clamp(self.low, self.high)
        events = {"nonfinite": ~finite, "position": (clipped != goal).any(-1)}
        if self.kinematics is None:
            return clipped, events
        position = self.kinematics.forward(torch.cat([clipped, previous]))[0]
        outside = (self.box[0] - position).clamp_min(0) + (position - self.box[1]).clamp_min(0)
        now, before = outside.sum(-1).chunk(2)
        leaves = (now > 0) & (now >= before)
        return torch.where(leaves[:, None], previous, clipped), events | {"workspace": leaves & finite}

    def follow(
        self, position: Tensor, velocity: Tensor, goal: Tensor, goal_velocity: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        """Return the command's position and velocity after another `dt`, s, towards a moving goal; all (n, J), rad and
        rad/s.

        Speed and acceleration stay within their limits, and the command can always brake before a position limit.
        Commands of compliant joints move straight to the goal, within the speed limit only.
        """
        if self.compliant:
            reach = self.velocity * dt
            command = (position + (goal - position).clamp(-reach, reach)).clamp(self.low, self.high)
            return command, (command - position) / dt
        step = self.acceleration * dt
        half, twice = step / 2, 2 * self.acceleration

        def braking(distance: Tensor) -> Tensor:
            # The largest speed from which speed changes of `step` per tick stop within a non-negative distance.
            return torch.addcmul(half * half, twice, distance).sqrt() - half

        error = goal - position
        away, direct = error.abs(), error / dt
        desired = goal_velocity + torch.minimum(away / dt, braking(away)).copysign(error)
        # Land exactly on the goal if it is close enough.
        desired = torch.where((direct - desired).abs() < step, direct, desired)
        desired = _shrink(desired, self.velocity)
        low, high = -braking((position - self.low).clamp_min(0)), braking((self.high - position).clamp_min(0))
        velocity = velocity + _shrink(desired.clamp(low, high) - velocity, step)
        # The row's scale must not reduce the braking of a joint close to its limit, so clamp again.
        velocity = velocity.clamp(low, high)
        return position + velocity * dt, velocity


def _shrink(vector: Tensor, limit: Tensor) -> Tensor:
    """Scale each row (n, J) as a whole until its components are within `limit`, so the arm slows down on its path."""
    return vector / (vector.abs() / limit).amax(-1, keepdim=True).clamp_min(1)


def ramp(start: Tensor, goal: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return `steps` positions (steps, n, J) on the straight path from `start` to `goal` (n, J), and the displacement
    (n, J) from one to the next."""
    share = torch.arange(1, steps + 1, dtype=start.dtype, device=start.device) / steps
    return start + share[:, None, None] * (goal - start), (goal - start) / steps
