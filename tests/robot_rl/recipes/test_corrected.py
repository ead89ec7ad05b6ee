"""Recipes with a scripted person, on a testbed: stored data, rewards, and equality with the parent method."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.cli.main import main
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.operators.scripted import OperatorConfig
from robot_rl.recipes import corrected
from robot_rl.recipes.bc import BC
from robot_rl.recipes.corrected import CorrectedRecipe
from robot_rl.recipes.hg_dagger import HGDAgger
from robot_rl.recipes.hil_serl import HilSerl
from robot_rl.recipes.job import Job
from robot_rl.recipes.rlif import RLIF
from robot_rl.rewards import TakeoverReward
from robot_rl.training import human_in_the_loop
from robot_rl.training.human_in_the_loop import DaggerConfig, practise
from robot_rl.training.learner import HumanInTheLoopConfig, OffPolicyLearner
from robot_rl.training.run import Run, read_metrics
from robot_rl.training.supervised import SupervisedConfig
from sim.make import describe, make

PUSH = "testbed:push"
RANDOM = OperatorConfig("random", length=4, rate=0.1)
SMALL = ActorCriticConfig(hidden=(16,), entropy=True)
SHORT = HumanInTheLoopConfig(batch=16, updates_per_step=0.1, capacity=2000, steps=250, checkpoint_every=100)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "data"
    assert main(["collect", PUSH, "--episodes", "3", "--num-envs", "4", "--out", str(folder)]) == 0
    return folder


def job(data: Path, run: Run | None) -> Job:
    return Job(describe(PUSH), lambda count: make(PUSH, count), run, 0, data, None, lambda *_: None)


def trained(
    recipe: CorrectedRecipe, data: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> tuple[OffPolicyLearner, int]:
    """Train; return the learner and its initial number of demonstrated steps."""
    kept: list[Any] = []

    def watch(env: Any, learner: OffPolicyLearner, *rest: Any) -> None:
        kept.extend([learner, learner.demos.size])
        practise(env, learner, *rest)

    monkeypatch.setattr(corrected, "practise", watch)
    recipe.train(job(data, run))
    return kept[0], kept[1]


def stored(learner: OffPolicyLearner, name: str) -> Tensor:
    """Return a column of the online replay, one row per step."""
    return learner.online.columns[name][0, learner.online.flags["starts"][0]]


def test_corrections_are_in_both_replays_as_executed(data: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, before = trained(HilSerl(agent=SMALL, training=SHORT, operator=RANDOM), data, run(), monkeypatch)
    held = stored(learner, "intervention")
    assert 0 < int(held.sum()) == learner.corrected == learner.demos.size - before
    online = {tuple(row.tolist()) for row in stored(learner, "action")[held]}
    starts = learner.demos.flags["starts"][0].nonzero().flatten()[before:]
    assert {tuple(row.tolist()) for row in learner.demos.columns["action"][0, starts]} == online
    assert bool(learner.demos.columns["intervention"][0, starts].all())
    person = make(PUSH, 1).make_demonstrator(0)
    expert = person.testbed.expert(stored(learner, "observation.state")[held], person.u)
    assert float((stored(learner, "action")[held] - expert).abs().max()) < 0.25, "equal except for noise"


def test_takeovers_are_the_only_reward(data: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = replace(SHORT, correct_demos=False)
    learner, before = trained(RLIF(agent=SMALL, training=keep, operator=RANDOM), data, run(), monkeypatch)
    held, paid = stored(learner, "intervention"), stored(learner, "reward")
    assert learner.demos.size == before and not bool(learner.demos.columns["reward"].any())
    began = held[1:] & ~held[:-1]
    assert int(began.sum()) > 5, "takeovers during an episode"
    assert torch.equal(paid[:-1] == -1, began) and set(paid.tolist()) == {0.0, -1.0}


def practised(rng: torch.Generator) -> dict[str, Tensor]:
    """Return a random episode in which a person takes over for one step after a first action number above 0."""
    action, held = 2 * torch.rand(40, 2, generator=rng) - 1, torch.zeros(40, dtype=torch.bool)
    for t in range(1, 40):
        held[t] = bool(action[t - 1, 0] > 0) and not held[t - 1]
    episode = {"observation.state": torch.randn(40, 10, generator=rng), "action": action, "intervention": held}
    return episode | {"reward": torch.zeros(40), "terminated": torch.zeros(40, dtype=torch.bool)}


def learned(data: Path, shuffled: bool) -> tuple[float, float, float]:
    """Learn from takeovers; return the values of actions above and below 0, and the mean action."""
    numbers: dict[str, Any] = dict(hidden=(32,), critics=2, discount=0.0, tau=0.1, actor_delay=1, ema_decay=0.9)
    agent = replace(RLIF().agent, critic_lr=3e-3, actor_lr=3e-3, **numbers)
    recipe = RLIF(agent=agent, training=replace(SHORT, batch=128))
    built, rng = recipe.build(job(data, None)), torch.Generator().manual_seed(0)
    learner = recipe._learner(built, describe(PUSH), [], data, 0)

    def mixed(episode: dict[str, Tensor]) -> dict[str, Tensor]:
        labelled = TakeoverReward().relabel(episode)
        return labelled | {"reward": labelled["reward"][torch.randperm(40, generator=rng)]}

    learner.relabel = mixed if shuffled else learner.relabel
    learner.config = replace(learner.config, demo_share=0.0, updates_per_step=0.15, critic_only=0)
    for _ in range(120):
        learner.take(practised(rng))
    while learner.update():
        pass
    with torch.no_grad():
        seen, action = torch.randn(400, 10), 2 * torch.rand(400, 2) - 1
        value, first = built.critic.value(seen, action).mean(0), action[:, 0]
        mean = built.average.mean(seen)[:, 0].mean()
    return float(value[first > 0.2].mean()), float(value[first < -0.2].mean()), float(mean)


def test_rlif_learns_from_takeovers_and_not_from_shuffled_labels(data: Path) -> None:
    """A third of the steps is a person's, so an action above 0 leads to a takeover in two of three cases."""
    above, below, mean = learned(data, shuffled=False)
    assert (above, below) == pytest.approx((-2 / 3, 0), abs=0.1) and mean < -0.3
    assert learned(data, shuffled=True)[:2] == pytest.approx((-1 / 3, -1 / 3), abs=0.1)


class NoOperator:
    """Operator who never takes over."""

    def reset(self) -> None: ...

    def __call__(self, seen: Any, now: float) -> tuple[bool, Tensor | None]:
        return False, None


class Unobserved(InterventionWrapper):
    """Environment that shows nothing to its operator."""

    def view(self, action: Tensor) -> Any: ...


@pytest.mark.parametrize("recipe", [HilSerl, RLIF])
def test_without_takeovers_it_equals_the_parent(recipe: Any, data: Path, run: Any, monkeypatch: Any, same: Any) -> None:
    config = recipe(agent=SMALL, training=SHORT, operator=OperatorConfig("none"))
    one, before = trained(config, data, run("one"), monkeypatch)
    assert one.corrected == 0 and one.demos.size == before
    with monkeypatch.context() as patch:
        patch.setattr(Job, "operated", lambda job, _: Unobserved(job.make_env(1), NoOperator()))
        two, _ = trained(config, data, run("two"), monkeypatch)
    assert one.agent.updates.critic == two.agent.updates.critic > 10
    assert same(one.agent.state_dict(), two.agent.state_dict())


def test_learning_starts_from_a_cloned_policy_with_a_new_std(data: Path, run: Any) -> None:
    cloned = BC(training=SupervisedConfig(updates=60, batch=16)).train(job(data, run()))
    for recipe in (HilSerl(), RLIF()):
        agent = recipe.build(replace(job(data, None), base=cloned))
        observation = {"observation.state": torch.randn(5, 10)}
        features = agent.policy.actor_features(observation)
        ours, std = agent.policy.actor.mean(features), agent.policy.actor(features)[1].exp()
        assert torch.allclose(ours, cloned.policy.act(observation, torch.Generator())[:, 0], atol=1e-6)
        assert torch.allclose(std, torch.tensor(recipe.gaussian.initial_std))


def test_dagger_without_takeovers_equals_cloning_to_the_bit(data: Path, run: Any, same: Any) -> None:
    short = DaggerConfig(steps=250, every=100, updates=60, batch=16)
    one = HGDAgger(training=short, operator=OperatorConfig("none")).train(job(data, run("one")))
    two = BC(training=SupervisedConfig(updates=60, batch=16)).train(job(data, run("two")))
    assert same(one.policy.state_dict(), two.policy.state_dict())


def test_dagger_clones_the_persons_actions_and_resumes(data: Path, run: Any, monkeypatch: Any, same: Any) -> None:
    cloned, clone = [], human_in_the_loop.clone

    def count(agent: Any, episodes: list[Any], *rest: Any) -> float:
        cloned.append(len(episodes))
        return clone(agent, episodes, *rest)

    monkeypatch.setattr(human_in_the_loop, "clone", count)
    recipe = HGDAgger(training=DaggerConfig(steps=250, every=100, updates=20, batch=16), operator=RANDOM)
    with run() as first:
        one = recipe.train(job(data, first))
    assert cloned[0] == 3 and len(cloned) > 2 and cloned == sorted(set(cloned)), "the data grow"
    with run(resume=True) as second:
        assert all(bool(part["intervention"].all()) for part in second.load()["taken"])
        two = recipe.train(job(data, second))
    assert cloned[-1] == cloned[-2] and same(one.policy.state_dict(), two.policy.state_dict()), "training had ended"


def test_train_command_with_scripted_operator_and_with_a_judge(data: Path, tmp_path: Path) -> None:
    small = ["--training.steps", "200", "--training.batch", "16", "--agent.hidden", "16"]
    words = ["train", PUSH, "--recipe", "hil-serl", "--dataset", str(data), *small, "--operator.rule", "random"]
    assert main([*words, "--operator.skill", "WEAK", "--out", str(tmp_path / "one")]) == 0
    assert read_metrics(tmp_path / "one")[-1]["train/corrected_share"] > 0
    words = ["train", PUSH, "--recipe", "rlif", "--training.demo-share", "0", *small, "--operator.rule", "value-gap"]
    assert main([*words, "--out", str(tmp_path / "two")]) == 2, "a judge is required"
    assert main([*words, "--base", str(tmp_path / "one"), "--out", str(tmp_path / "two")]) == 0
    assert read_metrics(tmp_path / "two")[-1]["train/corrected_share"] > 0


@pytest.mark.parametrize("filters", [True, False])
def test_the_filter_clones_only_corrections_of_higher_value(monkeypatch: pytest.MonkeyPatch, filters: bool) -> None:
    """The values say that larger actions are better: a correction to 0.5 is cloned, one to -0.5 not."""
    config = ActorCriticConfig(hidden=(8,), imitation=1.0, imitation_filter=filters, actor_lr=1e-2)
    torch.manual_seed(0)
    agent = ActorCritic(GaussianPolicy(Size(2, 2), GaussianConfig(hidden=(16,))), config)
    seen, person = torch.eye(2), torch.tensor([[0.5, 0.5], [-0.5, -0.5]])
    batch = {"observation.state": seen, "action": person, "intervention": torch.ones(2, dtype=torch.bool)}
    monkeypatch.setattr(agent, "_actor_value", lambda batch, seen, u: u.detach().sum(-1))
    for _ in range(300):
        agent._update_actor(batch)
    with torch.no_grad():
        better, worse = agent.policy.actor.mean(agent.policy.actor_features(batch))
    assert (better - 0.5).abs().max() < 0.1
    assert bool(((worse + 0.5).abs() < 0.1).all()) is not filters
