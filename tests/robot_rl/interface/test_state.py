"""Views of a robot state: existing views, and selection and replacement of rows."""

from collections.abc import Callable
from typing import Any

import torch

from robot_rl.interface.state import ABSENT, RobotState, leaves

Build = Callable[..., Any]


def test_views_are_the_existing_ones_and_leaves_in_order(standing: Build, state_at: Build, panda: Any) -> None:
    legs = standing(2)
    assert {"base_quat", "command", "foot_force"} <= set(legs.views)
    assert not {"tool_position", "gripper_width"} & set(legs.views)
    cube = torch.zeros(1, 7)
    arm = state_at(torch.tensor([panda.home]), objects={"cube": cube})
    assert arm.views["cube"] is cube and "base_quat" not in arm.views and "objects" not in arm.views
    found = leaves([legs, cube])
    assert found[-1] is cube and all(a is b for a, b in zip(found[:-1], legs.views.values(), strict=True))


def test_state_from_views_round_trip(standing: Build, state_at: Build, panda: Any) -> None:
    arm = state_at(torch.tensor([panda.home]), objects={"cube": torch.ones(1, 7)})
    for state, objects in ((standing(3), []), (arm, ["cube"])):
        again = RobotState.from_views(state.views, objects)
        assert again.views.keys() == state.views.keys()
        assert all(torch.equal(again.views[k], v) for k, v in state.views.items())
        assert list(again.objects) == objects
    assert RobotState.from_views(standing(1).views, []).tool_position is ABSENT


def test_put_replaces_rows_in_a_copy_and_reverses_select(standing: Build) -> None:
    state = standing(4)
    before = {k: v.clone() for k, v in state.views.items()}
    rows = standing(2).map(lambda name, view: torch.full_like(view, 7.0))
    mixed = state.put(torch.tensor([3, 1]), rows)
    for name, view in mixed.views.items():
        assert (view[[1, 3]] == 7).all() and torch.equal(view[[0, 2]], before[name][[0, 2]]), name
        assert torch.equal(state.views[name], before[name]), "the original is unchanged"
    rng = torch.Generator().manual_seed(0)
    state = standing(5).map(lambda name, view: torch.randn(view.shape, generator=rng))
    ids = torch.tensor([4, 0, 2])
    again = state.put(ids, state.select(ids))
    assert all(torch.equal(again.views[k], v) for k, v in state.views.items())
