"""A robot as an environment: the same contract and the same numbers as simulation, and what happens when it fails."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bundle import Bundle, load_bundle, save_bundle
from policies.execution import ChunkExecutor
from real.bus import make, open_node, qos
from real.control.safety import SafetyConfig
from real.robots.arm import ArmDriver
from real.robots.base import NotReady
from real.teleop.commands import RELEASED, Operator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from sim.env import TaskEnv
from sim.tasks import tasks

LIFT = tasks.get("panda-lift").interface
FAST = replace(LIFT, horizon=6)
STILL = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
Build = Callable[..., Any]


@pytest.fixture
def env(robot_env: Build) -> Build:
    return lambda interface=FAST, *hands, **options: robot_env(interface, *hands, **options)


# ---- parity ------------------------------------------------------------------------------------------------------
class Recorded:
    """One simulated environment, whose measured state is sent as a robot would."""

    def __init__(self, node: Any):
        robot = Pipeline(LIFT).robot
        assert robot.gripper is not None
        self.names = [*robot.joint_names, *robot.gripper.joints]
        self.states = node.publisher("sensor_msgs/msg/JointState", robot.ros.joint_states, qos.SENSOR)
        self.pose = node.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", qos.SENSOR)

    def send(self, state: RobotState) -> None:
        fingers = state.gripper_width[0].double().numpy() / 2
        position = np.concatenate([state.joint_position[0].double().numpy(), fingers, fingers])
        velocity = np.concatenate([state.joint_velocity[0].double().numpy(), [0.0, 0.0]])
        shuffled = np.random.default_rng(0).permutation(9)
        self.states.publish(
            make(
                "sensor_msgs/msg/JointState",
                name=[self.names[k] for k in shuffled],
                position=position[shuffled],
                velocity=velocity[shuffled],
            )  # fmt: skip
        )
        x, y, z, qw, qx, qy, qz = state.objects["cube"][0].tolist()
        quat = {"x": qx, "y": qy, "z": qz, "w": qw}
        pose = {"position": {"x": x, "y": y, "z": z}, "orientation": quat}
        self.pose.publish(make("geometry_msgs/msg/PoseStamped", pose=pose))


@pytest.mark.parametrize("turn", [0.0, 0.1])
def test_the_same_state_gives_the_same_views_observation_and_target(
    private_domain: int, eventually: Build, task: Build, turn: float
) -> None:
    """DESIGN.md: "a test feeds the same recorded state through both: equal to 1e-6"."""
    controller: Any = replace(LIFT.controller, turn=turn)
    terms = (*LIFT.observations, "joint_velocity", "tool_rotation", "object_in_tool:cube")
    everything = replace(LIFT, observations=terms, controller=controller)
    simulation = TaskEnv(task(observations=terms, controller=controller), 1, threads=1, seed=3)
    simulation.reset(seed=3)
    rng = torch.Generator().manual_seed(0)
    pipeline = Pipeline(everything)
    with open_node("robot") as robot, open_node("policy") as policy:
        recorded, driver = Recorded(robot), ArmDriver(policy, pipeline.robot, ("cube",))
        eventually(lambda: recorded.states.matched == 1 == recorded.pose.matched)
        for k in range(12):
            action = 2 * torch.rand(1, pipeline.actions.size, generator=rng) - 1
            simulation.step(action)
            state = simulation.state
            quat = torch.randn(1, 4, generator=rng)  # the task's own cube only turns about z
            state.objects["cube"][:, 3:] = quat / quat.norm()
            joints, poses = driver.joints.latest, driver.accepted["cube"]
            stamp = float(driver._stamp.min())
            recorded.send(state)
            eventually(
                lambda j=joints, p=poses, s=stamp: (
                    driver.joints.latest is not j and driver.accepted["cube"] != p and float(driver._stamp.min()) != s
                )
            )
            seen = driver.state(simulation.episodes.chain.last_action)
            seen.reference = state.reference
            for view in ("joint_position", "joint_velocity", "tool_position", "gripper_width", "last_action"):
                assert torch.allclose(getattr(seen, view), getattr(state, view), rtol=0, atol=1e-6), (k, view)
            assert torch.allclose(seen.objects["cube"], state.objects["cube"], rtol=0, atol=1e-6)
            ours = pipeline.observer(seen)
            assert torch.allclose(ours, simulation.pipeline.observer(state), rtol=0, atol=1e-6), k
            physical = pipeline.actions.to_physical(action)
            target, there = pipeline.controller(seen, physical), simulation.pipeline.controller(state, physical)
            assert torch.allclose(target.position, there.position, rtol=0, atol=1e-5)


def test_a_deployed_policy_does_what_the_trained_one_does(
    env: Build, topic_robot: Build, residual: Build, tmp_path: Path
) -> None:
    """Bundle saved and loaded, run on the robot: on the same observations, the training side's actions to 1e-6."""
    robot = topic_robot()
    pipeline = Pipeline(LIFT)
    trained = residual(pipeline.observer.spec.size, 4, zero_init=False)
    trained.normalizer.fit(torch.randn(50, pipeline.observer.spec.size))
    save_bundle(Bundle(trained, replace(LIFT, horizon=25), pipeline.robot.fingerprint()), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    bundle.check_robot(robot.robot)
    e = env(bundle.interface)
    here, there = ChunkExecutor(bundle.policy, 1), ChunkExecutor(trained, 1)
    rngs = [torch.Generator().manual_seed(5) for _ in range(2)]
    here.reset()
    there.reset()
    observation, _ = e.reset(seed=0)
    done, moved = False, []
    while not done:
        action = here.act(observation, rngs[0])
        expected = there.act({k: v.clone() for k, v in observation.items()}, rngs[1])
        assert (action - expected).abs().max() <= 1e-6
        observation, _, terminated, truncated, infos = e.step(action)
        assert (infos["executed"] - expected).abs().max() <= 1e-6
        assert torch.equal(infos["policy_action"], action)
        moved.append(action)
        done = bool(terminated | truncated)
    assert len(moved) == 25 and torch.cat(moved).std(0).min() > 1e-3, "and it did something"
    spec = pipeline.observer.spec
    assert torch.allclose(observation["observation.state"][:, spec.slice("last_action")], moved[-1], atol=1e-6)


# ---- the contract ------------------------------------------------------------------------------------------------
def test_reset_goes_home_opens_places_and_announces(env: Build, topic_robot: Build, eventually: Build) -> None:
    robot = topic_robot()
    away = np.array(robot.robot.home)
    away[0] += 0.3
    robot.position, robot.width, robot.cube = away, 0.01, np.array([0.4, 0.1, 0.3])
    phases: list[str] = []
    robot.node.subscribe("std_msgs/msg/String", "episode", qos.LATCHED, lambda s: phases.append(s.msg.data))
    e = env()
    observation, _ = e.reset(seed=42)
    state = observation["observation.state"]
    spec = e.pipeline.observer.spec
    assert (state[0, spec.slice("joint_position")] - torch.tensor(robot.robot.home)).abs().max() < 0.04
    assert state[0, spec.slice("gripper_width")].item() == pytest.approx(0.08)
    assert state[0, spec.slice("cube_position")].tolist() == pytest.approx([0.5, 0.0, 0.022])
    assert not state[0, spec.slice("last_action")].any()
    assert robot.seeds == [42]
    eventually(lambda: any("running" in p for p in phases))
    # The way home was the shield's: no command faster than permitted.
    sent = torch.from_numpy(np.stack(robot.commands))
    assert np.abs(sent[0] - away).max() < 0.02, "seeded where it stood (the first commands precede discovery)"
    assert (sent.diff(dim=0).abs() <= e.pipeline.shield.velocity * e.pipeline.tick * 1.001 + 1e-6).all()


def test_what_was_lifted_is_set_down_before_the_gripper_opens(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    e = env(replace(LIFT, horizon=60))
    e.reset(seed=0)

    def go(dz: float, gripper: float, steps: int) -> float:
        for _ in range(steps):
            e.step(torch.tensor([[0.0, 0.0, dz, gripper]]))
        return float(e.state.tool_position[0, 2])

    go(-1.0, 1.0, 10)
    robot.thick = 0.04  # something between the fingers
    low = go(0.0, -1.0, 4)
    high = go(1.0, -1.0, 30)
    assert high > low + 0.1 and robot.width == 0.04
    sent, told = len(robot.commands), len(robot.widths)
    e.reset(seed=1)
    opened = next(k for k, width in enumerate(robot.widths[told:]) if width > 0.07)
    position = torch.from_numpy(np.stack(robot.commands[sent : sent + opened + 1])).float()
    heights = e.pipeline.kinematics.forward(position)[0][:, 2]
    assert float(heights[0]) > low + 0.08, "it was up there"
    assert float(heights[-1]) == pytest.approx(low, abs=0.015), "and opens where it was gripped"
    assert float(e.state.tool_position[0, 2]) > low + 0.05 and robot.width == pytest.approx(0.08)


def test_an_empty_gripper_opens_at_once(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    e = env(replace(LIFT, horizon=60))
    e.reset(seed=0)
    for dz, gripper in [(-1.0, 1.0)] * 6 + [(1.0, -1.0)] * 10:
        e.step(torch.tensor([[0.0, 0.0, dz, gripper]]))
    before = float(e.state.tool_position[0, 2])
    e.reset_procedure.set_down()
    assert robot.width == 0.0 and float(e.read().tool_position[0, 2]) == pytest.approx(before, abs=0.01)


def test_shapes_spaces_and_pace(env: Build, topic_robot: Build) -> None:
    import time

    topic_robot()
    e = env()
    observation, infos = e.reset(seed=0)
    assert e.num_envs == 1 and infos == {}
    assert e.action_space.shape == (1, 4)
    begin = e.ticker.next - e.period
    for k in range(1, 7):
        observation, reward, terminated, truncated, infos = e.step(STILL)
        assert e.observation_space["observation.state"].contains(observation["observation.state"].numpy())
        assert reward.shape == terminated.shape == truncated.shape == infos["success"].shape == (1,)
        assert reward.item() == 0 and not terminated and bool(truncated) == (k == 6), "the horizon truncates"
        assert infos["episode_steps"].tolist() == [k]
    assert time.monotonic() - begin >= 6 * e.period - 1e-6, "one control period a step, never faster"
    assert torch.equal(infos["final_obs"]["observation.state"], observation["observation.state"])
    assert e.summary()["inference_ms"]["max"] > 0 and e.summary()["shield"] == {}


def test_success_needs_to_be_held(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    e = env(replace(LIFT, horizon=60, success_hold=4))
    e.reset(seed=0)
    x, y, z = e.state.tool_position[0].tolist()
    robot.cube = np.array([x, y, z])  # lifted, in the fingers
    seen = []
    while not seen or not seen[-1][2]:
        seen.append(e.step(STILL))
        assert len(seen) < 60
    assert seen[-1][1].item() == 1.0 and not seen[-1][3] and bool(seen[-1][4]["success"])
    assert len(seen) >= 4


# ---- not finite --------------------------------------------------------------------------------------------------
def test_an_action_that_is_not_finite_never_reaches_the_robot(
    env: Build, topic_robot: Build, eventually: Build
) -> None:
    robot = topic_robot()
    e = env()
    e.reset(seed=0)
    bad = torch.tensor([[float("nan"), 0.0, float("inf"), 1.0]])
    for _ in range(2):
        observation, *_, infos = e.step(bad)
        assert infos["executed"].isfinite().all() and observation["observation.state"].isfinite().all()
    assert e.loop.events.counts["nonfinite action"] == 2
    assert np.isfinite(np.stack(robot.commands)).all() and np.isfinite(robot.widths).all()


def test_after_an_action_that_is_not_finite_the_robot_holds(env: Build, topic_robot: Build) -> None:
    """ROS2.md, section 6: the previous safe *command* is held. To repeat the last *step* would go on moving."""
    topic_robot()
    e = env(replace(LIFT, horizon=20))
    e.reset(seed=0)
    for _ in range(3):
        e.step(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    before = e.state.tool_position.clone()
    for _ in range(10):
        e.step(torch.full((1, 4), float("nan")))
    assert (e.state.tool_position - before).norm() < 0.06, "one step of 0.04 m further at most"


def test_three_actions_in_a_row_that_are_not_finite_stop_the_robot(env: Build, topic_robot: Build) -> None:
    topic_robot()
    e = env(replace(LIFT, horizon=20))
    e.reset(seed=0)
    for _ in range(3):
        *_, truncated, _ = e.step(torch.full((1, 4), float("nan")))
    assert e.loop.stopped


def test_a_gripper_that_is_not_finite_spoils_the_whole_action(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    e = env(replace(LIFT, horizon=20))
    e.reset(seed=0)
    before = e.state.tool_position.clone()
    for _ in range(3):
        e.step(torch.tensor([[0.5, 0.0, 0.0, float("nan")]]))
    assert e.loop.stopped == "3 non-finite goals in a row" and e.loop.events.counts["nonfinite"] == 3
    assert (e.state.tool_position - before).norm() < 1e-3 and robot.widths[-1] == pytest.approx(0.08)


@pytest.mark.parametrize("gripper", [1.0, -1.0])
def test_a_refused_goal_is_recorded_as_standing_still(
    env: Build, topic_robot: Build, eventually: Build, hands: Build, gripper: float
) -> None:
    """What the learner is told to have happened is what did."""
    robot = topic_robot()
    rows: list[dict[str, Any]] = []
    operator = hands()
    e = env(replace(LIFT, horizon=60), operator, observers=[rows.append])
    still = [0.0, 0.0, 0.0, gripper]
    forward = torch.tensor([[0.5, 0.0, 0.0, gripper]])
    e.reset(seed=0)
    *_, infos = e.step(forward)
    assert torch.equal(infos["executed"], forward)
    *_, infos = e.step(torch.tensor([[0.5, float("nan"), 0.0, -gripper]]))
    assert infos["executed"][0].tolist() == pytest.approx(still, abs=1e-6), "not finite"
    robot.blind = True
    eventually(lambda: not e._fresh())
    *_, infos = e.step(forward)
    assert infos["executed"][0].tolist() == pytest.approx(still, abs=1e-6), "the object is out of sight"
    assert rows[-1]["executed"] is infos["executed"] and torch.equal(e.state.last_action, infos["executed"])
    operator.now = Operator(held=True, motion=(0.0, 0.3, 0.0), gripper=0.0)
    *_, infos = e.step(forward)
    assert infos["takeover"] and not rows[-1]["intervention"], "nor is it learned from as a correction"
    operator.now = RELEASED
    eventually(lambda: e.step(forward)[-1]["handed_back"])
    robot.blind = False
    eventually(e._fresh)
    eventually(lambda: e.loop._holding == "stale goal")
    e.loop.safety = replace(e.loop.safety, start_mismatch=-1.0)
    *_, infos = e.step(forward)
    assert infos["executed"][0].tolist() == pytest.approx(still, abs=1e-6), "start mismatch"
    assert e.loop.events.counts["start mismatch"] == 1
    e.loop.stop("test")
    *_, infos = e.step(forward)
    assert infos["executed"][0].tolist() == pytest.approx(still, abs=1e-6), "stopped"


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=4, max_size=4))
def test_whatever_an_action_is_its_physical_value_is_within_the_spec(action: list[float]) -> None:
    actions = Pipeline(LIFT).actions
    physical = actions.to_physical(torch.tensor([action]).nan_to_num())
    assert (physical >= actions.low - 1e-6).all() and (physical <= actions.high + 1e-6).all()


# ---- the operator ------------------------------------------------------------------------------------------------
def test_a_takeover_takes_one_step_and_what_it_does_is_what_counts(
    env: Build, topic_robot: Build, hands: Build
) -> None:
    topic_robot()
    operator = hands()
    rows: list[dict[str, Any]] = []
    e = env(hands=operator, observers=[rows.append])
    e.reset(seed=0)
    policy = torch.tensor([[0.2, 0.0, 0.0, -1.0]])
    e.step(policy)
    operator.now = Operator(held=True, motion=(0.0, 0.5, 0.0), gripper=0.0)
    *_, infos = e.step(policy)
    assert infos["takeover"].item() and infos["intervention"].item()
    assert infos["executed"].tolist() == [[0.0, 0.5, 0.0, -1.0]], "gripper 0: as it was"
    assert torch.equal(infos["policy_action"], policy)
    *_, infos = e.step(policy)
    assert infos["intervention"].item() and not infos["takeover"].item()
    operator.now = RELEASED
    *_, infos = e.step(policy)
    assert infos["handed_back"] and not infos["intervention"].item()
    assert infos["executed"].tolist() == [[0.0, 0.0, 0.0, -1.0]], "nothing planned before the correction is executed"
    *_, infos = e.step(policy)
    assert not infos["handed_back"] and torch.equal(infos["executed"], policy)
    spec = e.pipeline.observer.spec
    assert [bool(r["intervention"]) for r in rows] == [False, True, True, False, False]
    assert rows[2]["state"][0, spec.slice("last_action")].tolist() == [0.0, 0.5, 0.0, -1.0], "the state before the step"
    assert rows[0]["done"] is False and rows[0]["reward"] == 0.0


def test_a_device_lost_during_a_correction_pauses_the_robot(
    env: Build, topic_robot: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_robot()
    operator = hands()
    e = env(replace(LIFT, horizon=40), hands=operator)
    e.reset(seed=0)
    policy = torch.tensor([[1.0, 0.0, 0.0, -1.0]])
    operator.now = Operator(held=True, motion=(0.0, 0.5, 0.0), gripper=1.0)
    for _ in range(4):
        e.step(policy)
    operator.now = Operator(lost=True)
    for _ in range(6):
        *_, infos = e.step(policy)
        assert infos["executed"].tolist() == [[0.0, 0.0, 0.0, 1.0]]
        assert not infos["intervention"].item() and not infos["takeover"].item() and not infos["handed_back"]
    sent = len(robot.commands)
    for _ in range(6):
        e.step(policy)
    eventually(lambda: len(robot.commands) > sent + 20)
    assert np.ptp(robot.commands[sent:], axis=0).max() < 1e-6 and robot.widths[-1] == pytest.approx(0.08)
    assert e.loop.events.counts["operator lost"] == 12 and e.loop.events.counts["stale goal"] == 1
    operator.now = RELEASED
    *_, infos = e.step(policy)
    assert infos["handed_back"], "the policy's chunk is dropped"
    before = e.state.tool_position.clone()
    for _ in range(4):
        *_, infos = e.step(policy)
    assert torch.equal(infos["executed"], policy) and (e.state.tool_position - before)[0, 0] > 0.02
    assert "start mismatch" not in e.loop.events.counts


def test_a_pause_ends_with_the_episode(env: Build, topic_robot: Build, hands: Build) -> None:
    topic_robot()
    operator = hands(Operator(held=True), Operator(lost=True))
    operator.now = Operator(lost=True)
    e = env(hands=operator)
    operator.only_in_decisions(e.arbiter)
    e.reset(seed=0)
    ends = [bool(e.step(STILL)[3]) for _ in range(FAST.horizon)]
    assert ends == [False] * (FAST.horizon - 1) + [True], "the clock goes on"
    assert e.loop.events.counts["operator lost"] == FAST.horizon - 1
    e.reset(seed=1)
    *_, infos = e.step(torch.tensor([[0.5, 0.0, 0.0, 1.0]]))
    assert infos["executed"][0, 0] == 0.5, "the next episode begins under the policy's control"


@pytest.mark.parametrize("mark", ["success", "failure"])
def test_the_operators_mark_ends_the_episode(env: Build, topic_robot: Build, hands: Build, mark: str) -> None:
    topic_robot()
    operator = hands()
    rows: list[dict[str, Any]] = []
    e = env(hands=operator, observers=[rows.append])
    e.reset(seed=0)
    e.step(STILL)
    operator.now = Operator(**{mark: True})
    _, reward, terminated, truncated, infos = e.step(STILL)
    good = mark == "success"
    assert terminated and not truncated and reward.item() == good
    assert rows[-1]["done"] is True and rows[-1]["reward"] == good and rows[-1]["truncated"] is False


def test_the_clock_does_not_cut_a_correction_off_within_reason(env: Build, topic_robot: Build, hands: Build) -> None:
    topic_robot()
    operator = hands()
    operator.now = Operator(held=True)
    e = env(hands=operator)
    e.reset(seed=0)
    steps = 0
    truncated = torch.tensor([False])
    while not truncated:
        _, _, _, truncated, _ = e.step(STILL)
        steps += 1
    assert steps == 2 * FAST.horizon


def test_a_stop_ends_the_episode_and_stays_until_reset_is_pressed(
    env: Build, topic_robot: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_robot()
    operator = hands()
    e = env(replace(LIFT, horizon=50), hands=operator)
    e.reset(seed=0)
    e.step(torch.tensor([[0.0, 0.5, 0.0, 1.0]]))
    operator.now = Operator(stop=True)
    _, _, terminated, truncated, _ = e.step(STILL)
    assert truncated and not terminated and e.loop.stopped == "operator"
    sent = len(robot.commands)
    eventually(lambda: len(robot.commands) > sent + 100)  # half a second
    assert np.ptp(robot.commands[-40:], axis=0).max() < 1e-6
    where = robot.commands[-1]
    # With the stop or the enable button down, reset counts for nothing.
    answers = [Operator(stop=True, reset=True), Operator(held=True, reset=True), RELEASED, Operator(reset=True)]
    stopped: list[str] = []

    def answer(now: float | None = None) -> Operator:
        stopped.append(e.loop.stopped)
        assert len(stopped) > 4 or np.abs(robot.commands[-1] - where).max() < 1e-6
        return answers.pop(0) if answers else RELEASED

    operator.read = answer
    e.reset(seed=1)
    assert stopped[:5] == ["operator"] * 4 + [""]


def test_without_a_device_a_stop_is_final(env: Build, topic_robot: Build) -> None:
    topic_robot()
    e = env()
    e.loop.stop("test")
    with pytest.raises(NotReady, match=r"the robot is stopped \(test\)"):
        e.reset(seed=0)


def test_the_stop_counts_on_the_way_home_too(env: Build, topic_robot: Build, hands: Build) -> None:
    """The arm moves fastest between episodes, without a policy: the stop must act there."""
    robot = topic_robot()
    away = np.array(robot.robot.home)
    away[0] += 0.6
    robot.position = away
    operator = hands()
    operator.now = Operator(stop=True)
    e = env(hands=operator)
    with pytest.raises(NotReady):
        e.reset(seed=0)
    assert abs(robot.position[0] - away[0]) < 0.1


def test_without_a_twin_a_person_places_the_object_and_says_so(env: Build, topic_robot: Build, hands: Build) -> None:
    topic_robot(places_objects=False)
    e = env()
    with pytest.raises(NotReady, match="no operator or twin to place the object"):
        e.reset(seed=0)
    e.close()


def test_who_records_everything_does_not_place_the_object(
    env: Build, topic_robot: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_robot(places_objects=False)
    listener = robot.node.publisher("std_msgs/msg/String", "elsewhere")  # the robot's node, and its participant
    with open_node("rosbag2_recorder") as bag:
        bag.subscribe("std_msgs/msg/String", "twin/reset")
        e = env()
        eventually(lambda: e.placer.readers() == ["/rosbag2_recorder"])
        with pytest.raises(NotReady, match="no operator or twin to place the object"):
            e.reset(seed=0)
    listener.close()


def test_the_reset_button_begins_the_episode_and_stop_ends_the_waiting(
    env: Build, topic_robot: Build, hands: Build
) -> None:
    topic_robot(places_objects=False)
    operator = hands(*[RELEASED] * 20)
    operator.now = Operator(reset=True)
    e = env(hands=operator)
    e.reset(seed=0)
    assert operator.reads > 20, "it waited for the button"
    operator.now = Operator(stop=True)
    with pytest.raises(NotReady, match="the operator pressed stop"):
        e.reset(seed=1)
    assert e.loop.stopped == "operator"


# ---- failures ----------------------------------------------------------------------------------------------------
def test_a_robot_that_cannot_get_home_is_reported(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    robot.follows = False
    robot.position = robot.position + 0.1
    e = env()
    with pytest.raises(NotReady, match=r"did not move at all within 0.5 s"):
        e.reset_procedure.go_home(timeout=0.5)


def test_a_robot_that_falls_silent_in_an_episode_is_one_clear_error(env: Build, topic_robot: Build) -> None:
    """No inference on states that are seconds old: the loop holds, and the caller is told why."""
    robot = topic_robot()
    e = env(replace(LIFT, horizon=60))
    e.reset(seed=0)
    e.step(STILL)
    robot.silent = True
    with pytest.raises(NotReady):
        for _ in range(80):  # four seconds
            e.step(torch.tensor([[0.3, 0.0, 0.0, 1.0]]))
    assert e.loop.events.counts["stale state"] == 1


IMPATIENT = SafetyConfig(state_timeout=0.4, patience=1.0, lost_timeout=0.4)


def test_an_old_state_gets_a_moment_to_be_followed_by_a_new_one(
    env: Build, topic_robot: Build, eventually: Build
) -> None:
    """It may be this process, or the machine, that stood still, and not the robot."""
    robot = topic_robot()
    e = env(safety=IMPATIENT)
    robot.silent = True
    eventually(lambda: time.monotonic() - e.driver.reading().received > IMPATIENT.lost_timeout)
    robot.silent = False
    assert e.read().joint_position.shape == (1, 7)


def test_the_loop_begins_with_a_state_from_after_the_garbage_collection(
    env: Build, topic_robot: Build, eventually: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_robot()
    # It keeps the interpreter from every thread, as here for a second.
    monkeypatch.setattr("real.control.loop.gc.collect", lambda: ctypes.PyDLL(None).usleep(1_000_000))
    e = env(safety=IMPATIENT)
    eventually(lambda: len(e.loop.state_ages) > 0)
    assert e.loop.state_ages.max < IMPATIENT.state_timeout and not e.loop.events.counts


def test_an_object_that_is_lost_from_sight_makes_the_robot_hold(
    env: Build, topic_robot: Build, eventually: Build
) -> None:
    robot = topic_robot()
    e = env(replace(LIFT, horizon=100))
    e.reset(seed=0)
    forward = torch.tensor([[0.3, 0.0, 0.0, 1.0]])
    for _ in range(3):
        e.step(forward)
    assert "stale object" not in e.loop.events.counts
    robot.blind = True
    while e.loop.events.counts.get("stale goal", 0) == 0:
        e.step(forward)
        assert e.steps < 60
    lost = e.loop.events.counts["stale object"]
    assert lost >= 1
    e.step(forward)  # it stands by now
    sent, before = len(robot.commands), e.state.joint_position.clone()
    for _ in range(5):
        assert not e.step(forward)[3]
    assert np.ptp(robot.commands[sent:], axis=0).max() < 1e-6 and torch.equal(e.state.joint_position, before)
    assert e.loop.events.counts["stale object"] == lost + 6 and not e.loop.stopped
    robot.blind = False
    eventually(lambda: e._fresh())
    for _ in range(3):
        e.step(forward)
    assert (e.state.joint_position - before).abs().max() > 1e-3, "and the episode goes on"


def test_a_tracker_that_says_nonsense_is_not_believed(env: Build, topic_robot: Build, eventually: Build) -> None:
    robot = topic_robot()
    e = env(replace(LIFT, horizon=100))
    e.reset(seed=0)
    where = robot.cube
    robot.cube = np.array([np.nan, 0.0, 0.022])
    eventually(lambda: e.driver.rejected_poses > 0)
    observation, *_ = e.step(STILL)
    assert observation["observation.state"].isfinite().all()
    before, rejected = e.driver.rejected_poses, e.summary()["rejected"]
    assert rejected["states"] == 0 and before <= rejected["poses"] <= e.driver.rejected_poses
    eventually(lambda: not e._fresh())  # and after a while it counts as lost from sight
    robot.cube = where
    eventually(lambda: e._fresh())


def test_a_picture_is_stale_when_it_is_old_or_never_came(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    e = env(safety=SafetyConfig(state_timeout=1000.0, goal_timeout=1000.0, picture_timeout=1000.0))
    e.driver.images["front"] = e.node.subscribe("sensor_msgs/msg/Image", "front/image_raw", qos.SENSOR)
    assert e.stale_pictures(()) == 0 and e.loop.events.counts == {}, "a camera that is not recorded"
    assert e.stale_pictures(("front",)) == 1 and e.loop.events.counts == {"stale picture": 1}
    images = robot.node.publisher("sensor_msgs/msg/Image", "front/image_raw", qos.SENSOR)
    assert robot.node.wait_for(lambda: images.matched == 1, 30)
    images.publish(make("sensor_msgs/msg/Image", height=2, width=2, encoding="rgb8", step=6, data=np.zeros(12, "u1")))
    assert e.driver.images["front"].wait(30, after=0)
    assert e.stale_pictures(("front",)) == 0
    e.loop.safety = replace(e.loop.safety, picture_timeout=1e-9)
    assert e.stale_pictures(("front",)) == 1 and e.loop.events.counts["stale picture"] == 2


def test_a_dry_run_sends_nothing(env: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    e = env(dry_run=True)
    e.reset(seed=0)
    for _ in range(3):
        *_, infos = e.step(torch.tensor([[0.5, 0.0, 0.0, -1.0]]))
    assert infos["executed"][0, 0] == 0.5 and e.loop.ticker.timing.late, "all of it is computed"
    assert not robot.commands and not robot.widths and robot.arm.matched == robot.hand.matched == 0


def test_closing_twice_is_fine_and_commands_end(env: Build, topic_robot: Build, eventually: Build) -> None:
    robot = topic_robot()
    e = env()
    e.reset(seed=0)
    e.close()
    e.close()
    assert not e.loop.is_alive()
    assert np.isfinite(np.stack(robot.commands)).all()
