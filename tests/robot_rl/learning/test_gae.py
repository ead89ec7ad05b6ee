"""Advantages against sums done by hand."""

from __future__ import annotations

import pytest
import torch

from robot_rl.learning.parts.gae import advantages

REWARD = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
VALUE = torch.tensor([[10.0], [20.0], [30.0], [40.0]])
NO = torch.zeros(4, 1, dtype=torch.bool)
AT_1 = torch.tensor([[False], [True], [False], [False]])


def test_an_episode_without_an_end() -> None:
    following = torch.tensor([[20.0], [30.0], [40.0], [50.0]])
    advantage, target = advantages(REWARD, VALUE, following, NO, NO, 0.5, 0.5)
    # delta = 1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30, 4 + 25 - 40; A_t = delta_t + A_{t+1} / 4
    a3 = -11.0
    a2 = -7 + a3 / 4
    a1 = -3 + a2 / 4
    a0 = 1 + a1 / 4
    assert advantage[:, 0].tolist() == [a0, a1, a2, a3]
    assert torch.equal(target, advantage + VALUE)


def test_a_termination_in_the_middle_is_worth_its_reward() -> None:
    following = torch.tensor([[20.0], [1e9], [40.0], [50.0]])  # what a terminated step ends in has no say
    advantage, _ = advantages(REWARD, VALUE, following, AT_1, AT_1, 0.5, 0.5)
    a1 = 2.0 - 20
    assert advantage[:, 0].tolist() == [1 + a1 / 4, a1, -7 - 11 / 4, -11]


def test_a_truncation_in_the_middle_is_worth_its_last_state() -> None:
    following = torch.tensor([[20.0], [6.0], [40.0], [50.0]])  # V(final_obs) = 6; s_2 belongs to the next episode
    advantage, target = advantages(REWARD, VALUE, following, NO, AT_1, 0.5, 0.5)
    a1 = 2 + 3.0 - 20
    assert advantage[:, 0].tolist() == [1 + a1 / 4, a1, -7 - 11 / 4, -11]
    assert target[1] == 5


def test_lambda_1_is_the_return_and_lambda_0_one_step() -> None:
    following = torch.cat([VALUE[1:], torch.tensor([[50.0]])])
    _, target = advantages(REWARD, VALUE, following, NO, NO, 0.5, 1.0)
    assert target[0].item() == 1 + 2 / 2 + 3 / 4 + 4 / 8 + 50 / 16
    _, target = advantages(REWARD, VALUE, following, NO, NO, 0.5, 0.0)
    assert torch.equal(target, REWARD + 0.5 * following)


def test_environments_do_not_mix() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, following = torch.randn(3, 6, 4, generator=generator)
    done = torch.rand(6, 4, generator=generator) < 0.3
    terminated = done & (torch.rand(6, 4, generator=generator) < 0.5)
    whole, _ = advantages(reward, value, following, terminated, done, 0.9, 0.8)
    for i in range(4):
        one = [x[:, i : i + 1] for x in (reward, value, following, terminated, done)]
        assert torch.equal(advantages(*one, 0.9, 0.8)[0], whole[:, i : i + 1])


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"next_value has shape \(5, 1\), reward \(4, 1\)"):
        advantages(REWARD, VALUE, torch.zeros(5, 1), NO, NO, 0.9, 0.9)
