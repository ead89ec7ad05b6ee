"""Chunks of actions: execution to their end, and critics of whole chunks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import Column, Replay, Sampling
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.algorithms.cal_ql import returns_to_go
from robot_rl.learning.parts.chunking import ActionQueue, flatten_chunks
from robot_rl.learning.parts.objectives import imitation_loss
from tests.robot_rl.learning.conftest import rng


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_chunk_runs_to_its_end_or_the_episodes(horizon: int, ends: list[tuple[bool, bool]]) -> None:
    """The queue is restored from its state before each step."""
    queue, since, began = ActionQueue(horizon), [0, 0], [0, 0]
    for t, ended in enumerate(ends):
        chunk = (100 * t + torch.arange(horizon)).float().expand(2, horizon)[..., None]
        due = queue.due(2).tolist()
        restored = ActionQueue(horizon)
        restored.load_state_dict(queue.state_dict())
        queue, action = restored, restored.step(chunk)[:, 0].tolist()
        for env in range(2):
            assert due[env] == (since[env] == 0)
            began[env] = t if due[env] else began[env]
            assert action[env] == 100 * began[env] + since[env]
            since[env] = 0 if ended[env] else (since[env] + 1) % horizon
        queue.reset(torch.tensor([env for env in range(2) if ended[env]], dtype=torch.long))


def test_actions_after_the_episode_are_random() -> None:
    batch = {"action": torch.full((50, 3, 2), 0.5), "valid": torch.tensor([[True, True, False]]).expand(50, 3)}
    flat = flatten_chunks(batch, rng())["action"]
    assert flat.shape == (50, 6) and (flat[:, :4] == 0.5).all()
    assert flat[:, 4:].std() > 0.4 and flat[:, 4:].abs().max() <= 1


def test_samples_begin_at_decisions() -> None:
    replay = Replay(64, 2, {"observation.state": Column((1,), observed=True), "action": Column((1,))})
    for t in range(20):
        row = {"observation.state": torch.full((2, 1), float(t)), "action": torch.zeros(2, 1), "reward": torch.zeros(2)}
        no = torch.zeros(2, dtype=torch.bool)
        replay.add(row | {"terminated": no, "last": no, "decides": torch.tensor([t % 4 == 0, t % 4 == 1])})
    drawn = replay.sample(400, Sampling(4, 0.9, 4), rng())["observation.state"]
    assert {int(t) % 4 for t in drawn} == {0, 1} and replay.size == 40


def test_actor_of_chunks_acts_step_by_step_and_learns_from_chunks() -> None:
    policy = GaussianPolicy(Size(2, 3), GaussianConfig(hidden=(16,), horizon=4))
    agent = ActorCritic(policy, ActorCriticConfig(hidden=(16,)))
    generator, seen = rng(), {"observation.state": torch.zeros(5, 2)}
    actions = [agent.act(seen, generator, LearningPhase.LEARN)[0] for _ in range(5)]
    assert actions[0].shape == (5, 3) and not torch.equal(actions[0], actions[4])
    assert policy.act(seen, generator).shape == (5, 4, 3)
    assert agent.sampling == Sampling(4, agent.config.discount, 4)
    batch = {name: torch.zeros(8, 2) for name in ("observation.state", "next.observation.state")}
    batch |= {"action": torch.zeros(8, 4, 3), "valid": torch.ones(8, 4, dtype=torch.bool)}
    batch |= {"reward": torch.zeros(8), "discount": torch.ones(8), "intervention": torch.zeros(8)}
    assert torch.isfinite(agent.update(batch)["critic/loss"])


def test_only_a_persons_actions_of_a_chunk_are_imitated() -> None:
    """The chunks (a person's, the policy's, after the end) and (the policy's, a person's twice)."""
    policy = GaussianPolicy(Size(2, 1), GaussianConfig(hidden=(8,), horizon=3))
    batch = {"action": torch.tensor([[0.5, 0.9, 0.9], [0.9, 0.1, 0.2]])}
    batch |= {"intervention": torch.tensor([[True, False, True], [False, True, True]])}
    batch |= {"valid": torch.tensor([[True, True, False], [True, True, True]])}
    distance = imitation_loss(policy, torch.zeros(2, 3), batch)
    assert distance is not None and torch.allclose(distance, torch.tensor([0.25, 0.05]))


def test_returns_to_go_of_short_and_long_episodes() -> None:
    assert torch.allclose(returns_to_go(torch.tensor([1.0, 0.0, 2.0]), 0.5), torch.tensor([1.5, 1.0, 2.0]))
    assert float(returns_to_go(torch.ones(5000), 0.99)[0]) == torch.tensor((1 - 0.99**5000) / 0.01).float().item()
