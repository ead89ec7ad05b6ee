"""Takeovers as reward: one -1 for each, in the step that led to it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.rewards import TakeoverReward, led_to_takeover


def test_the_last_step_before_a_takeover_pays() -> None:
    held = torch.tensor([0, 0, 1, 1, 0, 1, 0, 0]).bool()
    episode = {"intervention": held, "reward": torch.tensor([0.0] * 7 + [1.0])}
    labelled = TakeoverReward().relabel(episode)
    assert labelled["reward"].tolist() == [0, -1, 0, 0, -1, 0, 0, 0]
    assert labelled["terminated"].tolist() == [False] * 7 + [True], "success ends the episode, and pays nothing"


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_exactly_one_for_each_takeover_that_a_step_of_the_policy_led_to(flags: list[bool]) -> None:
    held = torch.tensor(flags)
    paying = led_to_takeover(held)
    takeovers = sum(b and not a for a, b in zip(flags, flags[1:], strict=False))
    assert int(paying.sum()) == takeovers
    assert not bool((paying & held).any()), "never a step of the person"
    assert all(flags[t + 1] for t in paying.nonzero().flatten().tolist())


def test_nobody_is_worth_nothing_and_demonstrations_too() -> None:
    reward = torch.tensor([0.0, 0.0, 1.0])
    for episode in ({"reward": reward}, {"reward": reward, "intervention": torch.zeros(3, dtype=torch.bool)}):
        assert TakeoverReward().relabel(episode)["reward"].tolist() == [0.0] * 3


def test_the_least_return_is_a_takeover_at_every_other_step() -> None:
    low, high = TakeoverReward().limits(0.9)
    held = torch.arange(400) % 2 == 1
    paid = TakeoverReward().relabel({"reward": torch.zeros(400), "intervention": held})["reward"]
    assert high == 0 and low == pytest.approx(float((paid * 0.9 ** torch.arange(400)).sum()), rel=1e-4)
