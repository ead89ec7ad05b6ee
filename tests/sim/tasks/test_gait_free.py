"""Tasks without a scripted gait: actions alone move the legs, and left and right are alike."""

from dataclasses import replace

import pytest
import torch

from sim.env import TaskEnv
from sim.tasks import tasks

FREE = ("go2-flat", "anymal-flat")


@pytest.mark.parametrize("name", FREE)
def test_a_commanded_robot_stands_still_with_zero_actions(name: str) -> None:
    env = TaskEnv(name, 8, randomize=False)
    env.reset(seed=1)
    moved = torch.zeros(8)
    for _ in range(300):  # the second command is not zero
        _, _, terminated, _, infos = env.step(torch.zeros(8, 12))
        assert not terminated.any()
        if int(env.steps[0]) > 50:  # it has sunk into its springs
            moved += infos["metrics"]["air_time"].nan_to_num()
    assert moved.max() == 0 and env.state.command.abs().max() > 0.1
    assert (env.true.joint_velocity.abs().max() < 0.1) and (env.true.foot_force > 5).all()
    env.close()


@pytest.mark.parametrize("name", FREE)
def test_mirrored_actions_give_the_mirrored_motion(name: str) -> None:
    mirror = tasks.get(name).mirror
    assert mirror is not None
    env = TaskEnv(name, 1, randomize=False)
    rng = torch.Generator().manual_seed(0)
    actions = 0.5 * torch.randn(25, 1, 12, generator=rng).clamp(-1, 1)
    ends = []
    for mirrored in (False, True):
        env.reset(seed=0)
        for action in actions:
            env.step(mirror.action(action) if mirrored else action)
        ends.append(env.true)
    (x, y, z), (mx, my, mz) = (end.base_position[0] for end in ends)
    assert (mx - x).abs() < 0.01 and (my + y).abs() < 0.01 and (mz - z).abs() < 0.01
    assert (y.abs() > 0.001) and mirror.action(ends[0].joint_position).sub(ends[1].joint_position).abs().max() < 0.05
    env.close()


def test_demonstrator_plays_the_scripted_trot_of_go2_velocity() -> None:
    """Its setpoints are those of go2-velocity with zero actions; a reset begins the cycle anew."""
    env, scripted = TaskEnv("go2-flat", 2, randomize=False), TaskEnv("go2-velocity", 2, randomize=False)
    for each in (env, scripted):
        each.reset(seed=0)
    expert = env.make_demonstrator(0)
    controller, trot = env.pipeline.controller, scripted.pipeline.controller
    seen = {"observation.state": torch.zeros(2, env.pipeline.observer.spec.size)}
    command = torch.tensor([[0.8, 0.2, -0.5], [0.0, 0.0, 0.0]])
    seen["observation.state"][:, env.pipeline.observer.spec.slice("command")] = command
    state = replace(scripted.state, command=command)
    for step in range(40):
        if step == 30:
            expert.reset(torch.arange(2))
        state = replace(state, phase=scripted.pipeline.phase(torch.full((2,), step % 30)).view(2, 1))
        offset = env.pipeline.actions.to_physical(expert.act(seen))
        wanted = trot(state, torch.zeros(2, 12)).command.values
        assert torch.allclose(controller(env.state, offset).command.values, wanted, atol=1e-6)
    env.close()
    scripted.close()
