"""Environment wrappers and `SuccessHold`."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.interface.environment import EnvWrapper
from robot_rl.interface.success import SuccessHold


class Counter:
    """Environment with saveable state that counts its steps."""

    def __init__(self) -> None:
        self.steps, self.num_envs = 0, 3

    def step(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> int:
        self.steps = state["steps"]
        return self.steps


class Twice(EnvWrapper):
    """Wrapper that steps twice and counts its calls."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        self.env.step()
        self.env.step()

    def wrapper_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_nested_wrappers_save_and_restore_their_states_if_the_environment_does() -> None:
    env = Twice(EnvWrapper(Twice(Counter())))
    env.step()
    assert (env.calls, env.env.calls, env.steps, env.num_envs) == (1, 2, 4, 3)
    saved = env.state_dict()
    env.step()
    assert env.load_state_dict(saved) == 4
    assert (env.calls, env.env.calls, env.steps) == (1, 2, 4)
    env = Twice(EnvWrapper(object()))
    assert not hasattr(env, "state_dict") and not hasattr(env, "progress")
    with pytest.raises(AttributeError):
        EnvWrapper.__new__(EnvWrapper).progress  # noqa: B018 - as in copy.copy


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30), st.integers(1, 5))
def test_success_must_hold_for_consecutive_periods(shown: list[tuple[bool, bool]], periods: int) -> None:
    hold = SuccessHold(periods, 2)
    for step in range(len(shown)):
        now = hold(torch.tensor(shown[step]))
        for i in range(2):
            last = [row[i] for row in shown[max(0, step + 1 - periods) : step + 1]]
            assert bool(now[i]) == (len(last) == periods and all(last))


def test_reset_restarts_only_the_given_environments() -> None:
    hold, yes = SuccessHold(2, 3), torch.ones(3, dtype=torch.bool)
    hold(yes)
    hold.reset(torch.tensor([1]))
    assert hold(yes).tolist() == [True, False, True]
    hold.reset(torch.tensor([True, False, False]))
    assert hold(yes).tolist() == [False, True, True]
    hold.reset()
    assert not hold(yes).any()
