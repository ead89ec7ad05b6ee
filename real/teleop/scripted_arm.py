"""Scripted operator of an arm, which reads the robot's topics."""

from collections.abc import Callable
from dataclasses import replace

import torch

from real.bus import Node, Stamped, qos
from real.clock import now
from real.drivers import open_driver
from real.teleop.commands import RELEASED, Operator
from real.topics import EPISODE_TOPIC, STATUS, Episode
from robot_rl.interface.environment import Demonstrator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.operators.scripted import CORRECTIONS, OperatorConfig, ScriptedOperator, arm_view

STILL = 0.0005
"""Motion of the tool between two readings, m, below which it stands still."""
HOLD = 6
"""Number of readings in a row in which the task's test holds for the true poses before the operator marks success."""
HARDER, HARDEST = 1.1, 5.0
"""Factor of the next motion after one that did not move the tool, and largest product of these factors."""


class ArmOperator:
    """Teleop device whose input comes from a `ScriptedOperator`."""

    help = "a scripted person takes over where the policy stalls or is about to miss"

    def __init__(
        self, node: Node, pipeline: Pipeline, demonstrator: Demonstrator, clock: Callable[[], float] = now,
        config: OperatorConfig = CORRECTIONS, seed: int = 0,
    ):  # fmt: skip
        self.pipeline, self.clock = pipeline, clock
        self.operator, self._began = ScriptedOperator(demonstrator, config, seed), 0.0
        self._now: tuple[int, str, str] = (-1, "", "")
        """Number, phase and instruction of the episode."""
        self._known = [each.text for each in pipeline.interface.instructions]
        self._watched = -1
        self._action = torch.zeros(1, pipeline.actions.size)
        self._tool, self._push, self._won = torch.zeros(3), 1.0, 0
        self.driver = open_driver(node, pipeline.robot, pipeline.observer.objects, dry_run=True)
        self._episodes = node.subscribe(STATUS, EPISODE_TOPIC, qos.LATCHED, self._on_episode)
        pose = "geometry_msgs/msg/PoseStamped"
        self._eyes = {name: node.subscribe(pose, f"twin/{name}/pose", qos.SENSOR) for name in self.driver.scene.poses}

    def _on_episode(self, sample: Stamped) -> None:
        episode = Episode.of(sample.msg)
        self._now = episode.number, episode.phase, episode.instruction

    def read(self) -> Operator:
        """Return the operator's input."""
        at, state, (episode, phase, told) = self.clock(), self.driver.observe(self._action), self._now
        unknown = bool(self._known) and told not in self._known
        if state is None or unknown or phase not in ("waiting", "running"):
            self._watched, self._won = -1, 0
            return RELEASED
        if episode != self._watched:
            self._watched, self._began = episode, at
            self.operator.reset()
        for name, truth in self._eyes.items():  # a person sees the true pose, not the tracker's estimate
            if truth.latest is not None:
                p = truth.latest.msg.pose.position
                state.objects[name][0, :3] = torch.tensor([p.x, p.y, p.z])
        if self._known:
            state = replace(state, instruction=torch.tensor([[float(self._known.index(told))]]))
        step = (at - self._began) * self.pipeline.interface.controller.rate
        test = self.pipeline.success
        self._won = self._won + 1 if test is not None and bool(test(state)) else 0
        view = arm_view(self.pipeline, state, self._action)
        held, self._action = self.operator(view, step)
        if held:  # an arm with friction stands still a little before its goal: a person then pushes harder
            still = float((state.tool_position[0] - self._tool).norm()) < STILL
            self._push = min(HARDEST, HARDER * self._push) if still else 1.0
            self._action[:, : view.motion] = (self._push * self._action[:, : view.motion]).clamp(-1, 1)
        self._tool = state.tool_position[0].clone()
        twist, gripper = self.pipeline.controller.to_twist(self._action)
        x, y, z, roll, pitch, yaw = twist[0].tolist()
        success = self._won >= HOLD
        return Operator(held, (x, y, z), float(gripper), success, rotation=(roll, pitch, yaw))

    def close(self) -> None:
        """Unsubscribe from the episode topic."""
        self._episodes.close()
