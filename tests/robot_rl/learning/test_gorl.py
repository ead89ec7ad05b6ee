"""PPO on a flow's noise: limits, fits of the flow, and two modes that a Gaussian cannot represent."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Size
from policies.bundle import load_bundle
from policies.errors import BundleError
from policies.feedforward import DecodedConfig, DecodedPolicy, FeedforwardConfig, FeedforwardPolicy
from policies.flow import FlowConfig
from policies.onnx import exportable
from robot_rl.cli.main import main
from robot_rl.learning.algorithms.cloning import CloningConfig
from robot_rl.learning.algorithms.gorl import GoRL, GoRLConfig
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from tests.robot_rl.learning.conftest import Batch, equal, rng

SIZE = Size(2, 1)
FLOW = FlowConfig(horizon=1, execute=1, hidden=32, layers=2, sample_steps=10)
THOROUGH: dict[str, Any] = {"fit_updates": 600, "fit_batch": 256, "cloning": CloningConfig(lr=1e-2)}
FEW: dict[str, Any] = {"hidden": (16,), "fit_updates": 20, "fit_batch": 64}


def make(**config: Any) -> GoRL:
    torch.manual_seed(0)
    return GoRL(DecodedPolicy(SIZE, DecodedConfig(hidden=(16,), decoder=FLOW)), 0, GoRLConfig(**FEW | config))


def rollout(agent: PPO, rows: int = 64, seed: int = 0) -> Batch:
    """Return the agent's actions in random states, and random advantages."""
    source = rng(seed)
    observation = {"observation.state": torch.randn(rows, 2, generator=source)}
    numbers = torch.randn(3, rows, generator=source)
    return agent.act(observation, source)[1] | dict(zip(("value", "advantage", "target"), numbers, strict=True))


SIDE = torch.where(torch.arange(512) % 2 == 0, 1.0, -1.0)


def test_without_fits_gorl_equals_ppo() -> None:
    ours = make(fits=0, stage=1)
    torch.manual_seed(0)
    plain = FeedforwardPolicy(SIZE, FeedforwardConfig(hidden=(16,)))
    parent = PPO(plain, 0, PPOConfig(hidden=(16,)))
    parent.critic.load_state_dict(ours.critic.state_dict())
    for seed in range(3):
        one, two = rollout(ours, seed=seed), rollout(parent, seed=seed)
        assert all(torch.equal(one[name], two[name]) for name in two)
        ours.update(one)
        parent.update(two)
    learned = ours.policy.state_dict()
    assert all(torch.equal(learned[name], value) for name, value in plain.state_dict().items())
    seen = {"observation.state": torch.randn(5, 2)}
    assert torch.equal(ours.policy.act(seen, rng()), plain.act(seen, rng()))


def test_fit_resets_the_actor_to_the_flow_and_keeps_the_critic() -> None:
    agent = make(stage=2, fits=1)
    agent.update(rollout(agent))
    assert agent.policy.fits == 0
    flow = copy.deepcopy(agent.policy.decoder)
    agent.update(rollout(agent, seed=1))
    policy, optimizer = agent.policy, agent.optimizer.state_dict()
    assert set(optimizer["state"]) == set(optimizer["param_groups"][1]["params"]), "the critic's moments are kept"
    assert policy.fits == 1 and not equal(policy.decoder, flow)
    seen, policy.explore = {"observation.state": torch.randn(6, 2)}, True
    assert torch.equal(policy.act(seen, rng()), policy.decoder.base(seen, policy.decoder.noise(6, rng())))
    flow = copy.deepcopy(policy.decoder)
    for seed in range(4):
        agent.update(rollout(agent, seed=seed))
    assert policy.fits == 1 and equal(policy.decoder, flow), "one fit, and PPO leaves the flow unchanged"
    assert policy.log_std.any() and list(policy.actor.parameters())[-2].any(), "PPO continues to learn"


def test_ppo_learns_the_noise_not_the_executed_action() -> None:
    """After a fit, ratios are 1 before the first step, and `action` is the noise."""
    agent = make(stage=1, fits=1, clip=1e-6, epochs=1, minibatches=1)
    agent.update(rollout(agent))
    batch = rollout(agent, seed=1)
    assert batch["action"].std() == pytest.approx(1, abs=0.3) and not torch.equal(batch["action"], batch["executed"])
    assert batch["executed"].abs().max() <= 1
    assert agent.update(batch)["ppo/clipped"] == 0


def test_fit_keeps_two_modes_and_a_fit_to_the_best_half_one() -> None:
    """Executed actions are near -0.6 and 0.6; the latter have the larger advantages."""
    share = {}
    for best in (1.0, 0.5):
        agent = make(stage=1, fits=1, best=best, epochs=1, **THOROUGH)
        executed = (0.6 * SIDE + 0.05 * torch.randn(512, generator=rng()))[:, None]
        agent.update(rollout(agent, 512) | {"executed": executed, "advantage": SIDE})
        agent.policy.explore = True
        acted = agent.policy.act({"observation.state": torch.randn(400, 2)}, rng())
        assert ((acted.abs() - 0.6).abs() < 0.25).float().mean() > 0.8
        share[best] = float((acted > 0).float().mean())
    assert 0.35 < share[1.0] < 0.65 and share[0.5] > 0.97


def test_flows_of_chunks_and_onnx_export_are_refused() -> None:
    with pytest.raises(ValueError, match="decoder.horizon is 2"):
        DecodedConfig(decoder=FlowConfig(horizon=2, execute=1))
    with pytest.raises(BundleError, match="no ONNX form"):
        exportable(DecodedPolicy(SIZE))


def test_recipe_starts_from_a_flow_and_resumes(tmp_path: Path) -> None:
    data, base, run, whole = (str(tmp_path / name) for name in ("data", "base", "run", "whole"))
    assert main(["collect", "testbed:fork-right", "--episodes", "4", "--skill", "STEADY", "--out", data]) == 0
    train = ("train", "testbed:fork-right", "--recipe")
    assert main([*train, "flow-bc", "--policy.hidden", "16", "--policy.horizon", "1", "--policy.execute", "1",
                 "--training.updates", "20", "--dataset", data, "--out", base]) == 0  # fmt: skip
    few = ("gorl", "--training.num-envs", "4", "--training.rollout", "10", "--base", base, "--agent.stage", "2",
           "--agent.fit-updates", "5", "--agent.fits", "2")  # fmt: skip
    assert main([*train, *few, "--training.steps", "120", "--out", run]) == 0
    assert main([*train, *few, "--training.steps", "240", "--out", run, "--resume"]) == 0
    assert main([*train, *few, "--training.steps", "240", "--out", whole]) == 0
    policy, same = load_bundle(run).policy, load_bundle(whole).policy
    assert isinstance(policy, DecodedPolicy) and policy.fits == 3 and policy.decoder.config.hidden == 16
    assert all(torch.equal(v, same.state_dict()[k]) for k, v in policy.state_dict().items())
    assert policy.act({"observation.state": torch.zeros(3, 2)}, rng()).shape == (3, 1, 2)
