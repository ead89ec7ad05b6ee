"""A scripted person: when they take over, for how long, how late, and what they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import Bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.interface.environment import EnvInfo
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.operators.judge import judge_of
from robot_rl.operators.scripted import ABOVE, BESIDE, OperatorConfig, OperatorView, ScriptedOperator, missing, progress
from robot_rl.recipes.job import Job
from robot_rl.util.errors import ConfigError, UnknownName
from sim.make import describe, make

HANDS = torch.tensor([[0.5, -0.5]])


class Hands:
    """A demonstrator who does one thing, and counts its takeovers."""

    def __init__(self) -> None:
        self.takeovers = 0

    def reset(self, ids: Tensor) -> None:
        self.takeovers += 1

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        return HANDS


def watched(config: OperatorConfig, progress: list[float], judge: Any = None) -> list[bool]:
    """Return who acts in each step of an episode with this progress."""
    hands = Hands()
    operator = ScriptedOperator(hands, config, 0, judge)
    held = []
    for step, now in enumerate(progress):
        does, action = operator(OperatorView({}, torch.zeros(1, 2), lambda now=now: now), step)  # type: ignore[misc]
        assert torch.equal(action, HANDS if does else torch.zeros(1, 2))
        held.append(does)
    rises = sum(b and not a for a, b in zip([False, *held], held, strict=False))
    assert hands.takeovers >= rises, "the demonstrator begins anew with each takeover"
    return held


def test_a_stall_is_corrected_after_the_patience_and_the_reaction_for_the_length() -> None:
    config = OperatorConfig(patience=4, length=3)
    held = watched(config, [0.0] * 20)
    assert held[:12] == [False] * 4 + [True] * 3 + [False] * 4 + [True], "after a takeover it is watched anew"
    late = watched(OperatorConfig(patience=4, length=3, reaction=2), [0.0] * 20)
    assert late[:10] == [False] * 6 + [True] * 3 + [False]


def test_progress_is_left_alone_and_less_than_counts_is_not() -> None:
    advance = OperatorConfig().advance
    assert not any(watched(OperatorConfig(patience=4), [1.5 * advance * k for k in range(50)]))
    assert any(watched(OperatorConfig(patience=4), [0.2 * advance * k for k in range(50)]))


def test_open_fingers_that_come_down_beside_the_object_are_corrected(state_at: Any) -> None:
    """Known distances on both sides of each limit; the approach itself goes on."""
    low, rest = torch.tensor(ABOVE - 0.01), torch.zeros(1, 7)

    def took_over(x: float, height: Tensor, width: float) -> bool:
        state = state_at(rest, gripper_width=torch.tensor([[width]]))
        operator = ScriptedOperator(Hands(), OperatorConfig("miss", patience=1000), 0)
        held = []
        for step in range(6):
            cube = state.tool_position + torch.tensor([[x, 0.0, -float(height)]])
            objects = {"cube": torch.cat([cube, torch.tensor([[1.0, 0.0, 0.0, 0.0]])], 1)}
            moved = replace(state, objects=objects)
            view = OperatorView({}, HANDS, lambda s=moved: progress(s), lambda s=moved: missing(s, 0.08))
            held.append(operator(view, step)[0])
        return held == [False, False, False, True, True, True]

    assert took_over(BESIDE + 0.002, low, 0.08)
    assert not took_over(BESIDE - 0.002, low, 0.08), "above the object"
    assert not took_over(BESIDE + 0.002, low + 0.02, 0.08), "still high"
    assert not took_over(BESIDE + 0.002, low, 0.02), "fingers closed"


def test_no_rule_takes_over_in_the_first_step_and_none_never() -> None:
    always = OperatorConfig("random", rate=1.0, length=1)
    assert watched(always, [0.0] * 5) == [False, True, True, True, True]
    assert not any(watched(OperatorConfig("none", rate=1.0), [0.0] * 50))
    share = sum(watched(OperatorConfig("random", rate=0.2, length=1), [0.0] * 2000)) / 2000
    assert share == pytest.approx(0.2, abs=0.03)


def test_a_worse_action_is_corrected_and_a_good_one_left() -> None:
    sure = OperatorConfig("value-gap", certainty=1.0, rate=0.0, length=1)
    assert watched(sure, [0.0] * 3, lambda *_: (0.5, 1.0)) == [False, True, True]
    assert watched(sure, [0.0] * 3, lambda *_: (0.96, 1.0)) == [False] * 3


def test_a_judge_knows_the_bundles_values() -> None:
    policy = GaussianPolicy(Size(3, 2), GaussianConfig(hidden=(8,)))
    config = ActorCriticConfig(critics=3, hidden=(8,))
    agent = ActorCritic(policy, config)
    saved = {"critics": 3, "hidden": [8], "layer_norm": True, "head": "scalar", "bins": 101}
    judge = judge_of(Bundle(policy, None, {}, critic=agent.value_state(), agent=saved, task="testbed:x"))
    observation, action = {"observation.state": torch.randn(1, 3)}, torch.rand(1, 2)
    features = policy.features(observation)
    with torch.no_grad():
        ours = agent.critic.value(features, action).mean()
        best = agent.critic.value(features, policy.actor.mean(features)).mean()
    assert judge(observation, action) == pytest.approx((float(ours), float(best)))
    with pytest.raises(ConfigError, match="cannot judge"):
        judge_of(Bundle(policy, None, {}, task="testbed:x"))
    other = Bundle(policy, None, {}, critic=agent.value_state(), agent=saved | {"critics": 2}, task="testbed:x")
    with pytest.raises(ConfigError, match="cannot judge"):
        judge_of(other)


def job(task: str) -> Job:
    info: EnvInfo = describe(task)
    return Job(info, lambda count: make(task, count), None, 0, Path("nowhere"), None, lambda *_: None)


def test_who_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="no demonstrator"):
        job("go2-velocity").operated(OperatorConfig())
    with pytest.raises(UnknownName):
        job("testbed:push").operated(OperatorConfig(skill="STEDY"))
    with pytest.raises(ConfigError, match="--base"):
        job("testbed:push").operated(OperatorConfig("value-gap"))
    with pytest.raises(ConfigError, match="miss"):
        job("testbed:push").operated(OperatorConfig("miss"))


def test_with_nobody_the_environment_is_the_same_to_the_bit() -> None:
    plain, watched = make("testbed:insert", 1), job("testbed:insert").operated(OperatorConfig("none"))
    rng = torch.Generator().manual_seed(0)
    first, second = plain.reset(seed=5)[0], watched.reset(seed=5)[0]
    for _ in range(200):
        assert torch.equal(first["observation.state"], second["observation.state"])
        action = 2 * torch.rand(1, 3, generator=rng) - 1
        first, second = plain.step(action)[0], watched.step(action)[0]


@pytest.mark.parametrize("task", ["testbed:insert", "testbed:push", "testbed:reach", "testbed:fork", "panda-lift"])
def test_a_person_helps_a_policy_that_does_nothing(task: str) -> None:
    """Any task with a demonstrator: the executed action is theirs, and the episode succeeds."""
    env: InterventionWrapper = job(task).operated(OperatorConfig(patience=3, length=200))
    env.reset(seed=3)
    action, won = env.hold_action(), []
    for _ in range(600):
        *_, terminated, truncated, infos = env.step(action)
        theirs = not torch.equal(infos["executed"], action)
        assert bool(infos["intervention"]) or not theirs
        if bool(terminated | truncated):
            won.append(bool(infos["success"]))
    env.close()
    assert sum(won) >= 0.5 * len(won) > 0
