"""The PPO update: ratios of 1 before the first step, clips, learning rates, reward terms, symmetry."""

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
from tests.robot_rl.learning.conftest import Batch, equal, rng

ONE = {"epochs": 1, "minibatches": 1}


def make(mirror: Mirror | None = None, history: int = 1, privileged: int = 2, **config: Any) -> PPO:
    """Return a small agent with 4 observed numbers, 2 privileged numbers and 2 actions."""
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(16, 16), history=history))
    torch.nn.init.normal_(policy.actor[-1].weight, std=0.3)
    return PPO(policy, privileged, PPOConfig(**({"hidden": (16, 16)} | config)), mirror=mirror)


def rollout(agent: PPO, rows: int = 256, seed: int = 0) -> Batch:
    """Return random states, the policy's actions, and random advantages."""
    generator = rng(seed)
    size, history = agent.policy.size, agent.policy.config.history
    with torch.no_grad():
        frames = torch.randn(rows, history * size.observation, generator=generator)
        state = torch.randn(rows, size.observation + agent.privileged, generator=generator)
        mean = agent.policy.mean(frames)
        action = agent.policy.sample(mean, generator)
        batch = {"frames": frames, "state": state, "mean": mean, "action": action, "value": agent.critic(state)}
    return batch | dict(zip(("advantage", "target"), torch.randn(2, rows, generator=generator), strict=True))


def weights(agent: PPO) -> Tensor:
    return torch.cat([p.detach().flatten() for p in (*agent.actor_parameters, *agent.critic.parameters())])


@pytest.mark.parametrize("history", [1, 3])
def test_ratio_is_1_and_divergence_0_before_the_first_step(history: int) -> None:
    agent = make(history=history, clip=1e-6, **ONE)
    for k in range(3):  # also after the normalizers have changed
        metrics = agent.update(rollout(agent, seed=k))
        assert metrics["ppo/clipped"] == 0, "a ratio is not 1 within 1e-6"
        assert metrics["ppo/kl"] == pytest.approx(0, abs=1e-9)
        assert agent.policy.normalizer.count == 256 * (k + 1) == agent.critic.normalizer.count
    later = make(history=history, clip=1e-6, epochs=2)
    assert later.update(rollout(later))["ppo/clipped"] > 0.5


def test_actions_move_towards_larger_advantages() -> None:
    agent = make(target_kl=None)
    batch = rollout(agent, rows=2000)
    batch["advantage"] = batch["action"][:, 0] - batch["mean"][:, 0]
    before = copy.deepcopy(agent.policy)
    agent.update(batch)
    before.normalizer = agent.policy.normalizer
    moved = (agent.policy.mean(batch["frames"]) - before.mean(batch["frames"])).detach().mean(0)
    assert moved[0] > 0.05 and moved[0] > 3 * moved[1].abs()


def test_advantages_are_standardized() -> None:
    one, two = make(), make()
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    batch = rollout(one)
    one.update(batch)
    two.update(batch | {"advantage": 1000 * batch["advantage"] + 70})
    assert torch.allclose(weights(one), weights(two), atol=1e-4)


def test_ratio_beyond_the_clip_has_no_gradient_for_positive_advantages() -> None:
    agent = make(entropy_coef=0.0, **ONE)
    batch = rollout(agent)
    batch["mean"] = batch["action"] + 1.5  # unlikely actions under the old policy: ratios far above 1
    data = agent._prepare(batch)
    loss, metrics = agent._loss(data | {"advantage": torch.ones(256, 1)}, agent.policy.log_std.detach())
    loss.backward()
    assert metrics["ppo/clipped"] == 1 and metrics["ppo/surrogate"] == pytest.approx(1.2)
    assert all(p.grad is None or not p.grad.any() for p in agent.actor_parameters)
    loss, _ = agent._loss(data | {"advantage": -torch.ones(256, 1)}, agent.policy.log_std.detach())
    loss.backward()
    assert any(p.grad.any() for p in agent.actor_parameters), "negative advantages have a gradient at any ratio"


def test_critic_learns_and_a_clipped_critic_learns_less() -> None:
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
def test_learning_rate_follows_the_divergence(kl: float, up: bool) -> None:
    agent = make(target_kl=kl)
    metrics = agent.update(rollout(agent))
    rate = agent.optimizer.param_groups[0]["lr"]
    assert rate == (PPO.LR_RANGE[1] if up else PPO.LR_RANGE[0]) == metrics["ppo/lr"]
    assert agent.optimizer.param_groups[1]["lr"] == 1e-3, "the critic's rate is constant"
    again = make(target_kl=kl)
    again.load_state_dict(agent.state_dict())
    assert again.optimizer.param_groups[0]["lr"] == rate, "a resumed run continues with its rate"
    for other in (make(target_kl=kl, **ONE), make(target_kl=None)):
        other.update(rollout(other))
        assert other.optimizer.param_groups[0]["lr"] == 1e-3, "unchanged before the first step, or without a target"


@pytest.mark.parametrize(("start", "away", "back", "factor"), [(1e-6, 1.0, 0.0, 1.5), (0.1, 0.0, 1.0, 1 / 1.5)])
def test_initial_rate_extends_the_range_of_rates(start: float, away: float, back: float, factor: float) -> None:
    agent = make(actor_lr=start)
    for kl, rate in ((away, start), (back, start * factor)):
        agent._adapt(kl, target=0.01)
        assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize("seed", [0, 3, 2**64 - 1])
def test_minibatches_and_exploration_use_different_random_numbers(seed: int) -> None:
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(16,)))
    own = PPO(policy, 2, PPOConfig(hidden=(16,)), seed).rng
    assert not torch.equal(torch.rand(8, generator=own), torch.rand(8, generator=rng(seed)))


def test_entropy_weight_moves_the_std_to_its_limits() -> None:
    for weight, bound in ((1e6, FeedforwardPolicy.MAX_LOG_STD), (-1e6, FeedforwardPolicy.MIN_LOG_STD)):
        agent = make(entropy_coef=weight, actor_lr=10.0, target_kl=None)
        agent.update(rollout(agent))
        assert agent.policy.log_std.tolist() == [bound, bound]


@pytest.mark.parametrize("name", ["frames", "state", "action", "advantage", "target"])
def test_nan_is_named_and_neither_it_nor_an_overflow_reaches_a_weight(name: str) -> None:
    agent = make()
    batch = rollout(agent)
    batch[name].view(-1)[7] = torch.nan
    before = copy.deepcopy(agent.policy)
    with pytest.raises(FloatingPointError, match=name):
        agent.update(batch)
    assert equal(agent.policy, before)
    agent = make(**ONE)
    batch, before = rollout(agent), weights(agent)
    batch["target"][3] = 1e30  # its square overflows
    with pytest.raises(FloatingPointError, match="became NaN or infinite"):
        agent.update(batch)
    assert torch.equal(before, weights(agent))


def test_only_the_critic_reads_privileged_state() -> None:
    agent = make()
    observation = {"observation.state": torch.randn(5, 4), "observation.environment_state": torch.randn(5, 2)}
    other = observation | {"observation.environment_state": torch.randn(5, 2)}
    assert torch.equal(agent.policy.act(observation, rng()), agent.policy.act(other, rng()))
    assert not torch.equal(agent.critic(agent.state(observation)), agent.critic(agent.state(other)))
    assert torch.equal(make(privileged=0).state(observation), observation["observation.state"])


def with_terms(scale: float = 1.0, rows: int = 512) -> tuple[PPO, Batch]:
    """Return an agent with two reward terms, the second in units of `scale`, and a rollout."""
    torch.manual_seed(0)
    agent = PPO(make().policy, 2, PPOConfig(hidden=(16, 16), **ONE), terms=2)
    batch, generator = rollout(agent, rows), rng(1)
    unit = torch.tensor([1.0, scale])
    return agent, batch | {n: unit * torch.randn(rows, 2, generator=generator) for n in ("advantage", "target")}


def test_terms_count_independently_of_their_units() -> None:
    steps = []
    for scale in (1.0, 100.0):
        agent, batch = with_terms(scale)
        before = weights(agent)
        agent.update(batch)
        actor = sum(p.numel() for p in agent.actor_parameters)
        steps.append((weights(agent) - before)[:actor])
    assert torch.cosine_similarity(*steps, dim=0) > 0.99
    first, summed = batch["advantage"][:, 0], make(**ONE)._scaled(batch["advantage"].sum(1))
    assert torch.corrcoef(torch.stack([summed, first]))[0, 1] < 0.1, "the sum hides the first term"
    assert torch.corrcoef(torch.stack([agent._scaled(batch["advantage"]), first]))[0, 1] > 0.6


def test_one_term_equals_ppo_and_terms_are_assessed_separately() -> None:
    one, other = make(), PPO(make().policy, 2, PPOConfig(hidden=(16, 16)), terms=1)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    batch = rollout(one)
    batch["target"] *= 30
    one.update(batch)
    other.update(batch | {name: batch[name][:, None] for name in ("value", "advantage", "target")})
    torch.testing.assert_close(weights(one), weights(other))
    agent, generator = with_terms()[0], rng(2)
    done = torch.rand(5, 3, generator=generator) < 0.3
    widths = {"frames": 4, "state": 6, "action": 2, "mean": 2, "reward": 2}
    steps = {name: torch.randn(5, 3, width, generator=generator) for name, width in widths.items()}
    steps |= {"terminated": done & False, "done": done}
    last = {"observation.state": torch.randn(3, 4), "observation.environment_state": torch.randn(3, 2)}
    ends = [torch.randn(int(done.sum()), 6)] if done.any() else []
    both = agent.assess(steps, last, ends)
    assert both["advantage"].shape == both["target"].shape == (15, 2)
    scaled = agent.assess(steps | {"reward": steps["reward"] * torch.tensor([1.0, 3.0])}, last, ends)
    assert torch.equal(scaled["advantage"][:, 0], both["advantage"][:, 0])
    assert not torch.equal(scaled["advantage"][:, 1], both["advantage"][:, 1])


def test_wrong_shapes_and_settings_are_refused() -> None:
    agent = make()
    with pytest.raises(ConfigError, match="3 weights are given, and the reward has 2 terms"):
        PPO(agent.policy, 2, PPOConfig(hidden=(16, 16), weights=(1.0, 1.0, 1.0)), terms=2)
    with pytest.raises(ConfigError, match="the mirror's observation has 1 numbers, not 4"):
        make(Mirror(Reflection([0], [1]), MIRROR.privileged, MIRROR.action))
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
    """Build an agent whose networks commute with `MIRROR`: each layer is the mean of itself and its mirror image."""

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


def test_mirror_images_of_a_symmetric_policy_have_ratio_1(symmetric: Callable[..., PPO]) -> None:
    for agent, clipped in ((symmetric(clip=1e-5, **ONE), 0), (make(MIRROR, clip=1e-5, **ONE), 0.5)):
        assert agent.update(rollout(agent))["ppo/clipped"] == clipped, "without symmetry the images' ratios differ"


def test_symmetric_policy_stays_symmetric_only_with_mirror_images(symmetric: Callable[..., PPO]) -> None:
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


def test_mirror_images_reduce_asymmetry() -> None:
    torch.manual_seed(1)
    agent, plain = make(MIRROR, history=2), make(None, history=2)
    plain.load_state_dict(copy.deepcopy(agent.state_dict()))
    plain.reflect = agent.reflect
    for one in (agent, plain):
        for k in range(20):
            batch = rollout(one, seed=k)
            best = batch["frames"][:, -4:].sum(1)[:, None].tanh() * 0.5
            batch["advantage"] = -(batch["action"] - best).square().sum(-1)
            one.update(batch)
    frames = rollout(agent)["frames"]
    assert asymmetry(agent, frames) < 0.8 * asymmetry(plain, frames)


# ---- a bound on the divergence ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("bound", "rate"), [(0.05, 1e-3), (0.01, 1e-2), (1e-5, 1e-2)])
def test_divergence_is_bounded_in_every_state(bound: float, rate: float) -> None:
    """Also where a few steps do not suffice, and without a change where nothing exceeds the bound."""
    agent, free = make(max_kl=bound, actor_lr=rate, target_kl=None), make(actor_lr=rate, target_kl=None)
    free.load_state_dict(agent.state_dict())
    for k in range(3):
        batch = rollout(agent, seed=k)
        data, old = agent._prepare(batch), agent.policy.log_std.detach().clone()
        metrics = agent.update(batch)
        with torch.no_grad():
            found = agent._divergences(data, old)
        largest = float(found.max())
        assert 0 < largest <= bound * 1.001 and metrics["ppo/max_kl"] == pytest.approx(largest, abs=1e-7)
    loose = make(max_kl=1e6, actor_lr=rate, target_kl=None)
    loose.load_state_dict(free.state_dict())
    batch = rollout(free)
    free.update(batch)
    assert loose.update(batch)["ppo/fix_steps"] == 0 and torch.equal(weights(loose), weights(free))


def test_a_policy_without_a_divergence_per_state_is_refused() -> None:
    class Other(PPO):
        def _compare(self, part: Batch, old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            raise NotImplementedError

    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(8,)))
    with pytest.raises(ConfigError, match="max-kl"):
        Other(policy, 0, PPOConfig(max_kl=0.1))
