"""Velocity commands: distribution, ramps, and independence of other environments."""

from __future__ import annotations

import pytest
import torch

from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import Field, VectorSpec
from sim.commands import CommandSchedule
from sim.randomization.noise import episode_keys

SPEC = VectorSpec(
    (Field("velocity", ("x", "y"), "m/s", (-1.0, -0.2), (2.0, 0.4)), Field("turn", ("yaw",), "rad/s", (-3.0,), (1.0,)))
)
RATE = 50.0


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return episode_keys(range(seed, seed + count), 0, 1)


def settled(count: int) -> torch.Tensor:
    """Return steps (count,) at which the first command is reached."""
    return torch.full((count,), round(COMMAND_RAMP * RATE))


def test_commands_are_uniform_and_uncorrelated() -> None:
    drawn = CommandSchedule(standing=0.0)(SPEC, keys(4000), settled(4000), RATE)
    share = (drawn - SPEC.low) / (SPEC.high - SPEC.low)
    assert ((share >= 0) & (share < 1)).all()
    assert share.mean(0).tolist() == pytest.approx([0.5] * 3, abs=0.02)
    assert share.std(0).tolist() == pytest.approx([12**-0.5] * 3, abs=0.01)
    assert torch.corrcoef(share.T).fill_diagonal_(0).abs().max() < 0.08


@pytest.mark.parametrize(("standing", "low", "high"), [(0.0, 0, 0), (0.25, 0.22, 0.28), (1.0, 1, 1)])
def test_share_of_zero_commands(standing: float, low: float, high: float) -> None:
    drawn = CommandSchedule(standing=standing)(SPEC, keys(4000), settled(4000), RATE)
    still = (drawn == 0).all(1)
    assert torch.equal(still, (drawn == 0).any(1)), "all components are zero, or none"
    assert low <= float(still.float().mean()) <= high


def test_command_ramps_linearly_from_the_previous_one_then_holds() -> None:
    schedule, steps, ramp = CommandSchedule(hold=2.0, standing=0.0), torch.arange(400), round(COMMAND_RAMP * RATE)
    path = schedule(SPEC, keys(1).repeat(400), steps, RATE)
    assert not path[0].any(), "an episode begins with a zero command"
    changes = (path.diff(dim=0) != 0).any(1).nonzero().flatten() + 1
    assert changes.tolist() == [start + k for start in (0, 100, 200, 300) for k in range(1, ramp + 1)]
    held = path[[50, 150, 250, 350]]
    assert len({tuple(row) for row in held.tolist()}) == 4
    middle = 100 + 12
    share = 12 / (COMMAND_RAMP * RATE)
    assert torch.allclose(path[middle], held[0] + share * (held[1] - held[0]), atol=1e-6)


def test_command_depends_only_on_episode_and_time() -> None:
    schedule = CommandSchedule(hold=1.0)
    steps = torch.tensor([0, 7, 7, 900, 3])
    together = schedule(SPEC, keys(5), steps, RATE)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(schedule(SPEC, keys(5)[order], steps[order], RATE), together[order])
    for i in range(5):
        assert torch.equal(schedule(SPEC, keys(5)[i : i + 1], steps[i : i + 1], RATE)[0], together[i])
