"""The memory of the feet, on contact sequences made up by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sim.step.feet import CONTACT_FORCE, FootTracker

Build = Callable[..., Any]
PERIOD, RADIUS = 0.02, 0.02


@pytest.fixture
def play(standing: Build) -> Callable[..., dict[str, Tensor]]:
    """Feed a tracker contacts "x" or "-" of one foot per control period, and heights of the sole; return (T,) views."""

    def run(contacts: str, heights: list[float] | None = None) -> dict[str, Tensor]:
        tracker = FootTracker(1, 4, RADIUS, PERIOD)
        tracker.reset(torch.tensor([0]))
        rows: dict[str, list[Tensor]] = {name: [] for name in FootTracker.ROWS}
        for k, mark in enumerate(contacts):
            state = standing(1)
            state.foot_force[:] = 37.0
            state.foot_force[0, 2] = 37.0 if mark == "x" else 0.0
            state.foot_position[0, 8] = RADIUS + (heights[k] if heights else 0.0)
            tracker.update(state)
            for name in rows:
                view = getattr(tracker, name)
                rows[name].append(view[0, 2])
                assert (view[0, [0, 1, 3]] == (name in ("touching", "contact"))).all(), "the others stand"
        return {name: torch.stack(views) for name, views in rows.items()}

    return run


def test_a_swing_is_measured_when_it_lands(play: Callable[..., dict[str, Tensor]]) -> None:
    seen = play("xx----xxx", [0, 0, 0.01, 0.03, 0.05, 0.02, 0, 0, 0])
    assert seen["landed"].nonzero().flatten().tolist() == [6]
    # It left the ground within the third period and came back within the seventh.
    assert float(seen["air_time"][6]) == pytest.approx(4 * PERIOD, abs=1e-6)
    assert float(seen["swing_height"][6]) == pytest.approx(0.05, abs=1e-6)
    for name in ("air_time", "swing_height"):
        assert not seen[name][[0, 1, 7, 8]].any(), f"{name} of a foot on the ground"
    assert seen["air_time"].diff()[3:5].tolist() == pytest.approx([PERIOD, PERIOD]), "it grows with time"


def test_a_longer_swing_is_longer_by_the_difference(play: Callable[..., dict[str, Tensor]]) -> None:
    short, long = (float(play("x" + "-" * k + "x")["air_time"][-1]) for k in (5, 15))
    assert long - short == pytest.approx(10 * PERIOD, abs=1e-6)


def test_the_air_time_is_right_on_average(play: Callable[..., dict[str, Tensor]]) -> None:
    """A swing of 0.23 s, wherever within a control period it begins."""
    swing, seen = 0.23, []
    for share in torch.linspace(0.025, 0.975, 20).tolist():
        start = (1 + share) * PERIOD
        marks = "".join("-" if start < k * PERIOD <= start + swing else "x" for k in range(20))
        seen.append(float(play(marks)["air_time"].max()))
    assert sum(seen) / len(seen) == pytest.approx(swing, abs=0.1 * PERIOD)
    assert max(abs(s - swing) for s in seen) < PERIOD


def test_the_height_is_of_this_swing(play: Callable[..., dict[str, Tensor]]) -> None:
    heights = [0.0, 0.02, 0.08, 0.07, 0, 0, 0, 0.02, 0.03, 0.03, 0]
    seen = play("x---xxx---x", heights)
    assert seen["landed"].nonzero().flatten().tolist() == [4, 10]
    assert seen["swing_height"][[4, 10]].tolist() == pytest.approx([0.08, 0.03], abs=1e-6)


@pytest.mark.parametrize("contacts", ["xx-xx-xx", "xxxxxxxx", "x-x-x-x-"])
def test_a_contact_that_flickers_is_one_contact(play: Callable[..., dict[str, Tensor]], contacts: str) -> None:
    seen = play(contacts)
    assert seen["contact"].all() and not seen["landed"].any() and not seen["air_time"].any()
    assert seen["touching"].tolist() == [mark == "x" for mark in contacts]


def test_a_light_touch_is_no_contact(standing: Build) -> None:
    tracker = FootTracker(1, 4, RADIUS, PERIOD)
    for force, touching in ((0.9 * CONTACT_FORCE, False), (1.1 * CONTACT_FORCE, True)):
        tracker.update(standing(1, foot_force=torch.full((1, 4), force)))
        assert (tracker.touching == touching).all()


def test_a_reset_puts_the_named_robots_on_the_ground(standing: Build) -> None:
    tracker = FootTracker(3, 4, RADIUS, PERIOD)
    for _ in range(5):
        tracker.update(standing(3, foot_force=torch.zeros(3, 4), foot_position=torch.ones(3, 12)))
    air = tracker.air_time.clone()
    assert (air > 0).all() and (tracker.swing_height == 1 - RADIUS).all()
    tracker.reset(torch.tensor([0, 2]))
    assert torch.equal(tracker.air_time[1], air[1]) and not tracker.air_time[[0, 2]].any()
    assert tracker.contact.all(1).tolist() == [True, False, True]
    tracker.update(standing(3))
    assert tracker.landed.any(1).tolist() == [False, True, False], "a robot placed on the ground has not landed"
