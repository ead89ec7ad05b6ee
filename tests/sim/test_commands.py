"""What is asked of walking robots: within the ranges, held for a while, the same whoever else is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robot_rl.evaluation import HELD_OUT
from robot_rl.spec import Field, VectorSpec
from sim.commands import CommandSchedule
from sim.randomization.noise import episode_keys

SPEC = VectorSpec(
    (Field("velocity", ("x", "y"), "m/s", (-1.0, -0.2), (2.0, 0.4)), Field("turn", ("yaw",), "rad/s", (-3.0,), (1.0,)))
)
RATE = 50.0


def keys(count: int, seed: int = 0) -> np.ndarray:
    return episode_keys(range(seed, seed + count), 0, 1)


def test_commands_fill_their_ranges_evenly() -> None:
    drawn = CommandSchedule(standing=0.0)(SPEC, keys(4000), torch.zeros(4000, dtype=torch.long), RATE)
    share = (drawn - SPEC.low) / (SPEC.high - SPEC.low)
    assert ((share >= 0) & (share < 1)).all()
    assert share.mean(0).tolist() == pytest.approx([0.5] * 3, abs=0.02)
    assert share.std(0).tolist() == pytest.approx([12**-0.5] * 3, abs=0.01)
    assert torch.corrcoef(share.T).fill_diagonal_(0).abs().max() < 0.08


@pytest.mark.parametrize(("standing", "low", "high"), [(0.0, 0, 0), (0.25, 0.22, 0.28), (1.0, 1, 1)])
def test_a_share_of_commands_asks_for_nothing_at_all(standing: float, low: float, high: float) -> None:
    drawn = CommandSchedule(standing=standing)(SPEC, keys(4000), torch.zeros(4000, dtype=torch.long), RATE)
    still = (drawn == 0).all(1)
    assert torch.equal(still, (drawn == 0).any(1)), "never only in part"
    assert low <= float(still.float().mean()) <= high


def test_a_command_is_held_and_then_another_one_comes() -> None:
    schedule, steps = CommandSchedule(hold=0.5, standing=0.0), torch.arange(100)
    path = schedule(SPEC, keys(1).repeat(100), steps, RATE)
    changes = (path.diff(dim=0) != 0).any(1).nonzero().flatten() + 1
    assert changes.tolist() == [25, 50, 75]
    assert len({tuple(row) for row in path.tolist()}) == 4


def test_a_command_depends_on_its_episode_and_time_alone() -> None:
    schedule = CommandSchedule(hold=0.1)
    steps = torch.tensor([0, 7, 7, 900, 3])
    together = schedule(SPEC, keys(5), steps, RATE)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(schedule(SPEC, keys(5)[order.numpy()], steps[order], RATE), together[order])
    for i in range(5):
        assert torch.equal(schedule(SPEC, keys(5)[i : i + 1], steps[i : i + 1], RATE)[0], together[i])


def test_held_out_episodes_are_asked_for_something_else() -> None:
    schedule, start = CommandSchedule(standing=0.0), torch.zeros(500, dtype=torch.long)
    trained = {tuple(c) for c in schedule(SPEC, keys(500), start, RATE).tolist()}
    held_out = {tuple(c) for c in schedule(SPEC, keys(500, HELD_OUT), start, RATE).tolist()}
    assert len(trained) == len(held_out) == 500 and not trained & held_out
