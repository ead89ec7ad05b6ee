"""Rewards: weighted terms, each a batched function of one control period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from robot_rl.interface.observations import down
from robot_rl.interface.spec import RobotSpec
from robot_rl.interface.state import RobotState, asked
from sim.feet import FootTracker


@dataclass(frozen=True)
class Moment:
    """What happened to n robots in one control period."""

    robot: RobotSpec
    before: RobotState
    """The true state at its start; `before.command` is what was asked."""
    now: RobotState
    """The true state at its end; `now.last_action` was executed."""
    feet: FootTracker | None
    period: float
    """s"""

    @cached_property
    def asked(self) -> Tensor:
        """(n,) bool: the robot was not asked to stand still."""
        return asked(self.before)

    @cached_property
    def foot_speed(self) -> Tensor:
        """Squared horizontal speed (n, F) of the feet, m^2/s^2."""
        return self.now.foot_velocity.unflatten(1, (-1, 3))[..., :2].square().sum(-1)


@dataclass(frozen=True)
class Reward:
    """A term of a task's reward; per second, so that it does not depend on the control rate."""

    name: str
    weight: float
    term: Callable[[Moment], Tensor]
    """(n,) of a Moment."""


def total(rewards: tuple[Reward, ...], moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum (n,) over the period, and each term's part by name."""
    weights = torch.tensor([r.weight * moment.period for r in rewards])
    parts = torch.stack([r.term(moment).float() for r in rewards]) * weights[:, None]
    return parts.sum(0), dict(zip((r.name for r in rewards), parts, strict=True))


# ---- of robots that walk after a command (vx, vy, yaw rate) -------------------------------------------------------
def velocity_error(m: Moment) -> Tensor:
    """Distance between the trunk's horizontal velocity and the command, m/s."""
    return (m.now.base_velocity[:, :2] - m.before.command[:, :2]).square().sum(1).sqrt()


def yaw_error(m: Moment) -> Tensor:
    """Difference of the turning speed from the command, rad/s."""
    return (m.now.base_angular_velocity[:, 2] - m.before.command[:, 2]).abs()


def alive(m: Moment) -> Tensor:
    """1: falling ends what could still be earned."""
    return torch.ones(len(m.now.joint_position))


def tracks_velocity(m: Moment) -> Tensor:
    """1 at the commanded velocity, 1/e at 0.35 m/s from it."""
    return torch.exp(-velocity_error(m).square() / 0.125)


def tracks_yaw(m: Moment) -> Tensor:
    """1 at the commanded turning speed, 1/e at 0.35 rad/s from it."""
    return torch.exp(-yaw_error(m).square() / 0.125)


def bounces(m: Moment) -> Tensor:
    """Squared vertical speed of the trunk."""
    return m.now.base_velocity[:, 2].square()


def sways(m: Moment) -> Tensor:
    """Squared roll and pitch rate."""
    return m.now.base_angular_velocity[:, :2].square().sum(1)


def leans(m: Moment) -> Tensor:
    """Squared horizontal part of gravity in the trunk's frame."""
    return down(m.now.base_quat)[:, :2].square().sum(1)


def sinks(m: Moment) -> Tensor:
    """Squared distance of the trunk from its standing height, in units of 10 cm."""
    assert m.robot.base is not None
    return ((m.now.base_position[:, 2] - m.robot.base.height) * 10).square()


def torque(m: Moment) -> Tensor:
    """Squared torques, N^2 m^2."""
    return m.now.joint_torque.square().sum(1)


def power(m: Moment) -> Tensor:
    """Mechanical power that the motors give or take, W."""
    return (m.now.joint_torque * m.now.joint_velocity).abs().sum(1)


def acceleration(m: Moment) -> Tensor:
    """Squared joint accelerations, rad^2/s^4."""
    return ((m.now.joint_velocity - m.before.joint_velocity) / m.period).square().sum(1)


def action_rate(m: Moment) -> Tensor:
    """Squared change of the action, in units of the range [-1, 1]."""
    return (m.now.last_action - m.before.last_action).square().sum(1)


def posture(m: Moment) -> Tensor:
    """Squared distance of the joints from home; ten times as much where nothing is asked."""
    off = (m.now.joint_position - torch.tensor(m.robot.home)).square().sum(1)
    return torch.where(m.asked, off, 10 * off)


def trots(m: Moment) -> Tensor:
    """Share of the feet that are where a trot has them: one diagonal pair on the ground in each half of the clock."""
    assert m.feet is not None
    first = m.before.phase < 0.5
    wanted = torch.cat([first, ~first, ~first, first], 1)  # front left and rear right, then the others
    return (m.feet.touching == wanted).float().mean(1) * m.asked


def clearance(m: Moment) -> Tensor:
    """Horizontal speed of each foot, m/s, times the square of how far its sole is from 7 cm, in units of 7 cm."""
    assert m.feet is not None
    off = (1 - m.feet.sole(m.now) / 0.07).square().clamp(max=4)
    return (off * m.foot_speed.sqrt()).sum(1)


def slip(m: Moment) -> Tensor:
    """Squared horizontal speed of the feet on the ground, m^2/s^2."""
    assert m.feet is not None
    return (m.foot_speed * m.feet.touching).sum(1)


def lifted_while_standing(m: Moment) -> Tensor:
    """Feet in the air where nothing is asked."""
    assert m.feet is not None
    return (~m.feet.contact).sum(1) * ~m.asked


# ---- measurements, not rewarded ------------------------------------------------------------------------------------
def measured(m: Moment) -> dict[str, Tensor]:
    """Figures of merit of a gait (n,), NaN where there is nothing to measure in this control period."""
    assert m.feet is not None
    on, landed = m.feet.touching.float(), m.feet.landed.float()
    landings = landed.sum(1)
    return {
        "velocity_error": velocity_error(m),
        "yaw_error": yaw_error(m),
        "foot_slip": (m.foot_speed.sqrt() * on).sum(1) / on.sum(1),
        "swing_height": (m.feet.swing_height * landed).sum(1) / landings,
        "air_time": (m.feet.air_time * landed).sum(1) / landings,
        "power": power(m),
        "base_height": m.now.base_position[:, 2],
    }
