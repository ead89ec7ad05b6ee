"""Reward, success and end of episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.interface.success import SuccessHold
from sim.rewards import Transition, total
from sim.step.feet import FootTracker
from sim.tasks.base import Task


@dataclass(frozen=True)
class Verdict:
    """Reward and end (n,) of one control period."""

    reward: Tensor
    success: Tensor
    terminated: Tensor
    truncated: Tensor
    infos: dict[str, Any]
    """Reward terms and metrics, if the task has them."""


class TransitionJudge:
    """Compute rewards and ends: success and failure terminate, the horizon and divergence truncate."""

    def __init__(self, task: Task, pipeline: Pipeline):
        self.task, self.pipeline = task, pipeline
        self.period = 1 / task.interface.controller.rate
        self.home = torch.tensor(pipeline.robot.home, device=pipeline.device)
        self.success_ends = True  # success ends an episode

    def judge(
        self, before: RobotState, now: RobotState, steps: Tensor, broken: Tensor, hold: SuccessHold,
        feet: FootTracker | None,
    ) -> Verdict:  # fmt: skip
        """Judge control period `steps` (n,) of each episode, from true state `before` to `now`.

        If physics diverged (`broken` (n,)), the reward is 0 and the episode is truncated.
        """
        interface, pipeline = self.task.interface, self.pipeline
        late = steps >= interface.horizon
        failed = pipeline.failure(now) & ~broken if pipeline.failure else torch.zeros_like(broken)
        if interface.instructions:  # a new instruction restarts the hold time
            hold.reset((before.instruction != now.instruction)[:, 0])
        if pipeline.success:
            success = hold(pipeline.success(now) & ~broken) & ~failed
            terminated = success | failed if self.success_ends else failed
        else:
            success, terminated = late & ~failed & ~broken, failed
        reward, infos = success.float(), {}
        if self.task.rewards or self.task.metrics:
            if feet is not None:
                feet.update(now)
            transition = Transition(pipeline.robot, self.home, before, now, feet, self.period)  # type: ignore[arg-type]
            if self.task.rewards:
                reward, parts = total(self.task.rewards, transition)
                reward = torch.where(broken, 0.0, reward)
                infos["rewards"] = parts
            if self.task.metrics:
                # Copies: the next episode overwrites views of the state.
                infos["metrics"] = {name: value.clone() for name, value in self.task.metrics(transition).items()}
        return Verdict(reward, success, terminated, (late | broken) & ~terminated, infos)
