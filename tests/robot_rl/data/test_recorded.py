"""Recorded episodes as an environment: known errors of a policy and of the baselines."""

from __future__ import annotations

import pytest
import torch

from robot_rl.data.recorded import RecordedEnv
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.spec import numbered

ACTIONS = torch.tensor([[0.0], [1.0], [2.0], [9.0]])


@pytest.mark.parametrize(
    ("decides", "same_names", "hold"),
    [(1, True, [10, 1, 1, 7]), (2, True, [10, 9, 1, 8]), (2, False, [3, 2, 1, 8]), (4, True, [10, 9, 8, 1])],
)
def test_errors_of_policy_and_baselines(decides: int, same_names: bool, hold: list[float]) -> None:
    """The recorded action 9 exceeds the limit of 5; the mean action is 3, and the policy's action is 5."""
    actions = numbered("joint", [-5.0], [5.0])
    info = EnvInfo("apart", actions if same_names else numbered("state", [-5.0], [5.0]), actions, 10.0)
    env = RecordedEnv([{"observation.state": ACTIONS + 10, "action": ACTIONS}], info, 2, decides, seed=7)
    observation, _ = env.reset(seed=7)
    errors: dict[str, list[float]] = {}
    for t in range(4):
        assert observation["observation.state"].tolist() == [[10.0 + ACTIONS[t, 0]]] * 2
        observation, _, terminated, truncated, infos = env.step(torch.ones(2, 1))
        assert not terminated.any() and truncated.tolist() == [t == 3] * 2
        for name, values in infos["metrics"].items():
            errors.setdefault(name, []).append(values[1].item())
    assert errors["action/joint.0"] == [5, 4, 3, 4] and errors["hold/joint.0"] == hold
    assert errors["mean/joint.0"] == [3, 2, 1, 6]
    assert errors["action_error"] == pytest.approx([0.5, 0.4, 0.3, 0.4]), "relative to the range of 10"
    assert observation["observation.state"].tolist() == [[10.0]] * 2, "the episode is played again"


def test_the_seed_selects_the_episodes() -> None:
    spec = numbered("joint", [-5.0], [5.0])
    episodes = [{"observation.state": ACTIONS[k : k + 1], "action": ACTIONS[:1]} for k in range(3)]
    env = RecordedEnv(episodes, EnvInfo("apart", spec, spec, 10.0), 2, seed=100)
    states = [env.reset(seed=100 + k)[0]["observation.state"].flatten().tolist() for k in (0, 1, 2)]
    assert states == [[0, 1], [1, 2], [2, 0]]
