"""Takeover reward: -1 in the last step before each takeover."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.rewards import TakeoverReward, led_to_takeover


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_each_takeover_marks_the_policys_step_before_it(flags: list[bool]) -> None:
    expected = [flags[t + 1] and not flags[t] for t in range(len(flags) - 1)] + [False]
    assert led_to_takeover(torch.tensor(flags)).tolist() == expected


def test_takeovers_cost_1_and_success_still_terminates() -> None:
    held = torch.tensor([0, 0, 1, 1, 0, 1, 0, 0]).bool()
    episode = {"intervention": held, "reward": torch.tensor([0.0] * 7 + [1.0])}
    labelled = TakeoverReward().relabel(episode)
    assert labelled["reward"].tolist() == [0, -1, 0, 0, -1, 0, 0, 0]
    assert labelled["terminated"].tolist() == [False] * 7 + [True]
    assert TakeoverReward().relabel({"reward": episode["reward"]})["reward"].tolist() == [0.0] * 8, "a demonstration"


def test_the_least_return_has_a_takeover_in_every_second_step() -> None:
    low, high = TakeoverReward().limits(0.9)
    held = torch.arange(400) % 2 == 1
    reward = TakeoverReward().relabel({"reward": torch.zeros(400), "intervention": held})["reward"]
    assert high == 0 and low == pytest.approx(float((reward * 0.9 ** torch.arange(400)).sum()), rel=1e-4)
