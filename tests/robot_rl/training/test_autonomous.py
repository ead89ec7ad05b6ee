"""Practice in simulation, autonomous (choice of tasks, hindsight labels, verdicts) and with an operator."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.execution import ChunkExecutor
from robot_rl.assistant import ModelConfig
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import STATE
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.operators.scripted import OperatorView
from robot_rl.recipes import recipes
from robot_rl.recipes.job import open_job
from robot_rl.training.autonomous import AutonomousConfig, Practice, Proposer, ProposerConfig, improve_alone
from robot_rl.training.goals import GoalConfig, Goals, in_hindsight, regions
from robot_rl.training.human_in_the_loop import EpisodeRecord, play_episode, practise
from robot_rl.training.learner import HumanInTheLoopConfig, OffPolicyLearner
from robot_rl.training.off_policy import demo_replay
from robot_rl.training.run import Run, read_metrics
from robot_rl.util.errors import ConfigError, UnknownName
from sim.env import TaskEnv
from sim.make import make

TASK = "testbed:reach"
TINY = AutonomousConfig(rounds=1, episodes=8, num_envs=8, horizon=12, regions=4, copies=1, updates=3, batch=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- choices --------------------------------------------------------------------------------------------------------
def test_choices_follow_the_formula() -> None:
    proposer, rng = Proposer(5, ProposerConfig(curiosity=0.5)), generator(1)
    rates, tried, won = [0.0, 0.25, 0.5, 0.9, 1.0], [0] * 5, [0] * 5
    matched = uniform = 0
    for step in range(3000):
        scores = [
            math.inf if n == 0 else 1 - abs(w / n - 0.3) + 0.5 * math.sqrt(math.log(max(1, sum(tried))) / n)
            for w, n in zip(won, tried, strict=True)
        ]
        chosen = proposer.choose(rng)
        best = scores[chosen] == max(scores)
        matched += best
        uniform += not best
        tried[chosen] += 1
        success = bool(torch.rand(1, generator=rng) < rates[chosen])
        won[chosen] += success
        proposer.judge(chosen, success)
        assert torch.allclose(proposer.tried, torch.tensor(tried).double()), step
    share = uniform / 3000
    assert abs(share - 0.2 * 4 / 5) < 4 * math.sqrt(0.16 * 0.84 / 3000), "20 % uniform choices"
    assert max(tried) == tried[1], "the task with success rate 0.25 is tried most"


def test_untried_and_feasible_tasks_are_chosen() -> None:
    proposer, rng = Proposer(6, ProposerConfig(random=0.0)), generator()
    assert sorted(proposer.choose(rng) for _ in range(6)) == list(range(6))
    assert {proposer.choose(rng, (2, 4)) for _ in range(40)} == {2, 4}
    other = Proposer(6, ProposerConfig())
    other.load_state_dict(proposer.state_dict())
    assert torch.equal(other.scores(), proposer.scores())


# ---- labels ---------------------------------------------------------------------------------------------------------
SPEC = VectorSpec((box("a", "x y", "m", -1, 1), box("b", "x y", "m", -1, 1), box("c", "x y", "m", -1, 1)))
GOALS = Goals(GoalConfig("a", "b", "c"), SPEC)


def test_hindsight_goal_is_achieved_within_the_given_steps() -> None:
    path = torch.stack([torch.arange(9.0), -torch.arange(9.0)], 1)
    states = GOALS.aim(torch.cat([path, torch.zeros(9, 4)], 1), torch.full((9, 2), 7.0))
    episode = {STATE: states[:8], "action": torch.rand(8, 3), f"final.{STATE}": states[8:]}
    before = {name: value.clone() for name, value in episode.items()}
    seen = set()
    for seed in range(20):
        found = in_hindsight(episode, GOALS, 3, generator(seed))
        ahead = GOALS.wanted(found[STATE])[:, 0] - torch.arange(8.0)
        assert (ahead >= 1).all() and (ahead <= torch.tensor([3.0] * 6 + [2.0, 1.0])).all()
        assert torch.equal(found[STATE][:, 4:], GOALS.wanted(found[STATE]) - GOALS.achieved(found[STATE]))
        assert torch.equal(found["action"], episode["action"]) and torch.equal(found[STATE][:, :2], path[:8])
        seen |= set(ahead.tolist())
    assert seen == {1.0, 2.0, 3.0} and all(torch.equal(before[k], episode[k]) for k in before)
    del episode[f"final.{STATE}"]
    assert len(in_hindsight(episode, GOALS, 3, generator())["action"]) == 7, "without a next state"


def test_invalid_goal_fields_raise() -> None:
    with pytest.raises(UnknownName, match=r"field of observation.state for the option goal.achieved: 'tip'"):
        Goals(GoalConfig("tip", "b", ""), SPEC)
    odd = VectorSpec((box("a", "x", "m", -1, 1), box("b", "x y", "m", -1, 1)))
    with pytest.raises(ConfigError, match="differ in size"):
        Goals(GoalConfig("a", "b", ""), odd)


def test_regions_are_clusters_of_goals() -> None:
    centres = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    goals = centres.repeat_interleave(10, 0) + 0.1 * torch.randn(30, 2, generator=generator())
    found = regions(goals, 3)
    assert len(found.unique()) == 3 and all(len(found[10 * k : 10 * k + 10].unique()) == 1 for k in range(3))


# ---- practice -------------------------------------------------------------------------------------------------------
class Expert:
    """The testbed's demonstrator as a policy."""

    execute = 1

    def __init__(self, env: Any):
        self.env = env

    def act(self, observation: Any, rng: torch.Generator) -> torch.Tensor:
        state = observation[STATE]
        action: torch.Tensor = self.env.testbed.expert(state, torch.zeros(len(state), 4))
        return action[:, None]


def test_practice_plays_towards_the_chosen_goals() -> None:
    env = make(TASK, 16)
    config = replace(TINY, horizon=50, noise=0.0, deterministic=1.0)
    practice = Practice(env, Goals(GoalConfig(), env.info.state), config, 0)
    played, success = practice.play(Expert(env), 3)
    assert success > 0.5 and practice.proposer.won.sum() == 16 * success
    for episode in played:
        goal = practice.goals.wanted(episode[STATE])
        assert (goal == goal[0]).all() and (practice.wanted == goal[0]).all(1).any()
        reached = practice.goals.reached(episode[f"final.{STATE}"], goal[:1])
        assert bool(reached) or len(episode["action"]) <= 50


@pytest.fixture
def demos() -> list[dict[str, torch.Tensor]]:
    env = make(TASK, 4)
    state, rows = env.reset(seed=0)[0][STATE], []
    for _ in range(6):
        action = Expert(env).act({STATE: state}, generator())[:, 0]
        rows.append((state, action))
        state = env.step(action)[0][STATE]
    states, actions = (torch.stack(column, 1) for column in zip(*rows, strict=True))
    return [{STATE: states[i], "action": actions[i]} for i in range(4)]


def trained(tmp_path: Path, name: str, demos: Any, resume: bool = False, **changes: Any) -> tuple[Cloning, Run]:
    env, config = make(TASK, TINY.num_envs), replace(TINY, **changes)
    recipe = recipes.get("soar")(training=config)
    settings = {"task": TASK, "seed": 0, "engine": "mujoco", "mjcf": "", "without": [], "device": "cpu"}
    with Run(tmp_path / name, {}, resume=resume) as run:
        job = open_job(settings, run, lambda *_: None)
        agent = improve_alone(env, lambda: recipe.build(job), demos, config, run, 0, lambda *_: None)
    return agent, run


def test_wrong_verdicts_do_not_change_labels(tmp_path: Path, demos: Any) -> None:
    at_random = ProposerConfig(random=1.0)
    right, _ = trained(tmp_path, "right", demos, proposer=at_random)
    wrong, _ = trained(tmp_path, "wrong", demos, wrong=0.5, proposer=at_random)
    assert all(torch.equal(a, b) for a, b in zip(right.parameters, wrong.parameters, strict=True))
    asked, _ = trained(tmp_path, "asked", demos, proposer=at_random, hindsight=False)
    assert not all(torch.equal(a, b) for a, b in zip(right.parameters, asked.parameters, strict=True))


def test_share_of_inverted_verdicts() -> None:
    env = make(TASK, 16)
    practice = Practice(env, Goals(GoalConfig(), env.info.state), replace(TINY, horizon=2, wrong=0.2), 0)
    count = 0.0
    for seed in range(20):
        _, success = practice.play(Expert(env), seed)
        count += 16 * success
    assert abs(float(practice.proposer.won.sum()) - count - 0.2 * (320 - 2 * count)) < 4 * math.sqrt(320 * 0.16)


def test_model_selects_tasks_and_invalid_answers_are_counted(model_server: Any, model_config: ModelConfig) -> None:
    env = make(TASK, 8)
    model_server.answers = ["I would try 2, and then 4; 17 is out of reach.", "all of them", (500, b"")]
    config = replace(TINY, horizon=2, adviser=replace(model_config, tries=1), proposer=ProposerConfig(random=0.5))
    practice = Practice(env, Goals(GoalConfig(), env.info.state), config, 0)
    for k, (tried, failed, nonsense) in enumerate([({1, 3}, 0, 0), ({0, 1, 2, 3}, 0, 1), ({0, 1, 2, 3}, 1, 1)]):
        before = practice.proposer.tried.clone()
        practice.begin()
        for _ in range(6):
            practice.play(Expert(env), k)
        assert set((practice.proposer.tried > before).nonzero()[:, 0].tolist()) == tried
        assert practice.adviser is not None
        counted = {"proposer/model_failed": failed, "proposer/model_nonsense": nonsense}
        assert practice.adviser.counts() == counted
    asked = model_server.asked[1]["messages"][0]["content"]
    assert "2. bring tip_position to about (" in asked and "1. bring" in asked and "tried 0 times" in asked


def test_resume_is_bit_identical(tmp_path: Path, demos: Any) -> None:
    whole, run = trained(tmp_path, "whole", demos, rounds=2)
    rows = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2 and '"train/success"' in rows[0]
    trained(tmp_path, "cut", demos, rounds=1)
    resumed, _ = trained(tmp_path, "cut", demos, resume=True, rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters, resumed.parameters, strict=True))


# ---- practice with an operator -------------------------------------------------------------------------------------
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
        share = min(1.0, (t - LAST) / 8) if t >= LAST else 1.0  # the motion grows after the hand-back
        assert torch.allclose(episode["action"][t, :3], share * executed[:3], atol=1e-6)
        assert t == LAST or torch.equal(episode["action"][t, 3], executed[3])
    assert episode["final.observation.state"].shape == (1, episode["observation.state"].shape[1])
    assert not torch.equal(episode["final.observation.state"][0], episode["observation.state"][-1])


def test_operator_observes_true_object_poses(env: InterventionWrapper) -> None:
    env.reset(seed=5)
    env.step(torch.zeros(1, 4))
    true, measured = env.true.objects["cube"][0, :3].clone(), env.state.objects["cube"][0, :3].clone()
    env.step(torch.zeros(1, 4))
    cube = [k for k, name in enumerate(env.info.state.names) if name.startswith("cube_position.")]
    assert torch.equal(env.operator.seen[-1][cube], true) and not torch.equal(true, measured), "measured with an error"


def learner_of(agent: Any, env: Any, folder: Any, demonstration: dict[str, Tensor], steps: int) -> OffPolicyLearner:
    often = {"updates_per_step": 0.2, "critic_only": 50, "checkpoint_every": 50}
    config = HumanInTheLoopConfig(batch=16, capacity=2000, steps=steps, **often)
    demos = demo_replay(agent, [demonstration], torch.Generator().manual_seed(0), config.capacity)
    return OffPolicyLearner(agent, EnvInfo.of(Pipeline(env.task.interface)), demos, config, folder, 0)


def test_practice_learns_and_resumes(env: Any, residual: Build, agent: Build, run: Build, tmp_path: Any) -> None:
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
