"""`RobotEnv` with an arm: parity with simulation, the Gymnasium interface, the operator, and failures of the robot."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from policies.bundle import Bundle, load_bundle, save_bundle
from policies.execution import ChunkExecutor
from real.bus import make, open_node, qos
from real.drivers import open_driver
from real.drivers.state import NotReady
from real.episode.stream import StepRecord
from real.teleop.commands import RELEASED, Operator
from real.topics import INT, STATUS
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from sim.env import TaskEnv
from sim.tasks import tasks

LIFT = tasks.get("panda-lift").interface
STILL = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
FORWARD = torch.tensor([[0.3, 0.0, 0.0, 1.0]])
Build = Callable[..., Any]


@pytest.fixture
def start(robot_env: Build, topic_robot: Build, hands: Build) -> Build:
    """Open a robot and its environment, begin an episode, and return robot, environment and operator input."""

    def build(horizon: int = 60, *, reset: bool = True, robot: Any = None, **options: Any) -> tuple[Any, Any, Any]:
        robot, operator = robot or topic_robot(), options.pop("operator", hands())
        e = robot_env(replace(LIFT, horizon=horizon), operator, **options)
        if reset:
            e.reset(seed=0)
        return robot, e, operator

    return build


def object_is_stale(e: Any) -> bool:
    return bool(time.monotonic() - e.driver.scene.object_poses()[1] > e.loop.safety.object_timeout)


# ---- parity ------------------------------------------------------------------------------------------------------
class Recorded:
    """Publisher of a simulated environment's measured state on the robot's topics."""

    def __init__(self, node: Any):
        robot = Pipeline(LIFT).robot
        self.names = [*robot.joint_names, *robot.gripper.joints]
        self.states = node.publisher("sensor_msgs/msg/JointState", robot.driver.joint_states, qos.SENSOR)
        self.pose = node.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", qos.SENSOR)

    def send(self, state: RobotState) -> None:
        fingers = state.gripper_width[0].double().numpy() / 2
        position = np.concatenate([state.joint_position[0].double().numpy(), fingers, fingers])
        velocity = np.concatenate([state.joint_velocity[0].double().numpy(), [0.0, 0.0]])
        order = np.random.default_rng(0).permutation(9)
        values = {"name": [self.names[k] for k in order], "position": position[order], "velocity": velocity[order]}
        self.states.publish(make("sensor_msgs/msg/JointState", **values))
        x, y, z, qw, qx, qy, qz = state.objects["cube"][0].tolist()
        pose = {"position": {"x": x, "y": y, "z": z}, "orientation": {"x": qx, "y": qy, "z": qz, "w": qw}}
        self.pose.publish(make("geometry_msgs/msg/PoseStamped", pose=pose))


@pytest.mark.parametrize("turn", [0.0, 0.1])
def test_views_and_targets_equal_simulation(private_domain: int, eventually: Build, task: Build, turn: float) -> None:
    controller: Any = replace(LIFT.controller, turn=turn)
    terms = (*LIFT.observations, "joint_velocity", "tool_rotation", "object_in_tool:cube")
    simulation = TaskEnv(task(observations=terms, controller=controller), 1, threads=1, seed=3)
    simulation.reset(seed=3)
    rng = torch.Generator().manual_seed(0)
    pipeline = Pipeline(replace(LIFT, observations=terms, controller=controller))
    with open_node("robot") as robot, open_node("policy") as policy:
        recorded, driver = Recorded(robot), open_driver(policy, pipeline.robot, ("cube",))
        eventually(lambda: recorded.states.matched == 1 == recorded.pose.matched)
        received = None

        def arrived(poses: int) -> bool:
            reading = driver.reading()
            return reading is not None and reading.received != received and driver.scene.accepted["cube"] == poses

        for k in range(12):
            action = 2 * torch.rand(1, pipeline.actions.size, generator=rng) - 1
            simulation.step(action)
            state = simulation.state
            quat = torch.randn(1, 4, generator=rng)  # the task's own cube only turns about z
            state.objects["cube"][:, 3:] = quat / quat.norm()
            recorded.send(state)
            eventually(lambda k=k: arrived(k + 1))
            received = driver.reading().received  # type: ignore[union-attr]
            seen = driver.observe(simulation.episodes.chain.last_action)
            seen.reference = state.reference
            for view in ("joint_position", "joint_velocity", "tool_position", "gripper_width", "last_action"):
                assert torch.allclose(getattr(seen, view), getattr(state, view), rtol=0, atol=1e-6), (k, view)
            assert torch.allclose(seen.objects["cube"], state.objects["cube"], rtol=0, atol=1e-6)
            assert torch.allclose(pipeline.observer(seen), simulation.pipeline.observer(state), rtol=0, atol=1e-6), k
            physical = pipeline.actions.to_physical(action)
            target, expected = pipeline.controller(seen, physical), simulation.pipeline.controller(state, physical)
            assert torch.allclose(target.command.values, expected.command.values, rtol=0, atol=1e-5)


def test_loaded_bundle_acts_like_the_trained_policy(start: Build, residual: Build, tmp_path: Path) -> None:
    """On the robot's observations the actions are equal to 1e-6."""
    pipeline = Pipeline(LIFT)
    trained = residual(pipeline.observer.spec.size, 4, zero_init=False)
    trained.normalizer.fit(torch.randn(50, pipeline.observer.spec.size))
    save_bundle(Bundle(trained, replace(LIFT, horizon=25), pipeline.robot.fingerprint()), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    robot, e, _ = start(bundle.interface.horizon, reset=False)
    bundle.check_robot(robot.robot)
    executors = ChunkExecutor(bundle.policy, 1), ChunkExecutor(trained, 1)
    rngs = [torch.Generator().manual_seed(5) for _ in executors]
    observation, _ = e.reset(seed=0)
    done, actions = False, []
    while not done:
        action, expected = (
            executor.act({k: v.clone() for k, v in observation.items()}, rng)
            for executor, rng in zip(executors, rngs, strict=True)
        )
        assert (action - expected).abs().max() <= 1e-6
        observation, _, terminated, truncated, infos = e.step(action)
        assert (infos["executed"] - expected).abs().max() <= 1e-6
        assert torch.equal(infos["policy_action"], action)
        actions.append(action)
        done = bool(terminated | truncated)
    assert len(actions) == 25 and torch.cat(actions).std(0).min() > 1e-3
    last_action = observation["observation.state"][:, pipeline.observer.spec.slice("last_action")]
    assert torch.allclose(last_action, actions[-1], atol=1e-6)


# ---- episodes ----------------------------------------------------------------------------------------------------
def test_reset_goes_home_opens_places_and_announces(start: Build, robot: Any, eventually: Build) -> None:
    away = np.array(robot.robot.home)
    away[0] += 0.3
    robot.position, robot.width, robot.cube = away, 0.01, np.array([0.4, 0.1, 0.3])
    phases: list[str] = []
    robot.node.subscribe(STATUS, "episode", qos.LATCHED, lambda s: phases.append(s.msg.message))
    _, e, _ = start(robot=robot, reset=False)
    observation, _ = e.reset(seed=42)
    state, spec = observation["observation.state"], e.pipeline.observer.spec
    assert (state[0, spec.slice("joint_position")] - torch.tensor(robot.robot.home)).abs().max() < 0.04
    assert state[0, spec.slice("gripper_width")].item() == pytest.approx(0.08)
    assert state[0, spec.slice("cube_position")].tolist() == pytest.approx([0.5, 0.0, 0.022])
    assert not state[0, spec.slice("last_action")].any()
    assert robot.seeds == [42]
    eventually(lambda: "running" in phases)
    sent = torch.from_numpy(np.stack(robot.commands))
    assert np.abs(sent[0] - away).max() < 0.02, "starts at the measured position; the first commands may be lost"
    assert (sent.diff(dim=0).abs() <= e.pipeline.shield.velocity * e.pipeline.tick * 1.001 + 1e-6).all()


def test_held_object_is_set_down_before_the_gripper_opens(start: Build) -> None:
    robot, e, _ = start()

    def go(dz: float, gripper: float, steps: int) -> float:
        for _ in range(steps):
            e.step(torch.tensor([[0.0, 0.0, dz, gripper]]))
        return float(e.state.tool_position[0, 2])

    go(-1.0, 1.0, 10)
    robot.thick = 0.04  # an object between the fingers
    low = go(0.0, -1.0, 4)
    high = go(1.0, -1.0, 15)
    assert high > low + 0.1 and robot.width == 0.04
    commands, widths = len(robot.commands), len(robot.widths)
    e.reset(seed=1)
    opened = next(k for k, width in enumerate(robot.widths[widths:]) if width > 0.07)
    position = torch.from_numpy(np.stack(robot.commands[commands : commands + opened + 1])).float()
    heights = e.pipeline.kinematics.forward(position)[0][:, 2]
    assert float(heights[0]) > low + 0.08
    assert float(heights[-1]) == pytest.approx(low, abs=0.015), "opens at the height of the grip"
    assert float(e.state.tool_position[0, 2]) > low + 0.05 and robot.width == pytest.approx(0.08)


def test_what_the_gripper_holds_at_the_start_is_not_dropped_on_the_way_home(start: Build, topic_robot: Build) -> None:
    robot = topic_robot()
    robot.thick = robot.width = 0.04
    robot.position = robot.position + [0.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    start(robot=robot)
    opened = next(k for k, width in enumerate(robot.widths) if width > 0.07)
    assert opened > 10 and not any(robot.widths[:opened]), "it goes on pressing"
    assert np.abs(robot.commands[opened] - np.array(robot.robot.home)).max() < 0.05, "opens at home"


def test_what_the_gripper_holds_at_the_start_is_not_dropped_without_a_person(start: Build, topic_robot: Build) -> None:
    robot = topic_robot(places_objects=False)
    robot.thick = robot.width = 0.04
    with pytest.raises(NotReady, match="40 mm open, so it may hold something"):
        start(robot=robot, operator=None)
    assert not any(width > 0.02 for width in robot.widths)


def test_shapes_spaces_and_pace(start: Build) -> None:
    _, e, _ = start(6)
    assert e.num_envs == 1 and e.action_space.shape == (1, 4)
    begin = e.ticker.next - e.period
    for k in range(1, 7):
        observation, reward, terminated, truncated, infos = e.step(STILL)
        assert e.observation_space["observation.state"].contains(observation["observation.state"].numpy())
        assert reward.shape == terminated.shape == truncated.shape == infos["success"].shape == (1,)
        assert reward.item() == 0 and not terminated and bool(truncated) == (k == 6), "the horizon truncates"
        assert infos["episode_steps"].tolist() == [k]
    assert time.monotonic() - begin >= 6 * e.period - 1e-6, "a step takes at least a control period"
    assert torch.equal(infos["final_obs"]["observation.state"], observation["observation.state"])
    assert e.summary()["inference_ms"]["max"] > 0 and e.summary()["shield"] == {}


def test_success_requires_the_hold_time(robot_env: Build, robot: Any) -> None:
    e = robot_env(replace(LIFT, horizon=60, success_hold=4))
    e.reset(seed=0)
    robot.cube = e.state.tool_position[0].double().numpy()
    results = [e.step(STILL)]
    while not results[-1][2]:
        results.append(e.step(STILL))
        assert len(results) < 60
    assert results[-1][1].item() == 1.0 and not results[-1][3] and bool(results[-1][4]["success"])
    assert len(results) >= 4


# ---- non-finite actions ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bad", [[float("nan"), 0.0, float("inf"), 1.0], [0.5, 0.0, 0.0, float("nan")]])
def test_nonfinite_actions_hold_and_the_third_stops(start: Build, bad: list[float]) -> None:
    robot, e, _ = start()
    for _ in range(3):
        e.step(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    before = e.state.tool_position.clone()
    for k in range(1, 4):
        assert not e.loop.stopped
        observation, *_, infos = e.step(torch.tensor([bad]))
        assert infos["executed"].isfinite().all() and observation["observation.state"].isfinite().all()
        assert e.loop.events.counts["nonfinite action"] == e.loop.events.counts["nonfinite"] == k
    assert e.loop.stopped == "3 non-finite goals in a row"
    assert (e.state.tool_position - before).norm() < 0.06, "at most one more step of 0.04 m"
    assert np.isfinite(np.stack(robot.commands)).all() and robot.widths[-1] == pytest.approx(0.08)


@pytest.mark.parametrize("gripper", [1.0, -1.0])
def test_refused_goal_is_recorded_as_a_hold(start: Build, eventually: Build, gripper: float) -> None:
    rows: list[StepRecord] = []
    robot, e, operator = start()
    e.stream.on_step(rows.append)
    forward = torch.tensor([[0.5, 0.0, 0.0, gripper]])

    def assert_holds(action: torch.Tensor, reason: str) -> None:
        *_, infos = e.step(action)
        assert infos["executed"][0].tolist() == pytest.approx([0.0, 0.0, 0.0, gripper], abs=1e-6), reason
        assert rows[-1].executed is infos["executed"] and torch.equal(e.state.last_action, infos["executed"])

    *_, infos = e.step(forward)
    assert torch.equal(infos["executed"], forward)
    assert_holds(torch.tensor([[0.5, float("nan"), 0.0, -gripper]]), "non-finite")
    robot.blind = True
    eventually(lambda: object_is_stale(e))
    assert_holds(forward, "stale object pose")
    operator.now = Operator(held=True, motion=(0.0, 0.3, 0.0), gripper=0.0)
    *_, infos = e.step(forward)
    assert infos["takeover"] and not rows[-1].intervention, "a refused correction is not learned from"
    operator.now = RELEASED
    eventually(lambda: e.step(forward)[-1]["handed_back"])
    robot.blind = False
    eventually(lambda: not object_is_stale(e))
    eventually(lambda: e.loop.events.counts.get("stale goal"))
    e.loop.safety = SimpleNamespace(**vars(e.loop.safety) | {"start_mismatch": -1.0})
    assert_holds(forward, "start mismatch")
    assert e.loop.events.counts["start mismatch"] == 1
    e.loop.stop("test")
    assert_holds(forward, "stopped")


# ---- the operator ------------------------------------------------------------------------------------------------
def test_takeover_takes_one_step_and_its_actions_are_recorded(start: Build) -> None:
    rows: list[StepRecord] = []
    _, e, operator = start()
    e.stream.on_step(rows.append)
    policy = torch.tensor([[0.2, 0.0, 0.0, -1.0]])
    e.step(policy)
    operator.now = Operator(held=True, motion=(0.0, 0.5, 0.0), gripper=0.0)
    *_, infos = e.step(policy)
    assert infos["takeover"].item() and infos["intervention"].item()
    assert infos["executed"].tolist() == [[0.0, 0.5, 0.0, -1.0]], "gripper 0 keeps the gripper"
    assert torch.equal(infos["policy_action"], policy)
    *_, infos = e.step(policy)
    assert infos["intervention"].item() and not infos["takeover"].item()
    operator.now = RELEASED
    *_, infos = e.step(policy)
    assert infos["handed_back"] and not infos["intervention"].item()
    assert infos["executed"].tolist() == [[0.0, 0.0, 0.0, -1.0]], "the chunk planned before is not executed"
    *_, infos = e.step(policy)
    assert not infos["handed_back"] and torch.equal(infos["executed"], policy)
    assert [r.intervention for r in rows] == [False, True, True, False, False]
    last_action = rows[2].state[0, e.pipeline.observer.spec.slice("last_action")]
    assert last_action.tolist() == [0.0, 0.5, 0.0, -1.0], "the state before the step"
    assert rows[0].done is False and rows[0].reward == 0.0


def test_device_lost_during_a_correction_pauses_the_robot(start: Build, eventually: Build) -> None:
    robot, e, operator = start()
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
    assert infos["handed_back"], "the policy's chunk is discarded"
    before, moved = e.state.tool_position.clone(), 0.0
    for _ in range(8):  # 4 suffice, unless the machine is busy
        *_, infos = e.step(policy)
        assert torch.equal(infos["executed"], policy)
        if (moved := float((e.state.tool_position - before)[0, 0])) > 0.02:
            break
    assert moved > 0.02
    assert "start mismatch" not in e.loop.events.counts


@pytest.mark.parametrize(("now", "steps"), [(Operator(held=True), 12), (Operator(lost=True), 6)])
def test_a_correction_may_last_twice_the_horizon_and_a_pause_may_not(start: Build, now: Operator, steps: int) -> None:
    _, e, operator = start(6)
    operator.now = Operator(held=True)
    ends = [bool(e.step(STILL)[3])]
    operator.now = now
    while not ends[-1]:
        ends.append(bool(e.step(STILL)[3]))
    assert len(ends) == steps
    operator.now = RELEASED
    e.reset(seed=1)
    assert torch.equal(e.step(FORWARD)[-1]["executed"], FORWARD), "the next episode starts under the policy's control"


@pytest.mark.parametrize("mark", ["success", "failure"])
def test_operators_mark_ends_the_episode(start: Build, mark: str) -> None:
    rows: list[StepRecord] = []
    _, e, operator = start()
    e.stream.on_step(rows.append)
    e.step(STILL)
    operator.now = Operator(**{mark: True})
    _, reward, terminated, truncated, _ = e.step(STILL)
    good = mark == "success"
    assert terminated and not truncated and reward.item() == good
    assert rows[-1].done is True and rows[-1].reward == good and rows[-1].truncated is False


def test_stop_ends_the_episode_and_is_latched_until_reset(start: Build, eventually: Build) -> None:
    robot, e, operator = start()
    e.step(torch.tensor([[0.0, 0.5, 0.0, 1.0]]))
    operator.now = Operator(stop=True)
    _, _, terminated, truncated, _ = e.step(STILL)
    assert truncated and not terminated and e.loop.stopped == "operator"
    sent = len(robot.commands)
    eventually(lambda: len(robot.commands) > sent + 100)  # half a second
    assert np.ptp(robot.commands[-40:], axis=0).max() < 1e-6
    held = robot.commands[-1]
    # Reset has no effect while stop or the enable button is pressed.
    answers = [Operator(stop=True, reset=True), Operator(held=True, reset=True), RELEASED, Operator(reset=True)]
    stopped: list[str] = []

    def answer(now: float | None = None) -> Operator:
        stopped.append(e.loop.stopped)
        assert len(stopped) > 4 or np.abs(robot.commands[-1] - held).max() < 1e-6
        return answers.pop(0) if answers else RELEASED

    operator.read = answer
    e.reset(seed=1)
    assert stopped[:5] == ["operator"] * 4 + [""]


def test_stop_works_while_the_arm_goes_home(start: Build, robot: Any) -> None:
    robot.position = np.array(robot.robot.home) + 0.6 * np.eye(7)[0]
    away = robot.position[0]
    _, e, operator = start(robot=robot, reset=False)
    operator.now = Operator(stop=True)
    with pytest.raises(NotReady):
        e.reset(seed=0)
    assert abs(robot.position[0] - away) < 0.1


def test_bag_recorder_is_not_a_twin_that_places_objects(start: Build, topic_robot: Build, eventually: Build) -> None:
    robot = topic_robot(places_objects=False)
    listener = robot.node.publisher("std_msgs/msg/String", "elsewhere")  # the robot's node, and its participant
    with open_node("rosbag2_recorder") as bag:
        bag.subscribe(INT, "twin/reset")
        _, e, _ = start(robot=robot, reset=False, operator=None)
        eventually(lambda: e.placer.readers() == ["/rosbag2_recorder"])
        with pytest.raises(NotReady, match="no operator or twin to place the object"):
            e.reset(seed=0)
    listener.close()


def test_without_a_twin_the_reset_button_begins_the_episode(start: Build, topic_robot: Build, hands: Build) -> None:
    operator = hands(*[RELEASED] * 20)
    operator.now = Operator(reset=True)
    _, e, _ = start(robot=topic_robot(places_objects=False), operator=operator)
    assert operator.reads > 20
    operator.now = Operator(stop=True)
    with pytest.raises(NotReady, match="the operator pressed stop"):
        e.reset(seed=1)
    assert e.loop.stopped == "operator"


# ---- failures ----------------------------------------------------------------------------------------------------
def test_silent_robot_ends_the_episode_with_an_error(start: Build) -> None:
    robot, e, _ = start(100)
    e.step(STILL)
    robot.silent = True
    with pytest.raises(NotReady):
        for _ in range(80):  # four seconds
            e.step(FORWARD)
    assert e.loop.events.counts["stale state"] == 1


IMPATIENT = SafetyConfig(state_timeout=0.4, lost_timeout=0.4)


def test_read_waits_for_a_new_state_before_it_reports_silence(start: Build, eventually: Build) -> None:
    """This process may have stalled, not the robot."""
    robot, e, _ = start(reset=False, safety=IMPATIENT)
    robot.silent = True
    eventually(lambda: time.monotonic() - e.driver.reading().received > IMPATIENT.lost_timeout)
    robot.silent = False
    assert e.read().joint_position.shape == (1, 7)


def test_loop_starts_with_a_state_after_garbage_collection(start: Build, eventually: Build, monkeypatch: Any) -> None:
    # Hold the interpreter lock for a second, as a long collection does.
    monkeypatch.setattr("real.control.loop.gc.collect", lambda: ctypes.PyDLL(None).usleep(1_000_000))
    _, e, _ = start(reset=False, safety=IMPATIENT)
    eventually(lambda: len(e.loop.state_ages) > 0)
    assert e.loop.state_ages.max < IMPATIENT.state_timeout and not e.loop.events.counts


def test_stale_object_pose_makes_the_robot_hold_until_it_returns(start: Build, eventually: Build) -> None:
    robot, e, _ = start(100)
    for _ in range(3):
        e.step(FORWARD)
    assert "stale object" not in e.loop.events.counts
    robot.blind = True
    while e.loop.events.counts.get("stale goal", 0) == 0:
        e.step(FORWARD)
        assert e.steps < 60
    lost = e.loop.events.counts["stale object"]
    assert lost >= 1
    e.step(FORWARD)  # at rest from here on
    sent, before = len(robot.commands), e.state.joint_position.clone()
    for _ in range(5):
        assert not e.step(FORWARD)[3]
    assert np.ptp(robot.commands[sent:], axis=0).max() < 1e-6 and torch.equal(e.state.joint_position, before)
    assert e.loop.events.counts["stale object"] == lost + 6 and not e.loop.stopped
    robot.blind = False
    eventually(lambda: not object_is_stale(e))
    for _ in range(3):
        e.step(FORWARD)
    assert (e.state.joint_position - before).abs().max() > 1e-3


def test_dry_run_computes_but_sends_nothing(start: Build) -> None:
    robot, e, _ = start(dry_run=True)
    for _ in range(3):
        *_, infos = e.step(FORWARD)
    assert torch.equal(infos["executed"], FORWARD) and e.loop.ticker.timing.late
    assert not robot.commands and not robot.widths and robot.arm.matched == robot.hand.matched == 0
