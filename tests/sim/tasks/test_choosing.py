"""Instruction curriculum: instructions with a success rate near 0.5 are sampled most often."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from robot_rl.training.choosing import InstructionCurriculum
from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.tasks import tasks

TASK = tasks.get("tabletop")
BRIEF = replace(TASK, interface=replace(TASK.interface, pictures=(), horizon=4))
"""Without camera images, and with episodes of four steps."""


def make(instruction_set: str = "touch", num_envs: int = 20) -> Any:
    env: Any = InstructionCurriculum(TaskEnv(BRIEF, num_envs, threads=1, instruction_set=instruction_set), 0.1)
    return env


def play(env: Any, steps: int, judge: Any) -> Counter[str]:
    """Count the instructions of new episodes; `judge` maps an instruction to the success of its episodes."""
    counted: Counter[str] = Counter()
    inner = env.env.step

    def step(actions: torch.Tensor) -> Any:
        texts = [env.instruction(i) for i in range(env.num_envs)]
        *rest, infos = inner(actions)
        return *rest, infos | {"success": torch.tensor([judge(text) for text in texts])}

    env.env.step = step
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(torch.zeros(env.num_envs, 4))
        ended = (terminated | truncated).nonzero().flatten().tolist()
        counted.update(env.instruction(i) for i in ended)
    env.env.step = inner
    return counted


def test_instructions_that_half_succeed_are_sampled_most() -> None:
    env, turn = make(), iter(range(10**6))
    env.reset(seed=0)
    assert len(play(env, 4, lambda text: False)) == 3
    play(env, 200, lambda text: text.endswith("ball") or (text.endswith("red cube") and next(turn) % 2 == 0))
    later = play(env, 40, lambda text: text.endswith("red cube") and next(turn) % 2 == 0)
    assert later["touch the red cube"] > 0.8 * sum(later.values())
    weights = env.instruction_weights
    assert weights.sum() == pytest.approx(1) and weights.argmax() == env.rate.sub(0.5).abs().argmin()
    env.close()


def test_a_resumed_run_samples_the_same_instructions(same: Any) -> None:
    env, other = make(), make()
    env.reset(seed=0)
    play(env, 90, lambda text: text.endswith("ball"))
    other.reset(seed=5)
    other.load_state_dict(env.state_dict())
    for _ in range(60):
        assert len({str(sorted(play(e, 1, lambda text: text.endswith("cube")).items())) for e in (env, other)}) == 1
    assert same(env.rate, other.rate)
    for each in (env, other):
        each.close()


def test_tasks_with_less_than_two_instructions_are_refused() -> None:
    for env in (TaskEnv("panda-lift", 1), TaskEnv(BRIEF, 1, instruction_set="touch the red cube")):
        with pytest.raises(ConfigError, match="no instructions that can be chosen; leave out --choose"):
            InstructionCurriculum(env, 0.2)
        env.close()


def test_shortened_first_episodes_do_not_count() -> None:
    env = make()
    env.reset(seed=0, options={"stagger": True})
    play(env, 3, lambda text: False)
    assert (env.rate == 0.5).all()
    play(env, 4, lambda text: False)
    assert (env.rate < 0.5).all()
    env.close()
