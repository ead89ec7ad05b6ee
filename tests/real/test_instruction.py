"""Language instructions: read by the policy, changed by a topic, judged by their own tests, spoken by a script."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from policies.base import Chunk, Observation
from real.bus import make, qos
from real.teleop.talk import CueScript, InstructionPublisher
from real.topics import EPISODE_TOPIC, INSTRUCTION_TOPIC, STATUS, Episode
from robot_rl.evaluation import evaluate
from robot_rl.interface.language import LONGEST, decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.pipeline import Instruction
from robot_rl.util.errors import ConfigError, UserError
from sim.tasks import tasks

Build = Callable[..., Any]
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
INTERFACE = replace(
    LIFT, success="", failure="", horizon=60,
    instructions=(Instruction("wait for me", "lifted:cube:0.3"), Instruction("touch the table", "reached:cube:2.0")),
)  # fmt: skip


def test_cue_script_restarts_in_each_episode(nodes: Build, eventually: Build) -> None:
    robot, heard, now = nodes("robot"), [], [100.0]
    robot.subscribe("std_msgs/msg/String", INSTRUCTION_TOPIC, qos.DEFAULT, lambda s: heard.append(s.msg.data))
    announcer = robot.publisher(STATUS, EPISODE_TOPIC, qos.LATCHED)
    script = CueScript(nodes("tell"), ["one", "two", "three"], after=2.0, clock=lambda: now[0])
    assert script.step() == "", "no episode yet"

    def begins(phase: str) -> None:
        announcer.publish(Episode(0, phase).message())
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


def test_second_instruction_sets_the_result(nodes: Any, robot_env: Any, robot: Any, monkeypatch: Any) -> None:
    """The policy reads it, and its success test and name are in the result."""
    env = robot_env(INTERFACE, instruction="wait for me")
    script, read = CueScript(nodes("tell"), ["wait for me", "touch the table"], after=0.2), []
    announced: list[Episode] = []
    nodes("view").subscribe(STATUS, EPISODE_TOPIC, qos.LATCHED, lambda s: announced.append(Episode.of(s.msg)))

    class Listens:
        horizon = execute = 1

        def infer(self, observation: Observation, rng: torch.Generator, prefix: Any = None) -> Chunk:
            script.step()
            read.extend(decode(observation[LANGUAGE]))
            return Chunk(torch.tensor([[[0.0, 0.0, 0.0, 1.0]]]))

        def reset(self, ids: Any = None) -> None:
            script.step()

    result = evaluate(Listens(), env, 1, seed=0)
    phases = [(each.phase, each.instruction) for each in announced]
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


# ---- at the robot ------------------------------------------------------------------------------------------------
def test_each_instruction_has_its_own_success_test(robot_env: Build, robot: Any, eventually: Build) -> None:
    e = robot_env(TOLD, instruction="push the cube to the left")
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


def test_missing_or_invalid_instruction_is_refused_at_the_start(robot_env: Build, robot: Any) -> None:
    with pytest.raises(ConfigError, match="was told nothing: name an --instruction, such as 'push the cube to the"):
        robot_env(TOLD)
    with pytest.raises(ConfigError, match="at most 128"):
        robot_env(TOLD, instruction="a" * 129)
    with pytest.raises(ConfigError, match="is refused: the policy does not know 'lift'; it knows cube, left,"):
        robot_env(TOLD, instruction="lift the cube", words=WORDS)


def test_unknown_words_are_refused(robot_env: Build, robot: Any, eventually: Build) -> None:
    e = robot_env(TOLD, instruction="push the cube to the left", words=WORDS)
    voice = robot.node.publisher("std_msgs/msg/String", "instruction", qos.DEFAULT)
    e.reset(seed=0)

    def refused() -> bool:
        voice.publish(make("std_msgs/msg/String", data="stop"))
        e.step(STILL)
        return bool(e.instructions.refused)

    eventually(refused, "a refusal")
    assert e.instruction(0) == "push the cube to the left"
