"""Learners of a token policy: limits, known answers, and a frozen backbone."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Size
from policies.vla.config import BackboneConfig
from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from policies.vla.words import words_of
from robot_rl.data.sources import Trajectories
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.grape import GRAPE, GRAPEConfig, pairs
from robot_rl.learning.algorithms.srpo import SRPO, SRPOConfig, centres, embedded, progress_rewards, relative
from robot_rl.learning.algorithms.token_ppo import TokenPPO, TokenPPOConfig
from robot_rl.training.group import play
from tests.robot_rl.learning.conftest import equal, rng

FRONT = f"{IMAGES}front"
SIZE = Size(2, 2, ObservationSpec.of(**{FRONT: picture_field(8, 8), LANGUAGE: LANGUAGE_FIELD}))
INSTRUCTIONS = ["go up", "go down"]
FAR, CLONED = 1.6, 0.25
"""Sum of four actions that is a success, and mean of a cloned action."""
BACKBONE = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=words_of(INSTRUCTIONS))


@pytest.fixture(scope="module")
def cloned() -> VLATokensPolicy:
    """Policy that goes in the right direction, but not far."""
    torch.manual_seed(0)
    config = VLATokensConfig(horizon=2, execute=2, codec="bins", bins=8, layers=1, encoder=BACKBONE)
    policy, source, env = VLATokensPolicy(SIZE, config), rng(), MultiTaskEnv(16)
    observation, _ = env.reset(seed=0)
    agent = Cloning(policy, CloningConfig(lr=3e-3, warmup=0, ema_decay=0.9), 60)
    for _ in range(60):
        action = CLONED * env.sign[:, None, None] + 0.3 * torch.randn(16, 2, 2, generator=source)
        agent.update(observation | {"action": action.clamp(-1, 1)}, source)
    agent.finish()
    return policy


@pytest.fixture
def policy(cloned: VLATokensPolicy) -> VLATokensPolicy:
    return copy.deepcopy(cloned)


class MultiTaskEnv:
    """Episodes of four steps; success is to go far in the instructed direction."""

    device = torch.device("cpu")

    def __init__(self, num_envs: int):
        self.num_envs, self.group = num_envs, 1

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        group = (options or {}).get("group", 1)
        self.texts = [INSTRUCTIONS[(seed + i // group) % 2] for i in range(self.num_envs)]
        self.sign = torch.tensor([1.0 if t == INSTRUCTIONS[0] else -1.0 for t in self.texts])
        self.sum, self.steps = torch.zeros(self.num_envs), 0
        return self.observe(), {}

    def observe(self) -> dict[str, Tensor]:
        state = torch.full((self.num_envs, 2), self.steps / 4)
        picture = torch.full((self.num_envs, 8, 8, 3), 100, dtype=torch.uint8)
        return {"observation.state": state, FRONT: picture, LANGUAGE: encode(self.texts)}

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        self.steps += 1
        self.sum += action[:, 0] * self.sign
        done = torch.full((self.num_envs,), self.steps == 4)
        success = done & (self.sum > FAR)
        return self.observe(), success.float(), done, torch.zeros_like(done), {"success": success}


def success(trained: VLATokensPolicy) -> float:
    agent = GRAPE(trained, GRAPEConfig(temperature=1.0))
    return float(play(MultiTaskEnv(400), agent, 2, 0, rng(7)).success.float().mean())


def frozen(trained: VLATokensPolicy) -> Tensor:
    return torch.cat([p.detach().flatten() for n, p in trained.named_parameters() if not n.startswith("decoder")])


def rollout(agent: TokenPPO, envs: int, seed: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the rows of an episode in each environment."""
    env, rows = MultiTaskEnv(envs), []
    observation, _ = env.reset(seed=seed)
    agent.reset()
    for _ in range(4):
        action, row = agent.act(observation, generator)
        observation, reward, terminated, _, _ = env.step(action)
        rows.append(row | {"reward": reward, "terminated": terminated, "done": terminated})
    steps = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return agent.assess(steps, observation, [agent.state(observation)])


@pytest.mark.parametrize("method", ["srpo", "cloning", "grape", "ppo"])
def test_rewards_improve_success_with_a_frozen_backbone(method: str, policy: VLATokensPolicy) -> None:
    before, backbone, generator = success(policy), frozen(policy), rng()
    if method == "ppo":
        how: dict[str, Any] = dict(epochs=2, minibatches=2, actor_lr=3e-3, target_kl=None, critic_only=1)
        agent: Any = TokenPPO(policy, 0, TokenPPOConfig(hidden=(16,), entropy_coef=0.0, **how))
    elif method in ("srpo", "cloning"):
        agent = SRPO(policy, SRPOConfig(lr=3e-3, shaping=False, minibatches=2, baseline=method == "srpo"))
    else:
        agent = GRAPE(policy, GRAPEConfig(lr=3e-3, epochs=3))
    for k in range(15):
        ppo = method == "ppo"
        agent.update(rollout(agent, 64, k, generator) if ppo else play(MultiTaskEnv(64), agent, 8, k, generator))
    assert success(policy) > before + 0.2, (before, success(policy))
    assert torch.equal(backbone, frozen(policy))


def test_ratio_is_1_before_the_first_step_and_only_the_critic_learns_at_first(policy: VLATokensPolicy) -> None:
    agent = TokenPPO(policy, 0, TokenPPOConfig(hidden=(16,), critic_only=1, temperature=1.4, entropy_coef=0.0))
    batch = rollout(agent, 8, 0, rng())
    assert len(batch["tokens"]) == 16, "a decision at every second step"
    data = agent._prepare(batch)
    change, _, kl = agent._compare(data, agent._log_std())
    assert change.abs().max() < 1e-5 and kl.abs() < 1e-6
    tokens, log_prob = policy.sample(data["features"], 1.4, rng(3))
    assert torch.allclose(policy.log_prob(data["features"], tokens, 1.4), log_prob, atol=1e-5)
    before = copy.deepcopy(policy)
    for unchanged in (True, False):
        agent.update(batch)
        assert equal(policy, before) == unchanged


def test_preference_loss_is_log_2_initially_and_swapped_pairs_reverse_its_gradient(policy: VLATokensPolicy) -> None:
    agent = GRAPE(policy, GRAPEConfig())
    played = play(MultiTaskEnv(64), agent, 8, 0, rng())
    chosen = pairs(played)
    assert len(chosen)
    better, worse = chosen.unbind(1)
    assert played.success[better].all() and not played.success[worse].any()
    assert torch.equal(played.group[better], played.group[worse])
    gradients = []
    for which in (chosen, chosen.flip(1)):
        agent.optimizer.zero_grad()
        loss, margin = agent.loss(played, which)
        assert abs(float(loss.detach()) - torch.tensor(2.0).log()) < 1e-5 and abs(float(margin)) < 1e-3
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in agent.parameters if p.grad is not None]))
    assert gradients[0].norm() > 1e-4 and torch.allclose(gradients[0], -gradients[1], atol=1e-6)


@given(st.integers(0, 10_000), st.integers(0, 2**12 - 1))
def test_failures_have_smaller_rewards_than_successes_in_any_order(seed: int, bits: int) -> None:
    seen, won = torch.randn(12, 5, generator=rng(seed)), torch.tensor([bool(bits >> k & 1) for k in range(12)])
    group = torch.arange(12) // 4
    reward = progress_rewards(seen, won, group)
    assert (reward[won] == 1).all() and (reward[~won] < 0.6).all() and (reward >= 0).all()
    for number in range(3):
        assert won[group == number].any() or (reward[group == number] == 0).all()
    order = torch.randperm(12, generator=rng(bits))
    assert torch.allclose(progress_rewards(seen[order], won[order], group[order]), reward[order], atol=1e-5)


def test_reward_of_failures_falls_with_the_distance_from_the_centres_of_successes() -> None:
    won = torch.tensor([True, True, False, False, False])
    seen = torch.tensor([[1.0], [1.1], [0.9], [0.5], [0.0]]).expand(5, 3)
    reward = progress_rewards(seen, won, torch.zeros(5))
    assert reward[2] > reward[3] > reward[4] > 0
    two = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    assert torch.allclose(centres(two).sort(0).values, torch.tensor([[0.05, 0.0], [5.05, 5.0]]))
    apart = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    assert torch.allclose(centres(apart), torch.tensor([[2.5, 2.5]]))


def test_groups_that_always_or_never_succeed_are_skipped_and_advantages_are_centred() -> None:
    won = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0]).bool()
    played = Trajectories({}, torch.arange(12), won, torch.ones(12), torch.arange(12) // 4)
    advantage, counts = relative(won.float(), played, 0.1, 0.9)
    assert counts.tolist() == [False] * 8 + [True] * 4
    assert (advantage[:8] == 0).all() and abs(float(advantage.sum())) < 1e-5 and advantage[8] > 0 > advantage[9]


def test_groups_share_their_situation_and_each_episode_counts_once(policy: VLATokensPolicy) -> None:
    env, (up, down) = MultiTaskEnv(12), INSTRUCTIONS
    played = play(env, GRAPE(policy, GRAPEConfig()), 4, 3, rng())
    assert played.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert env.texts == [down] * 4 + [up] * 4 + [down] * 4
    assert len(played.episode) == 24 and torch.bincount(played.episode).eq(2).all() and played.steps.eq(4).all()
    assert played.total(torch.ones(24)).eq(2).all()


def test_episode_embedding_is_the_mean_and_the_last_decision() -> None:
    episode = torch.arange(40).repeat(50)[torch.randperm(2000, generator=rng())]
    features, none = torch.randn(2000, 3, generator=rng(1)), torch.zeros(40)
    embedding = embedded(Trajectories({"features": features}, episode, none.bool(), none, none))
    for k in range(40):
        rows = features[episode == k]
        assert torch.allclose(embedding[k, :3], rows.mean(0), atol=1e-6) and torch.equal(embedding[k, 3:], rows[-1])
