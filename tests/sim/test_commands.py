"""Velocity commands: within the ranges, held for a while, independent of other environments."""

from __future__ import annotations

import pytest
import torch

from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.util.seeds import HELD_OUT
from sim.commands import CommandSchedule
from sim.randomization.noise import episode_keys

SPEC = VectorSpec(
    (Field("velocity", ("x", "y"), "m/s", (-1.0, -0.2), (2.0, 0.4)), Field("turn", ("yaw",), "rad/s", (-3.0,), (1.0,)))
)
RATE = 50.0


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return episode_keys(range(seed, seed + count), 0, 1)


def settled(count: int) -> torch.Tensor:
    """Steps (count,) at which the first command is reached."""
    return torch.full((count,), round(COMMAND_RAMP * RATE))


def test_commands_fill_their_ranges_evenly() -> None:
    drawn = CommandSchedule(standing=0.0)(SPEC, keys(4000), settled(4000), RATE)
    share = (drawn - SPEC.low) / (SPEC.high - SPEC.low)
    assert ((share >= 0) & (share < 1)).all()
    assert share.mean(0).tolist() == pytest.approx([0.5] * 3, abs=0.02)
    assert share.std(0).tolist() == pytest.approx([12**-0.5] * 3, abs=0.01)
    assert torch.corrcoef(share.T).fill_diagonal_(0).abs().max() < 0.08


@pytest.mark.parametrize(("standing", "low", "high"), [(0.0, 0, 0), (0.25, 0.22, 0.28), (1.0, 1, 1)])
def test_a_share_of_commands_asks_for_nothing_at_all(standing: float, low: float, high: float) -> None:
    drawn = CommandSchedule(standing=standing)(SPEC, keys(4000), settled(4000), RATE)
    still = (drawn == 0).all(1)
    assert torch.equal(still, (drawn == 0).any(1)), "never only in part"
    assert low <= float(still.float().mean()) <= high


def test_a_command_grows_out_of_the_one_before_and_is_held() -> None:
    schedule, steps, ramp = CommandSchedule(hold=2.0, standing=0.0), torch.arange(400), round(COMMAND_RAMP * RATE)
    path = schedule(SPEC, keys(1).repeat(400), steps, RATE)
    assert not path[0].any(), "an episode begins with nothing asked"
    changes = (path.diff(dim=0) != 0).any(1).nonzero().flatten() + 1
    assert changes.tolist() == [start + k for start in (0, 100, 200, 300) for k in range(1, ramp + 1)]
    held = path[[50, 150, 250, 350]]
    assert len({tuple(row) for row in held.tolist()}) == 4
    middle = 100 + 12
    share = 12 / (COMMAND_RAMP * RATE)
    assert torch.allclose(path[middle], held[0] + share * (held[1] - held[0]), atol=1e-6)


def test_a_command_changes_no_faster_than_its_range_in_the_ramp_time() -> None:
    path = CommandSchedule(hold=1.0)(SPEC, keys(20).repeat_interleave(500), torch.arange(500).repeat(20), RATE)
    change = path.view(20, 500, 3).diff(dim=1).abs().amax((0, 1))
    most = (SPEC.high - SPEC.low) / (COMMAND_RAMP * RATE)
    assert (change <= most * 1.001).all() and (change > 0.5 * most).all()


def test_a_command_depends_on_its_episode_and_time_alone() -> None:
    schedule = CommandSchedule(hold=1.0)
    steps = torch.tensor([0, 7, 7, 900, 3])
    together = schedule(SPEC, keys(5), steps, RATE)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(schedule(SPEC, keys(5)[order], steps[order], RATE), together[order])
    for i in range(5):
        assert torch.equal(schedule(SPEC, keys(5)[i : i + 1], steps[i : i + 1], RATE)[0], together[i])


def test_held_out_episodes_are_asked_for_something_else() -> None:
    schedule, start = CommandSchedule(standing=0.0), settled(500)
    trained = {tuple(c) for c in schedule(SPEC, keys(500), start, RATE).tolist()}
    held_out = {tuple(c) for c in schedule(SPEC, keys(500, HELD_OUT), start, RATE).tolist()}
    assert len(trained) == len(held_out) == 500 and not trained & held_out
