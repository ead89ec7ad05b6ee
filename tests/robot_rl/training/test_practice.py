"""Human-in-the-loop learning in simulation: corrections, recorded data, learning, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.execution import ChunkExecutor
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.operators.scripted import OperatorView
from robot_rl.training.human_in_the_loop import HumanInTheLoopConfig, Learner, play_episode
from robot_rl.training.off_policy import demo_replay
from robot_rl.training.practice import EpisodeRecord, practise
from robot_rl.training.run import read_metrics
from sim.env import TaskEnv

Build = Callable[..., Any]
FIRST, LAST = 3, 7
"""First and last control period of the operator's actions."""


class Clockwork:
    """An operator with a constant action between two steps of an episode."""

    def __init__(self) -> None:
        self.action = torch.tensor([[0.5, -0.5, 0.25, 1.0]])
        self.seen: list[Tensor] = []

    def reset(self) -> None:
        self.seen = []

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        self.seen.append(view.observation["observation.state"][0].clone())
        return FIRST <= step < LAST, self.action


@pytest.fixture
def env() -> Iterator[InterventionWrapper]:
    env = TaskEnv("panda-lift", 1, threads=1)
    yield InterventionWrapper(env, Clockwork())
    env.close()


def played(env: InterventionWrapper, policy: Any) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Play one episode; return its recorded columns and the infos of its steps."""
    record, infos = EpisodeRecord(), []
    observation = env.reset(seed=3)[0]

    def on_step(observation: Any, action: Tensor, info: dict[str, Any], terminated: bool) -> None:
        record.add(observation, action, info, terminated)
        infos.append(info | {"wanted": action})

    play_episode(env, ChunkExecutor(policy, 1), observation, torch.Generator().manual_seed(0), on_step)
    return record.episode(), infos


def test_executed_action_is_recorded_and_takeover_is_flagged(env: Any, residual: Build) -> None:
    episode, infos = played(env, residual(21, 4))
    held = episode["intervention"].tolist()
    assert held == [FIRST <= t < LAST for t in range(len(held))]
    assert [bool(i["takeover"]) for i in infos] == [t == FIRST for t in range(len(held))]
    assert [bool(i["handed_back"]) for i in infos] == [t == LAST for t in range(len(held))]
    for t, info in enumerate(infos):
        executed = env.operator.action[0] if held[t] else info["wanted"][0]
        assert torch.equal(episode["action"][t], executed)
    assert episode["final.observation.state"].shape == (1, episode["observation.state"].shape[1])
    assert not torch.equal(episode["final.observation.state"][0], episode["observation.state"][-1])


def test_operator_observes_true_object_poses(env: InterventionWrapper) -> None:
    env.reset(seed=5)
    env.step(torch.zeros(1, 4))
    true, measured = env.true.objects["cube"][0, :3].clone(), env.state.objects["cube"][0, :3].clone()
    env.step(torch.zeros(1, 4))
    cube = [k for k, name in enumerate(env.info.state.names) if name.startswith("cube_position.")]
    assert torch.equal(env.operator.seen[-1][cube], true) and not torch.equal(true, measured), "measured with an error"


def learner_of(agent: Any, env: Any, folder: Any, demonstration: dict[str, Tensor], steps: int) -> Learner:
    config = HumanInTheLoopConfig(
        batch=16, updates_per_step=0.2, critic_only=50, capacity=2000, steps=steps, checkpoint_every=50
    )
    demos = demo_replay(agent, [demonstration], torch.Generator().manual_seed(0), config.capacity)
    return Learner(agent, EnvInfo.of(Pipeline(env.task.interface)), demos, config, folder, 0)


def test_practice_learns_and_resumes(
    env: InterventionWrapper, residual: Build, agent: Build, run: Build, tmp_path: Any
) -> None:
    first = agent(residual(21, 4))
    demonstration, _ = played(env, first.policy)
    before = {k: v.clone() for k, v in first.policy.state_dict().items()}
    learner = learner_of(first, env, tmp_path, demonstration, 150)
    stored = learner.demos.size
    with run() as folder:
        practise(env, learner, folder, 0, lambda *_: None)
    steps = learner.online.transitions
    assert steps >= 150 and first.updates.critic == -(-steps // 5), "number of updates that the steps allow"
    corrected = int(learner.online.columns["intervention"].sum())
    assert corrected == learner.corrected == learner.demos.size - stored > 0, "corrections are in both replays"
    changed = {k for k, v in first.policy.state_dict().items() if not torch.equal(v, before[k])}
    assert changed and all(k.startswith("actor.") for k in changed), "the base is frozen"
    assert read_metrics(tmp_path / "run")[-1]["train/corrected_share"] == pytest.approx(corrected / steps)

    second = agent(residual(21, 4), seed=5)
    more = learner_of(second, env, tmp_path, demonstration, steps + 1)
    with run(resume=True) as folder:
        practise(env, more, folder, 0, lambda *_: None)
    assert more.online.transitions > steps, "resumed from the checkpoint"
    assert second.updates.critic > first.updates.critic and more.corrected > learner.corrected
