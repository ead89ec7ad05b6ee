"""A scripted operator: watches the robot's topics as a person would, and takes over when the policy stalls."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robot_rl.cli.teleop import Teleop

PATIENCE = 1.2
"""Seconds without progress before the operator takes over."""
LONGEST = 5.0
"""Seconds of one correction before the policy gets another try."""
PROGRESS = 0.004
"""Metres nearer to the object, or higher with it, that count as progress."""


class Stall:
    """Tells whether the tool still gets nearer to the object, or the object higher."""

    def __init__(self) -> None:
        self.best = float("-inf")
        self.since = 0.0

    def reset(self, now: float) -> None:
        """Start watching anew."""
        self.best, self.since = float("-inf"), now

    def __call__(self, distance: float, height: float, now: float) -> bool:
        """True when neither improved for `PATIENCE` seconds."""
        score = 3 * height - distance
        if score > self.best + PROGRESS:
            self.best, self.since = score, now
        return now - self.since > PATIENCE


def run_scripted(command: Teleop) -> int:
    """Publish the operator's hands until interrupted."""
    import importlib
    import logging

    import torch

    from real.bus import Stamped, open_node, qos
    from real.clock import Ticker
    from real.env import EPISODE_TOPIC
    from real.robots.arm import ArmDriver
    from real.session import stop_on_signals
    from real.teleop.commands import QOS, TOPIC, Operator, to_joy
    from robot_rl.interface import Pipeline
    from sim.tasks import tasks

    torch.set_num_threads(1)
    task = tasks.get(command.task)
    pipeline = Pipeline(task.interface)
    module, name = task.expert.split(":")
    expert_module = importlib.import_module(module)
    skill = expert_module.STEADY
    expert = getattr(expert_module, name)(pipeline.observer.spec, pipeline.actions, 1, skill, command.seed)
    stall = Stall()
    phase: dict[str, Any] = {"phase": "", "episode": -1}
    everyone = torch.arange(1)

    def on_episode(sample: Stamped) -> None:
        phase.update(json.loads(sample.msg.data))

    with open_node("operator", ros_args=command.ros_args) as node:
        driver = ArmDriver(node, pipeline.robot, pipeline.observer.objects, dry_run=True)
        node.subscribe("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED, on_episode)
        eyes = {n: node.subscribe("geometry_msgs/msg/PoseStamped", f"twin/{n}/pose", qos.SENSOR) for n in driver.poses}
        hands = node.publisher("sensor_msgs/msg/Joy", TOPIC, QOS)
        stop_on_signals()
        ticker = Ticker(1 / command.rate)
        action = torch.zeros(1, pipeline.actions.size)
        holding, began, episode = False, 0.0, -1
        try:
            while True:
                ticker.wait()
                now = time.monotonic()
                state = driver.state(action)
                idle = Operator(False, (0.0, 0.0, 0.0), 1.0, False, False, False, False)
                if state is None or phase["phase"] != "running":
                    holding = False
                    stall.reset(now)
                    hands.publish(to_joy(idle))
                    continue
                if phase["episode"] != episode:
                    episode, holding = phase["episode"], False
                    expert.reset(everyone)
                    stall.reset(now)
                for name, seen in eyes.items():  # a person sees the object, not the tracker's idea of it
                    if seen.latest is not None:
                        p = seen.latest.msg.pose.position
                        state.objects[name][0, :3] = torch.tensor([p.x, p.y, p.z])
                place = next(iter(state.objects.values()))[0, :3]
                stalled = stall(float((place - state.tool_position[0]).norm()), float(place[2]), now)
                if not holding and stalled:
                    holding, began = True, now
                    expert.reset(everyone)
                    logging.getLogger(__name__).info("takes over in episode %d", episode)
                elif holding and now - began > LONGEST:
                    holding = False
                    stall.reset(now)
                action = expert.act({"observation.state": pipeline.observer(state)})
                x, y, z, gripper = action[0].tolist()
                hands.publish(to_joy(Operator(holding, (x, y, z), gripper, False, False, False, False)))
        except KeyboardInterrupt:
            return 0
