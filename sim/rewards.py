"""Rewards: weighted terms, each a batched function of one control period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

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
    """True state at its start; `before.command` was in force."""
    now: RobotState
    """True state at its end; `now.last_action` was executed."""
    feet: FootTracker | None
    period: float
    """s"""

    @cached_property
    def commanded(self) -> Tensor:
        """Return (n,) bool: the command was not zero."""
        return is_commanded(self.before)

    @cached_property
    def foot_speed(self) -> Tensor:
        """Return the squared horizontal speed (n, F) of the feet, m^2/s^2."""
        return self.now.foot_velocity.unflatten(1, (-1, 3))[..., :2].square().sum(-1)


@dataclass(frozen=True)
class Reward:
    """A term of a task's reward, per second: independent of the control rate."""

    name: str
    weight: float
    term: Callable[[Transition], Tensor]
    """Function of a Transition; returns (n,)."""


def total(rewards: tuple[Reward, ...], transition: Transition) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum (n,) over the period, and each term's part by name."""
    parts = torch.stack([r.term(transition).float() * (r.weight * transition.period) for r in rewards])
    return parts.sum(0), dict(zip((r.name for r in rewards), parts, strict=True))


# ---- walking robots with a velocity command (vx, vy, yaw rate) -------------------------------------------------------
def velocity_error(m: Transition) -> Tensor:
    """Return the distance between the trunk's horizontal velocity and the command, m/s."""
    return (m.now.base_velocity[:, :2] - m.before.command[:, :2]).square().sum(1).sqrt()


def yaw_error(m: Transition) -> Tensor:
    """Difference of the turning speed from the command, rad/s."""
    return (m.now.base_angular_velocity[:, 2] - m.before.command[:, 2]).abs()


def alive(m: Transition) -> Tensor:
    """Return 1: a fall forfeits the remaining reward."""
    return torch.ones_like(m.now.joint_position[:, 0])


def track_lin_vel_xy(m: Transition) -> Tensor:
    """1 at the commanded velocity, 1/e at 0.35 m/s from it."""
    return torch.exp(-velocity_error(m).square() / 0.125)


def track_ang_vel_z(m: Transition) -> Tensor:
    """1 at the commanded turning speed, 1/e at 0.35 rad/s from it."""
    return torch.exp(-yaw_error(m).square() / 0.125)


def lin_vel_z(m: Transition) -> Tensor:
    """Squared vertical speed of the trunk."""
    return m.now.base_velocity[:, 2].square()


def ang_vel_xy(m: Transition) -> Tensor:
    """Squared roll and pitch rate."""
    return m.now.base_angular_velocity[:, :2].square().sum(1)


def flat_orientation(m: Transition) -> Tensor:
    """Squared horizontal part of gravity in the trunk's frame."""
    return down(m.now.base_quat)[:, :2].square().sum(1)


def base_height(m: Transition) -> Tensor:
    """Squared distance of the trunk from its standing height, in units of 10 cm."""
    assert m.robot.base is not None
    return ((m.now.base_position[:, 2] - m.robot.base.height) * 10).square()


def joint_torque(m: Transition) -> Tensor:
    """Squared torques, N^2 m^2."""
    return m.now.joint_torque.square().sum(1)


def joint_power(m: Transition) -> Tensor:
    """Mechanical power of the motors, positive or negative, W."""
    return (m.now.joint_torque * m.now.joint_velocity).abs().sum(1)


def joint_acc(m: Transition) -> Tensor:
    """Squared joint accelerations, rad^2/s^4."""
    return ((m.now.joint_velocity - m.before.joint_velocity) / m.period).square().sum(1)


def action_rate(m: Transition) -> Tensor:
    """Squared change of the action, in units of the range [-1, 1]."""
    return (m.now.last_action - m.before.last_action).square().sum(1)


def posture(m: Transition) -> Tensor:
    """Squared distance of the joints from home; tenfold while the command is zero."""
    off = (m.now.joint_position - m.home).square().sum(1)
    return torch.where(m.commanded, off, 10 * off)


def trot_gait(m: Transition) -> Tensor:
    """Share of the feet whose contact fits a trot: one diagonal pair on the ground in each half of the clock."""
    assert m.feet is not None
    first = m.before.phase < 0.5
    trot = torch.cat([first, ~first, ~first, first], 1)  # front left and rear right, then the others
    return (m.feet.touching == trot).float().mean(1) * m.commanded


def feet_clearance(m: Transition) -> Tensor:
    """Horizontal speed of each foot, m/s, times the square of how far its sole is from 7 cm, in units of 7 cm."""
    assert m.feet is not None
    off = (1 - m.feet.sole(m.now) / 0.07).square().clamp(max=4)
    return (off * m.foot_speed.sqrt()).sum(1)


def feet_slip(m: Transition) -> Tensor:
    """Squared horizontal speed of the feet on the ground, m^2/s^2."""
    assert m.feet is not None
    return (m.foot_speed * m.feet.touching).sum(1)


def feet_air_standing(m: Transition) -> Tensor:
    """Number of feet in the air while the command is zero."""
    assert m.feet is not None
    return (~m.feet.contact).sum(1) * ~m.commanded


# ---- measurements, not rewarded ------------------------------------------------------------------------------------
def gait_metrics(m: Transition) -> dict[str, Tensor]:
    """Return metrics of a gait (n,); NaN where undefined in this control period."""
    assert m.feet is not None
    on, landed = m.feet.touching.float(), m.feet.landed.float()
    landings = landed.sum(1)
    return {
        "velocity_error": velocity_error(m),
        "yaw_error": yaw_error(m),
        "foot_slip": (m.foot_speed.sqrt() * on).sum(1) / on.sum(1),
        "swing_height": (m.feet.swing_height * landed).sum(1) / landings,
        "air_time": (m.feet.air_time * landed).sum(1) / landings,
        "power": joint_power(m),
        "base_height": m.now.base_position[:, 2],
    }
