"""Joint states at 30 Hz, as franka_ros2 merges them: limits of their age follow the profile. In simulated time."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import make, qos
from real.control.stop import STALE_STATE
from real.episode.env import RobotEnv
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.robot import RobotSpec
from robot_rl.robots.fr3 import FR3
from robot_rl.robots.profiles import with_profile
from sim.tasks import tasks

EVERY = 7  # ticks of 5 ms between two states: 28.6 Hz; each third one is lost, so that gaps last up to 70 ms


class Slow:
    """FR3 whose joint states are backwards, prefixed and rare."""

    def __init__(self, node: Any, spec: RobotSpec):
        config: Any = spec.driver
        self.names = ["fr3_finger_joint2", "fr3_finger_joint1", *(f"fr3_joint{k}" for k in range(7, 0, -1))]
        self.q, self.count, self.silent = np.array(spec.home), 0, False
        self.states = node.publisher("sensor_msgs/msg/JointState", "joint_states", qos.SENSOR)
        node.subscribe("std_msgs/msg/Int64", "twin/reset", qos.DEFAULT)
        node.subscribe("trajectory_msgs/msg/JointTrajectory", config.command, qos.COMMAND, self._on_trajectory)

    def _on_trajectory(self, sample: Any) -> None:
        self.q = np.array(sample.msg.points[0].positions)

    def tick(self) -> None:
        self.count += 1
        number, rest = divmod(self.count, EVERY)
        if rest == 0 and number % 3 and not self.silent:
            position = np.concatenate([[0.04, 0.04], self.q[::-1]])
            state = {"name": self.names, "position": position, "velocity": 0 * position}
            self.states.publish(make("sensor_msgs/msg/JointState", **state))


@pytest.fixture
def run(simulated: Any) -> Callable[..., tuple[Slow, RobotEnv]]:
    """Run 40 actions with a profile's time limits, or others."""

    def build(**safety: float) -> tuple[Slow, RobotEnv]:
        spec = with_profile(FR3, "franka_ros2")
        config: Any = spec.driver
        spec = replace(spec, driver=replace(config, controllers=(), gripper_action="", wrench=""))
        arm = Slow(simulated.node("arm"), spec)
        node = simulated.node("hand")
        node.subscribe("std_msgs/msg/Float64MultiArray", "gripper_controller/commands", qos.COMMAND)
        simulated.run(arm.tick)
        views = ("joint_position", "tool_position")
        interface = replace(tasks.get("fr3-lift").interface, observations=views, success="", failure="", horizon=1000)
        limits = SafetyConfig(**safety) if safety else None
        env = RobotEnv(simulated.node("policy"), interface, robot=spec, safety=limits)
        env.activate()
        env.reset(seed=0)
        for k in range(40):
            env.step(torch.tensor([[0.4 * (-1) ** (k // 10), 0.0, 0.0, 1.0]]))
        return arm, env

    return build


def test_arm_follows_without_a_hold_at_the_profiles_rate(run: Callable[..., tuple[Slow, RobotEnv]]) -> None:
    arm, env = run()
    with closing(env):
        assert env.loop.safety.state_timeout == pytest.approx(3 / 30)
        assert env.loop.state_ages.percentile(99) > 0.055, "states are that rare"
        assert env.loop.events.counts.get(STALE_STATE, 0) == 0
        assert env.state.joint_position[0].numpy() == pytest.approx(arm.q, abs=0.05), "joints by name"
        arm.silent = True
        for _ in range(4):
            env.step(torch.tensor([[0.4, 0.0, 0.0, 1.0]]))
        assert env.loop.holding == STALE_STATE, "silence is still noticed"


def test_default_limit_would_hold_it(run: Callable[..., tuple[Slow, RobotEnv]]) -> None:
    _, env = run(state_timeout=SafetyConfig().state_timeout)
    with closing(env):
        assert env.loop.events.counts[STALE_STATE] > 10
