"""A scripted operator of an arm: acts as the task's demonstrator while a `Watch` gives it control."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.interface.environment import Demonstrator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.operators.watch import Watch


class Corrector:
    """Watch one arm and correct it, in simulation or on a twin."""

    def __init__(self, pipeline: Pipeline, demonstrator: Demonstrator):
        self.pipeline, self.demonstrator, self.watch = pipeline, demonstrator, Watch()

    def reset(self, now: float) -> None:
        """Begin an episode, without control."""
        self.demonstrator.reset(torch.arange(1))
        self.watch.reset(now)

    def __call__(self, state: RobotState, now: float) -> tuple[bool, Tensor]:
        """Return whether the operator has control at `now`, s, and its action (1, A).

        `state` (n = 1) holds the true pose of the first object, not the tracker's.
        """
        place, gripper = next(iter(state.objects.values()))[0, :3], self.pipeline.robot.gripper
        width = float(state.gripper_width) / gripper.width if gripper else 0.0  # without fingers
        before = self.watch.began
        held = self.watch(place - state.tool_position[0], float(place[2]), width, now)
        if held and before is None:
            self.demonstrator.reset(torch.arange(1))
        return held, self.demonstrator.act({"observation.state": self.pipeline.observer(state)})
