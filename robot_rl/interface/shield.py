"""Limits on commands: the last computation before a command is sent, the same in simulation, twin and robot.

`admit` checks that each new target is finite and within position limits and workspace. `follow` computes the next
command towards the admitted target, within speed and acceleration limits. No command bypasses the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from robot_rl.interface.collision import Clearance
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.stopping import Braking, Motion, Stopping
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFraction, validate

LEAD = 0.15
"""Largest distance of a goal from the measured posture on the way home, rad."""
TICKS = 10
"""Commands in which the way to a goal is checked if nothing else is said."""
REASONS = ("nonfinite", "position", "workspace", "collision", "speed", "held")
"""Reasons for which a goal is changed; reason k is bit 2 ** k of a dataset's column `shield`. The first five are those
of `Shield.admit`. `held`: no goal was accepted, because the robot is stopped, its objects or pictures are old, or the
goal is too far away. Limits of speed and acceleration on the way to a goal change no goal."""
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


def as_bits(events: Mapping[str, Tensor]) -> Tensor:
    """Return masks (n,) of changed goals, by reason, as bits (n,) in the order of `REASONS`."""
    bits = [mask.long() << REASONS.index(reason) for reason, mask in events.items()]
    return torch.stack(bits).sum(0)


class Shield(Protocol):
    """Limits on one kind of command to a batch of robots of one type; keeps no state between calls.

    Set-points are (n, D), as in the command's `values`. Their rates are (n, E): velocities of positions, or
    accelerations of velocities.
    """

    config: ShieldConfig
    refusals: tuple[str, ...]
    """Reasons of `admit` for which a robot brakes at once; other reasons change goals that it then follows."""

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Accept, clip or reject goals (n, D) of robots whose commands follow the path from `previous` (n, D).

        Returns the goals, and for each reason a mask (n,) of the changed rows. A rejected row is where the robot comes
        to rest. `joints`: measured positions (n, J), rad, from which goals that are velocities are checked against the
        workspace. `motion`: how the commands move, from which the way to the goals is checked; None: at rest at
        `previous`.
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
        self.refusals: tuple[str, ...] = () if self.compliant else ("nonfinite", "workspace", "collision")
        self.tick = 1.0 / robot.command_rate
        self.braking = Braking(self.acceleration, self.low, self.high)
        self.stopping = None
        if robot.tool:
            low, high = torch.tensor(robot.tool.workspace)
            box = low - config.workspace_slack, high + config.workspace_slack
            kinematics, clearance = Kinematics(robot), None
            if robot.collision_pairs and config.clearance is not None:
                clearance = Clearance(robot, kinematics, config.table)
            self.stopping = Stopping(kinematics, self.braking, box, clearance, config.clearance or 0.0)

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.compliant:
            return self._clip(goal, previous)
        return self.plan(goal, previous, motion or Motion(previous, torch.zeros_like(previous), self.tick, TICKS))[:2]

    def plan(
        self, goal: Tensor, previous: Tensor, motion: Motion
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
        """Accept, clip or reject goals (n, J), rad, as `admit`; return also the period's commands (T, n, J), rad, and
        the velocity (n, J), rad/s, of the last ones.

        Rejected goals become the place where the arm rests if it brakes at once. An arm that is outside the workspace
        or too close already may move, but no further out or closer than if it braked.
        """
        goal, events = self._clip(goal, previous)
        commands, rates = self._drive(previous, goal, motion)
        if self.compliant:
            return goal, events, commands, rates[-1]
        refused = events["nonfinite"]
        if self.stopping:
            outside, close = self.stopping.refused(goal, commands, rates, motion)
            events["workspace"] = outside & ~events["nonfinite"]
            if self.stopping.clearance:
                events["collision"] = close & ~events["nonfinite"]
            refused = refused | outside | close
        if refused.is_cuda or refused.any():
            braked, rate = self.braking.commands(motion)
            commands = torch.where(refused[:, None], braked, commands)
            rates = torch.where(refused[:, None], rate, rates[-1:])
            goal = torch.where(refused[:, None], self.braking.end(motion.setpoint, motion.rate), goal)
        return goal, events, commands, rates[-1]

    def _clip(self, goal: Tensor, previous: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return goals (n, J), rad, within position limits, and what was changed; non-finite ones become `previous`."""
        finite = goal.isfinite().all(-1)
        goal = torch.where(finite[:, None], goal, previous)
        clipped = goal.clamp(self.low, self.high)
        return clipped, {"nonfinite": ~finite, "position": (clipped != goal).any(-1)}

    def _drive(self, start: Tensor, goal: Tensor, motion: Motion) -> tuple[Tensor, Tensor]:
        """Return commands and velocities (T, n, J) that follow the straight path from `start` to `goal` (n, J)."""
        # Robots are the contiguous axis: each tick reduces over joints.
        start, goal, command, velocity = (x.T.contiguous().T for x in (start, goal, motion.setpoint, motion.rate))
        path, step = ramp(start, goal, motion.ticks)
        commands, velocities = [], []
        for at in path:
            aim, speed = (goal, step) if self.compliant else (at, step / motion.tick)
            command, velocity = self.follow(command, velocity, aim, speed, motion.tick)
            commands.append(command)
            velocities.append(velocity)
        return torch.stack(commands), torch.stack(velocities)

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
