"""Rewards: weighted terms, each a batched function of one control period."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from robot_rl.interface.observations import down
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import RobotState, is_commanded
from sim.step.feet import FootTracker


@dataclass(frozen=True)
class Transition:
    """One control period of n robots."""

    robot: RobotSpec
    home: Tensor
    """The robot's home posture (J,), rad."""
    before: RobotState
    """True state at the start of the period; `before.command` is the command of this period."""
    now: RobotState
    """True state at the end of the period; `now.last_action` is the action of this period."""
    feet: FootTracker
    """Foot contacts; None for a robot without feet, whose tasks have no reward terms about feet."""
    period: float
    """Length of a control period, s."""

    @cached_property
    def commanded(self) -> Tensor:
        """Return (n,) bool: True where the command is not zero."""
        return is_commanded(self.before)

    @cached_property
    def foot_speed(self) -> Tensor:
        """Return the squared horizontal speed (n, F) of the feet, m^2/s^2."""
        return self.now.foot_velocity.unflatten(1, (-1, 3))[..., :2].square().sum(-1)


@dataclass(frozen=True)
class Reward:
    """A term of a task's reward. Its value counts per second, so the return does not depend on the control rate."""

    name: str
    weight: float
    term: Callable[[Transition], Tensor]
    """Function that returns the value (n,) of the term in a transition."""


def total(rewards: tuple[Reward, ...], transition: Transition) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reward (n,) of the control period, and the contribution (n,) of every term by name."""
    parts = [r.term(transition).float() * (r.weight * transition.period) for r in rewards]
    # One by one, since the order of `sum` depends on n.
    return reduce(torch.add, parts), dict(zip((r.name for r in rewards), parts, strict=True))


# ---- legged robots with a velocity command (vx, vy, yaw rate) --------------------------------------------------------
def velocity_error(m: Transition) -> Tensor:
    """Return the distance between the trunk's horizontal velocity and the command, m/s."""
    return (m.now.base_velocity[:, :2] - m.before.command[:, :2]).square().sum(1).sqrt()


def yaw_error(m: Transition) -> Tensor:
    """Return the absolute error of the yaw rate, rad/s."""
    return (m.now.base_angular_velocity[:, 2] - m.before.command[:, 2]).abs()


def alive(m: Transition) -> Tensor:
    """Return 1 in every control period: a robot that falls loses this reward for the rest of the episode."""
    return torch.ones_like(m.now.joint_position[:, 0])


def track_lin_vel_xy(m: Transition) -> Tensor:
    """Return 1 at the commanded velocity, 1/e at an error of 0.35 m/s."""
    return torch.exp(-velocity_error(m).square() / 0.125)


def track_ang_vel_z(m: Transition) -> Tensor:
    """Return 1 at the commanded yaw rate, 1/e at an error of 0.35 rad/s."""
    return torch.exp(-yaw_error(m).square() / 0.125)


def lin_vel_z(m: Transition) -> Tensor:
    """Return the squared vertical speed of the trunk, m^2/s^2."""
    return m.now.base_velocity[:, 2].square()


def ang_vel_xy(m: Transition) -> Tensor:
    """Return the squared roll rate plus the squared pitch rate of the trunk, rad^2/s^2."""
    return m.now.base_angular_velocity[:, :2].square().sum(1)


def flat_orientation(m: Transition) -> Tensor:
    """Return the squared horizontal component of the gravity direction in the trunk's frame."""
    return down(m.now.base_quat)[:, :2].square().sum(1)


def base_height(m: Transition) -> Tensor:
    """Return the squared error of the trunk's height above the ground, with the error in units of 10 cm."""
    assert m.robot.base is not None
    return ((m.now.base_height[:, 0] - m.robot.base.height) * 10).square()


def joint_torque(m: Transition) -> Tensor:
    """Return the sum of squared joint torques, N^2 m^2."""
    return m.now.joint_torque.square().sum(1)


def joint_power(m: Transition) -> Tensor:
    """Return the sum of the motors' absolute mechanical power, W."""
    return (m.now.joint_torque * m.now.joint_velocity).abs().sum(1)


def joint_acc(m: Transition) -> Tensor:
    """Return the sum of squared joint accelerations, rad^2/s^4."""
    return ((m.now.joint_velocity - m.before.joint_velocity) / m.period).square().sum(1)


def action_rate(m: Transition) -> Tensor:
    """Return the squared norm of the action's change since the last control period; actions are in [-1, 1]."""
    return (m.now.last_action - m.before.last_action).square().sum(1)


def posture(m: Transition) -> Tensor:
    """Return the squared distance of the joints from the home posture, rad^2, times 10 while the command is zero."""
    off = (m.now.joint_position - m.home).square().sum(1)
    return torch.where(m.commanded, off, 10 * off)


def trot_gait(m: Transition) -> Tensor:
    """Return the share of feet with the contact of a trot: one diagonal pair on the ground per half of the phase."""
    first = m.before.phase < 0.5
    trot = torch.cat([first, ~first, ~first, first], 1)  # front left and rear right, then the other pair
    return (m.feet.touching == trot).float().mean(1) * m.commanded


def feet_air_time(m: Transition) -> Tensor:
    """Return the sum over the feet that land of the swing's duration between 0.1 and 0.3 s, beyond 0.1 s, divided by
    the control period: steps of 0.3 s give 0.6 per s and foot."""
    swing = (m.feet.air_time.clamp(max=0.3) - 0.1).clamp_min(0)
    return (swing * m.feet.landed).sum(1) * m.commanded / m.period


def feet_clearance(m: Transition, height: float = 0.07) -> Tensor:
    """Return the sum over feet of speed x error^2: the horizontal speed in m/s, and the error of the sole's height to
    `height`, m, in units of that height."""
    off = (1 - m.feet.sole(m.now) / height).square().clamp(max=4)
    return (off * m.foot_speed.sqrt()).sum(1)


def feet_slip(m: Transition) -> Tensor:
    """Return the sum of the squared horizontal speeds of the feet in contact, m^2/s^2."""
    return (m.foot_speed * m.feet.touching).sum(1)


def feet_air_standing(m: Transition) -> Tensor:
    """Return the number of feet in the air while the command is zero."""
    return (~m.feet.contact).sum(1) * ~m.commanded


def command_speed(m: Transition) -> Tensor:
    """Return the commanded horizontal speed, m/s."""
    return m.before.command[:, :2].square().sum(1).sqrt()


def speed_along_command(m: Transition) -> Tensor:
    """Return the trunk's speed in the commanded direction, m/s; 0 without a commanded direction."""
    return (m.now.base_velocity[:, :2] * m.before.command[:, :2]).sum(1) / command_speed(m).clamp_min(1e-6)


# ---- metrics without a reward ------------------------------------------------------------------------------------
def gait_metrics(m: Transition) -> dict[str, Tensor]:
    """Return gait metrics (n,) by name; NaN where a metric is undefined in this control period."""
    on, landed = m.feet.touching.float(), m.feet.landed.float()
    landings = landed.sum(1)
    return {
        "velocity_error": velocity_error(m),
        "yaw_error": yaw_error(m),
        "foot_slip": (m.foot_speed.sqrt() * on).sum(1) / on.sum(1),
        "swing_height": (m.feet.swing_height * landed).sum(1) / landings,
        "air_time": (m.feet.air_time * landed).sum(1) / landings,
        "power": joint_power(m),
        "base_height": m.now.base_height[:, 0],
    }


def rough_metrics(m: Transition) -> dict[str, Tensor]:
    """Return gait metrics and those of progress (n,), by which a terrain curriculum moves levels."""
    progress = {"command_speed": command_speed(m), "speed_along_command": speed_along_command(m)}
    return gait_metrics(m) | progress
