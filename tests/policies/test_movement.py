"""Movement primitives: the equation of motion, starts, and actions that follow a trajectory."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.movement import MovementConfig, MovementPolicy
from policies.networks.prodmp import DECAY, ProDMP
from robot_rl.util.errors import ConfigError

STEPS, BASIS, STIFFNESS = 50, 5, 12.0


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def simulated(weights: Tensor, position: float, velocity: float, fine: int = 20) -> Tensor:
    """Return the positions (n, STEPS + 1) of n springs with forces, integrated by small steps (Heun's method)."""
    centres = torch.exp(-DECAY * torch.linspace(0, 1, BASIS + 1, dtype=torch.float64))
    x = torch.exp(-DECAY * torch.linspace(0, 1, STEPS * fine + 1, dtype=torch.float64))[:, None]
    bells = torch.exp(-(((x - centres[:-1]) / (centres[1:] - centres[:-1])) ** 2))
    forces = x * bells @ weights[:, :-1].T / bells.sum(1, keepdim=True)

    def acceleration(k: int, y: Tensor, v: Tensor) -> Tensor:
        return STIFFNESS * (STIFFNESS / 4 * (weights[:, -1] - y) - v) + forces[k]

    y, v = (torch.full((len(weights),), start, dtype=torch.float64) for start in (position, velocity))
    dt, found = 1 / (STEPS * fine), [y]
    for k in range(STEPS * fine):
        a = acceleration(k, y, v)
        b = acceleration(k + 1, y + dt * v, v + dt * a)
        y, v = y + dt * v + dt**2 / 2 * a, v + dt / 2 * (a + b)
        found += [y] if (k + 1) % fine == 0 else []
    return torch.stack(found, 1)


def test_trajectories_solve_the_equation_of_motion() -> None:
    primitive = ProDMP(STEPS, BASIS, STIFFNESS)
    weights = torch.randn(BASIS + 1, generator=rng(), dtype=torch.float64)
    # The weights' units: simulate each alone, and measure how fast it is.
    alone = simulated(torch.eye(BASIS + 1, dtype=torch.float64), 0.0, 0.0)
    units = 1 / (STEPS * alone.diff(dim=1).abs().amax(1))
    expected = simulated((weights * units)[None], 0.3, -0.7)[0]
    found = primitive(weights.float(), torch.tensor(0.3), torch.tensor(-0.7))
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=0)
    assert float(expected.std()) > 0.05


def test_trajectories_begin_at_the_given_position_and_velocity() -> None:
    fine = ProDMP(4000, BASIS, STIFFNESS)
    weights, position, velocity = torch.randn(8, BASIS + 1), torch.randn(8), torch.randn(8)
    y = fine(weights, position, velocity)
    assert torch.equal(y[:, 0], position)
    assert torch.allclose(4000 * (y[:, 1] - y[:, 0]), velocity, atol=0.02)
    rest = fine(weights)
    assert bool((rest[:, 0] == 0).all()) and bool((4000 * rest[:, 1]).abs().max() < 0.02), "at rest by default"


def test_a_goal_is_reached_without_overshoot_and_a_weight_of_1_is_as_fast_as_the_largest_action() -> None:
    primitive = ProDMP(STEPS, BASIS, 40.0)
    goal = primitive(torch.eye(BASIS + 1)[-1])
    assert bool((goal.diff() >= 0).all()) and goal[-1] / goal.max() == 1
    assert torch.allclose(goal[STEPS // 2], goal[-1], rtol=1e-2)
    fastest = STEPS * primitive(torch.eye(BASIS + 1)).diff(dim=1).abs().amax(1)
    assert torch.allclose(fastest, torch.ones(BASIS + 1), atol=1e-5)


def policy(**config: object) -> MovementPolicy:
    torch.manual_seed(0)
    return MovementPolicy(Size(3, 2), MovementConfig(**({"horizon": 20, "hidden": (16,)} | config)))  # type: ignore[arg-type]


def test_actions_add_up_to_the_trajectory() -> None:
    made = policy(basis=4)
    weights = 0.2 * torch.randn(6, made.weights, generator=rng())
    actions = made.movement(weights)
    assert actions.shape == (6, 20, 2) and bool((actions.abs() < 1).all())
    steps = torch.tensor([0, 7, 20])
    positions = (made.at(steps) @ weights[:, None, :, None]).squeeze(-1)
    moved = torch.cat([torch.zeros(6, 1, 2), actions.cumsum(1)], 1)[:, steps] / 20
    assert torch.allclose(positions, moved, atol=1e-6)
    assert bool((made.movement(100 * weights).abs() <= 1).all())


def test_sampled_weights_have_the_covariance() -> None:
    made = policy(basis=2)
    with torch.no_grad():
        made.scale += 0.3 * torch.randn(made.weights, made.weights, generator=rng())
    drawn = made.sample(torch.ones(200_000, made.weights), rng(1)).detach()
    sigma = (made.factor @ made.factor.T).detach()
    assert torch.allclose(drawn.T.cov(), sigma, atol=0.02 * float(sigma.diagonal().max()))
    assert torch.allclose(drawn.mean(0), torch.ones(made.weights), atol=0.01)


def test_a_saved_bundle_acts_as_the_policy(tmp_path: Path) -> None:
    made = policy()
    made.normalizer.update(torch.randn(50, 3, generator=rng()))
    save_bundle(Bundle(made, None, {}, task="move"), tmp_path / "bundle")
    seen = {"observation.state": torch.randn(5, 3)}
    assert torch.equal(load_bundle(tmp_path / "bundle").policy.act(seen, rng()), made.act(seen, rng(1)))


def test_a_movement_without_a_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="--policy.horizon"):
        policy(horizon=None)
