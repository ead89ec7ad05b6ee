"""Values of the gripper: what they learn, when they decide, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy, gaussian_from
from policies.base import Size, build_policy
from policies.best_of import BestOfConfig, BestOfPolicy
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.gaussian import GaussianConfig
from policies.residual import BASE, ResidualConfig, ResidualPolicy, residual_from
from policies.steered import SteeredConfig, SteeredPolicy
from robot_rl.data.replay import NEXT
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.iql import IQL, IQLConfig
from robot_rl.learning.parts.grasp import GraspingActorCritic, check_gripper
from robot_rl.util.errors import ConfigError

Build = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": (32,), "grasp": True}


def gaussian(**config: Any) -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(Size(2, 3), GaussianConfig(**SMALL | config))


def batch(rows: int = 64, seed: int = 0) -> dict[str, Tensor]:
    """Where the first number is positive, an open gripper is paid 1; elsewhere a shut one. Episodes last a step."""
    rng = torch.Generator().manual_seed(seed)
    state, action = torch.randn(rows, 2, generator=rng), 2 * torch.rand(rows, 3, generator=rng) - 1
    reward = ((action[:, -1] > 0) == (state[:, 0] > 0)).float()
    nothing = torch.zeros(rows)
    return {
        "observation.state": state, NEXT + "observation.state": state, "action": action, "reward": reward,
        "discount": nothing, "intervention": nothing.bool(),
    }  # fmt: skip


def observed(*firsts: float) -> dict[str, Tensor]:
    return {"observation.state": torch.tensor([[x, 0.0] for x in firsts])}


def test_at_the_start_it_acts_as_without() -> None:
    policy, plain = gaussian(std=0.1), gaussian(std=0.1, grasp=False)
    plain.actor.load_state_dict({k: v for k, v in policy.actor.state_dict().items() if not k.startswith("values.")})
    seen, rng = observed(0.5, -2.0), torch.Generator()
    assert policy.latent == plain.latent + 1
    assert torch.equal(policy.act(seen, rng), plain.act(seen, rng))
    policy.explore = plain.explore = True
    one, other = (p.act(seen, torch.Generator().manual_seed(3)) for p in (policy, plain))
    assert torch.equal(one, other)


def test_the_gripper_learns_what_pays_and_the_arm_goes_its_own_way() -> None:
    agent = GraspingActorCritic(gaussian(), ActorCriticConfig(hidden=(32,), entropy=True, critic_lr=3e-3), 0, (0, 1))
    for k in range(400):
        metrics = agent.update(batch(seed=k))
    assert float(metrics["grasp/loss"]) < 0.05 < 0.5 < float(metrics["grasp/gap"])
    actions = agent.policy.act(observed(1.0, -1.0, 2.0, -0.5), torch.Generator())[:, 0]
    assert actions[:, -1].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert (actions[:, :-1].abs() < 1).all()
    agent.finish()  # the averaged actor has them as well
    assert agent.policy.act(observed(1.0, -1.0), torch.Generator())[:, 0, -1].tolist() == [1.0, -1.0]
    twin = GraspingActorCritic(gaussian(), agent.config, value_limits=(0, 1))
    twin.load_state_dict(agent.state_dict())
    again, here = (a.update(batch(seed=7)) for a in (twin, agent))
    assert all(torch.equal(again[name], here[name]) for name in here), "a checkpoint holds the gripper's optimizer"


def test_values_of_later_steps_count() -> None:
    """A step without reward leads to one where an open gripper pays; its value is the discounted one of the best."""
    agent = GraspingActorCritic(gaussian(), ActorCriticConfig(hidden=(32,), critic_lr=3e-3, ema_decay=0.9), 0, (0, 1))
    last = batch()
    last |= {"observation.state": last["observation.state"].abs() + 0.2}
    last |= {"reward": (last["action"][:, -1] > 0).float()}
    first = last | {
        "observation.state": -last["observation.state"],
        NEXT + "observation.state": last["observation.state"],
    }
    first |= {"reward": torch.zeros(64), "discount": torch.full((64,), 0.5)}
    both = {name: torch.cat([first[name], last[name]]) for name in last}
    for _ in range(600):
        agent.update(both)
    assert agent.policy.actor.values is not None
    values = agent.policy.actor.values(agent.policy.actor_features(both)).detach()
    assert torch.allclose(values[:64], torch.full((64, 2), 0.5), atol=0.15)
    assert torch.allclose(values[64:], torch.tensor([0.0, 1.0]).expand(64, 2), atol=0.15)


def decided(policy: Any, shut: float, opened: float) -> Any:
    """Let an open and a shut gripper be worth this everywhere."""
    with torch.no_grad():
        policy.actor.values[-1].bias.copy_(torch.tensor([shut, opened]))
    return policy


def test_only_what_is_worth_the_margin_is_done_otherwise() -> None:
    seen, rng = observed(0.3), torch.Generator()
    said = gaussian().act(seen, rng)[0, 0, -1]
    assert decided(gaussian(), 0.0, 0.019).act(seen, rng)[0, 0, -1] == said
    assert decided(gaussian(), 0.0, 0.021).act(seen, rng)[0, 0, -1] == 1.0
    assert decided(gaussian(), 0.5, 0.1).act(seen, rng)[0, 0, -1] == -1.0


def test_a_correction_of_a_base_can_open_what_the_base_shuts(diffusion: Build) -> None:
    base = diffusion(2, 3)
    policy = ResidualPolicy(base, ResidualConfig(0.5, GaussianConfig(hidden=(16,), zero_init=True, grasp=True)))
    seen = observed(0.3) | {BASE: torch.tensor([[0.2, 0.1, -1.0]])}
    u = policy.actor.mean(policy.actor_features(seen))
    assert torch.allclose(policy.transform(u, seen), seen[BASE]), "it begins as the base"
    u = decided(policy, 0.0, 0.4).actor.mean(policy.actor_features(seen))
    assert torch.allclose(policy.transform(u, seen), torch.tensor([[0.2, 0.1, 1.0]]))
    assert torch.allclose(policy.transform(policy.invert(seen[BASE] * 0.9, seen), seen)[:, :2], seen[BASE][:, :2] * 0.9)
    again = build_policy(policy.describe())
    again.load_state_dict(policy.state_dict())
    assert torch.equal(again.transform(u, seen), policy.transform(u, seen))


def test_it_is_added_to_a_policy_that_was_learned_without(diffusion: Build) -> None:
    plain = gaussian(grasp=False)
    made = gaussian_from(plain, 0.2, grasp=True)
    seen, rng = observed(0.4, -1.0), torch.Generator()
    assert made.config.grasp and torch.equal(made.act(seen, rng), plain.act(seen, rng))
    assert gaussian_from(decided(made, 0.0, 0.5), 0.2).act(seen, rng)[:, 0, -1].tolist() == [1.0, 1.0], "it is kept"
    residual = residual_from(residual_from(diffusion(2, 3)), grasp=True)
    assert residual.config.actor.grasp and residual_from(decided(residual, 0.0, 0.5)).config.actor.grasp


def test_what_cannot_grasp_says_so() -> None:
    flow = FlowPolicy(Size(2, 3), FlowConfig(horizon=4, execute=2, hidden=16, layers=1))
    grasping = GaussianConfig(**SMALL)
    refused: list[Callable[[], Any]] = [
        lambda: SteeredPolicy(flow, SteeredConfig(actor=grasping)),
        lambda: BestOfPolicy(Size(2, 3), replace(BestOfConfig(), actor=grasping, scale=0.3)),
        lambda: IQL(gaussian(), IQLConfig()),
        lambda: Cloning(gaussian(), CloningConfig(), 10),
        lambda: check_gripper(gaussian(), ["tool.x", "tool.y", "tool.z"]),
    ]
    for make in refused:
        with pytest.raises(ConfigError, match="grasp"):
            make()
    check_gripper(gaussian(), ["tool.x", "tool.y", "gripper.width"])
    check_gripper(gaussian(grasp=False), ["tool.x"])
    with pytest.raises(ValueError, match="horizon 2 must be 1"):
        GaussianConfig(grasp=True, horizon=2)
