"""`RobotEnv` with a legged robot: standing up, velocity commands, falls, stops, and lying down."""

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import make, open_node, qos
from real.control.stop import E_STOP
from real.drivers.state import NotReady
from real.episode import standing
from real.recording.journal import Journal
from real.teleop.commands import RELEASED, Operator
from real.topics import BOOL, INT
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.pipeline import COMMAND_RAMP
from sim.tasks import tasks

WALK = tasks.get("go2-velocity").interface
ZERO = torch.zeros(1, 12)
UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
TILTED = np.array([math.cos(0.6), 0.0, math.sin(0.6), 0.0])  # 69 degrees
RISE = standing.RISE
Build = Callable[..., Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, robot_env: Build, topic_quadruped: Build, hands: Build) -> Build:
    """Open a robot and its environment, begin an episode, and return robot, environment and operator input.

    The robot stands up and lies down in a fifth of the normal time.
    """
    monkeypatch.setattr(standing, "RISE", RISE / 5)

    def build(horizon: int = 500, *, reset: bool = True, twin: bool = False, robot: Any = None, **options: Any) -> Any:
        robot, operator = robot or topic_quadruped(twin=twin), options.pop("operator", hands())
        e = robot_env(replace(WALK, horizon=horizon), operator, **options)
        if twin:
            assert e.node.wait_for(lambda: e.on_twin, 30)
        if reset:
            e.reset(seed=0)
        return robot, e, operator

    return build


def part(e: Any, observation: Any, name: str) -> Any:
    return observation["observation.state"][0, e.pipeline.observer.spec.slice(name)].tolist()


def stands(robot: Any) -> bool:
    return bool(np.abs(robot.position - robot.home).max() < 0.02)


def stiff(commands: Any) -> np.ndarray:
    """Set-points (T, J) of commands with stiffness."""
    return np.array([motors["q"] for _, motors in commands if motors["kp"].any()])


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- standing up and lying down ----------------------------------------------------------------------------------
def test_stands_up_along_a_path_with_growing_stiffness(start: Build, eventually: Build, monkeypatch: Any) -> None:
    robot, e, _ = start(reset=False)
    monkeypatch.setattr(standing, "RISE", RISE)
    assert e.loop.is_damped
    observation, _ = e.reset(seed=0)
    assert stands(robot) and part(e, observation, "joint_position") == pytest.approx(robot.home.tolist(), abs=0.02)
    assert part(e, observation, "command") == [0, 0, 0] and not any(part(e, observation, "last_action"))
    eventually(lambda: robot.commands[-1][1]["kp"][0] == 40)  # the loop's next tick after reset returned
    stiffness = np.array([motors["kp"][0] for _, motors in robot.commands if motors["kp"].any()])
    assert stiffness[0] < 15 and stiffness.max() == 60 and stiffness[-1] == 40
    assert (np.diff(stiffness[: stiffness.argmax()]) >= 0).all()
    path = stiff(robot.commands)
    assert np.abs(path[0] - robot.folded).max() < 0.1, "starts where the robot lies"
    assert np.abs(np.diff(path, axis=0)).max() < 0.1


def test_slow_first_computation_runs_while_the_robot_lies(start: Build) -> None:
    is_damped: list[bool] = []

    def schedule(seed: int, step: int) -> torch.Tensor:
        is_damped.append(e.loop.is_damped)
        if len(is_damped) == 1:
            time.sleep(1.2)  # longer than the loop's patience, such as a kernel that is read from the disk
        return torch.zeros(1, 3)

    _, e, _ = start(reset=False, schedule=schedule)
    e.reset(seed=0)
    e.step(ZERO)
    assert is_damped[0] and not is_damped[-1] and len(is_damped) > 10, "in every control period of standing up"
    assert not e.loop.stopped and not e.falls


def test_crooked_legs_are_folded_before_standing_up(start: Build, topic_quadruped: Build) -> None:
    robot = topic_quadruped()
    lying = robot.folded.copy()
    robot.folded[1] -= 1.0  # a leg that was in swing at a stop and is now under the robot
    robot.position = robot.folded.copy()
    start(robot=robot)
    assert stands(robot)
    path = stiff(robot.commands)
    distance = np.abs(path - lying).max(1)
    assert distance.min() < 0.05 < distance[0] and 0 < distance.argmin() < len(path) - 1
    assert np.abs(np.diff(path, axis=0)).max() < 0.25


def test_full_episode_succeeds_and_the_next_begins_standing(start: Build, eventually: Build) -> None:
    robot, e, _ = start(8)
    action = torch.full((1, 12), 0.2)
    for k in range(1, 9):
        _, reward, terminated, truncated, infos = e.step(action)
        assert not terminated and bool(truncated) == (k == 8) == bool(infos["success"])
    assert reward.item() == 1.0 and e.falls == 0
    eventually(lambda: robot.position == pytest.approx(robot.home + 0.2 * 0.6, abs=1e-5), "home and the action")
    before, sent = robot.position.copy(), len(robot.commands)
    e.reset(seed=1)
    eventually(lambda: len(robot.commands) > sent + 20)
    assert all(motors["kp"].all() for _, motors in robot.commands[sent:])
    assert np.abs(robot.position - before).max() < 1e-6


def test_lies_down_from_its_set_points(start: Build, eventually: Build) -> None:
    """A robot drops if its set-points jump to the measured joints."""
    robot, e, _ = start()
    e.step(ZERO)
    folds = np.sign(robot.folded - robot.home)
    robot.sag = -0.15 * folds  # away from the folded posture
    sagging = pytest.approx(robot.position + robot.sag, abs=0.01)
    eventually(lambda: e.driver.observe(ZERO).joint_position[0].numpy() == sagging)
    sent = len(robot.commands)
    e.close()
    path = stiff(robot.commands[sent:])
    assert np.abs(path[-1] - robot.folded).max() < 0.05 and ((path - robot.home) * folds > -1e-3).all()


def test_close_lays_the_robot_down_and_damps_it(start: Build, eventually: Build) -> None:
    robot, e, _ = start()
    e.step(ZERO)
    sent = len(robot.commands)
    e.close()
    eventually(lambda: robot.is_damped)
    last = [motors for _, motors in robot.commands[sent:] if motors["kp"].any()][-1]
    assert np.abs(last["q"] - robot.folded).max() < 0.05, "down before it is damped"
    assert last["kp"][0] <= 20, "stiffness is reduced slowly"
    e.node.close()
    eventually(lambda: robot.obeyed.matched == 0)
    assert robot.is_damped


@pytest.mark.parametrize("step", [3, 40], ids=["soft", "firm"])
def test_close_while_standing_up_lies_down_gently(start: Build, eventually: Build, monkeypatch: Any, step: int) -> None:
    """Ctrl-C with soft springs, for which the guard limits the growth of stiffness, and with stiff springs."""
    robot, e, _ = start(reset=False)
    monkeypatch.setattr(standing, "RISE", RISE)
    look, looks = e.look, []

    def interrupted() -> Any:
        looks.append(0)
        if len(looks) == step:
            raise KeyboardInterrupt
        return look()

    monkeypatch.setattr(e, "look", interrupted)
    with pytest.raises(KeyboardInterrupt):
        e.reset(seed=0)
    sent = len(robot.commands)
    assert (e.driver.commands.stiffness_scale < 1.0) == (step == 3)
    e.close()
    eventually(lambda: robot.is_damped)
    stiffness = np.array([motors["kp"][0] for _, motors in robot.commands]) / 40
    assert stiffness.max() == pytest.approx(1.5)
    assert np.diff(stiffness).max() < 0.1, "a step every 20 ms"
    height = np.abs(stiff(robot.commands[sent - 1 :]) - robot.folded).max(1)
    assert height.max() < height[0] + 0.1, "does not rise first"
    assert np.abs(robot.position - robot.folded).max() < 0.1


def test_close_after_a_silence_damps_at_once(start: Build) -> None:
    robot, e, _ = start()
    e.step(ZERO)
    robot.silent = True
    with pytest.raises(NotReady, match="no joint state for 2 s: the robot is damped"):
        for _ in range(200):
            e.step(ZERO)
    assert robot.is_damped and e.loop.events.counts["stale state"] == 1
    begin = time.monotonic()
    e.close()
    assert time.monotonic() - begin < 0.6 and robot.is_damped


def test_does_not_stand_up_from_a_steep_tilt(start: Build, eventually: Build) -> None:
    robot, e, _ = start(reset=False)
    robot.quat = np.array([math.cos(0.45), math.sin(0.45), 0, 0])  # 52 degrees: below the limit of a fall
    eventually(lambda: e.driver.reading().upright < 0.7)
    with pytest.raises(NotReady, match="tilted by 52 degrees; set it on its belly"):
        e.reset(seed=0)
    assert not len(stiff(robot.commands))


def test_robot_that_cannot_move_is_reported(start: Build, topic_quadruped: Build, monkeypatch: Any) -> None:
    robot = topic_quadruped()
    monkeypatch.setattr(robot.obeyed, "_callback", lambda sample: None)
    with pytest.raises(NotReady, match=r"did not stand up|not where"):
        start(robot=robot)


def test_standing_up_is_given_up_after_three_dampings(start: Build, steady: SafetyConfig) -> None:
    robot, e, _ = start(reset=False, twin=True, safety=replace(steady, guard_patience=0.1))
    robot.guard = {"damping": "position out of limits", "latched": True, "damped": {}}
    with pytest.raises(NotReady, match=r"standing up failed 3 times: the guard damps.*position out of limits"):
        e.reset(seed=0)


def test_between_episodes_the_robot_may_sink_and_stands_up_again(start: Build, eventually: Build) -> None:
    """Writing a video may take longer than the goal time-out."""
    robot, e, _ = start(8)
    while not bool(e.step(ZERO)[3]):
        pass
    eventually(lambda: robot.is_damped and e.loop.is_damped)
    assert not e.loop.stopped
    e.reset(seed=1)
    assert stands(robot) and not e.loop.stopped and e.falls == 0
    eventually(lambda: e.loop.stopped == "stale goal", "during an episode it is a stop")


def test_dry_run_computes_but_leaves_the_robot_lying(start: Build) -> None:
    robot, e, _ = start(8, reset=False, dry_run=True)
    for episode in range(2):
        e.reset(seed=episode)
        for k in range(1, 9):
            _, _, terminated, truncated, infos = e.step(ZERO)
            assert not terminated and bool(truncated) == (k == 8)
        assert not infos["success"]
    # The lying robot is far from the goals, so each is refused.
    assert e.loop.events.counts["start mismatch"] == 16 and not e.loop.stopped and e.falls == 0
    assert not robot.commands and np.abs(robot.position - robot.folded).max() < 1e-6


# ---- falls and silences ------------------------------------------------------------------------------------------
def test_fall_ends_the_episode_and_a_person_resets_it(start: Build, eventually: Build) -> None:
    robot, e, operator = start()
    e.step(ZERO)
    robot.quat = TILTED
    fell = False
    while not fell:
        _, reward, terminated, truncated, infos = e.step(ZERO)
        fell = bool(terminated | truncated)
        assert e.steps < 30
    assert reward.item() == 0 and not infos["success"] and e.falls == 1
    eventually(lambda: e.loop.stopped == "tilt" and robot.is_damped)
    assert e.loop.events.counts["tilt"] == 1 and e.summary()["shield"]["tilt"] == 1
    robot.quat, operator.now = UPRIGHT, Operator(reset=True)
    e.reset(seed=1)
    assert not e.loop.stopped and stands(robot)
    operator.now = RELEASED
    e.step(ZERO)


def test_twin_that_sank_to_its_belly_has_fallen(start: Build, topic_quadruped: Build, eventually: Build) -> None:
    robot = topic_quadruped(twin=True)
    robot.height = 0.3
    _, e, _ = start(robot=robot, twin=True)
    eventually(lambda: e.judge.truth.latest)
    assert not e.step(ZERO)[2] and e.falls == 0
    robot.height = 0.1
    eventually(lambda: e.judge.truth.latest.msg.pose.pose.position.z == 0.1)
    _, _, terminated, _, infos = e.step(ZERO)
    assert terminated and not infos["success"] and e.falls == 1


def test_robot_with_folded_legs_has_fallen(start: Build, eventually: Build) -> None:
    robot, e, _ = start()
    for share, falls in ((0.4, False), (0.7, True)):
        robot.sag = share * (robot.folded - robot.home)
        eventually(lambda: np.abs(e.driver.reading().position - robot.home - robot.sag).max() < 0.05)
        _, _, terminated, _, infos = e.step(ZERO)
        assert bool(terminated) == falls and e.falls == falls
    assert not infos["success"] and not e.loop.stopped


def test_damped_robot_at_the_end_of_an_episode_is_a_fall(start: Build) -> None:
    _, e, _ = start(8)
    for _ in range(7):
        e.step(ZERO)
    e.loop.stop("test")
    *_, truncated, infos = e.step(ZERO)
    assert truncated and not infos["success"] and e.falls == 1


@pytest.mark.parametrize("reason", ["stale state", "stale goal"])
def test_silence_ends_the_episode_and_latches_damping(start: Any, eventually: Any, tmp_path: Path, reason: str) -> None:
    robot, e, operator = start(reset=False)
    journal = Journal(tmp_path, e)
    e.reset(seed=0)
    e.step(ZERO)
    robot.silent = reason == "stale state"  # otherwise the policy hangs
    eventually(lambda: e.loop.stopped == reason and robot.is_damped)
    assert e.vanished() == ("the robot sends no state" if robot.silent else "")
    robot.silent = False
    eventually(lambda: time.monotonic() - e.driver.reading().received < 0.02)
    sent = len(robot.commands)
    *_, truncated, infos = e.step(ZERO)
    e.step(ZERO)
    assert truncated and not infos["success"] and robot.is_damped and e.falls >= 1
    assert not len(stiff(robot.commands[sent:]))
    sent = len(robot.commands)
    operator.now = Operator(reset=True)
    e.reset(seed=1)
    journal.close()
    row = rows(tmp_path / "episodes.jsonl")[0]
    assert row["stopped"] == reason and not row["success"] and row["falls"] == 1
    first = next(motors["kp"][0] for _, motors in robot.commands[sent:] if motors["kp"].any())
    assert first < 15 and stands(robot)


def test_damping_by_the_guard_ends_the_episode_and_counts(start: Any, topic_quadruped: Any, eventually: Any) -> None:
    robot = topic_quadruped()
    robot.guard = {"damping": "", "latched": False, "damped": {"silence": 3}}
    _, e, _ = start(robot=robot)
    e.step(ZERO)
    robot.guard = {"damping": "stale state", "latched": True, "damped": {"silence": 3, "stale state": 1}}
    eventually(lambda: e.loop.stopped == "the guard damps the robot: stale state")
    *_, truncated, infos = e.step(ZERO)
    assert truncated and not infos["success"] and e.falls == 1
    assert e.summary()["guard"] == {"stale state": 1}, "since the start of this process"
    robot.guard = {"damping": "", "latched": False, "damped": {"silence": 4, "stale state": 1}}
    eventually(lambda: e.driver.damped == {"silence": 1, "stale state": 1})


def test_without_its_guard_the_robot_stops_and_does_not_stand_up(start: Build) -> None:
    robot, e, _ = start(twin=True)
    robot.guard = None
    truncated = torch.tensor([False])
    while not truncated:  # keep posting goals, so that only the missing guard stops the robot
        *_, truncated, infos = e.step(ZERO)
    assert e.loop.stopped == e.vanished() == "the guard has gone" and not infos["success"]
    with pytest.raises(NotReady, match="the guard has gone: start it again.*robot-rl guard go2"):
        e.reset(seed=1)


# ---- the operator and the twin -----------------------------------------------------------------------------------
def test_journal_records_command_sources_stops_and_resets(start: Build, tmp_path: Path) -> None:
    _, e, operator = start(reset=False, schedule=lambda seed, step: torch.tensor([[0.5, 0.0, 0.0]]))
    journal = Journal(tmp_path, e)
    e.reset(seed=3)
    e.step(ZERO)
    operator.now = Operator(held=True, motion=(0.0, 0.0, -1.0))
    e.step(ZERO)
    e.step(ZERO)
    operator.now = Operator(stop=True)
    e.step(ZERO)
    operator.now = Operator(reset=True)
    e.reset(seed=4)
    journal.close()
    events = rows(tmp_path / "events.jsonl")
    recorded = [(row["episode"], row["event"], row["what"]) for row in events]
    schedule = {"from": "schedule", "asked": [0.5, 0.0, 0.0]}
    assert recorded[:3] == [(0, "phase", "resetting"), (0, "command", schedule), (0, "phase", "running")]
    assert (0, "command", {"from": "operator", "asked": [0.0, 0.0, -1.0]}) in recorded
    assert (0, "stop", "operator") in recorded and (1, "reset", "operator") in recorded
    stop = next(row for row in events if row["event"] == "stop")
    assert 0 < stop["seconds"] < 30 and next(row for row in events if row["event"] == "reset")["seconds"] is None
    (row,) = rows(tmp_path / "episodes.jsonl")
    assert row["commanded_steps"] == {"schedule": 2, "operator": 2} and row["steps"] == 4 and row["seed"] == 3
    assert row["stopped"] == "operator" and row["falls"] == 0 and not row["success"] and row["takeovers"] == 0


def test_stop_by_topic_is_no_fall_and_no_twin_resets_it(start: Build, nodes: Build, eventually: Build) -> None:
    robot, e, _ = start(twin=True)
    button = nodes("button").publisher(BOOL, "e_stop", qos.COMMAND)
    eventually(lambda: button.matched == 2)
    button.publish(make(BOOL, data=True))
    eventually(lambda: e.loop.stopped == E_STOP and robot.is_damped)
    _, _, _, truncated, infos = e.step(ZERO)
    assert truncated and infos["discarded"].item() and not infos["success"] and e.falls == 0
    assert e.on_twin and not e.reset_procedure.auto_resets_stop


def test_fallen_twin_is_reset_without_a_person(start: Build, eventually: Build) -> None:
    robot, e, _ = start(twin=True, operator=None)
    assert not robot.seeds
    robot.quat = TILTED
    eventually(lambda: e.loop.stopped == "tilt")
    e.reset(seed=4)
    assert robot.seeds == [4] and not e.loop.stopped and stands(robot)


def test_bag_recorder_is_not_a_twin_that_resets_the_robot(start: Build, eventually: Build) -> None:
    with open_node("rosbag2_recorder") as bag:
        bag.subscribe(INT, "twin/reset")
        robot, e, _ = start(reset=False, operator=None)
        eventually(lambda: e.placer.readers() == ["/rosbag2_recorder"])
        assert not e.on_twin
        e.reset(seed=0)
        robot.quat = TILTED
        eventually(lambda: e.loop.stopped == "tilt")
        robot.quat = UPRIGHT
        with pytest.raises(NotReady, match=r"stopped \(tilt\) and no teleop device is there to reset it"):
            e.reset(seed=1)
        assert robot.is_damped


def test_stop_during_a_twins_reset_keeps_it_damped(start: Build, eventually: Build) -> None:
    robot, e, operator = start(twin=True)
    robot.quat = TILTED
    eventually(lambda: e.loop.stopped == "tilt")
    script = [Operator(stop=True), *[RELEASED] * 20]
    operator.read = lambda: script.pop(0) if script else Operator(reset=True)
    e.reset(seed=1)
    assert not script, "waited for the reset button"


def test_operator_steers_while_the_policy_acts(start: Build) -> None:
    _, e, operator = start()
    operator.now = Operator(held=True, motion=(0.5, 0.0, -1.0))
    action = torch.full((1, 12), 0.1)
    observation, *_, infos = e.step(action)
    share = e.period / COMMAND_RAMP
    assert part(e, observation, "command") == pytest.approx([share, 0.0, -share])
    assert torch.equal(infos["executed"], action) and not infos["intervention"].item()
    assert not infos["takeover"].item() and not infos["handed_back"]
    operator.now = RELEASED
    observation, *_ = e.step(action)
    assert part(e, observation, "command") == [0, 0, 0]


def test_operators_stop_damps_at_once_until_reset(start: Build, eventually: Build) -> None:
    robot, e, operator = start()
    e.step(ZERO)
    operator.now = Operator(stop=True)
    *_, truncated, _ = e.step(ZERO)
    assert truncated and e.loop.stopped == "operator" and e.falls == 0
    eventually(lambda: robot.is_damped)
    rest = [RELEASED] * round(0.6 / e.period)
    answers = [*rest, Operator(held=True, reset=True), Operator(reset=True), *rest, Operator(reset=True)]
    operator.read = lambda now=None: answers.pop(0) if answers else RELEASED
    e.reset(seed=1)
    assert not answers and not e.loop.stopped and stands(robot)
    *_, truncated, _ = e.step(ZERO)
    assert not truncated


def test_stop_works_while_the_robot_stands_up(start: Build, eventually: Build) -> None:
    robot, e, operator = start(reset=False)
    standing = threading.Thread(target=lambda: e.reset(seed=0))
    standing.start()
    eventually(lambda: robot.commands and robot.commands[-1][1]["kp"].any())
    operator.now = Operator(stop=True)
    eventually(lambda: e.loop.stopped == "operator" and robot.is_damped)
    operator.now = Operator(reset=True)
    standing.join(30)
    assert not standing.is_alive() and stands(robot)
