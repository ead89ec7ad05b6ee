"""so101-reach: its demonstrator succeeds with five joints, and zero actions do not."""

import torch

from sim.demonstrators import make_expert
from sim.env import TaskEnv
from tests.sim.tasks.test_ur5e_reach import attempt


def test_the_steady_expert_reaches_and_zero_actions_do_not() -> None:
    env = TaskEnv("so101-reach", 50, threads=1)
    success, _, motion = attempt(env, make_expert(env, "STEADY", 0).act)
    assert success.float().mean() >= 0.95 and env.divergences == 0
    assert (motion["speed"][:5] < env.robot.limit("velocity")).all()
    assert env.shield_events["nonfinite"] == 0
    success, _, _ = attempt(env, lambda _: torch.zeros(50, 4))
    assert success.float().mean() <= 0.1
