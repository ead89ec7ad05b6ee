"""Composed plans of states: scores of known densities, the limits of the weight, inverse dynamics, and rounds."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.hilbert import GoalIndices
from policies.planner import Planner, PlannerConfig, compose, predict
from robot_rl.cli.main import main
from robot_rl.data.sources import FUTURE, GOAL, NEXT, Futures
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.training.goals import GoalConfig
from robot_rl.training.run import Run
from robot_rl.training.self_improvement import SelfImprovementConfig, improve_planner
from sim.make import make

PLACES = GoalIndices((0, 1), (2, 3))
SMALL = DiffusionConfig(horizon=4, execute=2, hidden=32, layers=1, sample_steps=5)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planner(weight: float = 0.5, prior: DiffusionConfig | None = SMALL, seed: int = 0) -> Planner:
    torch.manual_seed(seed)
    return Planner(Size(4, 2), PlannerConfig(weight, plan=SMALL, inverse=(64,)), PLACES, prior)


def seen(count: int = 5) -> dict[str, Tensor]:
    return {STATE: torch.randn(count, 4, generator=rng(7))}


# ---- scores ---------------------------------------------------------------------------------------------------------
class Gaussian(nn.Module):
    """Exact denoiser of plans whose every number is normal: E[clean | noisy], at each noise level."""

    def __init__(self, model: DiffusionPolicy, mean: float, std: float):
        super().__init__()
        self.signal, self.mean, self.std = model.scheduler.alphas_cumprod, mean, std

    def forward(self, noisy: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        a = self.signal[time][:, None].sqrt()
        gain = self.std**2 * a / (a**2 * self.std**2 + 1 - a**2)
        return self.mean + gain * (noisy - a * self.mean)


def gaussians(*of: tuple[float, float, float]) -> list[tuple[DiffusionPolicy, float, Tensor]]:
    """Return models of normal plans, each by weight, mean and standard deviation."""
    parts = []
    for weight, mean, std in of:
        model = DiffusionPolicy(Size(1, 1), DiffusionConfig(horizon=1, execute=1, sample_steps=100))
        model.denoiser = Gaussian(model, mean, std)  # type: ignore[assignment]
        parts.append((model, weight, torch.zeros(1, 1)))
    return parts


@pytest.mark.parametrize("time", [1, 20, 50, 90])
def test_composed_score_is_that_of_the_weighted_product_of_densities(time: int) -> None:
    parts = gaussians((0.7, -0.2, 0.1), (0.3, 0.3, 0.25))
    signal = float(parts[0][0].scheduler.alphas_cumprod[time])
    x = torch.linspace(-2, 2, 41).requires_grad_()
    log = torch.zeros(41)
    for weight, mean, std in ((0.7, -0.2, 0.1), (0.3, 0.3, 0.25)):
        noisy = torch.distributions.Normal(math.sqrt(signal) * mean, math.sqrt(signal * std**2 + 1 - signal))
        log = log + weight * noisy.log_prob(x)
    score = torch.autograd.grad(log.sum(), x)[0]
    noisy = x.detach()[:, None, None]
    clean = predict(parts, noisy, torch.full((41,), time))[:, 0, 0]
    assert torch.allclose((math.sqrt(signal) * clean - x.detach()) / (1 - signal), score, rtol=1e-3, atol=1e-3)


def test_composed_plans_of_two_means_are_between_them_by_the_weight() -> None:
    noise = torch.randn(4000, 1, 1, generator=rng())
    for weight in (0.25, 0.5):
        plan = compose(gaussians((1 - weight, -0.3, 0.1), (weight, 0.5, 0.1)), noise)
        assert abs(float(plan.mean()) - (0.8 * weight - 0.3)) < 0.01 and abs(float(plan.std()) - 0.1) < 0.01
    plan = compose(gaussians((0.5, -0.3, 0.05), (0.5, 0.5, 0.3)), noise)
    assert float(plan.mean()) < 0, "nearer to the mean of the narrow density than their middle, 0.1"


# ---- limits of the weight -------------------------------------------------------------------------------------------
def test_weights_0_and_1_equal_either_model_to_the_bit() -> None:
    small, prior, other = planner(0.0), planner(1.0), planner(0.5, None)
    other.small.load_state_dict(small.small.state_dict())
    assert torch.equal(small.plan(seen(), rng()), other.plan(seen(), rng()))
    other.small.load_state_dict(prior.prior.state_dict())  # type: ignore[union-attr]
    assert torch.equal(prior.plan(seen(), rng()), other.plan(seen(), rng()))
    between = planner(0.5).plan(seen(), rng())
    assert not torch.allclose(between, small.plan(seen(), rng())), "the prior has an effect"
    one, same = planner(0.5, SMALL), planner(0.0)
    one.prior.load_state_dict(one.small.state_dict())  # type: ignore[union-attr]
    assert torch.allclose(one.plan(seen(), rng()), same.plan(seen(), rng()), atol=1e-5), "two equal models are one"


def test_priors_that_cannot_be_composed_are_refused() -> None:
    other = Planner(Size(4, 2), PlannerConfig(0.0, plan=DiffusionConfig(horizon=8)), PLACES)
    with pytest.raises(ValueError, match="policy.plan.horizon is 4, that of the prior 8"):
        planner().adopt(other)
    turned = Planner(Size(4, 2), PlannerConfig(0.0, plan=SMALL), GoalIndices((2, 3), (0, 1)))
    with pytest.raises(ValueError, match="goal fields"):
        planner().adopt(turned)


def test_a_small_model_that_starts_from_the_prior_acts_as_the_prior() -> None:
    general = planner(0.0, None, seed=3)
    general.fit(Futures.of(episodes()).steps)
    tuned = Planner(Size(4, 2), PlannerConfig(0.0, "prior", SMALL), PLACES, SMALL)
    tuned.adopt(general)
    tuned.fit(Futures.of(episodes(2)).steps)
    assert torch.equal(tuned.plan(seen(), rng()), general.plan(seen(), rng()))
    larger = Planner(Size(4, 2), PlannerConfig(0.0, "prior", replace(SMALL, hidden=8)), PLACES, SMALL)
    with pytest.raises(ValueError, match="needs the prior's settings"):
        larger.adopt(general)


# ---- data, inverse dynamics and training ----------------------------------------------------------------------------
A = torch.tensor([[0.1, 0.03], [-0.02, 0.08]])


def episodes(count: int = 40, length: int = 20) -> list[dict[str, Tensor]]:
    """Return random motions of the linear system x' = 0.95 x + A u; the recorded goal is never achieved."""
    draws, made = rng(3), []
    for _ in range(count):
        x, rows, actions = torch.rand(2, generator=draws) - 0.5, [], 2 * torch.rand(length, 2, generator=draws) - 1
        for u in actions:
            rows.append(torch.cat([x, torch.full((2,), 9.0)]))
            x = 0.95 * x + A @ u
        made.append({STATE: torch.stack(rows), "action": actions})
    return made


def test_samples_have_the_states_after_each_action_and_a_later_state_as_goal() -> None:
    parts = torch.arange(30).float()[:, None].split([1, 7, 22])
    data = Futures.of([{STATE: rows, "action": -rows} for rows in parts])
    batch = data.sample(200, data.rows(4), rng())
    at, last = batch[STATE][:, 0], data.last[batch[STATE][:, 0].long()].float()
    assert torch.equal(batch[NEXT + STATE][:, 0], at + 1) and bool((batch[GOAL + STATE][:, 0] > at).all())
    assert bool((batch[GOAL + STATE][:, 0] <= last).all())
    after = torch.minimum(at[:, None] + torch.arange(1.0, 5.0), last[:, None])
    assert torch.equal(batch[FUTURE + STATE][..., 0], after)
    steps = data.steps
    assert torch.equal(steps[NEXT + STATE], steps[STATE] + 1) and len(steps[STATE]) == 27


@pytest.fixture(scope="module")
def taught() -> Cloning:
    made = planner(0.5)
    data = Futures.of(episodes())
    made.fit(data.steps)
    agent, draws, rows = Cloning(made, CloningConfig(lr=3e-3, ema_decay=0.9), 250), rng(), data.rows(4)
    for _ in range(250):
        agent.update(data.sample(128, rows, draws), draws)
    agent.finish()
    return agent


def test_inverse_dynamics_recover_the_actions_of_a_linear_system(taught: Cloning) -> None:
    assert isinstance(taught.policy, Planner)
    x, u = 0.4 * torch.rand(200, 2, generator=rng(1)) - 0.2, 2 * torch.rand(200, 2, generator=rng(2)) - 1
    with torch.no_grad():
        found = taught.policy.invert(x, 0.95 * x + u @ A.T)
    assert float((found - u).abs().mean()) < 0.05


def test_training_moves_the_small_model_and_the_inverse_dynamics_alone(taught: Cloning) -> None:
    fresh, now = planner(0.5).state_dict(), taught.policy.state_dict()
    moved = {name.split(".")[0] for name in fresh if not torch.equal(fresh[name], now[name])}
    assert {"small", "inverse"} <= moved and "prior" not in moved
    assert any(name.startswith("prior.") for name in fresh)


def test_a_saved_bundle_acts_as_the_policy(taught: Cloning, tmp_path: Path) -> None:
    save_bundle(Bundle(taught.policy, None, {}, task="plan"), tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle").policy
    action = again.act(seen(), rng())
    assert torch.equal(action, taught.policy.act(seen(), rng()))
    assert action.shape == (5, 4, 2) and float(action.abs().max()) <= 1


# ---- rounds ---------------------------------------------------------------------------------------------------------
GOALS = ("--training.goal.achieved", "position", "--training.goal.difference", "", "--training.goal.tolerance", "0.1")
FEW = ("--policy.plan.hidden", "16", "--policy.plan.horizon", "4", "--policy.plan.execute", "2")
FEW = (*FEW, "--training.updates", "20", "--training.finetune", "10", "--training.batch", "16")
PLAY = ("--training.episodes", "8", "--training.num-envs", "8", "--training.horizon", "12")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a dataset `data`, a planner `prior`, and `sail` trained for two rounds, `run`."""
    folder = tmp_path_factory.mktemp("sail")
    collect = ["collect", "testbed:maze", "--skill", "STEADY", "--episodes", "8", "--out", str(folder / "data")]
    assert main(collect) == 0
    assert train(folder, "prior", "--training.rounds", "0", "--policy.weight", "0") == 0
    assert train(folder, "run", "--base", str(folder / "prior"), *PLAY, "--training.rounds", "2") == 0
    return folder


def train(folder: Path, name: str, *flags: str) -> int:
    words = ("train", "testbed:maze", "--recipe", "sail", "--dataset", str(folder / "data"), *GOALS, *FEW, *flags)
    return main([*words, "--out", str(folder / name)])


def weights(folder: Path) -> dict[str, Tensor]:
    return load_bundle(folder).policy.state_dict()


def test_only_the_small_model_changes_in_rounds(trained: Path) -> None:
    assert train(trained, "none", "--base", str(trained / "prior"), "--training.rounds", "0") == 0
    before, after, prior = (weights(trained / name) for name in ("none", "run", "prior"))
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"small", "inverse"}
    shared = [name for name in after if name.startswith("prior.")]
    assert shared and all(torch.equal(after[name], prior[f"small.{name[6:]}"]) for name in shared)
    assert torch.equal(after["low"], prior["low"]) and torch.equal(after["high"], prior["high"])
    assert main(["evaluate", str(trained / "run"), "--episodes", "2", "--num-envs", "2"]) == 0


def test_the_same_command_gives_the_same_weights(trained: Path) -> None:
    assert train(trained, "again", "--base", str(trained / "prior"), *PLAY, "--training.rounds", "2") == 0
    again = weights(trained / "again")
    assert all(torch.equal(value, again[name]) for name, value in weights(trained / "run").items())


def test_a_weight_without_a_prior_is_refused(trained: Path, capsys: Any) -> None:
    assert train(trained, "wrong", "--training.rounds", "0") != 0
    assert "--policy.weight 0" in capsys.readouterr().err


def improved(folder: Path, rounds: int, resume: bool = False) -> dict[str, Tensor]:
    """Return the weights after so many rounds of practice, in a run that may continue an earlier one."""
    env, goal = make("testbed:maze", 8), GoalConfig("position", "target_position", "", 0.1)
    config = SelfImprovementConfig(
        rounds, 8, 8, regions=2, horizon=12, updates=4, finetune=3, batch=16, keep="all", goal=goal
    )
    policy = planner(0.5)
    with Run(folder, {}, resume=resume) as run:
        agent = improve_planner(
            env, env.info, lambda updates: Cloning(policy, CloningConfig(), updates), episodes(4), config, run, 0,
            lambda *_: None,
        )  # fmt: skip
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == rounds
    return agent.policy.state_dict()


def test_resume_is_bit_identical(tmp_path: Path) -> None:
    whole = improved(tmp_path / "whole", 2)
    cut = improved(tmp_path / "cut", 1)
    resumed = improved(tmp_path / "cut", 2, resume=True)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    assert not all(torch.equal(value, cut[name]) for name, value in whole.items())
