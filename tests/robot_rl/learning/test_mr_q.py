"""Values on a predictive embedding: which loss trains which part, and what the embedding predicts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from policies.actor import EmbeddedConfig, EmbeddedPolicy
from policies.base import Size, build_policy
from robot_rl.data.replay import Replay, Sampling
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.mr_q import MRQ, Model, transitions, two_hot
from robot_rl.recipes.mr_q import ModelRepresentations
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import check_resumes, rng


def build(std: float | None = 0.2, **changes: Any) -> MRQ:
    torch.manual_seed(0)
    policy = EmbeddedPolicy(Size(2, 1), EmbeddedConfig(hidden=(32,), std=std, embedding=32))
    return MRQ(policy, replace(ModelRepresentations().agent, **({"hidden": (32,), "synchronize": 20} | changes)))


def episodes(learner: MRQ, scale: float = 1.0) -> Replay:
    """Return episodes of a point in [-1, 1] that actions push, with reward 1 - |place|.

    Some actions are a person's, and some episodes terminate."""
    generator, replay = rng(), Replay(4000, 1, learner.columns)
    for _ in range(60):
        action = 2 * torch.rand(20, 1, generator=generator) - 1
        place = [2 * torch.rand(1, generator=generator) - 1]
        for push in action:
            place.append((place[-1] + 0.3 * push).clamp(-1, 1))
        state = torch.stack([torch.cat([x, x * x]) for x in place])
        ended = torch.zeros(20, dtype=torch.bool)
        ended[-1] = bool(torch.rand(1, generator=generator) < 0.5)
        reward, person = scale * (1 - state[1:, 0].abs()), torch.rand(20, generator=generator) < 0.3
        row = {"observation.state": state, "action": action, "reward": reward, "terminated": ended}
        replay.add_episode(row | {"intervention": person})
    return replay


def test_mean_of_two_hot_weights_is_the_value() -> None:
    bins = Model(nn.Identity(), 4, 1).bins
    value = torch.cat([torch.randn(50, generator=rng()) * 30, torch.tensor([0.0, -1.0, 1e9])])
    weights = two_hot(value, bins)
    assert ((weights > 0).sum(1) <= 2).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(53))
    torch.testing.assert_close((weights @ bins)[:-1], value[:-1], rtol=1e-4, atol=1e-4)
    assert (weights @ bins)[-1] == bins[-1], "values beyond the bins are clipped"


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_transitions_of_sequences_equal_the_replays(steps: int) -> None:
    """The same generator draws the same rows."""
    replay = episodes(build())
    sequences = replay.sample(300, Sampling(1, 0.9, 5, sequence=True), rng(1))
    direct, ours = replay.sample(300, Sampling(steps, 0.9), rng(1)), transitions(sequences, steps, 0.9)
    for name in ("observation.state", "next.observation.state", "action", "reward", "discount"):
        torch.testing.assert_close(ours[name], direct[name])


def test_embedding_of_values_changes_only_at_synchronizations() -> None:
    learner = build(synchronize=4)
    replay, embeddings = episodes(learner), []
    for k in range(9):
        learner.update(replay.sample(32, learner.sampling, rng(k)))
        states = (learner.policy.encoder.state_dict(), learner.critic.pair.state_dict())
        embeddings.append(torch.cat([v.flatten() for state in states for v in state.values()]).clone())
    constant = [torch.equal(a, b) for a, b in zip(embeddings, embeddings[1:], strict=False)]
    assert constant == [True, True, True, False] * 2


def test_embedding_predicts_rewards_and_values_are_independent_of_their_scale() -> None:
    """A linear probe of z_sa predicts the reward. Rewards 100 times as large give similar normalized values."""
    sizes = []
    for scale in (1.0, 100.0):
        learner = build(model_lr=1e-3, n_step=1)
        replay = episodes(learner, scale)
        for k in range(400):
            learner.update(replay.sample(64, learner.sampling, rng(k)), LearningPhase.WARMUP)
        batch = replay.sample(500, learner.sampling, rng(999))
        with torch.no_grad():
            z = learner.policy.encoder(batch["observation.state"][:, 0], {})
            action, reward = batch["action"][:, 0], batch["reward"][:, 0]
            pair = torch.cat([learner.critic.pair(torch.cat([z, action], -1)), torch.ones(500, 1)], -1)
            predicted = pair @ torch.linalg.lstsq(pair, reward[:, None]).solution[:, 0]
            sizes.append(float(learner.critic.value(z, action).mean()))
        assert 1 - (predicted - reward).square().mean() / reward.var() > 0.9
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_entropy_is_weighted_in_units_of_the_reward() -> None:
    """Rewards and a temperature 100 times as large give the actor the same gradient, since values are normalized."""
    gradients = []
    for scale in (1.0, 100.0):
        still = dict.fromkeys(("critic_lr", "model_lr"), 1e-30)
        learner = build(std=None, entropy=True, initial_temperature=0.1 * scale, **still)
        learner.update(episodes(learner, scale).sample(64, learner.sampling, rng()))
        moments = learner.actor_optimizer.state_dict()["state"].values()
        gradients.append(torch.cat([each["exp_avg"].flatten() for each in moments]))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def test_resumed_to_the_bit_and_built_from_its_description() -> None:
    one, other = build(synchronize=3), build(synchronize=3)
    replay = episodes(one)
    batches = [replay.sample(32, one.sampling, rng(k)) for k in range(9)]
    check_resumes(one, other, batches[:5])
    check_resumes(one, other, batches[5:])
    one.finish()
    built = build_policy(one.policy.describe())
    built.load_state_dict(one.policy.state_dict())
    seen = {"observation.state": torch.randn(5, 2)}
    assert torch.equal(built.act(seen, rng()), one.policy.act(seen, rng()))


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="unroll"):
        build(n_step=6)
    with pytest.raises(ConfigError, match="scalar head"):
        build(head="gaussian")
