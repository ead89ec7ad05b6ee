"""A scripted operator: watches the robot's topics as a person would, and takes over when the policy stalls or is about
to miss."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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
    """Tells when a person would take over: nothing gets better, or the fingers come down beside the object."""

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Start watching anew."""
        self.best, self.improved, self.aligned = float("-inf"), now, now

    def __call__(self, offset: Tensor, height: float, width: float, now: float) -> bool:
        """True when the policy needs help.

        `offset` (3,) is from the tool to the object and `height` that of the object, m; `width` is the share to which
        the gripper is open, 0 to 1.
        """
        score = 3 * height - float(offset.norm())
        if score > self.best + PROGRESS:
            self.best, self.improved = score, now
        missing = float(offset[:2].norm()) > BESIDE and float(offset[2]) > -ABOVE and width > 0.6
        if not missing:
            self.aligned = now
        return now - self.improved > PATIENCE or now - self.aligned > GLANCE


def run_scripted(command: Teleop) -> int:
    """Publish the operator's hands until interrupted."""
    import logging

    import torch

    from real.bus import Stamped, open_node, qos
    from real.clock import Ticker
    from real.env import EPISODE_TOPIC
    from real.robots.arm import ArmDriver
    from real.session import stop_on_signals
    from real.teleop.commands import QOS, TOPIC, Operator, to_joy
    from robot_rl.errors import UserError
    from robot_rl.interface import Pipeline
    from sim.tasks import task_of

    torch.set_num_threads(1)
    task = task_of(command.robot, command.task)
    if not task.expert:
        raise UserError(f"nobody scripted an operator for task {task.name!r}; use the keyboard or a gamepad")
    pipeline = Pipeline(task.interface)
    expert = task.make_expert(pipeline, 1, "STEADY", command.seed)
    watch = Watch()
    gripper = pipeline.robot.gripper
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
                    watch.reset(now)
                    hands.publish(to_joy(idle))
                    continue
                if phase["episode"] != episode:
                    episode, holding = phase["episode"], False
                    expert.reset(everyone)
                    watch.reset(now)
                for name, seen in eyes.items():  # a person sees the object, not the tracker's idea of it
                    if seen.latest is not None:
                        p = seen.latest.msg.pose.position
                        state.objects[name][0, :3] = torch.tensor([p.x, p.y, p.z])
                place = next(iter(state.objects.values()))[0, :3]
                open_ = float(state.gripper_width) / gripper.width if gripper else 0.0  # nothing to come down with
                wanted = watch(place - state.tool_position[0], float(place[2]), open_, now)
                if not holding and wanted:
                    holding, began = True, now
                    expert.reset(everyone)
                    logging.getLogger(__name__).info("takes over in episode %d", episode)
                elif holding and now - began > LONGEST:
                    holding = False
                    watch.reset(now)
                action = expert.act({"observation.state": pipeline.observer(state)})
                x, y, z, *fingers = action[0].tolist()
                hands.publish(to_joy(Operator(holding, (x, y, z), sum(fingers), False, False, False, False)))
        except KeyboardInterrupt:
            return 0
