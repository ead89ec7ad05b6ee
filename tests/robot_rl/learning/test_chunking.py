"""Chunks of actions: each is executed to its end, and judged as a whole."""

from __future__ import annotations

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


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_a_chunk_is_executed_to_its_end_or_the_episodes(horizon: int, ends: list[tuple[bool, bool]]) -> None:
    queue, since = ActionQueue(horizon), [0, 0]
    began = [0, 0]
    for t, ended in enumerate(ends):
        chunk = (100 * t + torch.arange(horizon)).float().expand(2, horizon)[..., None]
        due = queue.due(2).tolist()
        action = queue.step(chunk)[:, 0].tolist()
        for env in range(2):
            assert due[env] == (since[env] == 0)
            began[env] = t if due[env] else began[env]
            assert action[env] == 100 * began[env] + since[env]
            since[env] = 0 if ended[env] else (since[env] + 1) % horizon
        queue.reset(torch.tensor([env for env in range(2) if ended[env]], dtype=torch.long))


def test_a_resumed_queue_goes_on() -> None:
    first, second = ActionQueue(3), ActionQueue(3)
    chunks = torch.randn(2, 3, 1)
    first.step(chunks)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.step(-chunks), second.step(-chunks)) and torch.equal(first.used, second.used)


def test_actions_of_the_episode_stay_and_the_others_are_random() -> None:
    batch = {"action": torch.full((50, 3, 2), 0.5), "valid": torch.tensor([[True, True, False]]).expand(50, 3)}
    flat = flatten_chunks(batch, torch.Generator().manual_seed(0))["action"]
    assert flat.shape == (50, 6) and (flat[:, :4] == 0.5).all()
    assert flat[:, 4:].std() > 0.4 and flat[:, 4:].abs().max() <= 1


def test_a_sample_of_a_chunk_has_its_return() -> None:
    """The reward of the third step counts discounted in the first row's chunk of three, and ends the episode."""
    replay = Replay(40, 1, {"observation.state": Column((1,), observed=True), "action": Column((1,))})
    steps = torch.arange(3.0)[:, None]
    episode = {"observation.state": torch.arange(4.0)[:, None], "action": steps, "reward": torch.tensor([0.0, 0.0, 1])}
    replay.add_episode(episode | {"terminated": torch.tensor([False, False, True])})
    batch = replay.sample(64, Sampling(3, 0.5, 3), torch.Generator().manual_seed(0))
    for k in range(64):
        row = int(batch["observation.state"][k])
        assert float(batch["reward"][k]) == 0.5 ** (2 - row) and float(batch["discount"][k]) == 0
        assert batch["valid"][k].tolist() == [True, row < 2, row < 1]


def test_samples_begin_where_the_agent_decided() -> None:
    replay = Replay(64, 2, {"observation.state": Column((1,), observed=True), "action": Column((1,))})
    for t in range(20):
        row = {"observation.state": torch.full((2, 1), float(t)), "action": torch.zeros(2, 1), "reward": torch.zeros(2)}
        no = torch.zeros(2, dtype=torch.bool)
        replay.add(row | {"terminated": no, "last": no, "decides": torch.tensor([t % 4 == 0, t % 4 == 1])})
    drawn = replay.sample(400, Sampling(4, 0.9, 4), torch.Generator().manual_seed(0))["observation.state"]
    assert {int(t) % 4 for t in drawn} == {0, 1} and replay.size == 40


def test_an_actor_of_chunks_is_judged_on_chunks() -> None:
    torch.manual_seed(0)
    policy = GaussianPolicy(Size(2, 3), GaussianConfig(hidden=(16,), horizon=4))
    agent = ActorCritic(policy, ActorCriticConfig(hidden=(16,)))
    rng, seen = torch.Generator().manual_seed(0), {"observation.state": torch.zeros(5, 2)}
    actions = [agent.act(seen, rng, LearningPhase.LEARN)[0] for _ in range(5)]
    assert actions[0].shape == (5, 3) and not torch.equal(actions[0], actions[4])
    assert policy.act(seen, rng).shape == (5, 4, 3)
    assert agent.sampling == Sampling(4, agent.config.discount, 4)
    batch = {name: torch.zeros(8, 2) for name in ("observation.state", "next.observation.state")}
    batch |= {"action": torch.zeros(8, 4, 3), "valid": torch.ones(8, 4, dtype=torch.bool)}
    batch |= {"reward": torch.zeros(8), "discount": torch.ones(8), "intervention": torch.zeros(8)}
    assert torch.isfinite(agent.update(batch)["critic/loss"])


def test_of_a_chunk_only_what_a_person_executed_is_imitated() -> None:
    """The chunks (a person's, the policy's, beyond the end) and (the policy's, a person's twice)."""
    policy = GaussianPolicy(Size(2, 1), GaussianConfig(hidden=(8,), horizon=3))
    batch = {"action": torch.tensor([[0.5, 0.9, 0.9], [0.9, 0.1, 0.2]])}
    batch |= {"intervention": torch.tensor([[True, False, True], [False, True, True]])}
    batch |= {"valid": torch.tensor([[True, True, False], [True, True, True]])}
    distance = imitation_loss(policy, torch.zeros(2, 3), batch)
    assert distance is not None and torch.allclose(distance, torch.tensor([0.25, 0.05]))


def test_returns_to_go() -> None:
    assert torch.allclose(returns_to_go(torch.tensor([1.0, 0.0, 2.0]), 0.5), torch.tensor([1.5, 1.0, 2.0]))
    assert float(returns_to_go(torch.ones(5000), 0.99)[0]) == torch.tensor((1 - 0.99**5000) / 0.01).float().item()
