"""Instructions that succeed in half of the tries are asked most often."""

from __future__ import annotations

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
"""Without pictures, which take time; an episode takes four steps."""


def made(instruction_set: str = "touch", num_envs: int = 20) -> Any:
    env: Any = InstructionCurriculum(TaskEnv(BRIEF, num_envs, threads=1, instruction_set=instruction_set), 0.1)
    return env


def played(env: Any, steps: int, judge: Any) -> Counter[str]:
    """Count what new episodes ask; `judge` says from an instruction whether its episodes succeed."""
    counted: Counter[str] = Counter()
    inner = env.env.step

    def step(actions: torch.Tensor) -> Any:
        told = [env.instruction(i) for i in range(env.num_envs)]
        *rest, infos = inner(actions)
        return *rest, infos | {"success": torch.tensor([judge(text) for text in told])}

    env.env.step = step
    for _ in range(steps):
        done = env.step(torch.zeros(env.num_envs, 4))
        ended = (done[2] | done[3]).nonzero().flatten().tolist()
        counted.update(env.instruction(i) for i in ended)
    env.env.step = inner
    return counted


def test_what_half_succeeds_is_asked_most() -> None:
    env, turn = made(), iter(range(10**6))
    env.reset(seed=0)
    alike = played(env, 4, lambda text: False)
    assert len(alike) == 3
    played(env, 200, lambda text: text.endswith("ball") or (text.endswith("red cube") and next(turn) % 2 == 0))
    later = played(env, 40, lambda text: text.endswith("red cube") and next(turn) % 2 == 0)
    assert later["touch the red cube"] > 0.8 * sum(later.values())
    weights = env.instruction_weights
    assert weights.sum() == pytest.approx(1) and weights.argmax() == env.rate.sub(0.5).abs().argmin()
    env.close()


def test_a_resumed_run_asks_the_same(same: Any) -> None:
    env, other = made(), made()
    env.reset(seed=0)
    played(env, 90, lambda text: text.endswith("ball"))
    other.reset(seed=5)
    other.load_state_dict(env.state_dict())
    for _ in range(60):
        assert len({str(sorted(played(e, 1, lambda text: text.endswith("cube")).items())) for e in (env, other)}) == 1
    assert same(env.rate, other.rate)
    for each in (env, other):
        each.close()


def test_where_there_is_nothing_to_choose_it_is_refused() -> None:
    for env in (TaskEnv("panda-lift", 1), TaskEnv(BRIEF, 1, instruction_set="touch the red cube")):
        with pytest.raises(ConfigError, match="no instructions that can be chosen; leave out --choose"):
            InstructionCurriculum(env, 0.2)
        env.close()


def test_episodes_that_were_cut_short_at_the_start_tell_nothing() -> None:
    env = made()
    env.reset(seed=0, options={"stagger": True})
    played(env, 3, lambda text: False)
    assert (env.rate == 0.5).all(), "some have ended, none was whole"
    played(env, 4, lambda text: False)
    assert (env.rate < 0.5).all()
    env.close()
