"""PPO on segments of movements: likelihoods against samples, trust region, bookkeeping, and a task with two parts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Size
from policies.bundle import load_bundle
from policies.movement import MovementConfig, MovementPolicy
from robot_rl.cli.main import main
from robot_rl.learning.algorithms.tce import TCE, TCEConfig
from robot_rl.learning.parts.projection import (
    covariance_divergence,
    mean_divergence,
    project_covariance,
    project_mean,
)
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import Batch, check_resumes, rng

HORIZON, ACTIONS = 12, 2


def make(bent: float = 0.0, **config: Any) -> TCE:
    """Return a learner whose covariance is the further from diagonal the larger `bent`."""
    torch.manual_seed(0)
    policy = MovementPolicy(Size(3, ACTIONS), MovementConfig(horizon=HORIZON, basis=3, hidden=(16,)))
    with torch.no_grad():
        policy.scale += bent * torch.randn(policy.weights, policy.weights, generator=rng(9))
        policy.actor[-1].weight.mul_(50)
    numbers: dict[str, Any] = {"hidden": (16,), "target_kl": None, "critic_only": 0, "segments": 4}
    return TCE(policy, 0, TCEConfig(**numbers | config))


def rollout(agent: TCE, episodes: int = 32, seed: int = 0) -> Batch:
    """Return the rows of an update, one per segment of `episodes` movements, with random advantages."""
    source, count = rng(seed), len(agent.maps)
    frames = torch.randn(episodes, 3, generator=source)
    with torch.no_grad():
        weights = agent.policy.sample(agent.policy.mean(frames), source)
    rows = {name: x.repeat_interleave(count, 0) for name, x in (("frames", frames), ("weights", weights))}
    segment = torch.arange(count).repeat(episodes)[:, None]
    numbers = torch.randn(3, episodes * count, generator=source)
    rows |= {"state": torch.randn(episodes * count, 3, generator=source), "segment": segment}
    return rows | dict(zip(("value", "advantage", "target"), numbers, strict=True))


# ---- likelihood -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("segment", [0, 2])
def test_pair_marginals_equal_those_of_samples(segment: int) -> None:
    """Mean and covariance of the positions at both ends of a segment, of 10,000 executed movements."""
    agent = make(0.03)
    policy, state = agent.policy, torch.tensor([[0.5, -1.0, 2.0]])
    with torch.no_grad():
        policy.scale -= 1.8 * torch.eye(policy.weights)
        mean = policy.mean(state)
        weights = policy.sample(mean.expand(10_000, -1), rng())
        actions = policy.movement(weights)
        assert float(actions.abs().max()) < 1, "an action at its limit leaves the trajectory"
        moved = torch.cat([torch.zeros(10_000, 1, ACTIONS), actions.cumsum(1)], 1) / HORIZON
        pair = moved[:, [3 * segment, 3 * segment + 3]].flatten(1)
        ours = agent.maps[segment]
        spread = ours @ policy.factor
    assert torch.allclose(pair.mean(0), (ours @ mean[0]), atol=4 * float(pair.std(0).max()) / 100)
    covariance = spread @ spread.T
    assert torch.allclose(pair.T.cov(), covariance, atol=0.05 * float(covariance.abs().max()))
    assert float(covariance[3].abs().max()) > 1e-5 and float(mean.abs().max()) > 0.05


def test_log_likelihoods_are_those_of_the_gaussian_of_the_pair() -> None:
    agent = make(0.3, noise=0.01)
    batch, shift = rollout(agent), 0.1
    part = {"weights": batch["weights"], "segment": batch["segment"][:, 0]}
    with torch.no_grad():
        mean = agent.policy.mean(batch["frames"]) + shift
        found = agent._log_prob(part, mean, agent.policy.factor)[:, 0]
        for row in (0, 5, 14, 127):
            m = agent.maps[part["segment"][row]]
            sigma = m @ agent.policy.factor @ agent.policy.factor.T @ m.T + 1e-4 * torch.eye(4)
            exact = torch.distributions.MultivariateNormal(m @ mean[row], sigma).log_prob(m @ part["weights"][row])
            assert float(found[row] - exact) == pytest.approx(2 * float(torch.tensor(2 * torch.pi).log()), abs=2e-2)


def test_one_segment_is_the_density_of_the_weights() -> None:
    agent = make(0.3, segments=1, noise=1e-4)
    batch = rollout(agent)
    part = {"weights": batch["weights"], "segment": batch["segment"][:, 0]}
    with torch.no_grad():
        mean = agent.policy.mean(batch["frames"]) + 0.1
        exact = torch.distributions.MultivariateNormal(mean, scale_tril=agent.policy.factor).log_prob(part["weights"])
        found = agent._log_prob(part, mean, agent.policy.factor)[:, 0]
    constant = 0.5 * agent.policy.weights * float(torch.tensor(2 * torch.pi).log())
    assert torch.allclose(found - exact, torch.full((32,), constant), atol=1e-3)


# ---- trust region ---------------------------------------------------------------------------------------------------
def gaussian(seed: int, size: int = 7) -> torch.Tensor:
    a = torch.randn(size, size, generator=rng(seed))
    return torch.linalg.cholesky(a @ a.T / size + 0.1 * torch.eye(size))


def test_divergences_add_up_to_that_of_the_gaussians() -> None:
    new, old = gaussian(0), gaussian(1)
    means, olds = torch.randn(5, 7, generator=rng(2)), torch.randn(5, 7, generator=rng(3))
    of = torch.distributions.MultivariateNormal
    exact = torch.distributions.kl_divergence(of(means, scale_tril=new), of(olds, scale_tril=old))
    ours = mean_divergence(means, olds, old) + covariance_divergence(new, old)
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bound", [1e-3, 0.1])
def test_projections_are_at_their_bounds_and_leave_what_is_within(bound: float) -> None:
    old = gaussian(1)
    olds = torch.randn(50, 7, generator=rng(2))
    means = olds + torch.logspace(-3, 1, 50)[:, None] * torch.randn(50, 7, generator=rng(3))
    before, after = (mean_divergence(m, olds, old) for m in (means, project_mean(means, olds, old, bound)))
    torch.testing.assert_close(after, before.clamp_max(bound), rtol=1e-3, atol=1e-6)
    assert bool((before < bound).any()) and bool((before > bound).any())
    for seed in range(2, 12):
        new = gaussian(seed)
        found = project_covariance(new, old, bound)
        assert float(covariance_divergence(found, old)) == pytest.approx(bound, rel=2e-2)
        assert covariance_divergence(new, old) > bound
        assert torch.equal(project_covariance(found, old, 1.1 * bound), found)


def test_the_projected_covariance_is_the_nearest_within_the_bound() -> None:
    """Of the Gaussians within the bound, the one of least divergence from the new one."""
    bound, old, new = 0.05, gaussian(1, 3), gaussian(2, 3)
    best = float(covariance_divergence(project_covariance(new, old, bound), new))
    source = rng(4)
    for _ in range(300):
        other = old + 0.3 * torch.randn(3, 3, generator=source).tril()
        if bool((other.diagonal() > 0).all()):
            assert float(covariance_divergence(project_covariance(other, old, bound), new)) >= best - 1e-4


def test_projected_means_have_finite_gradients_also_at_the_old_means() -> None:
    old, olds = gaussian(1), torch.randn(4, 7, generator=rng(2))
    means = (olds + torch.tensor([0.0, 1e-4, 1.0, 10.0])[:, None]).requires_grad_()
    project_mean(means, olds, old, 0.05).sum().backward()
    assert bool(means.grad.isfinite().all()) and bool((means.grad[:2] == 1).all())  # type: ignore[union-attr,index]


def test_an_update_keeps_the_covariance_in_its_bound_and_the_means_near_theirs() -> None:
    bounds = {"mean_bound": 0.02, "covariance_bound": 0.003, "actor_lr": 3e-3}
    agent = make(0.2, **bounds, epochs=20, minibatches=1)
    batch = rollout(agent)
    old = agent.policy.mean(batch["frames"]).detach()
    metrics = agent.update(batch)
    assert 0.002 < metrics["tce/covariance_kl"] < 0.0031
    near = agent.policy.actor(batch["frames"])  # its normalizer was the identity in the update
    near = mean_divergence(near, old, agent.factor).detach()
    free = make(0.2, **bounds | {"attraction": 0.0}, epochs=20, minibatches=1)
    free.update(batch)
    far = mean_divergence(free.policy.actor(batch["frames"]), old, agent.factor).detach()
    assert float(near.mean()) < 0.5 * float(far.mean())


# ---- bookkeeping ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("segments", [4, 1])
def test_ratios_are_1_before_the_first_step(segments: int) -> None:
    agent = make(0.2, segments=segments, epochs=1, minibatches=1, clip=1e-5)
    for seed in range(2):
        metrics = agent.update(rollout(agent, seed=seed))
        assert metrics["ppo/clipped"] == 0 and metrics["ppo/kl"] == pytest.approx(0, abs=1e-6)
    later = make(0.2, segments=segments, epochs=3, minibatches=1, clip=1e-5)
    assert later.update(rollout(later))["ppo/clipped"] > 0.3


def play(agent: TCE, steps: int, ends: dict[int, int], played: int = 0) -> Batch:
    """Return a rollout of two environments, `played` steps into their episodes, which end after HORIZON steps, or at
    the step in `ends`. Step k has state and reward k."""
    rows, source, age = [], rng(1), torch.full((2,), played)
    for step in range(steps):
        _, row = agent.act({"observation.state": torch.full((2, 3), float(step))}, source)
        age += 1
        done = (age == HORIZON) | torch.tensor([step == ends.get(k, -1) for k in range(2)])
        row |= {"reward": torch.full((2,), float(step)), "terminated": done, "done": done}
        rows.append(row)
        agent.reset(done.nonzero().squeeze(-1))
        age[done] = 0
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def test_rows_are_segments_of_the_movements_that_begin_in_the_rollout() -> None:
    agent = make(discount=1.0, gae_lambda=0.0)
    last = {"observation.state": torch.zeros(2, 3)}
    with torch.no_grad():  # all values are 0
        for parameter in agent.critic.parameters():
            parameter.zero_()
    play(agent, 5, {})
    later = play(agent, 20, {1: 15}, played=5)
    # Environment 1's second movement, from step 7, ends early, in its third segment.
    rows = agent.assess(later, last, [torch.zeros(1, 3)] * int(later["done"].sum()))
    order = rows["state"][:, 0]
    begun = {7.0: rows["frames"][order == 7.0, 0], 10.0: rows["frames"][order == 10.0, 0]}
    assert sorted(order.tolist()) == [7, 7, 10, 10, 13, 13, 16, 16, 19, 19]
    assert begun[7.0].tolist() == [7, 7] and begun[10.0].tolist() == [7, 7]
    assert rows["segment"][order == 13.0, 0].tolist() == [2, 2] and rows["segment"][order == 16.0, 0].tolist() == [3, 0]
    assert rows["advantage"][order == 13.0].tolist() == [13 + 14 + 15, 13 + 14 + 15]
    assert rows["advantage"][order == 10.0].tolist() == [33, 33], "an advantage ends with its segment"
    assert rows["frames"][order == 19.0, 0].tolist() == [19, 16]


@pytest.mark.parametrize("config", [{"segments": 1}, {"credit": "episode"}])
def test_an_episode_s_credit_is_that_of_its_whole_return(config: dict[str, Any]) -> None:
    agent = make(discount=1.0, gae_lambda=0.0, **config)
    with torch.no_grad():
        for parameter in agent.critic.parameters():
            parameter.zero_()
    played = play(agent, 24, {1: 15})
    last = {"observation.state": torch.zeros(2, 3)}
    rows = agent.assess(played, last, [torch.zeros(1, 3)] * int(played["done"].sum()))
    returns = {0: sum(range(12)), 12: sum(range(12, 24))}
    first = rows["frames"][:, 0] == 0
    assert len(rows["advantage"][first]) == 2 * len(agent.maps)
    assert rows["advantage"][first].tolist() == [returns[0]] * len(rows["advantage"][first])
    second = rows["advantage"][rows["frames"][:, 0] == 12].tolist()
    assert set(second) == {returns[12], sum(range(12, 16))}


def test_a_movement_of_fewer_steps_than_segments_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.segments is 13, and a movement has 12"):
        make(segments=13)


def test_resumes() -> None:
    first, second = make(0.1), make(0.1)
    check_resumes(first, second, [rollout(first, seed=seed) for seed in range(3)])


def test_segments_learn_two_parts_of_a_movement_from_their_own_rewards() -> None:
    """A movement should be at 0.1 in the middle and at -0.1 at its end, wherever it begins."""
    agent = make(epochs=10, minibatches=1, actor_lr=1e-3, discount=1.0, gae_lambda=0.0, mean_bound=0.1)
    goals = torch.tensor([[6, 0.1], [12, -0.1]])

    def errors(weights: torch.Tensor) -> torch.Tensor:
        at = agent.policy.at(goals[:, 0].long()) @ weights[:, None, :, None]
        return (at.squeeze(-1) - goals[:, 1:]).square().sum(-1)  # (B, 2)

    state = torch.randn(200, 3, generator=rng(7))
    before = errors(agent.policy.mean(state)).mean()
    for seed in range(60):
        batch = rollout(agent, 64, seed)
        paid = torch.zeros(64, 4)
        paid[:, [1, 3]] = -errors(batch["weights"][::4])
        batch["advantage"] = (paid - paid.mean(0)).flatten()
        agent.update(copy.copy(batch))
    after = errors(agent.policy.mean(state)).mean()
    assert float(after) < 0.1 * float(before)


def test_recipe_makes_a_bundle_and_resumes_to_the_same(tmp_path: Path) -> None:
    train = ("train", "testbed:via", "--recipe", "tce", "--policy.hidden", "8", "--training.num-envs", "4",
             "--training.checkpoint-every", "320")  # fmt: skip
    run, whole = str(tmp_path / "run"), str(tmp_path / "whole")
    assert main([*train, "--training.rollout", "20", "--out", run]) != 0
    few = (*train, "--training.rollout", "80")
    assert main([*few, "--training.steps", "320", "--out", run]) == 0
    assert main([*few, "--training.steps", "640", "--out", run, "--resume"]) == 0
    assert main([*few, "--training.steps", "640", "--out", whole]) == 0
    ours, same = (load_bundle(folder).policy for folder in (run, whole))
    assert isinstance(ours, MovementPolicy) and ours.horizon == 60
    assert all(torch.equal(value, same.state_dict()[name]) for name, value in ours.state_dict().items())
    assert main(["evaluate", run, "--episodes", "2", "--num-envs", "2"]) == 0
