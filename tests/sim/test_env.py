"""TaskEnv: Gymnasium's vector conventions, invalid actions, randomization."""

import gc
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface import success
from robot_rl.util.errors import UserError
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.randomization import Randomize

Build = Callable[..., Any]


@pytest.fixture
def success_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(success.TESTS, "always", lambda: lambda s: torch.ones(len(s.joint_position), dtype=torch.bool))
    monkeypatch.setitem(success.TESTS, "right", lambda: lambda s: s.objects["cube"][:, 1] > 0)


def still(n: int) -> torch.Tensor:
    return torch.tensor([[0.0, 0.0, 0.0, 1.0]]).expand(n, 4)


def test_horizon_truncates_and_resets_in_the_same_step(task: Build) -> None:
    env = TaskEnv(task(horizon=3), 2, threads=1)
    first, _ = env.reset(seed=5)
    for k in range(1, 7):
        observation, reward, terminated, truncated, infos = env.step(still(2))
        assert not terminated.any() and not reward.any()
        assert truncated.tolist() == [k % 3 == 0] * 2
        assert ("final_obs" in infos) == (k % 3 == 0)
        assert infos["episode_steps"].tolist() == [(k - 1) % 3 + 1] * 2
        if k % 3 == 0:
            assert infos["_final_obs"].all()
            final = infos["final_obs"]["observation.state"]
            assert not torch.allclose(final, observation["observation.state"]), "first observation of the next episode"
            assert not observation["observation.state"][:, -4:].any(), "the last action is cleared"
            assert final[:, -1].tolist() == [1.0, 1.0], "the final observation has the last action"
    assert not torch.allclose(first["observation.environment_state"], observation["observation.environment_state"])


@pytest.mark.parametrize("engine", ["mujoco", "one without prefetch"])
def test_metrics_belong_to_the_episode_that_ended(walk: Build, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Also for views of the state, whose rows the next episode overwrites."""
    if engine != "mujoco":
        monkeypatch.setattr(MujocoEngine, "clone", lambda self: None)
    env = TaskEnv(walk(horizon=5), 3, threads=1)
    env.reset(seed=0, options={"stagger": True})
    (height,) = [k for k, name in enumerate(env.episodes.privileged.spec.names) if "base_height" in name]
    ended = 0
    for _ in range(12):
        observation, _, _, _, infos = env.step(torch.zeros(3, 12))
        ends = infos.get("_final_obs", torch.zeros(3, dtype=torch.bool))
        last = torch.where(ends[:, None], infos.get("final_obs", observation)["observation.environment_state"],
                           observation["observation.environment_state"])  # fmt: skip
        assert torch.equal(infos["metrics"]["base_height"], last[:, height])
        assert torch.equal(env.steps == 0, ends) and infos["episode_steps"].gt(0).all()
        ended += int(ends.sum())
    assert ended >= 6


@pytest.mark.usefixtures("success_tests")
@pytest.mark.parametrize("horizon", [2, 50], ids=["at the horizon", "before it"])
def test_success_terminates_after_it_has_held(task: Build, horizon: int) -> None:
    env = TaskEnv(task(success="always", success_hold=2, horizon=horizon), 2, threads=1)
    env.reset(seed=0)
    for k in (1, 2, 3, 4):
        _, reward, terminated, truncated, infos = env.step(still(2))
        assert terminated.tolist() == infos["success"].tolist() == [k % 2 == 0] * 2
        assert reward.tolist() == [float(k % 2 == 0)] * 2
        assert not truncated.any(), "an episode that succeeds at the horizon is terminated, not truncated"


@pytest.mark.usefixtures("success_tests")
def test_environments_end_independently(task: Build) -> None:
    """Environments with the cube on the right succeed at step 2; the others continue to the horizon."""
    env = TaskEnv(task(success="right", success_hold=2, horizon=5), 8, threads=1)
    observation, _ = env.reset(seed=3)
    right = observation["observation.environment_state"][:, 1] > 0
    assert 0 < right.sum() < 8
    env.step(still(8))
    before = env.engine.qpos.copy()
    observation, _, terminated, truncated, infos = env.step(still(8))
    assert torch.equal(terminated, right) and not truncated.any()
    assert torch.equal(infos["_final_obs"], right)
    first, last = (seen["observation.environment_state"] for seen in (observation, infos["final_obs"]))
    same_cube = torch.isclose(first, last)
    assert torch.equal(same_cube[:, :2].all(-1), ~right)
    assert np.abs(env.engine.qpos - before)[~right.numpy(), :7].max() < 0.05
    assert env.steps.tolist() == [0 if r else 2 for r in right]


@pytest.mark.parametrize(("bad", "column"), [(math.nan, 0), (math.inf, 2), (-math.inf, 3)], ids=["x", "z", "gripper"])
def test_non_finite_action_holds_goal_and_gripper(task: Build, monkeypatch: Any, bad: float, column: int) -> None:
    """As in the robot's loop, the arm brakes at once, and the gripper's width stays; other environments are not
    affected."""
    env, reference = TaskEnv(task(), 2, threads=1), TaskEnv(task(), 2, threads=1)
    sent: list[torch.Tensor] = []
    step = env.engine.step
    monkeypatch.setattr(env.engine, "step", lambda joints, grip: (sent.extend([joints, grip]), step(joints, grip)))
    for one in (env, reference):
        one.reset(seed=0)
        one.step(torch.tensor([[0.2, 0.2, 0.2, -1.0]]).expand(2, 4))
    before = env.episodes.chain.goal[1].clone()
    action = torch.full((2, 4), 0.6)
    expected = action.clone()
    action[1, column] = bad
    observation = env.step(action)[0]["observation.state"]
    stop = env.episodes.chain.goal[1].clone()
    assert (stop - before).abs().max() < 0.05 and not sent[-1][1].any(), "the gripper as after the previous action"
    assert env.episodes.chain.last_action[1].tolist() == [0.0, 0.0, 0.0, -1.0], "the executed action holds position"
    assert torch.equal(observation[0], reference.step(expected)[0]["observation.state"][0])
    assert all(s.isfinite().all() for s in sent) and len(sent) == 4 and observation.isfinite().all()
    assert env.shield_events["nonfinite"] == 1
    assert math.isnan(bad) or action[1, column] == bad, "the caller's tensor is not changed"
    env.step(action)
    assert torch.allclose(env.episodes.chain.goal[1], stop, atol=2e-3)
    assert torch.allclose(sent[-2][1, -1].float(), stop, atol=2e-3)


def test_arm_stops_after_non_finite_actions(task: Build) -> None:
    """After one valid action and then only NaN, the arm brakes at once and stays there."""
    env = TaskEnv(task(), 1, threads=1, randomize=False)
    env.reset(seed=0)
    start = env.true.tool_position.clone()
    for k in range(20):
        observation = env.step(torch.tensor([[1.0, 0.0, 0.0, 1.0]]) if k == 0 else torch.full((1, 4), math.nan))[0]
    moved = float((env.true.tool_position - start).norm())
    assert 0.002 < moved < 0.04 and env.shield_events["nonfinite"] == 19
    assert float(env.true.joint_velocity.abs().max()) < 0.01
    assert env.true.gripper_width == pytest.approx(0.08, abs=1e-3) and observation["observation.state"].isfinite().all()


def test_first_action_non_finite_holds_the_start(task: Build) -> None:
    """Also in a later episode: action and gripper width of the previous episode are forgotten."""
    env, fresh = (TaskEnv(task(horizon=horizon), 1, threads=1, randomize=False) for horizon in (2, 50))
    env.reset(seed=0)
    for _ in range(2):
        env.step(torch.tensor([[0.0, 0.0, 0.0, -1.0]]))
    fresh.reset(seed=0, options={"episode": 1})
    for one in (env, fresh):
        one.step(torch.full((1, 4), math.nan))
    assert torch.equal(env.true.joint_position, fresh.true.joint_position)
    assert env.true.gripper_width == pytest.approx(0.08, abs=1e-3)
    assert env.episodes.chain.last_action.tolist() == [[0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("shape", [(2, 4), (4,)])
def test_actions_of_wrong_shape_raise(task: Build, shape: tuple[int, ...]) -> None:
    env = TaskEnv(task(), 3, threads=1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions for 3 copies of .* are \(3, 4\), not \("):
        env.step(torch.zeros(shape))


def test_actions_beyond_the_range_are_clipped(task: Build) -> None:
    env, reference = TaskEnv(task(), 1, threads=1), TaskEnv(task(), 1, threads=1)
    for one in (env, reference):
        one.reset(seed=0)
    loud = env.step(torch.tensor([[30.0, -30.0, 0.5, 1.0]]))[0]["observation.state"]
    assert torch.equal(loud, reference.step(torch.tensor([[1.0, -1.0, 0.5, 1.0]]))[0]["observation.state"])


@pytest.mark.parametrize("field", ["qpos", "qvel"])
def test_diverged_simulation_ends_only_its_own_episode(task: Build, field: str) -> None:
    env = TaskEnv(task(), 3, threads=1)
    env.reset(seed=0)
    env.step(still(3))
    getattr(env.engine, field)[1, 3] = np.nan if field == "qpos" else 1e7
    observation, reward, terminated, truncated, infos = env.step(still(3))
    assert truncated.tolist() == [False, True, False] and not terminated.any() and not reward.any()
    assert env.divergences == 1
    assert observation["observation.state"].isfinite().all()
    assert infos["final_obs"]["observation.state"].isfinite().all(), "learners store the final observation"


def test_unknown_parameters_raise_with_the_list_of_known_ones(task: Build) -> None:
    known = r"cannot randomize cube.weight, sphere.mass; it can: .*cube.mass.*sensor.joint_noise"
    with pytest.raises(UserError, match=known) as error:
        TaskEnv(task([Randomize(p, 0.1, 0.2) for p in ("cube.mass", "cube.weight", "sphere.mass")]), 1)
    for name in ("cube.yaw", "robot.home_offset", "robot.action_delay"):
        assert name in str(error.value)


def test_sampled_values_set_the_initial_state(task: Build) -> None:
    drawn = [Randomize("cube.x", 0.4, 0.5), Randomize("cube.yaw", -0.5, 0.5)]
    drawn.append(Randomize("robot.home_offset", 0.05, 0.05))
    env = TaskEnv(task(drawn), 4, threads=1)
    observation, _ = env.reset(seed=0)
    for i in range(4):
        record = env.episode_record(i)
        cube = observation["observation.environment_state"][i]
        assert float(cube[0]) == pytest.approx(record["randomization/cube.x"], abs=1e-6)
        yaw = 2 * math.atan2(float(cube[6]), float(cube[3]))
        assert yaw == pytest.approx(record["randomization/cube.yaw"], abs=1e-6)
    assert observation["observation.environment_state"][:, 7:].numpy() == pytest.approx(env.sampled, abs=1e-6)
    offset = env.state.joint_position - torch.tensor(env.robot.home)
    assert 0.01 < offset.abs().max() <= 0.05 + 1e-6


def test_without_randomization_all_episodes_are_equal(task: Build) -> None:
    env = TaskEnv(task(), 3, threads=1, randomize=False)
    observation, _ = env.reset(seed=0)
    for value in observation.values():
        assert (value == value[0]).all()
    assert env.episode_record(0) == {}


def test_motor_controls_its_encoder_reading(task: Build) -> None:
    """The measured position equals the setpoint, the true position differs by the encoder offset."""
    offset = Randomize("sensor.encoder_offset", 0.02, 0.02)
    env = TaskEnv(task(randomization=(offset,), horizon=50), 2, threads=1)
    env.reset(seed=3)
    for _ in range(10):
        env.step(still(2))
    wrong = env.episodes.sensors.encoder_offset
    assert wrong.abs().max() > 0.015
    assert torch.allclose(env.true.joint_position, env.episodes.chain.goal - wrong, atol=1e-3)
    assert torch.allclose(env.state.joint_position, env.episodes.chain.goal, atol=1e-3)


def test_close_ends_all_threads(task: Build) -> None:
    """Not at a garbage collection, which in a forked process would wait for the threads forever."""
    gc.collect()
    before = len(os.listdir("/proc/self/task"))
    gc.disable()
    try:
        env = TaskEnv(task(horizon=2), 4, threads=3)
        env.reset(seed=0)
        for _ in range(3):
            env.step(torch.zeros(4, env.pipeline.actions.size))
        assert len(os.listdir("/proc/self/task")) > before, "including those of the prefetched simulations"
        env.close()
        del env
        assert len(os.listdir("/proc/self/task")) == before
    finally:
        gc.enable()
