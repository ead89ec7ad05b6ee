"""Language instructions: read by the policy, changed by a topic, judged by their own tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import make, qos
from robot_rl.interface.language import LONGEST, decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.pipeline import Instruction
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

LIFT = tasks.get("panda-lift").interface
TOLD = replace(
    LIFT, success="", success_hold=2, horizon=1000, failure="",
    instructions=(
        Instruction("push the cube to the left", "beyond:cube:0.2"),
        Instruction("push the cube to the right", "beyond:cube:-0.2"),
    ),
)  # fmt: skip
WORDS = ("push", "the", "cube", "to", "left", "right")
STILL = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
Build = Callable[..., Any]


def test_each_instruction_has_its_own_success_test(robot_env: Build, topic_robot: Build, eventually: Build) -> None:
    robot, e = topic_robot(), robot_env(TOLD, instruction="push the cube to the left")
    voice = robot.node.publisher("std_msgs/msg/String", "instruction", qos.DEFAULT)
    observation, _ = e.reset(seed=0)
    e.pipeline.observation_spec.check(observation)
    assert decode(observation[LANGUAGE]) == ["push the cube to the left"] == [e.instruction(0)]

    robot.cube = np.array([0.5, -0.25, 0.022])
    for _ in range(6):
        observation, _, terminated, truncated, infos = e.step(STILL)
    assert not (terminated or truncated), "right of the centre, but left is the instruction"

    def changed_to(text: str) -> bool:
        voice.publish(make("std_msgs/msg/String", data=text))
        e.step(STILL)
        return bool(e.instruction(0) == text.strip())

    eventually(lambda: changed_to("do a somersault"), "another instruction")
    for _ in range(4):
        observation, _, terminated, truncated, infos = e.step(STILL)
    assert decode(observation[LANGUAGE]) == ["do a somersault"]
    assert not (terminated or truncated), "only a person can judge an unknown instruction"

    refused = e.instructions.refused
    for wrong in ("  ", "a" * (LONGEST + 1)):
        voice.publish(make("std_msgs/msg/String", data=wrong))
    eventually(lambda: e.step(STILL) and e.instructions.refused >= refused + 2, "two refusals")
    assert e.instruction(0) == "do a somersault", "unchanged"

    steps = e.steps
    eventually(lambda: changed_to("push the cube to the right\n"), "the right instruction")
    observation, _, terminated, truncated, infos = e.step(STILL)
    while not terminated and e.steps < steps + 100:
        observation, _, terminated, truncated, infos = e.step(STILL)
    assert terminated and bool(infos["success"])
    assert e.summary()["instructions"] == {"changed": 2, "refused": refused + 2}


def test_missing_or_invalid_instruction_is_refused_at_the_start(robot_env: Build, topic_robot: Build) -> None:
    topic_robot()
    with pytest.raises(ConfigError, match="was told nothing: name an --instruction, such as 'push the cube to the"):
        robot_env(TOLD)
    with pytest.raises(ConfigError, match="at most 128"):
        robot_env(TOLD, instruction="a" * 129)
    with pytest.raises(ConfigError, match="is refused: the policy does not know 'lift'; it knows cube, left,"):
        robot_env(TOLD, instruction="lift the cube", words=WORDS)


def test_unknown_words_are_refused(robot_env: Build, topic_robot: Build, eventually: Build) -> None:
    robot, e = topic_robot(), robot_env(TOLD, instruction="push the cube to the left", words=WORDS)
    voice = robot.node.publisher("std_msgs/msg/String", "instruction", qos.DEFAULT)
    e.reset(seed=0)

    def refused() -> bool:
        voice.publish(make("std_msgs/msg/String", data="stop"))
        e.step(STILL)
        return bool(e.instructions.refused)

    eventually(refused, "a refusal")
    assert e.instruction(0) == "push the cube to the left"
