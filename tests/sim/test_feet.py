"""FootTracker on contact sequences written by hand."""

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
    """Update a tracker with contacts "x" or "-" and sole heights of one foot; return its values (T,) by name."""

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
                assert (view[0, [0, 1, 3]] == (name in ("touching", "contact"))).all(), "the other feet stand"
        return {name: torch.stack(views) for name, views in rows.items()}

    return run


def test_air_time_and_height_at_landing(play: Callable[..., dict[str, Tensor]]) -> None:
    seen = play("xx----xxx", [0, 0, 0.01, 0.03, 0.05, 0.02, 0, 0, 0])
    assert seen["landed"].nonzero().flatten().tolist() == [6]
    # The foot left the ground in the third period and landed in the seventh.
    assert float(seen["air_time"][6]) == pytest.approx(4 * PERIOD, abs=1e-6)
    assert float(seen["swing_height"][6]) == pytest.approx(0.05, abs=1e-6)
    for name in ("air_time", "swing_height"):
        assert not seen[name][[0, 1, 7, 8]].any(), f"{name} of a foot on the ground"
    assert seen["air_time"].diff()[3:5].tolist() == pytest.approx([PERIOD, PERIOD]), "the air time grows with time"


def test_air_time_is_unbiased(play: Callable[..., dict[str, Tensor]]) -> None:
    """A swing of 0.23 s that begins at any time within a control period."""
    swing, seen = 0.23, []
    for share in torch.linspace(0.025, 0.975, 20).tolist():
        start = (1 + share) * PERIOD
        marks = "".join("-" if start < k * PERIOD <= start + swing else "x" for k in range(20))
        seen.append(float(play(marks)["air_time"].max()))
    assert sum(seen) / len(seen) == pytest.approx(swing, abs=0.1 * PERIOD)
    assert max(abs(s - swing) for s in seen) < PERIOD


def test_swing_height_is_reset_between_swings(play: Callable[..., dict[str, Tensor]]) -> None:
    heights = [0.0, 0.02, 0.08, 0.07, 0, 0, 0, 0.02, 0.03, 0.03, 0]
    seen = play("x---xxx---x", heights)
    assert seen["landed"].nonzero().flatten().tolist() == [4, 10]
    assert seen["swing_height"][[4, 10]].tolist() == pytest.approx([0.08, 0.03], abs=1e-6)


@pytest.mark.parametrize("contacts", ["xx-xx-xx", "xxxxxxxx", "x-x-x-x-"])
def test_flickering_contact_is_one_contact(play: Callable[..., dict[str, Tensor]], contacts: str) -> None:
    seen = play(contacts)
    assert seen["contact"].all() and not seen["landed"].any() and not seen["air_time"].any()
    assert seen["touching"].tolist() == [mark == "x" for mark in contacts]


def test_contact_force_threshold(standing: Build) -> None:
    tracker = FootTracker(1, 4, RADIUS, PERIOD)
    for force, touching in ((0.9 * CONTACT_FORCE, False), (1.1 * CONTACT_FORCE, True)):
        tracker.update(standing(1, foot_force=torch.full((1, 4), force)))
        assert (tracker.touching == touching).all()


def test_reset_sets_selected_robots_to_standing(standing: Build) -> None:
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
