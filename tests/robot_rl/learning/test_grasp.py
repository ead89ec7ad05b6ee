"""The gripper critic: values that it learns, decisions that it overrides, and policies that cannot have one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

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
from tests.robot_rl.learning.conftest import Batch, check_resumes, rng

Build = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": (32,), "grasp": True}


def gaussian(**config: Any) -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(Size(2, 3), GaussianConfig(**SMALL | config))


def batch(rows: int = 64, seed: int = 0) -> Batch:
    """One-step episodes: reward 1 for an open gripper if the first number is positive, else for a closed gripper."""
    generator = rng(seed)
    state, action = torch.randn(rows, 2, generator=generator), 2 * torch.rand(rows, 3, generator=generator) - 1
    reward = ((action[:, -1] > 0) == (state[:, 0] > 0)).float()
    nothing = torch.zeros(rows)
    return {
        "observation.state": state, NEXT + "observation.state": state, "action": action, "reward": reward,
        "discount": nothing, "intervention": nothing.bool(),
    }  # fmt: skip


def observed(*firsts: float) -> Batch:
    return {"observation.state": torch.tensor([[x, 0.0] for x in firsts])}


def test_gripper_critic_changes_no_action_at_first_and_overrides_above_the_margin() -> None:
    policy, plain = gaussian(std=0.1), gaussian(std=0.1, grasp=False)
    plain.actor.load_state_dict({k: v for k, v in policy.actor.state_dict().items() if not k.startswith("values.")})
    assert policy.latent == plain.latent + 1
    for explore in (False, True):
        policy.explore = plain.explore = explore
        assert torch.equal(*(p.act(observed(0.5, -2.0), rng(3)) for p in (policy, plain)))
    seen = observed(0.3)
    mean = float(gaussian().act(seen, rng())[0, 0, -1])
    for closed, opened, action in ((0.0, 0.019, mean), (0.0, 0.021, 1.0), (0.5, 0.1, -1.0)):
        assert float(with_values(gaussian(), closed, opened).act(seen, rng())[0, 0, -1]) == action


def test_gripper_critic_learns_the_rewarded_state_and_the_arm_is_unaffected() -> None:
    agent = GraspingActorCritic(gaussian(), ActorCriticConfig(hidden=(32,), entropy=True, critic_lr=3e-3), 0, (0, 1))
    for k in range(400):
        metrics = agent.update(batch(seed=k))
    assert float(metrics["grasp/loss"]) < 0.05 < 0.5 < float(metrics["grasp/gap"])
    actions = agent.policy.act(observed(1.0, -1.0, 2.0, -0.5), rng())[:, 0]
    assert actions[:, -1].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert (actions[:, :-1].abs() < 1).all()
    agent.finish()  # the averaged actor has the values, too
    assert agent.policy.act(observed(1.0, -1.0), rng())[:, 0, -1].tolist() == [1.0, -1.0]
    check_resumes(agent, GraspingActorCritic(gaussian(), agent.config, value_limits=(0, 1)), [batch(seed=7)])


def test_gripper_values_bootstrap_from_the_next_step() -> None:
    """A step without reward precedes a step whose reward is 1 for an open gripper."""
    agent = GraspingActorCritic(gaussian(), ActorCriticConfig(hidden=(32,), critic_lr=3e-3, ema_decay=0.9), 0, (0, 1))
    last = batch()
    state = last["observation.state"].abs() + 0.2
    last |= {"observation.state": state, "reward": (last["action"][:, -1] > 0).float()}
    first = last | {"observation.state": -state, NEXT + "observation.state": state}
    first |= {"reward": torch.zeros(64), "discount": torch.full((64,), 0.5)}
    both = {name: torch.cat([first[name], last[name]]) for name in last}
    for _ in range(600):
        agent.update(both)
    assert agent.policy.actor.values is not None
    values = agent.policy.actor.values(agent.policy.actor_features(both)).detach()
    assert torch.allclose(values[:64], torch.full((64, 2), 0.5), atol=0.15)
    assert torch.allclose(values[64:], torch.tensor([0.0, 1.0]).expand(64, 2), atol=0.15)


def with_values(policy: Any, closed: float, opened: float) -> Any:
    """Set constant values of a closed and an open gripper."""
    with torch.no_grad():
        policy.actor.values[-1].bias.copy_(torch.tensor([closed, opened]))
    return policy


def test_residual_can_open_a_gripper_that_the_base_closes(diffusion: Build) -> None:
    base = diffusion(2, 3)
    policy = ResidualPolicy(base, ResidualConfig(0.5, GaussianConfig(hidden=(16,), zero_init=True, grasp=True)))
    seen = observed(0.3) | {BASE: torch.tensor([[0.2, 0.1, -1.0]])}
    u = policy.actor.mean(policy.actor_features(seen))
    assert torch.allclose(policy.transform(u, seen), seen[BASE]), "initially it equals the base"
    u = with_values(policy, 0.0, 0.4).actor.mean(policy.actor_features(seen))
    assert torch.allclose(policy.transform(u, seen), torch.tensor([[0.2, 0.1, 1.0]]))
    assert torch.allclose(policy.transform(policy.invert(seen[BASE] * 0.9, seen), seen)[:, :2], seen[BASE][:, :2] * 0.9)
    again = build_policy(policy.describe())
    again.load_state_dict(policy.state_dict())
    assert torch.equal(again.transform(u, seen), policy.transform(u, seen))


def test_gripper_critic_is_added_to_a_trained_policy_and_kept(diffusion: Build) -> None:
    plain, seen = gaussian(grasp=False), observed(0.4, -1.0)
    added = gaussian_from(plain, 0.2, grasp=True)
    assert added.config.grasp and torch.equal(added.act(seen, rng()), plain.act(seen, rng()))
    assert gaussian_from(with_values(added, 0.0, 0.5), 0.2).act(seen, rng())[:, 0, -1].tolist() == [1.0, 1.0]
    residual = residual_from(residual_from(diffusion(2, 3)), grasp=True)
    assert residual.config.actor.grasp and residual_from(with_values(residual, 0.0, 0.5)).config.actor.grasp


def test_policies_and_methods_without_gripper_critic_refuse_grasp() -> None:
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
