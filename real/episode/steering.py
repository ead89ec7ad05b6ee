"""Velocity command of a legged robot: from the operator, else `cmd_vel`, else a schedule, else zero."""

import logging
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from real import clock
from real.bus import BusError, Node, Subscription, qos
from real.teleop.commands import Operator
from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
TOPIC = "cmd_vel"
"""Topic of velocity commands in the trunk frame: m/s forward and to the left, rad/s counter-clockwise."""
TYPES = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")
"""Message types of `cmd_vel`; a planner sends one of these two."""
FOOTPRINT = "base_footprint"
"""Frame with the trunk's heading but without its tilt; planners send velocity commands in this frame."""
TIMEOUT = 0.5
"""Maximum age of a message of `cmd_vel` that is used, s."""

Schedule = Callable[[int, int], Tensor]
"""Map from an episode's seed and control period to the velocity command (1, C)."""


class Steering:
    """Choose the velocity command once per control period and limit its change. A schedule's commands change as in
    training. Commands of other sources need at least `COMMAND_RAMP` s from one end of a range to zero."""

    def __init__(
        self, node: Node, spec: VectorSpec, period: float, schedule: Schedule | None = None,
        frames: Sequence[str] = ("base", "base_link"),
    ):  # fmt: skip
        """Args: `frames`: names of the trunk's frame."""
        if spec.size != 3:
            raise UserError(
                f"this policy's command is {spec.names}; a person and {TOPIC} can command only x, y and yaw"
            )
        self.low, self.high, self.schedule = spec.low[None], spec.high[None], schedule
        self.step = (self.high - self.low) * period / COMMAND_RAMP
        """Maximum change of a schedule's command in one control period; for other sources, half of it."""
        self.command = self.target = torch.zeros_like(self.low)
        self.command_source = "none"
        """Source of the last command: operator, operator_lost, cmd_vel, schedule, none, or end (last second)."""
        self.frames, self._foreign = (*frames, FOOTPRINT), ""
        self.twists: list[Subscription] = []
        for kind in TYPES:
            try:
                self.twists.append(node.subscribe(kind, TOPIC, qos.DEFAULT))
            except BusError as error:  # not every middleware has two types on one topic
                logger.warning("%s with %s is not heard: %s", TOPIC, kind, error)

    def __call__(self, operator: Operator | None, seed: int, step: int, rest: bool = False) -> Tensor:
        """Return the command (1, 3), within the interface's ranges, for control period `step` of an episode. Commands
        start at zero and move towards the source's command, or towards zero if `rest` is True."""
        zero = torch.zeros_like(self.low)
        self.command = zero if step == 0 else self.command
        self.command_source, self.target = ("end", zero) if rest else self._choose(operator, seed, step)
        reach = self.step if self.command_source == "schedule" else self.step / 2
        self.command = self.target.clamp(self.command - reach, self.command + reach)
        return self.command

    def _choose(self, operator: Operator | None, seed: int, step: int) -> tuple[str, Tensor]:
        """Return the present source and its command. The operator's command counts while the enable button is held.
        Full deflection means the end of a range. A device that fell silent with the button held commands zero."""
        if operator is not None and operator.lost:
            return "operator_lost", torch.zeros_like(self.low)
        if operator is not None and operator.held:
            motion = torch.tensor([operator.motion])
            return "operator", torch.where(motion < 0, -motion * self.low, motion * self.high)
        if (twist := self._twist()) is not None:
            return "cmd_vel", twist.clamp(self.low, self.high)
        return ("schedule", self.schedule(seed, step)) if self.schedule else ("none", torch.zeros_like(self.low))

    def _twist(self) -> Tensor | None:
        """Return the newest message of `cmd_vel` as (1, 3): zero if it is non-finite or in another frame. None if there
        is no recent message."""
        sample = max((t.latest for t in self.twists if t.latest), key=lambda latest: latest.received, default=None)
        if sample is None or clock.now() - sample.received > TIMEOUT:
            return None
        frame = sample.msg.header.frame_id.removeprefix("/") if hasattr(sample.msg, "header") else ""
        foreign = frame if frame and frame not in self.frames else ""
        if foreign and foreign != self._foreign:
            logger.warning(
                "%s is in frame %r, not in the trunk's %r: the robot stands; transform it before publishing",
                TOPIC, foreign, self.frames[0],
            )  # fmt: skip
        self._foreign = foreign
        twist = getattr(sample.msg, "twist", sample.msg)
        values = (twist.linear.x, twist.linear.y, twist.angular.z)
        return torch.tensor([values if all(map(math.isfinite, values)) and not foreign else (0.0,) * 3])
