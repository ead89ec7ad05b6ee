"""The PPO update, from what must hold before its first step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Size
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.interface.symmetry import Mirror, Reflection
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from robot_rl.util.errors import ConfigError

ONE = {"epochs": 1, "minibatches": 1}


def make(mirror: Mirror | None = None, history: int = 1, privileged: int = 2, **config: Any) -> PPO:
    """A tiny agent: 4 numbers observed, 2 privileged, 2 actions."""
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(16, 16), history=history))
    torch.nn.init.normal_(policy.actor[-1].weight, std=0.3)
    return PPO(policy, privileged, PPOConfig(**({"hidden": (16, 16)} | config)), mirror=mirror)


def rollout(agent: PPO, rows: int = 256, seed: int = 0) -> dict[str, Tensor]:
    """Random states, the policy's own actions, random advantages."""
    rng = torch.Generator().manual_seed(seed)
    size, history = agent.policy.size, agent.policy.config.history
    with torch.no_grad():
        frames = torch.randn(rows, history * size.observation, generator=rng)
        state = torch.randn(rows, size.observation + agent.privileged, generator=rng)
        mean = agent.policy.mean(frames)
        action = agent.policy.sample(mean, rng)
        batch = {"frames": frames, "state": state, "mean": mean, "action": action, "value": agent.critic(state)}
    return batch | {"advantage": torch.randn(rows, generator=rng), "target": torch.randn(rows, generator=rng)}


def weights(agent: PPO) -> list[Tensor]:
    return [p.detach().clone() for p in (*agent.actor_parameters, *agent.critic.parameters())]


@pytest.mark.parametrize("history", [1, 3])
def test_ratio_is_1_and_divergence_0_before_the_first_step(history: int) -> None:
    agent = make(history=history, clip=1e-6, **ONE)
    for k in range(3):  # also with statistics that have just changed
        metrics = agent.update(rollout(agent, seed=k))
        assert metrics["ppo/clipped"] == 0, "a ratio is not 1 within 1e-6"
        assert metrics["ppo/kl"] == pytest.approx(0, abs=1e-9)
        assert agent.policy.normalizer.count == 256 * (k + 1) == agent.critic.normalizer.count
    later = make(history=history, clip=1e-6, epochs=2)
    assert later.update(rollout(later))["ppo/clipped"] > 0.5


def test_actions_move_towards_what_was_better() -> None:
    agent = make(target_kl=None)
    batch = rollout(agent, rows=2000)
    batch["advantage"] = batch["action"][:, 0] - batch["mean"][:, 0]
    before = copy.deepcopy(agent.policy)
    agent.update(batch)
    before.normalizer = agent.policy.normalizer
    moved = (agent.policy.mean(batch["frames"]) - before.mean(batch["frames"])).detach().mean(0)
    assert moved[0] > 0.05 and moved[0] > 3 * moved[1].abs()


def test_scale_and_offset_of_advantages_make_no_difference() -> None:
    one, two = make(), make()
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    batch = rollout(one)
    one.update(batch)
    two.update(batch | {"advantage": 1000 * batch["advantage"] + 70})
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(weights(one), weights(two), strict=True))


def test_a_ratio_beyond_the_clip_earns_nothing() -> None:
    agent = make(entropy_coef=0.0, **ONE)
    batch = rollout(agent)
    batch["mean"] = batch["action"] + 1.5  # the old policy thought these actions unlikely: ratios far above 1
    data = agent._prepare(batch)
    loss, metrics = agent._loss(data | {"advantage": torch.ones(256, 1)}, agent.policy.log_std.detach())
    loss.backward()
    assert metrics["ppo/clipped"] == 1 and metrics["ppo/surrogate"] == pytest.approx(1.2)
    assert all(p.grad is None or not p.grad.any() for p in agent.actor_parameters)
    loss, _ = agent._loss(data | {"advantage": -torch.ones(256, 1)}, agent.policy.log_std.detach())
    loss.backward()
    assert any(p.grad.any() for p in agent.actor_parameters), "a mistake must be taken back however large the ratio"


def test_the_critic_learns_and_a_clipped_one_learns_less() -> None:
    batch = rollout(make())
    batch["target"] = batch["state"][:, 4] * 2
    errors = []
    for clip in (None, 0.05):
        torch.manual_seed(0)
        agent = make(value_clip=clip, critic_lr=3e-3, epochs=30)
        batch["value"] = agent.critic(batch["state"]).detach()
        agent.update(batch)
        agent.critic.normalizer.load_state_dict(make().critic.normalizer.state_dict())
        errors.append((agent.critic(batch["state"]) - batch["target"]).detach().square().mean().item())
    assert errors[0] < 0.2 < 2 < errors[1]


@pytest.mark.parametrize(("kl", "up"), [(1e-6, False), (1e3, True)])
def test_the_learning_rate_follows_the_divergence(kl: float, up: bool) -> None:
    agent = make(target_kl=kl)
    metrics = agent.update(rollout(agent))
    rate = agent.optimizer.param_groups[0]["lr"]
    assert rate == (PPO.LR_RANGE[1] if up else PPO.LR_RANGE[0]) == metrics["ppo/lr"]
    assert agent.optimizer.param_groups[1]["lr"] == 1e-3, "the critic's stays"
    again = make(target_kl=kl)
    again.load_state_dict(agent.state_dict())
    assert again.optimizer.param_groups[0]["lr"] == rate, "a resumed run goes on with the rate it had"
    first = make(target_kl=kl, **ONE)
    first.update(rollout(first))
    assert first.optimizer.param_groups[0]["lr"] == 1e-3, "the divergence before the first step does not count"
    still = make(target_kl=None)
    still.update(rollout(still))
    assert still.optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize(("start", "away", "back", "factor"), [(1e-6, 1.0, 0.0, 1.5), (0.1, 0.0, 1.0, 1 / 1.5)])
def test_a_rate_that_starts_outside_its_range_stays_or_comes_back(
    start: float, away: float, back: float, factor: float
) -> None:
    """Far above its aim, a divergence of 1 does not raise a rate; far below, one of 0 does not lower it."""
    agent = make(actor_lr=start)
    for kl, rate in ((away, start), (back, start * factor)):
        agent._adapt(kl, aim=0.01)
        assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize("seed", [0, 3, 2**64 - 1])
def test_minibatches_are_not_drawn_from_the_numbers_that_explore(seed: int) -> None:
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(16,)))
    draws = PPO(policy, 2, PPOConfig(hidden=(16,)), seed).rng
    exploring = torch.Generator().manual_seed(seed)
    assert not torch.equal(torch.rand(8, generator=draws), torch.rand(8, generator=exploring))


def test_entropy_is_rewarded_and_std_stays_within_its_bounds() -> None:
    for weight, bound in ((1e6, FeedforwardPolicy.MAX_LOG_STD), (-1e6, FeedforwardPolicy.MIN_LOG_STD)):
        agent = make(entropy_coef=weight, actor_lr=10.0, target_kl=None)
        agent.update(rollout(agent))
        assert agent.policy.log_std.tolist() == [bound, bound]


@pytest.mark.parametrize("name", ["frames", "state", "action", "advantage", "target"])
def test_nan_is_named_and_reaches_no_weight(name: str) -> None:
    agent = make()
    batch = rollout(agent)
    batch[name].view(-1)[7] = torch.nan
    before = copy.deepcopy(agent.state_dict())
    with pytest.raises(FloatingPointError, match=name):
        agent.update(batch)
    after = agent.state_dict()
    assert all(torch.equal(before["policy"][k], v) for k, v in after["policy"].items())


def test_a_loss_that_overflows_reaches_no_weight() -> None:
    agent = make(**ONE)
    batch = rollout(agent)
    batch["target"][3] = 1e30  # finite, but its square is not
    before = weights(agent)
    with pytest.raises(FloatingPointError, match="became NaN or infinite"):
        agent.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(agent), strict=True))


def test_the_critic_sees_what_the_actor_does_not() -> None:
    agent = make()
    observation = {"observation.state": torch.randn(5, 4), "observation.environment_state": torch.randn(5, 2)}
    other = observation | {"observation.environment_state": torch.randn(5, 2)}
    rng = torch.Generator()
    assert torch.equal(agent.policy.act(observation, rng), agent.policy.act(other, rng))
    assert not torch.equal(agent.critic(agent.state(observation)), agent.critic(agent.state(other)))
    blind = make(privileged=0)
    assert torch.equal(blind.state(observation), observation["observation.state"])


def multiple(scale: float = 1.0, rows: int = 512) -> tuple[PPO, dict[str, Tensor]]:
    """An agent of two rewards, the second in units of `scale`, and a rollout."""
    torch.manual_seed(0)
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(16, 16)))
    torch.nn.init.normal_(policy.actor[-1].weight, std=0.3)
    agent = PPO(policy, 2, PPOConfig(hidden=(16, 16), **ONE), terms=2)
    batch, rng = rollout(agent, rows), torch.Generator().manual_seed(1)
    unit = torch.tensor([1.0, scale])
    batch |= {name: unit * torch.randn(rows, 2, generator=rng) for name in ("advantage", "target")}
    return agent, batch


def test_a_term_counts_the_same_in_any_unit() -> None:
    steps = []
    for scale in (1.0, 100.0):
        agent, batch = multiple(scale)
        before = [p.detach().clone() for p in agent.actor_parameters]
        agent.update(batch)
        steps.append(torch.cat([(p - q).flatten() for p, q in zip(agent.actor_parameters, before, strict=True)]))
    assert torch.cosine_similarity(*steps, dim=0) > 0.99
    agent, batch = multiple(100.0)
    summed = make(**ONE)  # one critic of the sum forgets the first term
    summed._scaled(batch["advantage"].sum(1))
    assert (
        torch.corrcoef(torch.stack([summed._scaled(batch["advantage"].sum(1)), batch["advantage"][:, 0]]))[0, 1] < 0.1
    )
    assert torch.corrcoef(torch.stack([agent._scaled(batch["advantage"]), batch["advantage"][:, 0]]))[0, 1] > 0.6


def test_one_term_is_ppo_and_terms_are_assessed_one_by_one() -> None:
    agents = [make(), PPO(make().policy, 2, PPOConfig(hidden=(16, 16)), terms=1)]
    agents[1].load_state_dict(copy.deepcopy(agents[0].state_dict()))
    batch = rollout(agents[0])
    batch["target"] *= 30
    agents[0].update(batch)
    agents[1].update(batch | {name: batch[name][:, None] for name in ("value", "advantage", "target")})
    for one, other in zip(*map(weights, agents), strict=True):
        torch.testing.assert_close(one, other)

    agent, _ = multiple()
    rng = torch.Generator().manual_seed(2)
    done = torch.rand(5, 3, generator=rng) < 0.3
    steps = {name: torch.randn(5, 3, width, generator=rng) for name, width in
             {"frames": 4, "state": 6, "action": 2, "mean": 2, "reward": 2}.items()}  # fmt: skip
    last = {"observation.state": torch.randn(3, 4), "observation.environment_state": torch.randn(3, 2)}
    ends = [torch.randn(int(done.sum()), 6)] if done.any() else []
    both = agent.assess(steps | {"terminated": done & False, "done": done}, last, ends)
    assert both["advantage"].shape == both["target"].shape == (15, 2)
    doubled = agent.assess(
        steps | {"reward": steps["reward"] * torch.tensor([1.0, 3.0]), "terminated": done & False, "done": done},
        last,
        ends,
    )
    assert torch.equal(doubled["advantage"][:, 0], both["advantage"][:, 0])
    assert not torch.equal(doubled["advantage"][:, 1], both["advantage"][:, 1])


def test_weights_are_one_for_each_term() -> None:
    with pytest.raises(ConfigError, match="3 weights are given, and the reward has 2 terms"):
        PPO(make().policy, 2, PPOConfig(hidden=(16, 16), weights=(1.0, 1.0, 1.0)), terms=2)


def test_wrong_shapes_are_refused() -> None:
    agent = make()
    for name, shape in {"frames": (256, 3), "state": (256, 4), "action": (256, 1), "advantage": (255,)}.items():
        with pytest.raises(ValueError, match=rf"{name} has shape"):
            agent.update(rollout(agent) | {name: torch.zeros(shape)})
    with pytest.raises(ValueError, match="reads 6 values, the observation has 7"):
        agent.state({"observation.state": torch.zeros(1, 4), "observation.environment_state": torch.zeros(1, 3)})
    with pytest.raises(ValueError, match="minibatches 0"):
        PPOConfig(minibatches=0)


# ---- symmetry ------------------------------------------------------------------------------------------------------
MIRROR = Mirror(Reflection([1, 0, 2, 3], [1, 1, -1, 1]), Reflection([0, 1], [-1, 1]), Reflection([1, 0], [1, 1]))


@pytest.fixture
def symmetric() -> Callable[..., PPO]:
    """An agent whose networks commute with `MIRROR`: half the sum of a first layer and its image, and so on."""

    def build(**config: Any) -> PPO:
        agent = make(MIRROR, **config)
        swap = torch.arange(16).view(2, 8).flip(0).flatten()  # hidden units come in mirrored pairs
        hidden = Reflection(swap, torch.ones(16))
        for net, inside, outside in (
            (agent.policy.actor, agent.reflect["frames"], MIRROR.action),
            (agent.critic.net, agent.reflect["state"], Reflection([0], [1])),
        ):
            sides = [inside, hidden, hidden, outside]
            layers = [m for m in net if isinstance(m, torch.nn.Linear)]
            for layer, a, b in zip(layers, sides[:-1], sides[1:], strict=True):
                with torch.no_grad():
                    image = b(a(layer.weight).T).T
                    layer.weight.copy_((layer.weight + image) / 2)
                    layer.bias.copy_((layer.bias + b(layer.bias)) / 2)
        return agent

    return build


def asymmetry(agent: PPO, frames: Tensor) -> float:
    with torch.no_grad():
        image = agent.policy.mean(agent.reflect["frames"](frames))
        return float((image - MIRROR.action(agent.policy.mean(frames))).abs().max())


def test_images_of_a_symmetric_policy_have_ratio_1(symmetric: Callable[..., PPO]) -> None:
    agent = symmetric(clip=1e-5, **ONE)
    metrics = agent.update(rollout(agent))
    assert metrics["ppo/clipped"] == 0
    crooked = make(MIRROR, clip=1e-5, **ONE)
    assert crooked.update(rollout(crooked))["ppo/clipped"] == 0.5, "the images differ, the rows themselves do not"


def test_a_symmetric_policy_stays_symmetric_only_with_images(symmetric: Callable[..., PPO]) -> None:
    agent, plain = symmetric(), symmetric()
    plain.mirror = None
    batch = rollout(agent)
    start = asymmetry(agent, batch["frames"])
    for one in (agent, plain):
        for k in range(3):
            one.update(rollout(one, seed=k))
    assert start < 1e-5 and asymmetry(agent, batch["frames"]) < 2e-3 < 0.02 < asymmetry(plain, batch["frames"])
    state = batch["state"]
    assert torch.allclose(agent.critic(agent.reflect["state"](state)), agent.critic(state), atol=1e-3)


def test_images_bring_an_asymmetric_policy_closer() -> None:
    torch.manual_seed(1)
    agent, plain = make(MIRROR, history=2), make(None, history=2)
    plain.load_state_dict(copy.deepcopy(agent.state_dict()))
    plain.reflect = agent.reflect
    for one in (agent, plain):
        for k in range(40):
            batch = rollout(one, seed=k)
            aim = batch["frames"][:, -4:].sum(1)[:, None].tanh() * 0.5
            batch["advantage"] = -(batch["action"] - aim).square().sum(-1)
            one.update(batch)
    frames = rollout(agent)["frames"]
    assert asymmetry(agent, frames) < 0.8 * asymmetry(plain, frames)


def test_a_mirror_of_another_size_is_refused() -> None:
    small = Mirror(Reflection([0], [1]), MIRROR.privileged, MIRROR.action)
    with pytest.raises(ConfigError, match="the mirror's observation has 1 numbers, not 4"):
        make(small)
