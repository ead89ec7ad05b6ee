"""RL-100: the gate, offline rounds on a bandit, and the limit of imitation and distillation."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Size
from policies.bundle import load_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.cli.main import main
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.dppo import DPPO, DPPOConfig, denoiser_from
from robot_rl.learning.algorithms.iql import IQLConfig
from robot_rl.rewards import SuccessReward
from robot_rl.training import gated
from robot_rl.training.gated import Gate, OfflineConfig, improve_offline

CONFIG = DiffusionConfig(horizon=2, execute=1, hidden=32, layers=2, train_steps=20, sample_steps=5)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(**config: Any) -> DPPO:
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"hidden": (16,), "target_kl": None, "denoising_steps": 5, "critic_only": 0}
    return DPPO(denoiser_from(DiffusionPolicy(Size(2, 1), CONFIG), 5), 0, DPPOConfig(**numbers | config))


def weights(agent: DPPO) -> dict[str, Tensor]:
    return copy.deepcopy(agent.policy.state_dict())


def learn(agent: DPPO, seed: int) -> None:
    state = torch.randn(32, 2, generator=rng(seed))
    chain = agent.chain.sample({"observation.state": state}, agent.policy.noise(32, rng(seed)), rng(seed))
    numbers = torch.randn(3, 32, generator=rng(seed))
    agent.update({"state": state, "chain": chain.flatten(1), "value": numbers[0], "advantage": numbers[1],
                  "target": numbers[2]})  # fmt: skip


@pytest.mark.parametrize("mixing", [None, 0.5])
def test_rejected_round_restores_policy_and_moments_but_not_values(mixing: float | None, same: Any) -> None:
    """The policy is as before the round, the value network as without a gate."""
    agent, free = make(mixing=mixing), make(mixing=mixing)
    gate = Gate(agent, 0.0)
    for each in (agent, free):
        learn(each, 0)
    assert gate.judge(0.3)
    accepted = copy.deepcopy(agent.state_dict())
    for each in (agent, free):
        learn(each, 1)
    assert not gate.judge(0.2)
    found, other = agent.state_dict(), free.state_dict()
    assert same(found["policy"], accepted["policy"]) and same(found["critic"], other["critic"])
    found, accepted, other = (state["optimizer"] for state in (found, accepted, other))
    assert found["param_groups"] == accepted["param_groups"]
    for group, wanted in zip(found["param_groups"], (accepted, other), strict=True):
        assert all(same(found["state"][k], wanted["state"][k]) for k in group["params"])


def bandit(count: int = 200) -> list[dict[str, Tensor]]:
    """Return episodes of one step with actions near -0.6 (failure) and 0.6 (success)."""
    side = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0)
    action = 0.6 * side + 0.05 * torch.randn(count, generator=rng())
    return [
        {"observation.state": torch.randn(1, 2, generator=rng(k)), "action": action[k].view(1, 1),
         "reward": (side[k] > 0).float().view(1), "intervention": torch.zeros(1, dtype=torch.bool),
         "terminated": torch.ones(1, dtype=torch.bool)}
        for k in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
def test_offline_rounds_improve_and_the_gate_rejects_errors(run: Any, monkeypatch: Any, backwards: bool) -> None:
    """With advantages of the wrong sign, every round is worse: only the gate keeps the clone."""
    agent, episodes = make(clip=0.1, clip_first=0.02, actor_lr=1e-3), bandit()
    cloning = Cloning(agent.policy, CloningConfig(lr=3e-3, warmup=10), 400)
    seen = {name: torch.cat([e[name] for e in episodes]) for name in ("observation.state", "action")}
    source = rng()
    for _ in range(400):
        pick = torch.randint(0, len(episodes), (128,), generator=source)
        cloning.update({"observation.state": seen["observation.state"][pick],
                        "action": seen["action"][pick][:, None].repeat(1, 2, 1)}, source)  # fmt: skip
    cloning.finish()
    if backwards:
        sample = gated.sample_chains
        monkeypatch.setattr(gated, "sample_chains", lambda *a: (b := sample(*a)) | {"advantage": -b["advantage"]})
    values = IQLConfig(hidden=(32,), critic_lr=3e-3, tau=0.05, n_step=1, actor_delay=10**9)
    config = OfflineConfig(values=values, value_updates=200, batch=64, rounds=8, rows=300)

    def better() -> float:
        at = {"observation.state": torch.randn(400, 2, generator=rng(9))}
        return float((agent.policy.base(at, agent.policy.noise(400, rng(9)))[:, 0] > 0).float().mean())

    before = better()
    assert 0.3 < before < 0.7
    improve_offline(agent, episodes, SuccessReward(), config, run(), 0)
    if not backwards:
        assert better() > before + 0.2
        return
    assert better() > before - 0.05
    improve_offline(agent, episodes, SuccessReward(), OfflineConfig(**vars(config) | {"gate": False}), run("open"), 0)
    assert better() < before - 0.2


def test_without_rl_it_equals_diffusion_bc_then_consistency(tmp_path: Path) -> None:
    data, base, one, run = (str(tmp_path / name) for name in ("data", "base", "one", "run"))
    assert main(["collect", "testbed:fork-right", "--episodes", "4", "--skill", "STEADY", "--out", data]) == 0
    train = ("train", "testbed:fork-right", "--dataset", data, "--recipe")
    assert main([*train, "diffusion-bc", "--policy.hidden", "16", "--training.updates", "20", "--out", base]) == 0
    assert main([*train, "consistency", "--base", base, "--training.updates", "20", "--out", one]) == 0
    few = ("rl-100", "--policy.hidden", "16",
           "--imitation.updates", "20", "--distillation.updates", "20", "--offline.rounds",
           "2", "--offline.value-updates", "5", "--offline.rows", "20", "--training.num-envs", "4",
           "--training.rollout", "10", "--agent.critic-only", "100", "--out", run)  # fmt: skip
    assert main([*train, *few, "--training.steps", "80"]) == 0
    assert main([*train, *few, "--training.steps", "120", "--resume"]) == 0
    ours, theirs = load_bundle(run).policy, load_bundle(one).policy
    assert isinstance(ours, DiffusionPolicy) and ours.config == theirs.config
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
