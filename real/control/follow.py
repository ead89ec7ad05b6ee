"""How commands follow goals: along a straight line, jerk-limited, or directly. The shield limits all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from robot_rl.interface.command import JointPositions
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import ConfigError

WITHIN = 0.98
"""Share of the shield's limits that jerk-limited motion uses, so that the shield changes none of it."""


@dataclass(frozen=True)
class Goal:
    """Set-point to reach `duration` seconds after `posted`."""

    setpoint: Tensor
    """Set-point to reach, (1, D), as in the command's `values`."""
    start: Tensor
    """Previous goal, (1, D)."""
    gripper: float
    """Finger distance, m."""
    posted: float
    """Time at which the goal was posted, s."""
    duration: float
    """Time from `posted` until the goal is to be reached, s."""
    gaps: int = 0
    """Number of gaps in the commands before the goal was asked for."""
    refused: bool = False
    """The shield refused what was asked for: brake to the set-point."""


class Follower(Protocol):
    """Path from the present set-point to a goal."""

    def follow(self, goal: Goal, now: float, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moving goal (1, D) of the next tick and its rate (1, E), for `Shield.follow`."""

    def brake(self, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for a robot that is to come to rest."""


class StraightLine:
    """From the previous goal to the present one at constant rate, as in simulation."""

    def __init__(self, pipeline: Pipeline):
        self.shield, self.tick = pipeline.shield, pipeline.tick

    def follow(self, goal: Goal, now: float, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        share = min(1.0, (now - goal.posted + self.tick) / goal.duration)
        at, change = self.shield.path(goal.start, goal.setpoint, share)
        return at, change / goal.duration if share < 1 else torch.zeros_like(change)

    def brake(self, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        return self.shield.rest(setpoint), torch.zeros_like(rate)


class Direct(StraightLine):
    """To the goal at once, as in simulation of joints with springs."""

    def __init__(self, pipeline: Pipeline):
        super().__init__(pipeline)
        self._still = torch.zeros(0)

    def follow(self, goal: Goal, now: float, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        if self._still.shape != rate.shape:
            self._still = torch.zeros_like(rate)
        return goal.setpoint, self._still


class JerkLimited:
    """Time-optimal motion within limits of speed, acceleration and jerk (Ruckig: Berscheid and Kröger 2021,
    arXiv 2105.04830), for controllers that execute every command at once."""

    def __init__(self, pipeline: Pipeline):
        try:
            import ruckig
        except ImportError as error:
            raise ConfigError(f"jerk-limited commands need Ruckig ({error}): pip install 'robot-rl[real]'") from error
        robot, shield = pipeline.robot, pipeline.shield
        if pipeline.controller.command is not JointPositions:
            raise ConfigError(
                f"robot {robot.name!r}: driver.follow is jerk_limited, which is for joint positions; set straight_line"
            )
        if missing := [joint.name for joint in robot.joints if joint.jerk is None]:
            raise ConfigError(
                f"robot {robot.name!r}: driver.follow is jerk_limited, but {', '.join(missing)} has no `jerk` in the "
                "spec; give the manufacturer's limit, or set straight_line"
            )
        count = len(robot.joints)
        self.tick, self._ruckig = pipeline.tick, ruckig
        self._otg, self._input = ruckig.Ruckig(count, self.tick), ruckig.InputParameter(count)
        self._output = ruckig.OutputParameter(count)
        limits: Any = shield
        self._step = limits.acceleration * self.tick
        """Change of speed in a tick at the limit of acceleration, (J,) rad/s."""
        self._input.max_velocity = (WITHIN * limits.velocity).tolist()
        self._input.max_acceleration = (WITHIN * limits.acceleration).tolist()
        self._input.max_jerk = robot.limit("jerk").tolist()

    def follow(self, goal: Goal, now: float, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        self._input.control_interface = self._ruckig.ControlInterface.Position
        self._input.target_position = goal.setpoint[0].tolist()
        return self._next(setpoint, rate)

    def brake(self, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        self._input.control_interface = self._ruckig.ControlInterface.Velocity
        return self._next(setpoint, rate)

    def _next(self, setpoint: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return a moving goal that the shield follows to the next set-point exactly."""
        given, at = self._input, setpoint[0].double()
        before = torch.tensor(self._output.new_position, dtype=torch.double)
        if not torch.allclose(before, at, atol=1e-5):  # held or moved meanwhile: start from there
            given.current_acceleration = [0.0] * len(at)
        else:
            given.current_acceleration = self._output.new_acceleration
        given.current_position, given.current_velocity = at.tolist(), rate[0].tolist()
        given.target_velocity = [0.0] * len(at)
        self._otg.update(given, self._output)
        reached = torch.tensor(self._output.new_position, dtype=torch.double)
        speed = ((reached - at) / self.tick).float()[None]
        # `Shield.follow` lands on a goal that is less than a step of speed away, and else takes over its rate.
        slow = speed.abs() < self._step
        return setpoint + slow * speed * self.tick, torch.where(slow, torch.zeros_like(speed), speed)


FOLLOWERS: dict[str, type[Any]] = {"straight_line": StraightLine, "direct": Direct, "jerk_limited": JerkLimited}
"""Classes by `DriverConfig.follow`."""
