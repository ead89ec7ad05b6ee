"""When the scripted operator takes over."""

from __future__ import annotations

import torch

from robot_rl.operators.watch import ABOVE, BESIDE, GLANCE, LONGEST, PATIENCE, Watch

OPEN, SHUT = 1.0, 0.3


def offset(x: float, z: float) -> torch.Tensor:
    """From the tool to the object, m."""
    return torch.tensor([x, 0.0, z])


def test_an_approach_that_goes_on_is_left_alone() -> None:
    watch = Watch()
    for k in range(60):  # 3 s at 20 Hz, 5 mm nearer each time
        assert not watch(offset(0.0, -0.35 + 0.005 * k), 0.02, OPEN, 0.05 * k)


def test_a_stall_is_helped_after_a_while_and_not_before() -> None:
    watch = Watch()
    wanted = {round(0.05 * k, 2): watch(offset(0.05, -0.1), 0.02, OPEN, 0.05 * k) for k in range(40)}
    assert not any(w for t, w in wanted.items() if t < PATIENCE - 0.01)
    assert all(w for t, w in wanted.items() if t > PATIENCE + 0.01)


def test_lifting_counts_as_progress() -> None:
    watch = Watch()
    assert not any(watch(offset(0.0, 0.0), 0.02 + 0.002 * k, SHUT, 0.05 * k) for k in range(60))


def test_fingers_that_come_down_beside_the_object() -> None:
    beside, low = BESIDE + 0.002, -ABOVE + 0.01
    watch = Watch()
    wanted = [watch(offset(beside, low + 0.005 * k), 0.02, OPEN, 0.05 * k) for k in range(5)]
    assert wanted == [False, False, False, True, True], f"a glance of {GLANCE} s, then a hand on the stick"
    for place, width in (
        (offset(BESIDE - 0.002, low), OPEN),
        (offset(beside, -ABOVE - 0.01), OPEN),
        (offset(beside, low), SHUT),
    ):
        watch.reset(0.0)
        assert not any(watch(place, 0.02, width, 0.05 * k) for k in range(5))


def test_control_is_given_back_after_a_while() -> None:
    watch = Watch()
    wanted = {round(0.05 * k, 2): watch(offset(0.05, -0.1), 0.02, OPEN, 0.05 * k) for k in range(140)}
    began = next(t for t, w in wanted.items() if w)
    assert all(wanted[t] for t in wanted if began <= t < began + LONGEST)
    again = [w for t, w in wanted.items() if t > began + LONGEST + 0.1]
    assert again and not any(again[:20]), "the policy gets another try"


def test_a_new_episode_is_watched_anew() -> None:
    watch = Watch()
    watch(offset(0.0, 0.0), 0.1, SHUT, 0.0)
    assert watch(offset(0.3, -0.2), 0.02, OPEN, 5.0)
    watch.reset(5.0)
    assert not watch(offset(0.3, -0.2), 0.02, OPEN, 5.05)
