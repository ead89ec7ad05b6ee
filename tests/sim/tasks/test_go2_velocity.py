"""go2-velocity as an environment: episodes, commands, pushes, metrics."""

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from sim.commands import CommandSchedule
from sim.engines.model import compile_model
from sim.env import TaskEnv
from sim.randomization import Randomize

Build = Callable[..., Any]


def still(n: int) -> torch.Tensor:
    return torch.zeros(n, 12)


def moves(n: int, steps: int, seed: int = 0, size: float = 0.5) -> torch.Tensor:
    return size * torch.randn(steps, n, 12, generator=torch.Generator().manual_seed(seed))


def knock_over(env: TaskEnv, index: int) -> None:
    env.engine.qpos[index, 3:7] = [0.0, 1.0, 0.0, 0.0]  # type: ignore[attr-defined]


def test_a_nan_action_keeps_the_setpoints() -> None:
    env = TaskEnv("go2-velocity", 2, threads=1)
    env.reset(seed=0)
    first, bad = moves(2, 2)
    env.step(first)
    goal = env.episodes.chain.goal.clone()
    bad[1, 5] = np.nan
    observation = env.step(bad)[0]["observation.state"]
    assert torch.equal(env.episodes.chain.goal[1], goal[1]) and not torch.equal(env.episodes.chain.goal[0], goal[0])
    assert torch.equal(env.episodes.chain.last_action[1], first[1].clamp(-1, 1)) and observation.isfinite().all()


@pytest.mark.parametrize("command", [(1.0, 0, 0), (-0.8, 0, 0), (0, 0.5, 0), (0, 0, 1.0), (0.5, 0.3, -0.7)])
def test_stance_feet_move_with_the_ground(walk: Build, command: tuple[float, float, float]) -> None:
    """In the frame of a trunk that moves as commanded, at 0.7 of the ground's speed."""
    task = walk()
    pipeline, gait = Pipeline(task.interface), task.interface.gait
    model = compile_model(pipeline.robot, task.scene)
    data = mujoco.MjData(model)
    joints = [model.joint(name).qposadr[0] for name in pipeline.robot.joint_names]

    def feet(phase: float) -> np.ndarray:
        state = RobotState(*(torch.zeros(1, 12),) * 3, command=torch.tensor([command]), phase=torch.tensor([[phase]]))
        data.qpos[joints] = pipeline.controller(state, torch.zeros(1, 12)).command.values[0]
        mujoco.mj_kinematics(model, data)
        return np.array([data.body(name).xpos - data.body("base").xpos for name in pipeline.robot.base.feet])[:, :2]

    for start, stance in ((0.0, [0, 3]), (0.5, [1, 2])):
        moved = (feet(start + 0.45) - feet(start + 0.05))[stance] / (0.4 / gait)
        at = feet(start + 0.25)[stance]
        ground = -np.array(command[:2]) - command[2] * np.stack([-at[:, 1], at[:, 0]], -1)
        assert np.abs(moved - 0.7 * ground).max() < 0.12 * np.abs(ground).max()


def test_zero_velocity_command_lets_the_robot_stand(walk: Build) -> None:
    env = TaskEnv(walk(commands=CommandSchedule(standing=1.0), horizon=100), 8, threads=1)
    env.reset(seed=0)
    for _ in range(99):
        _, reward, terminated, truncated, _ = env.step(still(8))
        assert reward.isfinite().all() and not terminated.any() and not truncated.any()
    assert env.true.base_velocity.abs().max() < 0.3 and env.divergences == 0
    *_, truncated, infos = env.step(still(8))
    assert truncated.all() and infos["success"].all()


def test_a_fall_terminates_and_is_no_success(walk: Build) -> None:
    env = TaskEnv(walk((), horizon=4), 3, threads=1)
    env.reset(seed=0)
    env.step(still(3))
    knock_over(env, 1)
    observation, reward, terminated, truncated, infos = env.step(still(3))
    assert terminated.tolist() == [False, True, False] and not truncated.any() and not infos["success"].any()
    assert reward.isfinite().all()
    assert torch.equal(infos["_final_obs"], terminated)
    gravity = env.pipeline.observer.spec.slice("projected_gravity")
    assert infos["final_obs"]["observation.state"][1, gravity][2] > 0.9, "upside down"
    assert observation["observation.state"][1, gravity][2] < -0.9, "upright"
    assert env.steps.tolist() == [2, 0, 2]


def test_a_fall_or_divergence_at_the_horizon_is_no_success(walk: Build) -> None:
    env = TaskEnv(walk(horizon=2), 3, threads=1)
    env.reset(seed=0)
    env.step(still(3))
    knock_over(env, 0)
    env.engine.qvel[1, 8] = 1e7  # type: ignore[attr-defined]
    observation, reward, terminated, truncated, infos = env.step(still(3))
    assert terminated.tolist() == [True, False, False] and truncated.tolist() == [False, True, True]
    assert infos["success"].tolist() == [False, False, True] and env.divergences == 1
    assert reward.isfinite().all() and reward[1] == 0 and observation["observation.state"].isfinite().all()


def test_the_reward_is_the_sum_of_its_terms(walk: Build) -> None:
    env = TaskEnv(walk(horizon=30), 6, threads=1)
    env.reset(seed=2)
    names = {r.name for r in env.task.rewards}
    seen: dict[str, torch.Tensor] = {}
    for action in moves(6, 60):
        _, reward, _, _, infos = env.step(action)
        assert reward.isfinite().all()
        assert set(infos["rewards"]) == names
        assert torch.allclose(reward, torch.stack(list(infos["rewards"].values())).sum(0), atol=1e-5)
        for name, value in (infos["rewards"] | {f"measured {k}": v for k, v in infos["metrics"].items()}).items():
            assert value.shape == (6,), name
            seen[name] = torch.cat([seen.get(name, value[:0]), value])
    assert {"velocity_error", "yaw_error", "power", "base_height"} <= {n.removeprefix("measured ") for n in seen}
    for name, value in seen.items():
        assert not value.isinf().any() and not value.isnan().all(), name
        assert name not in names or value.isfinite().all(), name
        assert name == "alive" or value.nan_to_num().std() > 0, f"{name} is constant"


def test_commands_change_on_schedule(walk: Build) -> None:
    env = TaskEnv(walk(commands=CommandSchedule(hold=1.0, standing=0.0)), 2, threads=1, randomize=False)
    columns = env.pipeline.observer.spec.slice("command")
    observation, _ = env.reset(seed=0)
    path = [observation["observation.state"][:, columns]]
    for _ in range(90):
        path.append(env.step(still(2))[0]["observation.state"][:, columns])
    commands = torch.stack(path)
    changes = (commands.diff(dim=0) != 0).any(2)
    assert (changes.nonzero()[:, 0].unique() + 1).tolist() == [*range(1, 26), *range(51, 76)], "ramps of half a second"
    assert changes.all(1).sum() == 50
    assert not torch.equal(commands[:, 0], commands[:, 1]), "commands differ between robots"
    spec = env.pipeline.command
    assert ((commands >= spec.low) & (commands <= spec.high)).all()


def test_rewards_use_the_command_that_the_policy_observed(walk: Build) -> None:
    """A control period is judged by the command at its start."""
    env = TaskEnv(walk(commands=CommandSchedule(hold=0.04, standing=0.0)), 1, threads=1, randomize=False)
    env.reset(seed=0)
    for _ in range(6):
        observed = env.state.command
        infos = env.step(still(1))[4]
        wanted = (env.true.base_velocity[:, :2] - observed[:, :2]).norm(dim=1)
        assert torch.allclose(infos["metrics"]["velocity_error"], wanted, atol=1e-6)


def test_staggered_first_episodes_end_at_different_times(walk: Build) -> None:
    env = TaskEnv(walk(horizon=50, commands=CommandSchedule(standing=1.0)), 200, threads=1)
    env.reset(seed=0, options={"stagger": True})
    steps = env.steps.clone()
    assert (steps >= 0).all() and (steps < 50).all() and len(steps.unique()) > 35
    assert 20 < float(steps.float().mean()) < 30
    _, _, _, truncated, infos = env.step(still(200))
    assert torch.equal(truncated, steps == 49) and torch.equal(infos["episode_steps"], steps + 1)
    assert (env.steps[truncated] == 0).all(), "later episodes have full length"
    few = TaskEnv(walk(horizon=50), 2, threads=1)
    few.reset(seed=0, options={"stagger": True})
    assert torch.equal(few.steps, steps[:2]), "for any number of environments"
    few.reset(seed=0)
    assert not few.steps.any()


def test_pushes_have_the_sampled_interval_and_speed(walk: Build) -> None:
    speed = 0.5
    ranges = [Randomize("push.speed", speed, speed), Randomize("push.interval", 0.2, 0.2)]
    pushed = TaskEnv(walk(ranges), 6, threads=1)
    alone = TaskEnv(walk(ranges), 6, threads=1, without=["push.speed"])
    for env in (pushed, alone):
        env.reset(seed=0)
    for k in range(11):
        for env in (pushed, alone):
            env.step(still(6))
        apart = (pushed.true.base_velocity - alone.true.base_velocity)[:, :2]
        assert k == 10 or not apart.any()
    # The legs have already counteracted the push for one control period.
    size = apart.norm(dim=1)
    assert ((size > 0.4 * speed) & (size < 1.1 * speed)).all()
    assert torch.atan2(apart[:, 1], apart[:, 0]).std() > 0.5, "in all directions"


def test_sensors_are_noisy_but_the_privileged_observation_is_true(walk: Build) -> None:
    loud = [Randomize("sensor.joint_noise", 0.1, 0.1), Randomize("sensor.gyro_noise", 1.0, 1.0)]
    noisy, exact = TaskEnv(walk(loud), 3, threads=1), TaskEnv(walk(loud), 3, threads=1, randomize=False)
    first = [env.reset(seed=0)[0] for env in (noisy, exact)]
    assert not torch.allclose(first[0]["observation.state"], first[1]["observation.state"], atol=0.05)
    columns = slice(0, 8)
    assert torch.equal(*(o["observation.environment_state"][:, columns] for o in first))
