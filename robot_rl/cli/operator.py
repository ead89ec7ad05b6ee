"""A scripted operator: watches the robot's topics as a person would, and takes over when the policy stalls or is about
to miss."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from real.bus import Node, Stamped, open_node, qos
from real.env import EPISODE_TOPIC
from real.robots.arm import ArmDriver
from real.teleop import stream, until_signal
from real.teleop.commands import RELEASED, Operator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import UserError
from sim.tasks import task_of
from sim.tasks.base import Task

if TYPE_CHECKING:
    from robot_rl.cli.teleop import Teleop

PATIENCE = 1.2
"""Seconds without progress before the operator takes over."""
LONGEST = 5.0
"""Seconds of one correction before the policy gets another try."""
PROGRESS = 0.004
"""Metres nearer to the object, or higher with it, that count as progress."""

BESIDE = 0.015
"""Metres to the side of the object at which open fingers will not come down around it."""
ABOVE = 0.045
"""Metres above the object below which that is no longer about to change by itself."""
GLANCE = 0.1
"""Seconds of coming down beside the object before the operator takes over."""


class Watch:
    """Tells when a person has control: who sees that nothing gets better, or that the fingers come down beside the
    object, takes it for `LONGEST`."""

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Start watching anew, without control."""
        self.best, self.improved, self.aligned = float("-inf"), now, now
        self.began: float | None = None
        """When control was taken, s."""

    def __call__(self, offset: Tensor, height: float, width: float, now: float) -> bool:
        """True while the operator has control.

        `offset` (3,) is from the tool to the object and `height` that of the object, m; `width` is the share to which
        the gripper is open, 0 to 1.
        """
        score = 3 * height - float(offset.norm())
        if score > self.best + PROGRESS:
            self.best, self.improved = score, now
        missing = float(offset[:2].norm()) > BESIDE and float(offset[2]) > -ABOVE and width > 0.6
        if not missing:
            self.aligned = now
        if self.began is None and (now - self.improved > PATIENCE or now - self.aligned > GLANCE):
            self.began = now
        elif self.began is not None and now - self.began > LONGEST:
            self.reset(now)
        return self.began is not None


class ArmOperator:
    """Hands that do what the task's expert would, and hold the dead-man while a `Watch` says so."""

    help = "a scripted person takes over where the policy stalls or is about to miss"

    def __init__(self, node: Node, task: Task, seed: int, clock: Callable[[], float] = time.monotonic):
        if not task.expert:
            raise UserError(f"nobody scripted an operator for task {task.name!r}; use the keyboard or a gamepad")
        self.pipeline, self.clock = Pipeline(task.interface), clock
        self.expert = task.make_expert(self.pipeline, 1, "STEADY", seed)
        self.watch = Watch()
        self._now: tuple[int, str] = (-1, "")
        """Number of the episode, and its phase."""
        self._watched = -1
        self._action = torch.zeros(1, self.pipeline.actions.size)
        self.driver = ArmDriver(node, self.pipeline.robot, self.pipeline.observer.objects, dry_run=True)
        self._episodes = node.subscribe("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED, self._on_episode)
        pose = "geometry_msgs/msg/PoseStamped"
        self._eyes = {name: node.subscribe(pose, f"twin/{name}/pose", qos.SENSOR) for name in self.driver.poses}

    def _on_episode(self, sample: Stamped) -> None:
        told = json.loads(sample.msg.data)
        self._now = told["episode"], told["phase"]

    def read(self) -> Operator:
        """The hands as they are now."""
        now, state, (episode, phase) = self.clock(), self.driver.state(self._action), self._now
        if state is None or phase != "running":
            self._watched = -1
            return RELEASED
        if episode != self._watched:
            self._watched = episode
            self.expert.reset(torch.arange(1))
            self.watch.reset(now)
        for name, seen in self._eyes.items():  # a person sees the object, not the tracker's idea of it
            if seen.latest is not None:
                p = seen.latest.msg.pose.position
                state.objects[name][0, :3] = torch.tensor([p.x, p.y, p.z])
        place, gripper = next(iter(state.objects.values()))[0, :3], self.pipeline.robot.gripper
        width = float(state.gripper_width) / gripper.width if gripper else 0.0  # nothing to come down with
        before = self.watch.began
        held = self.watch(place - state.tool_position[0], float(place[2]), width, now)
        if held and before is None:
            self.expert.reset(torch.arange(1))
        self._action = self.expert.act({"observation.state": self.pipeline.observer(state)})
        x, y, z, *fingers = self._action[0].tolist()
        return Operator(held=held, motion=(x, y, z), gripper=sum(fingers))

    def close(self) -> None:
        """Stop listening to the episodes."""
        self._episodes.close()


def run_scripted(command: Teleop, say: Callable[[str], None]) -> int:
    """Publish the operator's hands until interrupted."""
    torch.set_num_threads(1)
    task = task_of(command.robot, command.task)
    with until_signal() as wait, open_node("operator", ros_args=command.ros_args) as node:
        operator = ArmOperator(node, task, command.seed)
        say(operator.help)
        stream(node, operator, command.rate, wait, say)
    return 0
