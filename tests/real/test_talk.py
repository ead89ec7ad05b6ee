"""Instructions for a robot, before and during its episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from policies.base import Chunk, Observation
from real.bus import make, qos
from real.teleop.talk import CueScript, InstructionPublisher
from real.topics import EPISODE_TOPIC, INSTRUCTION_TOPIC
from robot_rl.evaluation import evaluate
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.pipeline import Instruction
from robot_rl.util.errors import ConfigError, UserError
from sim.tasks import tasks

Build = Callable[..., Any]
INTERFACE = replace(
    tasks.get("panda-lift").interface, success="", failure="", horizon=60,
    instructions=(Instruction("wait for me", "lifted:cube:0.3"), Instruction("touch the table", "reached:cube:2.0")),
)  # fmt: skip


def test_cue_script_restarts_in_each_episode(nodes: Build, eventually: Build) -> None:
    robot, heard, now = nodes("robot"), [], [100.0]
    robot.subscribe("std_msgs/msg/String", INSTRUCTION_TOPIC, qos.DEFAULT, lambda s: heard.append(s.msg.data))
    announcer = robot.publisher("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED)
    script = CueScript(nodes("tell"), ["one", "two", "three"], after=2.0, clock=lambda: now[0])
    assert script.step() == "", "no episode yet"

    def begins(phase: str) -> None:
        announcer.publish(make("std_msgs/msg/String", data=json.dumps({"episode": 0, "phase": phase})))
        eventually(lambda: script._now[0] == phase, phase)

    for _ in range(2):
        begins("resetting")
        eventually(lambda: script.step() == "one", "the first one")
        begins("running")
        for seconds, published in ((1.9, ""), (0.1, "two"), (1.0, ""), (1.1, "three"), (50.0, "")):
            now[0] += seconds
            assert script.step() == published
        begins("success")
        assert script.step() == ""
    eventually(lambda: len(heard) == 6, "all")
    assert heard == ["one", "two", "three"] * 2


def test_second_instruction_determines_the_result(
    nodes: Build, robot_env: Build, topic_robot: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy reads it, and its success test and name are in the result."""
    topic_robot()
    env = robot_env(INTERFACE, instruction="wait for me")
    script, read = CueScript(nodes("tell"), ["wait for me", "touch the table"], after=0.2), []
    announced: list[str] = []
    nodes("view").subscribe("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED, lambda s: announced.append(s.msg.data))

    class Listens:
        horizon = execute = 1

        def infer(self, observation: Observation, rng: torch.Generator, prefix: Any = None) -> Chunk:
            script.step()
            read.extend(decode(observation[LANGUAGE]))
            return Chunk(torch.tensor([[[0.0, 0.0, 0.0, 1.0]]]))

        def reset(self, ids: Any = None) -> None:
            script.step()

    result = evaluate(Listens(), env, 1, seed=0)
    phases = [(each["phase"], each["instruction"]) for each in map(json.loads, announced)]
    assert phases[0] == ("resetting", "wait for me") and ("running", "touch the table") in phases
    assert read[0] == "wait for me" and read[-1] == "touch the table"
    assert result.success == [True] and result.steps[0] < INTERFACE.horizon
    assert result.summary()["by_instruction"] == {"touch the table": {"episodes": 1, "success": 1.0}}


def test_invalid_instructions_are_not_published(nodes: Build) -> None:
    with pytest.raises(ConfigError, match="at most 128"):
        CueScript(nodes("tell"), ["one", "a" * 129], after=1.0)
    with pytest.raises(ConfigError, match="says nothing"):
        InstructionPublisher(nodes("voice")).say(" ")
    with pytest.raises(UserError, match=r"no robot listens on .*instruction: start `robot-rl deploy`"):
        InstructionPublisher(nodes("alone")).await_listener(0.05)
