"""Learners of a policy that writes tokens: limits, known answers, and that the backbone stays as it is."""

from __future__ import annotations

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

FRONT = f"{IMAGES}front"
SIZE = Size(2, 2, ObservationSpec.of(**{FRONT: picture_field(8, 8), LANGUAGE: LANGUAGE_FIELD}))
TOLD = ["go up", "go down"]
FAR, TIMID = 1.6, 0.25
"""What four actions must add up to, and what is cloned for each."""
BACKBONE = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=words_of(TOLD))


def policy() -> VLATokensPolicy:
    """Return a policy that was cloned: it goes the right way, but not far."""
    torch.manual_seed(0)
    config = VLATokensConfig(horizon=2, execute=2, codec="bins", bins=8, layers=1, encoder=BACKBONE)
    made, rng, env = VLATokensPolicy(SIZE, config), torch.Generator().manual_seed(0), MultiTaskEnv(16)
    observation, _ = env.reset(seed=0)
    agent = Cloning(made, CloningConfig(lr=3e-3, warmup=0, ema_decay=0.9), 60)
    for _ in range(60):
        wanted = TIMID * env.sign[:, None, None] + 0.3 * torch.randn(16, 2, 2, generator=rng)
        agent.update(observation | {"action": wanted.clamp(-1, 1)}, rng)
    agent.finish()
    return made


class MultiTaskEnv:
    """Four steps; success is to go far, on the whole, the way that is told."""

    device = torch.device("cpu")

    def __init__(self, num_envs: int):
        self.num_envs, self.group = num_envs, 1

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        group = (options or {}).get("group", 1)
        self.told = [TOLD[(seed + i // group) % 2] for i in range(self.num_envs)]
        self.sign = torch.tensor([1.0 if t == TOLD[0] else -1.0 for t in self.told])
        self.sum, self.steps = torch.zeros(self.num_envs), 0
        return self.observe(), {}

    def observe(self) -> dict[str, Tensor]:
        state = torch.full((self.num_envs, 2), self.steps / 4)
        picture = torch.full((self.num_envs, 8, 8, 3), 100, dtype=torch.uint8)
        return {"observation.state": state, FRONT: picture, LANGUAGE: encode(self.told)}

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        self.steps += 1
        self.sum += action[:, 0] * self.sign
        done = torch.full((self.num_envs,), self.steps == 4)
        success = done & (self.sum > FAR)
        return self.observe(), success.float(), done, torch.zeros_like(done), {"success": success}


def success(trained: VLATokensPolicy) -> float:
    agent = GRAPE(trained, GRAPEConfig(temperature=1.0))
    return float(play(MultiTaskEnv(400), agent, 2, 0, torch.Generator().manual_seed(7)).success.float().mean())


def frozen(trained: VLATokensPolicy) -> list[Tensor]:
    return [p.clone() for name, p in trained.named_parameters() if not name.startswith("decoder")]


@pytest.mark.parametrize("method", ["srpo", "grape", "ppo"])
def test_rewards_teach_to_do_what_is_told_and_leave_the_backbone(method: str) -> None:
    start = policy()
    before, backbone = success(start), frozen(start)
    rng = torch.Generator().manual_seed(0)
    if method == "ppo":
        how = dict(hidden=(16,), epochs=2, minibatches=2, actor_lr=3e-3, target_kl=None, critic_only=1)
        agent: Any = TokenPPO(start, 0, TokenPPOConfig(entropy_coef=0.0, **how))  # type: ignore[arg-type]
        env = MultiTaskEnv(64)
        for k in range(15):
            observation, _ = env.reset(seed=k)
            agent.reset()
            rows = []
            for _ in range(4):
                action, row = agent.act(observation, rng)
                observation, paid, terminated, _, _ = env.step(action)
                rows.append(row | {"reward": paid, "terminated": terminated, "done": terminated})
            rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
            agent.update(agent.assess(rollout, observation, [agent.state(observation)]))
    else:
        agent = (SRPO(start, SRPOConfig(lr=3e-3, shaping=False, minibatches=2)) if method == "srpo"
                 else GRAPE(start, GRAPEConfig(lr=3e-3, epochs=3)))  # fmt: skip
        for k in range(15):
            agent.update(play(MultiTaskEnv(64), agent, 8, k, rng))
    assert success(start) > before + 0.2, (before, success(start))
    assert all(torch.equal(a, b) for a, b in zip(backbone, frozen(start), strict=True))


def test_the_ratio_is_one_before_the_first_step_and_only_the_critic_learns_at_first() -> None:
    start, rng = policy(), torch.Generator().manual_seed(0)
    agent = TokenPPO(start, 0, TokenPPOConfig(hidden=(16,), critic_only=1, temperature=1.4, entropy_coef=0.0))
    env = MultiTaskEnv(8)
    observation, _ = env.reset(seed=0)
    rows = []
    for _ in range(4):
        action, row = agent.act(observation, rng)
        observation, paid, terminated, _, _ = env.step(action)
        rows.append(row | {"reward": paid, "terminated": terminated, "done": terminated})
    rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    batch = agent.assess(rollout, observation, [agent.state(observation)])
    assert len(batch["tokens"]) == 16, "a decision at every second step"
    data = agent._prepare(batch)
    change, _, kl = agent._compare(data, agent._log_std())
    assert change.abs().max() < 1e-5 and kl.abs() < 1e-6
    written = start.sample(data["features"], 1.4, torch.Generator().manual_seed(3))
    assert torch.allclose(start.log_prob(data["features"], written[0], 1.4), written[1], atol=1e-5)
    before = [p.clone() for p in start.parameters()]
    agent.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, start.parameters(), strict=True))
    agent.update(batch)
    assert not all(torch.equal(a, b) for a, b in zip(before, start.parameters(), strict=True))


def test_the_preference_loss_is_log_2_at_the_start_and_swapping_a_pair_turns_its_gradient() -> None:
    start = policy()
    agent = GRAPE(start, GRAPEConfig())
    played = play(MultiTaskEnv(64), agent, 8, 0, torch.Generator().manual_seed(0))
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


points = st.integers(0, 10_000).map(lambda s: torch.randn(12, 5, generator=torch.Generator().manual_seed(s)))


@given(points, st.integers(0, 2**12 - 1))
def test_failures_are_paid_less_than_successes_whatever_their_order(seen: Tensor, bits: int) -> None:
    won = torch.tensor([bool(bits >> k & 1) for k in range(12)])
    group = torch.arange(12) // 4
    reward = progress_rewards(seen, won, group)
    assert (reward[won] == 1).all() and (reward[~won] < 0.6).all() and (reward >= 0).all()
    for number in range(3):
        if not won[group == number].any():
            assert (reward[group == number] == 0).all()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(bits))
    assert torch.allclose(progress_rewards(seen[order], won[order], group[order]), reward[order], atol=1e-5)


def test_the_failure_that_came_nearest_is_paid_most() -> None:
    won = torch.tensor([True, True, False, False, False])
    seen = torch.tensor([[1.0], [1.1], [0.9], [0.5], [0.0]]).expand(5, 3)
    reward = progress_rewards(seen, won, torch.zeros(5))
    assert reward[2] > reward[3] > reward[4] > 0


def test_successes_of_two_kinds_have_two_centres_and_strangers_one() -> None:
    two = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    assert torch.allclose(centres(two).sort(0).values, torch.tensor([[0.05, 0.0], [5.05, 5.0]]))
    apart = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    assert torch.allclose(centres(apart), torch.tensor([[2.5, 2.5]]))


def test_only_groups_of_middling_success_teach_and_advantages_are_centred() -> None:
    won = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0]).bool()
    played = Trajectories({}, torch.arange(12), won, torch.ones(12), torch.arange(12) // 4)
    advantage, counts = relative(won.float(), played, 0.1, 0.9)
    assert counts.tolist() == [False] * 8 + [True] * 4
    assert (advantage[:8] == 0).all() and abs(float(advantage.sum())) < 1e-5 and advantage[8] > 0 > advantage[9]


def test_groups_share_their_situation_and_each_episode_counts_once() -> None:
    env = MultiTaskEnv(12)
    agent = GRAPE(policy(), GRAPEConfig())
    played = play(env, agent, 4, 3, torch.Generator().manual_seed(0))
    assert played.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert env.told == [TOLD[1]] * 4 + [TOLD[0]] * 4 + [TOLD[1]] * 4
    assert len(played.episode) == 24 and torch.bincount(played.episode).eq(2).all() and played.steps.eq(4).all()
    ones = played.total(torch.ones(24))
    assert ones.eq(2).all()


def test_an_episode_is_seen_by_its_mean_and_by_its_last_decision() -> None:
    episode = torch.arange(40).repeat(50)[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    features = torch.randn(2000, 3, generator=torch.Generator().manual_seed(1))
    none = torch.zeros(40)
    played = Trajectories({"features": features}, episode, none.bool(), none, none)
    found = embedded(played)
    for k in range(40):
        rows = features[episode == k]
        assert torch.allclose(found[k, :3], rows.mean(0), atol=1e-6) and torch.equal(found[k, 3:], rows[-1])
