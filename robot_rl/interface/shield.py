"""Limits on commands: the last computation before a command is sent, the same in simulation, twin and robot.

`admit` checks that each new target is finite and within position limits and workspace. `follow` computes the next
command towards the admitted target, within speed and acceleration limits. No command bypasses the two.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from robot_rl.interface.collision import Clearance
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFraction, validate

LEAD = 0.15
"""Largest distance of a goal from the measured posture on the way home, rad."""
FAR, WAYPOINTS = 0.1, 3
"""Distance of a goal from the command above which the path between them is checked too, rad, and points on its legs."""
SAME = 1e-4
"""Difference of clearances that counts as none, m."""
ARRIVED = 0.03
"""Largest distance of a joint from home at which an arm counts as there, rad."""


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
    clearance: NonNegativeFloat | None = 0.005
    """Distance that goals keep between links of an arm, and between arm and table, m; None: no check. Robots without
    `spheres` are not checked."""
    table: float | None = 0.0
    """Height of the table in the base frame, m; None: there is none."""

    def __post_init__(self) -> None:
        validate(self, "shield.")


Motion = tuple[Tensor, Tensor]
"""Set-points (n, D) of robots, and their rates (n, E)."""


class Shield(Protocol):
    """Limits on one kind of command to a batch of robots of one type; keeps no state between calls.

    Set-points are (n, D), as in the command's `values`. Their rates are (n, E): velocities of positions, or
    accelerations of velocities.
    """

    config: ShieldConfig

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Accept, clip or reject goals (n, D); a rejected row is replaced by its row of `previous` (n, D).

        Returns the goals, and for each reason a mask (n,) of the changed rows. `joints`: measured positions (n, J),
        rad, from which goals that are velocities are checked against the workspace. `motion`: current set-points
        and their rates, from which the way to the goals is checked; None: at rest at `previous`.
        """

    def follow(
        self, setpoint: Tensor, rate: Tensor, goal: Tensor, goal_rate: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        """Return the set-point (n, D) and its rate (n, E) after another `dt`, s, towards a moving goal."""

    def path(self, start: Tensor, goal: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return the point at `share` of the straight path from `start` to `goal` (n, D), and the whole path's
        displacement (n, E)."""

    def hold(self, joints: Tensor) -> Tensor:
        """Return the set-points (n, D) that keep robots where they are measured, at joint positions (n, J), rad."""

    def rest(self, setpoint: Tensor) -> Tensor:
        """Return the goal (n, D) towards which a robot with this set-point brakes."""

    def moving(self, setpoint: Tensor, rate: Tensor) -> bool:
        """Return whether any robot moves at this set-point and rate."""

    def mismatch(self, goal: Tensor, joints: Tensor, seconds: float, safety: SafetyConfig) -> bool:
        """Return whether a goal is farther than robots at joint positions (n, J), rad, can move in `seconds` s."""

    def toward(self, joints: Tensor, home: Tensor) -> tuple[Tensor, bool]:
        """Return goals (n, D) on the way from joint positions (n, J) to `home` (n, J), rad, and whether all robots have
        arrived."""


class JointShield:
    """Limits on joint positions; set-points and rates are (n, J), rad and rad/s."""

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
        self.clearance, self.least = None, config.clearance or 0.0
        if self.kinematics and robot.collision_pairs and config.clearance is not None:
            self.clearance = Clearance(robot, self.kinematics, config.table)

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Accept, clip or reject goals. If the tool is already outside the workspace box, only goals no closer to the
        box than `previous` are rejected, so the tool can return. Links that are too close may part on the way."""
        finite = goal.isfinite().all(-1)
        goal = torch.where(finite[:, None], goal, previous)
        clipped = goal.clamp(self.low, self.high)
        events = {"nonfinite": ~finite, "position": (clipped != goal).any(-1)}
        if self.kinematics is None:
            return clipped, events
        position, _, origins, axes = self.kinematics.chain(torch.cat([clipped, previous]))
        position = position.T
        outside = (self.box[0] - position).clamp_min(0) + (position - self.box[1]).clamp_min(0)
        now, before = outside.sum(-1).chunk(2)
        refused = (now > 0) & (now >= before)
        events["workspace"] = refused & finite
        if self.clearance:
            start, rate = motion or (previous, torch.zeros_like(previous))
            now = self.clearance([o[..., : len(goal)] for o in origins], [a[..., : len(goal)] for a in axes])
            now = now.minimum(self._on_the_way(start, rate, clipped))
            close = now < self.least
            if close.is_cuda or close.any():  # on a GPU the question would cost more than the answer
                close &= now < self.clearance(*self.kinematics.chain(start)[2:]) - SAME
            events["collision"] = close & finite
            refused = refused | close
        return torch.where(refused[:, None], previous, clipped), events

    def _on_the_way(self, start: Tensor, rate: Tensor, goal: Tensor) -> Tensor:
        """Return the smallest clearance (n,), m, on the way of moving commands to goals (n, J); inf for goals at hand.

        The way is taken to lead straight to where the command could stop, and straight from there to the goal. What it
        does lies between these two legs and the direct path.
        """
        stop = start + rate * (rate.abs() / self.acceleration).amax(-1, keepdim=True) / 2
        reach = torch.maximum((goal - start).abs(), (stop - start).abs()).amax(-1)
        if goal.is_cuda:
            return self._least_on(start, stop, goal).where(reach > FAR, torch.inf)
        far, found = reach > FAR, torch.full_like(reach, torch.inf)
        if far.any():
            found[far] = self._least_on(start[far], stop[far], goal[far])
        return found

    def _least_on(self, *corners: Tensor) -> Tensor:
        """Return the smallest clearance (n,), m, on the legs between corners (n, J), without the last corner."""
        assert self.kinematics and self.clearance
        share = torch.arange(WAYPOINTS, dtype=corners[0].dtype, device=corners[0].device)[:, None, None] / WAYPOINTS
        path = torch.cat([one + share * (other - one) for one, other in itertools.pairwise(corners)])
        return self.clearance(*self.kinematics.chain(path.flatten(0, 1))[2:]).view(len(path), -1).amin(0)

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
        room = position - self.low, self.high - position
        velocity = approach(
            goal - position, velocity, goal_velocity, self.velocity, self.acceleration, dt, room
        )
        return position + velocity * dt, velocity

    def path(self, start: Tensor, goal: Tensor, share: float) -> tuple[Tensor, Tensor]:
        return start + share * (goal - start), goal - start

    def hold(self, joints: Tensor) -> Tensor:
        return joints

    def rest(self, setpoint: Tensor) -> Tensor:
        return setpoint

    def moving(self, setpoint: Tensor, rate: Tensor) -> bool:
        return float(rate.abs().max()) > 1e-5

    def mismatch(self, goal: Tensor, joints: Tensor, seconds: float, safety: SafetyConfig) -> bool:
        reach = safety.start_mismatch + seconds * self.velocity
        return bool(((goal - joints).abs() > reach).any())

    def toward(self, joints: Tensor, home: Tensor) -> tuple[Tensor, bool]:
        error = home - joints
        largest = error.abs().amax(-1, keepdim=True)
        return joints + LEAD / largest.clamp_min(LEAD) * error, bool((largest < ARRIVED).all())


def approach(
    error: Tensor, velocity: Tensor, goal_velocity: Tensor, limit: Tensor, acceleration: Tensor, dt: float,
    room: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Return the velocities (n, E) of the next `dt`, s, of set-points that are `error` (n, E) from a moving goal.

    Velocity and its change stay within `limit` and `acceleration` (E,). `room`: distances to the lower and upper
    position limits, before which the set-points can always brake.
    """
    step = acceleration * dt
    half, twice = step / 2, 2 * acceleration

    def braking(distance: Tensor) -> Tensor:
        # The largest speed from which speed changes of `step` per tick stop within a non-negative distance.
        return torch.addcmul(half * half, twice, distance).sqrt() - half

    away, direct = error.abs(), error / dt
    desired = goal_velocity + torch.minimum(away / dt, braking(away)).copysign(error)
    # Land exactly on the goal if it is close enough.
    desired = torch.where((direct - desired).abs() < step, direct, desired)
    desired = _shrink(desired, limit)
    if room is None:
        return velocity + _shrink(desired - velocity, step)
    low, high = -braking(room[0].clamp_min(0)), braking(room[1].clamp_min(0))
    velocity = velocity + _shrink(desired.clamp(low, high) - velocity, step)
    # The row's scale must not reduce the braking of a joint close to its limit, so clamp again.
    return velocity.clamp(low, high)


def _shrink(vector: Tensor, limit: Tensor) -> Tensor:
    """Scale each row (n, J) as a whole until its components are within `limit`, so the arm slows down on its path."""
    return vector / (vector.abs() / limit).amax(-1, keepdim=True).clamp_min(1)


def ramp(start: Tensor, goal: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return `steps` positions (steps, n, J) on the straight path from `start` to `goal` (n, J), and the displacement
    (n, J) from one to the next."""
    share = torch.arange(1, steps + 1, dtype=start.dtype, device=start.device) / steps
    return start + share[:, None, None] * (goal - start), (goal - start) / steps
