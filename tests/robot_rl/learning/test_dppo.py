"""PPO on denoising steps: limits, bookkeeping of chunks, and a bandit with two modes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import load_bundle
from policies.diffusion import Chain, DiffusionConfig, DiffusionPolicy
from robot_rl.cli.main import main
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.dppo import DPPO, DPPOConfig, denoiser_from
from robot_rl.learning.parts.critics import advantages
from robot_rl.learning.parts.mixed import MixedMoments
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import Batch, close, equal, rng

SIZE = Size(2, 1)
ONE: dict[str, Any] = {"epochs": 1, "minibatches": 1, "critic_only": 0}


def diffusion(**changes: Any) -> DiffusionPolicy:
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"horizon": 3, "execute": 2, "hidden": 32, "layers": 2, "train_steps": 20} | changes
    return DiffusionPolicy(SIZE, DiffusionConfig(**{"sample_steps": 5} | numbers))


def make(steps: int = 5, base: DiffusionPolicy | None = None, **config: Any) -> DPPO:
    numbers: dict[str, Any] = {"hidden": (16,), "target_kl": None, "denoising_steps": steps}
    return DPPO(denoiser_from(base or diffusion(), steps), 0, DPPOConfig(**numbers | config))


def rollout(agent: DPPO, rows: int = 64, seed: int = 0) -> Batch:
    """Return random states, the policy's chains, and random advantages."""
    source = rng(seed)
    state = torch.randn(rows, 2, generator=source)
    seen = {"observation.state": state}
    chain = agent.chain.sample(seen, agent.policy.noise(rows, source), source).flatten(1)
    numbers = torch.randn(3, rows, generator=source)
    return {"state": state, "chain": chain} | dict(zip(("value", "advantage", "target"), numbers, strict=True))


@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
def test_chain_without_noise_equals_the_policy(prediction: str) -> None:
    policy = diffusion(prediction=prediction)
    seen, noise = {"observation.state": torch.randn(6, 2)}, policy.noise(6, rng())
    chain = Chain(policy, 0.0, 0.0).sample(seen, noise, rng())
    assert torch.equal(chain[:, 0], noise) and torch.equal(chain[:, -1].clamp(-1, 1), policy.base(seen, noise))


def test_chain_with_full_noise_keeps_the_marginals_of_the_clean_chunk() -> None:
    """If the network predicts the clean chunk, the last mean equals it for any noise."""
    policy = diffusion()
    clean = torch.rand(500, 3, 1) - 0.5
    policy._predict = lambda *_: clean  # type: ignore[method-assign]
    seen = {"observation.state": torch.zeros(500, 2)}
    chain = Chain(policy, 1.0, 0.05).sample(seen, policy.noise(500, rng()), rng(1))
    assert (chain[:, -1] - clean).std() == pytest.approx(0.05, rel=0.1)
    signal = policy.scheduler.alphas_cumprod[7]  # after the third of five steps, at times 19, 15, 11, 7, 3
    assert (chain[:, 3] - signal.sqrt() * clean).std() == pytest.approx(float((1 - signal).sqrt()), rel=0.1)


@pytest.mark.parametrize("steps", [5, 2])
def test_ratios_are_1_before_the_first_step_and_only_the_denoiser_learns(steps: int) -> None:
    agent = make(steps, **ONE)
    agent.clip = torch.full((steps,), 1e-5)
    before = copy.deepcopy(agent.policy.state_dict())
    for seed in range(2):
        metrics = agent.update(rollout(agent, seed=seed))
        assert metrics["ppo/clipped"] == 0 and metrics["ppo/kl"] == pytest.approx(0, abs=1e-6)
    changed = {name.split(".")[0] for name, value in agent.policy.state_dict().items() if not value.equal(before[name])}
    assert changed == {"denoiser"}
    later = make(steps, **ONE | {"epochs": 3})
    later.clip = torch.full((steps,), 1e-5)
    assert later.update(rollout(later))["ppo/clipped"] > 0.3


def test_first_denoising_steps_remain_the_bases() -> None:
    base, agent = diffusion(), make(2, **ONE)
    seen, noise = {"observation.state": torch.randn(6, 2)}, base.noise(6, rng())
    assert torch.equal(agent.policy.base(seen, noise), base.base(seen, noise)), "before learning"
    third = Chain(base, 1.0, 0.1).sample(seen, noise, rng(3))[:, 3]
    for seed in range(3):
        agent.update(rollout(agent, seed=seed))
    assert torch.equal(agent.chain.sample(seen, noise, rng(3))[:, 0], third)
    assert not torch.equal(agent.policy.base(seen, noise), base.base(seen, noise))


def test_clip_grows_and_advantages_of_early_steps_are_discounted() -> None:
    agent = make(clip=0.01, clip_first=0.001, denoising_discount=0.5)
    assert agent.clip.tolist() == pytest.approx([0.001, 0.00153, 0.00264, 0.00495, 0.01], rel=0.03)
    assert agent.step_weight.tolist() == [0.0625, 0.125, 0.25, 0.5, 1.0]


def test_only_the_critic_learns_at_first() -> None:
    agent, again = make(**ONE | {"critic_only": 1}), make(**ONE | {"critic_only": 1})
    actor, critic = copy.deepcopy((agent.policy.denoiser, agent.critic.net))
    agent.update(rollout(agent))
    assert equal(agent.policy.denoiser, actor) and not equal(agent.critic.net, critic)
    again.load_state_dict(agent.state_dict())
    again.update(rollout(again))
    assert not equal(again.policy.denoiser, actor)


def test_advantages_of_chunks_equal_those_of_long_steps() -> None:
    """Chunks of 2 in one environment: as GAE on 3 decisions with the discount squared."""
    agent = make(discount=0.9, gae_lambda=0.8)
    reward, value = torch.randn(6, 1), torch.randn(7, 1)
    flags = torch.zeros(6, 1, dtype=torch.bool)
    begins = torch.tensor([1, 0, 1, 0, 1, 0], dtype=torch.bool)[:, None]
    weight = agent._weight({"begins": begins})
    ours = advantages(reward, value[:-1], value[1:], flags, flags, 0.9, weight)[0][begins[:, 0]]
    whole = advantages(reward[::2] + 0.9 * reward[1::2], value[:-1:2], value[2::2], flags[::2], flags[::2], 0.81, 0.8)
    torch.testing.assert_close(ours, whole[0])


def test_better_of_two_modes_is_learned() -> None:
    """Chunks are at +-0.6; those above 0 have the larger advantage."""
    base, source = diffusion(train_steps=20, hidden=64), rng(1)
    clone = Cloning(base, CloningConfig(lr=5e-3, warmup=20, ema_decay=0.98), 300)
    for _ in range(300):
        side = (torch.rand(128, generator=source) < 0.5).float() * 2 - 1
        chunk = (0.6 * side)[:, None, None].expand(-1, 3, 1)
        clone.update({"observation.state": torch.randn(128, 2, generator=source), "action": chunk}, source)
    clone.finish()
    agent = make(base=base, critic_only=0, epochs=4, minibatches=2, clip=0.05, actor_lr=1e-3)
    seen = torch.randn(400, 2)
    before = base.act({"observation.state": seen}, rng(5))[:, 0, 0]
    for seed in range(40):
        batch = rollout(agent, 256, seed)
        batch["advantage"] = batch["chain"].unflatten(1, (6, 3))[:, -1, :2].mean(1).sign()
        agent.update(batch)
    after = agent.policy.act({"observation.state": seen}, rng(5))[:, 0, 0]
    assert 0.3 < (before > 0.2).float().mean() < 0.7 and (after > 0.2).float().mean() > 0.9


@pytest.mark.parametrize("mixing", [1.0, 0.0])
def test_mixing_of_1_and_0_equals_adam_and_rmsprop(mixing: float) -> None:
    ours, theirs = (torch.nn.Linear(4, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    one: Any = MixedMoments(ours.parameters(), 1e-2, (0.9, 0.99), mixing)
    adam = torch.optim.Adam(theirs.parameters(), 1e-2, (0.9, 0.99))
    two: Any = adam if mixing else torch.optim.RMSprop(theirs.parameters(), 1e-2, 0.99)
    for seed in range(50):
        x = torch.randn(8, 4, generator=rng(seed))
        for net, optimizer in ((ours, one), (theirs, two)):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        close(ours, theirs)


def test_adpo_with_mixing_1_equals_dppo_with_its_betas() -> None:
    one, two = make(mixing=1.0, **ONE), make(**ONE)
    two.optimizer = torch.optim.Adam(two.optimizer.param_groups, betas=DPPO.BETAS)
    for group in two.optimizer.param_groups:
        group["betas"] = DPPO.BETAS
    for seed in range(3):
        batch = rollout(one, seed=seed)
        one.update(batch)
        two.update(batch)
    close(one.policy, two.policy)
    with pytest.raises(ValueError, match="mixing is 2"):
        MixedMoments([torch.zeros(1, requires_grad=True)], mixing=2.0)


def test_other_bases_are_refused() -> None:
    with pytest.raises(ConfigError, match="a gaussian policy is not a diffusion policy"):
        denoiser_from(GaussianPolicy(SIZE), 5)
    with pytest.raises(ConfigError, match="denoising_steps 6 is more than the base's sample_steps 5"):
        denoiser_from(diffusion(), 6)
    with pytest.raises(ConfigError, match="the base learned its last 2"):
        denoiser_from(denoiser_from(diffusion(), 2), 3)
    assert denoiser_from(denoiser_from(diffusion(), 2), 2).frozen is not None


def test_recipe_makes_a_bundle_and_resumes(tmp_path: Path) -> None:
    data, base, run = (str(tmp_path / name) for name in ("data", "base", "run"))
    assert main(["collect", "testbed:fork-right", "--episodes", "4", "--skill", "STEADY", "--out", data]) == 0
    train = ("train", "testbed:fork-right", "--recipe")
    assert main([*train, "diffusion-bc", "--policy.hidden", "16", "--training.updates", "20", "--dataset", data,
                 "--out", base]) == 0  # fmt: skip
    few = ("--training.num-envs", "4", "--training.rollout", "10", "--base", base, "--agent.denoising-steps", "5")
    assert main([*train, "adpo", *few, "--training.steps", "80", "--out", run]) == 0
    assert main([*train, "adpo", *few, "--training.steps", "120", "--out", run, "--resume"]) == 0
    policy = load_bundle(run).policy
    assert isinstance(policy, DiffusionPolicy) and policy.config.frozen_steps == 5 and policy.frozen is not None
    assert policy.act({"observation.state": torch.zeros(3, 2)}, rng()).shape == (3, 16, 2)
