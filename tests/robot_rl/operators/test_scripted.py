"""Scripted operators: takeover rules, reaction time, takeover length and actions."""

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
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.operators.intervention import InterventionWrapper, judge_of
from robot_rl.operators.scripted import (
    ABOVE,
    BESIDE,
    OperatorConfig,
    OperatorView,
    ScriptedOperator,
    arm_view,
    missing,
    progress,
)
from robot_rl.recipes.job import Job
from robot_rl.util.errors import ConfigError, UnknownName
from sim.make import describe, make
from sim.tasks import tasks

HANDS = torch.tensor([[0.5, -0.5]])


class Hands:
    """Demonstrator with a constant action that counts its resets."""

    def __init__(self) -> None:
        self.takeovers = 0

    def reset(self, ids: Tensor) -> None:
        self.takeovers += 1

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        return HANDS


def watched(config: OperatorConfig, progress: list[float], judge: Any = None) -> list[bool]:
    """Return whether the operator has control in each step of an episode with this progress."""
    hands = Hands()
    operator = ScriptedOperator(hands, config, 0, judge)
    held = []
    for step, now in enumerate(progress):
        control, action = operator(OperatorView({}, torch.zeros(1, 2), lambda now=now: now), step)  # type: ignore[misc]
        assert torch.equal(action, HANDS if control else torch.zeros(1, 2))
        held.append(control)
    rises = sum(b and not a for a, b in zip([False, *held], held, strict=False))
    assert hands.takeovers >= rises, "the demonstrator is reset at each takeover"
    return held


def test_a_stall_is_corrected_after_patience_and_reaction_for_the_takeover_length() -> None:
    held = watched(OperatorConfig(patience=4, length=3), [0.0] * 20)
    assert held[:12] == [False] * 4 + [True] * 3 + [False] * 4 + [True], "patience starts again after a takeover"
    late = watched(OperatorConfig(patience=4, length=3, reaction=2), [0.0] * 20)
    assert late[:10] == [False] * 6 + [True] * 3 + [False]
    advance = OperatorConfig().advance
    assert not any(watched(OperatorConfig(patience=4), [1.5 * advance * k for k in range(50)]))
    assert any(watched(OperatorConfig(patience=4), [0.2 * advance * k for k in range(50)]))


def test_open_fingers_low_beside_the_object_are_corrected(state_at: Any) -> None:
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


def test_an_operator_who_tires_reacts_later_after_each_takeover() -> None:
    held = watched(OperatorConfig(patience=4, length=3, tiring=2), [0.0] * 40)
    starts = [k for k in range(1, 40) if held[k] and not held[k - 1]]
    pauses = [b - a - 3 for a, b in zip(starts, starts[1:], strict=False)]
    assert pauses[:3] == [4 + 2, 4 + 4, 4 + 6]


@pytest.mark.parametrize("beside", [0.0, 0.01])
def test_a_slow_operator_moves_less_and_one_beside_always_misses_alike(state_at: Any, beside: float) -> None:
    """Demonstrator without noise: its motion is the way to the object, in units of the largest action."""
    pipeline = Pipeline(tasks.get("panda-lift").interface)
    cube = torch.tensor([[0.5, 0.1, 0.02, 1.0, 0.0, 0.0, 0.0]])
    state, size = state_at(torch.zeros(1, 7), objects={"cube": cube}), pipeline.actions.size

    class Follower(Hands):
        def act(self, observation: dict[str, Tensor]) -> Tensor:
            seen.append(observation["observation.state"])
            return torch.full((1, size), 0.5)

    moved = []
    for seed in (0, 0, 1):
        seen: list[Tensor] = []
        config = OperatorConfig("random", rate=1.0, length=10, speed=0.4, beside=beside)
        operator = ScriptedOperator(Follower(), config, seed)
        for step in range(3):
            held, action = operator(arm_view(pipeline, state, torch.zeros(1, size)), step)
        assert held and action[0, :-1].tolist() == pytest.approx([0.2] * (size - 1)) and float(action[0, -1]) == 0.5
        true = pipeline.observer(state)
        away = seen[-1] - true
        moved.append(away[0])
        assert float(away.norm()) == pytest.approx(2**0.5 * beside, abs=1e-5), "from the base, and from the tool"
    assert torch.equal(moved[0], moved[1]) and torch.equal(moved[0], moved[2]) == (beside == 0.0)


def test_progress_and_misses_are_of_the_instructed_object(state_at: Any) -> None:
    state = state_at(torch.zeros(1, 7), gripper_width=torch.tensor([[0.08]]))
    tool = state.tool_position[0]

    def at(*away: float) -> Tensor:
        return torch.tensor([[*(tool + torch.tensor(away)).tolist(), 1.0, 0.0, 0.0, 0.0]])

    near, far = at(0.0, 0.0, -0.01), at(0.1, 0.0, -0.01)
    state = replace(state, objects={"red": near, "blue": far, "tray": far})
    assert missing(state, 0.08, "blue") and not missing(state, 0.08, "red")
    for test in ("reached:{}:0.03", "lifted:{}:0.1", "beyond:{}:0.2", "inside:{}:tray:0.05"):
        red, blue = (progress(state, test.format(name)) for name in ("red", "blue"))
        assert red != blue and (red > blue) == (not test.startswith("inside"))
    pushed = replace(state, objects=state.objects | {"red": at(0.0, 0.05, -0.01)})
    for side, better in (("0.2", True), ("-0.2", False)):
        assert (progress(pushed, f"beyond:red:{side}") > progress(state, f"beyond:red:{side}")) is better


def test_aiming_beside_is_for_arms_with_objects() -> None:
    operator = ScriptedOperator(Hands(), OperatorConfig("random", rate=1.0, beside=0.01), 0)
    operator(OperatorView({}, HANDS, lambda: 0.0), 0)
    with pytest.raises(ConfigError, match="leave it at 0"):
        operator(OperatorView({}, HANDS, lambda: 0.0), 1)


def test_takeovers_are_random_at_the_rate_or_below_the_value_gap_after_the_first_step() -> None:
    always = OperatorConfig("random", rate=1.0, length=1)
    assert watched(always, [0.0] * 5) == [False, True, True, True, True]
    assert not any(watched(OperatorConfig("none", rate=1.0), [0.0] * 50))
    share = sum(watched(OperatorConfig("random", rate=0.2, length=1), [0.0] * 2000)) / 2000
    assert share == pytest.approx(0.2, abs=0.03)
    sure = OperatorConfig("value-gap", certainty=1.0, rate=0.0, length=1)
    assert watched(sure, [0.0] * 3, lambda *_: (0.5, 1.0)) == [False, True, True]
    assert watched(sure, [0.0] * 3, lambda *_: (0.96, 1.0)) == [False] * 3


def test_takeovers_follow_actions_that_waste_steps() -> None:
    """With a reaction of one step, the last step before a takeover is the one that was worse."""
    config = OperatorConfig("true-gap", gap=0.95, certainty=1.0, rate=0.0, reaction=1, length=1)
    env: InterventionWrapper = job("testbed:reach").operated(config)
    observation, led, worse = env.reset(seed=1)[0], [], []
    rng = torch.Generator().manual_seed(0)
    for _ in range(300):
        action = 2 * torch.rand(1, 2, generator=rng) - 1
        ours, best = env.true_values(action)
        observation, _, terminated, truncated, infos = env.step(action)
        held = bool(infos["intervention"])
        if held and worse:
            led.append(worse[-1])
        worse.append(ours < 0.95 * best and not held)
        if bool(terminated | truncated):
            worse = []
    env.close()
    assert len(led) > 50 and all(led)
    with pytest.raises(ConfigError, match="true-gap"):
        job("panda-lift").operated(config)


def test_a_judge_returns_the_mean_values_of_the_bundles_critics() -> None:
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
    other = Bundle(policy, None, {}, critic=agent.value_state(), agent=saved | {"critics": 2}, task="testbed:x")
    for unsuitable in (Bundle(policy, None, {}, task="testbed:x"), other):
        with pytest.raises(ConfigError, match="cannot judge"):
            judge_of(unsuitable)


def job(task: str) -> Job:
    info: EnvInfo = describe(task)
    return Job(info, lambda count: make(task, count), None, 0, Path("nowhere"), None, lambda *_: None)


@pytest.mark.parametrize(("task", "config", "error", "words"), [
    ("go2-velocity", OperatorConfig(), ConfigError, "no demonstrator"),
    ("testbed:push", OperatorConfig(skill="STEDY"), UnknownName, "STEDY"),
    ("testbed:push", OperatorConfig("value-gap"), ConfigError, "--base"),
    ("testbed:push", OperatorConfig("miss"), ConfigError, "miss"),
])  # fmt: skip
def test_operators_that_a_task_does_not_support_are_refused(task: str, config: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        job(task).operated(config)


def test_rule_none_leaves_the_environment_bit_identical() -> None:
    plain, watched = make("testbed:insert", 1), job("testbed:insert").operated(OperatorConfig("none"))
    rng = torch.Generator().manual_seed(0)
    first, second = plain.reset(seed=5)[0], watched.reset(seed=5)[0]
    for _ in range(200):
        assert torch.equal(first["observation.state"], second["observation.state"])
        action = 2 * torch.rand(1, 3, generator=rng) - 1
        first, second = plain.step(action)[0], watched.step(action)[0]


@pytest.mark.parametrize("task", ["testbed:insert", "testbed:push", "testbed:reach", "testbed:fork", "panda-lift"])
def test_takeovers_lead_an_idle_policy_to_success(task: str) -> None:
    env: InterventionWrapper = job(task).operated(OperatorConfig(patience=3, length=200))
    env.reset(seed=3)
    action, successes = env.hold_action(), []
    for _ in range(600):
        *_, terminated, truncated, infos = env.step(action)
        assert bool(infos["intervention"]) or torch.equal(infos["executed"], action)
        if bool(terminated | truncated):
            successes.append(bool(infos["success"]))
    env.close()
    assert sum(successes) >= 0.5 * len(successes) > 0
