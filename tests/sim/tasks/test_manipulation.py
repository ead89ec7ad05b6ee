"""Tasks to place, stack, insert and open: their demonstrators succeed, and doing nothing does not."""

import pytest
import torch

from robot_rl.interface.success import state_test
from sim.env import TaskEnv
from sim.tasks import tasks

TASKS = ("panda-drawer", "panda-insert", "panda-place", "panda-push", "panda-stack")


@pytest.mark.parametrize("name", TASKS)
def test_the_steady_demonstrator_succeeds_and_a_still_arm_does_not(name: str) -> None:
    n = 8
    env = TaskEnv(name, n, seed=5, success_ends=False)
    observation, _ = env.reset(seed=5)
    still = env.pipeline.controller.hold_action(torch.zeros(n, env.pipeline.actions.size), torch.full((n, 1), 0.08))
    for _ in range(10):
        assert not env.step(still)[4]["success"].any()
    observation, _ = env.reset(seed=5)
    expert, won = env.make_demonstrator(1, "STEADY"), torch.zeros(n, dtype=torch.bool)
    expert.reset(torch.arange(n))
    for _ in range(tasks.get(name).interface.horizon - 1):
        observation, _, _, _, infos = env.step(expert.act(observation))
        won |= infos["success"]
    env.close()
    assert int(won.sum()) >= n - (4 if name == "panda-push" else 1), won  # a push that went wrong is not undone


def test_the_drawer_of_each_environment_stands_elsewhere_and_stays() -> None:
    env = TaskEnv("panda-drawer", 4, seed=0)
    env.reset(seed=0)
    start = env.true.objects["drawer"].clone()
    assert len({round(x, 4) for x in start[:, 0].tolist()}) == 4
    expert, observation = env.make_demonstrator(1, "STEADY"), env.episodes.observation()
    expert.reset(torch.arange(4))
    for _ in range(40):
        observation, *_ = env.step(expert.act(observation))
    joints = env.true.object_joints["drawer"][:, 0]
    assert (env.true.objects["drawer"] - start)[:, :3].abs().max() < 1e-3 and joints.max() > 0.03
    handle, cabinet = env.true.objects["drawer_handle"], env.true.objects["drawer"]
    gap = (handle - cabinet)[:, :2].norm(dim=1)
    assert gap.tolist() == pytest.approx((joints + 0.12 + 0.045).tolist(), abs=1e-4)
    env.close()


def test_privileged_observations_name_the_joints() -> None:
    env = TaskEnv("panda-drawer", 1)
    names = env.observation_spec["observation.environment_state"].names
    env.reset(seed=3)
    privileged = env.episodes.observation()["observation.environment_state"][0]
    at = names.index("drawer.joints.drawer_slide")
    assert privileged[at].item() == pytest.approx(env.true.object_joints["drawer"][0, 0].item())
    assert state_test("opened:drawer:-0.1")(env.true).all()
    env.close()
