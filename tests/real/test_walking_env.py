"""A walking robot as an environment: it stands up, obeys, falls, is stopped, goes on, and lies down."""

from __future__ import annotations

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

from real.bus import open_node
from real.control.safety import SafetyConfig
from real.episode import standing
from real.episode.env import RobotEnv
from real.recording.journal import Journal
from real.robots.base import NotReady
from real.teleop.commands import RELEASED, Operator
from robot_rl.interface.pipeline import COMMAND_RAMP
from sim.tasks import tasks

WALK = replace(tasks.get("go2-velocity").interface, horizon=8)
ZERO = torch.zeros(1, 12)
Build = Callable[..., Any]


AS_ON_THE_ROBOT = standing.RISE


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, robot_env: Build) -> Build:
    """Stands up and lies down in a fifth of the robot's time."""
    monkeypatch.setattr(standing, "RISE", AS_ON_THE_ROBOT / 5)
    return lambda interface=WALK, *hands, **options: robot_env(interface, *hands, **options)


def part(e: RobotEnv, observation: Any, name: str) -> Any:
    return observation["observation.state"][0, e.pipeline.observer.spec.slice(name)].tolist()


def test_it_stands_up_along_a_path_with_growing_stiffness(
    env: Build, topic_quadruped: Build, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "RISE", AS_ON_THE_ROBOT)
    robot = topic_quadruped()
    e = env()
    assert e.loop.is_damped
    observation, _ = e.reset(seed=0)
    assert np.abs(robot.position - robot.home).max() < 0.02
    assert part(e, observation, "joint_position") == pytest.approx(robot.home.tolist(), abs=0.02)
    assert part(e, observation, "command") == [0, 0, 0] and not any(part(e, observation, "last_action"))
    eventually(lambda: robot.commands[-1][1]["kp"][0] == 40)  # the loop's next tick after reset returned
    pulling = [motors for _, motors in robot.commands if motors["kp"].any()]
    stiffness = np.array([motors["kp"][0] for motors in pulling])
    assert stiffness[0] < 15 and stiffness.max() == 60 and stiffness[-1] == 40
    assert (np.diff(stiffness[: stiffness.argmax()]) >= 0).all(), "growing, until the policy's own counts"
    way = np.array([motors["q"] for motors in pulling])
    assert np.abs(way[0] - robot.folded).max() < 0.1, "from where it lay"
    assert np.abs(np.diff(way, axis=0)).max() < 0.1, "in small steps"


def test_what_takes_long_the_first_time_is_computed_while_it_lies(env: Build, topic_quadruped: Build) -> None:
    topic_quadruped()
    is_damped: list[bool] = []

    def schedule(seed: int, step: int) -> torch.Tensor:
        is_damped.append(e.loop.is_damped)
        if len(is_damped) == 1:
            time.sleep(1.2)  # a kernel that is read from the disk; more than the loop's patience
        return torch.zeros(1, 3)

    e = env(schedule=schedule)
    e.reset(seed=0)
    e.step(ZERO)
    assert is_damped[0] and not is_damped[-1] and len(is_damped) > 10, "in every control period of standing up"
    assert not e.loop.stopped and not e.falls


def test_crooked_legs_are_folded_before_it_stands_up(env: Build, topic_quadruped: Build) -> None:
    robot = topic_quadruped()
    lying = robot.folded.copy()
    robot.folded[1] -= 1.0  # a leg that was swinging when stop was pressed, and is now under the robot
    robot.position = robot.folded.copy()
    env().reset(seed=0)
    assert np.abs(robot.position - robot.home).max() < 0.02
    way = np.array([motors["q"] for _, motors in robot.commands if motors["kp"].any()])
    nearest = np.abs(way - lying).max(1)
    assert nearest.min() < 0.05 < nearest[0] and 0 < nearest.argmin() < len(way) - 1, "folded on the way"
    assert np.abs(np.diff(way, axis=0)).max() < 0.25, "in small steps"


def test_an_episode_that_lasts_to_its_end_succeeds_and_the_next_begins_where_it_stands(
    env: Build, topic_quadruped: Build, eventually: Build
) -> None:
    robot = topic_quadruped()
    e = env()
    e.reset(seed=0)
    action = torch.full((1, 12), 0.2)
    for k in range(1, 9):
        _, reward, terminated, truncated, infos = e.step(action)
        assert not terminated and bool(truncated) == (k == 8) == bool(infos["success"])
    assert reward.item() == 1.0 and e.falls == 0
    reached = pytest.approx(robot.home + 0.2 * 0.6, abs=1e-5)
    eventually(lambda: robot.position == reached, "home and a fifth of the reach")
    before = robot.position.copy()
    sent = len(robot.commands)
    e.reset(seed=1)
    eventually(lambda: len(robot.commands) > sent + 20)
    assert all(motors["kp"].all() for _, motors in robot.commands[sent:]), "it stays up"
    assert np.abs(robot.position - before).max() < 1e-6


def test_it_lies_down_from_its_set_points(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    """Not from the measured joints: a robot drops if its set-points jump there."""
    robot = topic_quadruped()
    e = env()
    e.reset(seed=0)
    e.step(ZERO)
    folds = np.sign(robot.folded - robot.home)
    robot.sag = -0.15 * folds  # away from where lying down leads
    sagging = pytest.approx(robot.position + robot.sag, abs=0.01)
    eventually(lambda: e.driver.state(ZERO).joint_position[0].numpy() == sagging, "the sag reaches the policy's side")
    sent = len(robot.commands)
    e.close()
    way = np.array([motors["q"] for _, motors in robot.commands[sent:] if motors["kp"].all()])
    assert np.abs(way[-1] - robot.folded).max() < 0.05, "it lay down"
    assert ((way - robot.home) * folds > -1e-3).all()


def test_a_fall_ends_the_episode_and_a_person_ends_the_damping(
    env: Build, topic_quadruped: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_quadruped()
    operator = hands()
    e = env(replace(WALK, horizon=200), hands=operator)
    e.reset(seed=0)
    e.step(ZERO)
    robot.quat = np.array([math.cos(0.6), math.sin(0.6), 0, 0])  # 69 degrees
    fell = False
    while not fell:
        _, reward, terminated, truncated, infos = e.step(ZERO)
        fell = bool(terminated | truncated)
        assert e.steps < 30
    assert reward.item() == 0 and not infos["success"] and e.falls == 1
    eventually(lambda: e.loop.stopped == "tilt" and robot.is_damped)
    assert e.loop.events.counts["tilt"] == 1 and e.summary()["shield"]["tilt"] == 1
    robot.quat = np.array([1.0, 0, 0, 0])
    operator.now = Operator(reset=True)
    e.reset(seed=1)
    assert not e.loop.stopped and np.abs(robot.position - robot.home).max() < 0.02
    operator.now = RELEASED
    e.step(ZERO)


def test_a_twin_that_sank_to_its_belly_has_fallen(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    """Level, and no joint says so: only the twin's truth knows the height."""
    robot = topic_quadruped(twin=True)
    robot.height = 0.3
    e = env(replace(WALK, horizon=1000))
    e.reset(seed=0)
    eventually(lambda: e.judge.truth.latest)
    *_, terminated, _, _ = e.step(ZERO)
    assert not terminated and e.falls == 0
    robot.height = 0.1
    eventually(lambda: e.judge.truth.latest.msg.pose.pose.position.z == 0.1)
    _, _, terminated, _, infos = e.step(ZERO)
    assert terminated and not infos["success"] and e.falls == 1


def test_a_robot_whose_legs_folded_under_it_has_fallen(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    robot = topic_quadruped()
    e = env(replace(WALK, horizon=1000))
    e.reset(seed=0)
    robot.sag = 0.4 * (robot.folded - robot.home)
    eventually(lambda: np.abs(e.driver.reading().position - robot.home - robot.sag).max() < 0.05)
    *_, terminated, _, _ = e.step(ZERO)
    assert not terminated, "on bent knees it stands still"
    robot.sag = 0.7 * (robot.folded - robot.home)
    eventually(lambda: np.abs(e.driver.reading().position - robot.home - robot.sag).max() < 0.05)
    _, _, terminated, _, infos = e.step(ZERO)
    assert terminated and not infos["success"] and e.falls == 1 and not e.loop.stopped


def test_an_episode_does_not_end_well_with_a_damped_robot(env: Build, topic_quadruped: Build) -> None:
    topic_quadruped()
    e = env()
    e.reset(seed=0)
    for _ in range(7):
        e.step(ZERO)
    e.loop.stop("test")
    *_, truncated, infos = e.step(ZERO)
    assert truncated and not infos["success"] and e.falls == 1, "what damps it unasked makes it go down"


@pytest.mark.parametrize("reason", ["stale state", "stale goal"])
def test_a_silence_ends_the_episode_and_only_standing_up_ends_the_damping(
    env: Build, topic_quadruped: Build, hands: Build, eventually: Build, tmp_path: Path, reason: str
) -> None:
    robot = topic_quadruped()
    operator = hands()
    e = env(replace(WALK, horizon=1000), hands=operator)
    journal = Journal(tmp_path, e)
    e.reset(seed=0)
    e.step(ZERO)
    robot.silent = reason == "stale state"  # else it is the policy that hangs
    eventually(lambda: e.loop.stopped == reason and robot.is_damped)
    robot.silent = False
    eventually(lambda: time.monotonic() - e.driver.reading().received < 0.02)
    sent = len(robot.commands)
    *_, truncated, infos = e.step(ZERO)
    e.step(ZERO)
    assert truncated and not infos["success"] and robot.is_damped and e.falls >= 1
    assert not any(motors["kp"].any() for _, motors in robot.commands[sent:])
    sent = len(robot.commands)
    operator.now = Operator(reset=True)
    e.reset(seed=1)
    journal.close()
    row, *_ = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert row["stopped"] == reason and not row["success"] and row["falls"] == 1
    pulling = [motors["kp"][0] for _, motors in robot.commands[sent:] if motors["kp"].any()]
    assert pulling[0] < 15 and np.abs(robot.position - robot.home).max() < 0.02, "it was stood up"


def test_a_guard_that_damps_ends_the_episode_and_is_recorded(
    env: Build, topic_quadruped: Build, eventually: Build
) -> None:
    robot = topic_quadruped()
    robot.guard = {"damping": "", "latched": False, "damped": {"silence": 3}}
    e = env(replace(WALK, horizon=1000))
    e.reset(seed=0)
    e.step(ZERO)
    robot.guard = {"damping": "stale state", "latched": True, "damped": {"silence": 3, "stale state": 1}}
    eventually(lambda: e.loop.stopped == "the guard damps the robot: stale state")
    *_, truncated, infos = e.step(ZERO)
    assert truncated and not infos["success"] and e.falls == 1
    assert e.summary()["guard"] == {"stale state": 1}, "since this program began"
    robot.guard = {"damping": "", "latched": False, "damped": {"silence": 4, "stale state": 1}}
    eventually(lambda: e.driver.damped == {"silence": 1, "stale state": 1})


def test_a_guard_that_has_gone_ends_the_episode_and_nobody_stands_up_without(
    env: Build, topic_quadruped: Build, eventually: Build
) -> None:
    robot = topic_quadruped(twin=True)
    e = env(replace(WALK, horizon=1000))
    eventually(lambda: e.on_twin)
    e.reset(seed=0)
    robot.guard = None
    truncated = torch.tensor([False])
    while not truncated:  # without goals the loop would damp the robot by itself
        *_, truncated, infos = e.step(ZERO)
    assert e.loop.stopped == "the guard has gone" and not infos["success"]
    with pytest.raises(NotReady, match="the guard has gone: start it again.*robot-rl guard go2"):
        e.reset(seed=1)


def test_who_commanded_stops_and_resets_are_on_record(
    env: Build, topic_quadruped: Build, hands: Build, tmp_path: Path
) -> None:
    topic_quadruped()
    operator = hands()
    e = env(replace(WALK, horizon=100), hands=operator, schedule=lambda seed, step: torch.tensor([[0.5, 0.0, 0.0]]))
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
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    told = [(row["episode"], row["event"], row["what"]) for row in events]
    assert told[:3] == [
        (0, "phase", "resetting"),
        (0, "command", {"from": "schedule", "asked": [0.5, 0.0, 0.0]}),
        (0, "phase", "running"),
    ]
    assert (0, "command", {"from": "operator", "asked": [0.0, 0.0, -1.0]}) in told
    assert (0, "stop", "operator") in told and (1, "reset", "operator") in told
    stop = next(row for row in events if row["event"] == "stop")
    assert 0 < stop["seconds"] < 30 and next(row for row in events if row["event"] == "reset")["seconds"] is None
    (row,) = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert row["commanded_steps"] == {"schedule": 2, "operator": 2} and row["steps"] == 4 and row["seed"] == 3
    assert row["stopped"] == "operator" and row["falls"] == 0 and not row["success"] and row["takeovers"] == 0


def test_a_twin_is_put_back_by_itself(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    robot = topic_quadruped(twin=True)
    e = env(replace(WALK, horizon=200))
    eventually(lambda: e.on_twin)
    e.reset(seed=0)
    assert not robot.seeds, "nothing to put back"
    robot.quat = np.array([math.cos(0.6), 0, math.sin(0.6), 0])
    eventually(lambda: e.loop.stopped == "tilt")
    e.reset(seed=4)
    assert robot.seeds == [4] and not e.loop.stopped
    assert np.abs(robot.position - robot.home).max() < 0.02


def test_who_records_everything_is_no_twin(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    """A bag of all topics listens to twin/reset too; a real robot stays down until a person has looked at it."""
    robot = topic_quadruped()
    with open_node("rosbag2_recorder") as bag:
        bag.subscribe("std_msgs/msg/String", "twin/reset")
        e = env(replace(WALK, horizon=200))
        eventually(lambda: e.placer.readers() == ["/rosbag2_recorder"])
        assert not e.on_twin
        e.reset(seed=0)
        robot.quat = np.array([math.cos(0.6), 0, math.sin(0.6), 0])
        eventually(lambda: e.loop.stopped == "tilt")
        robot.quat = np.array([1.0, 0.0, 0.0, 0.0])
        with pytest.raises(NotReady, match=r"stopped \(tilt\) and no teleop device is there to reset it"):
            e.reset(seed=1)
        assert robot.is_damped


def test_who_presses_stop_while_a_twin_is_put_back_keeps_it_down(
    env: Build, topic_quadruped: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_quadruped(twin=True)
    operator = hands()
    e = env(replace(WALK, horizon=200), hands=operator)
    eventually(lambda: e.on_twin)
    e.reset(seed=0)
    robot.quat = np.array([math.cos(0.6), 0, math.sin(0.6), 0])
    eventually(lambda: e.loop.stopped == "tilt")
    script = [Operator(stop=True), *[RELEASED] * 20]
    operator.read = lambda: script.pop(0) if script else Operator(reset=True)
    e.reset(seed=1)
    assert not script, "it waited for the button"


def test_it_does_not_stand_up_from_its_back(env: Build, topic_quadruped: Build) -> None:
    robot = topic_quadruped()
    e = env()
    robot.quat = np.array([math.cos(0.45), math.sin(0.45), 0, 0])  # 52 degrees: no fall yet, but no way to stand
    end = time.monotonic() + 30
    while e.driver.reading().upright > 0.7:
        assert time.monotonic() < end
    with pytest.raises(NotReady, match="tilted by 52 degrees; set it on its belly"):
        e.reset(seed=0)
    assert all(not motors["kp"].any() for _, motors in robot.commands)


def test_a_robot_that_is_held_down_is_reported(
    env: Build, topic_quadruped: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = topic_quadruped()
    monkeypatch.setattr(robot, "_commanded", lambda sample: None)
    robot.obeyed._callback = robot._commanded
    e = env()
    with pytest.raises(NotReady, match=r"did not stand up|not where"):
        e.reset(seed=0)


def test_the_persons_dead_man_steers_and_the_policy_goes_on_acting(
    env: Build, topic_quadruped: Build, hands: Build
) -> None:
    topic_quadruped()
    operator = hands()
    e = env(replace(WALK, horizon=50), hands=operator)
    e.reset(seed=0)
    operator.now = Operator(held=True, motion=(0.5, 0.0, -1.0))
    action = torch.full((1, 12), 0.1)
    observation, *_, infos = e.step(action)
    share = e.period / COMMAND_RAMP
    assert part(e, observation, "command") == pytest.approx([share, 0.0, -share]), "on its way to 0.5 and -1"
    assert torch.equal(infos["executed"], action) and not infos["intervention"].item()
    assert not infos["takeover"].item() and not infos["handed_back"]
    operator.now = RELEASED
    observation, *_ = e.step(action)
    assert part(e, observation, "command") == [0, 0, 0]


def test_a_person_stops_it_at_once_and_resumes(
    env: Build, topic_quadruped: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_quadruped()
    operator = hands()
    e = env(replace(WALK, horizon=50), hands=operator)
    e.reset(seed=0)
    e.step(ZERO)
    operator.now = Operator(stop=True)
    *_, truncated, _ = e.step(ZERO)
    assert truncated and e.loop.stopped == "operator" and e.falls == 0
    eventually(lambda: robot.is_damped)
    answers = [RELEASED, Operator(held=True, reset=True), Operator(reset=True)]
    operator.read = lambda now=None: answers.pop(0) if answers else RELEASED
    e.reset(seed=1)
    assert not answers and not e.loop.stopped and np.abs(robot.position - robot.home).max() < 0.02
    *_, truncated, _ = e.step(ZERO)
    assert not truncated, "and goes on"


def test_a_stop_while_it_stands_up_is_no_end_either(
    env: Build, topic_quadruped: Build, hands: Build, eventually: Build
) -> None:
    robot = topic_quadruped()
    operator = hands()
    e = env(hands=operator)
    standing = threading.Thread(target=lambda: e.reset(seed=0))
    standing.start()
    eventually(lambda: robot.commands and robot.commands[-1][1]["kp"].any())
    operator.now = Operator(stop=True)
    eventually(lambda: e.loop.stopped == "operator" and robot.is_damped)
    operator.now = Operator(reset=True)
    standing.join(30)
    assert not standing.is_alive() and np.abs(robot.position - robot.home).max() < 0.02


def test_closing_lays_it_down_and_damps(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    robot = topic_quadruped()
    e = env()
    e.reset(seed=0)
    e.step(ZERO)
    sent = len(robot.commands)
    e.close()
    eventually(lambda: robot.is_damped)
    pulling = [motors for _, motors in robot.commands[sent:] if motors["kp"].any()]
    assert np.abs(pulling[-1]["q"] - robot.folded).max() < 0.05, "down before it lets go"
    assert pulling[-1]["kp"][0] <= 20, "letting go step by step"
    e.node.close()
    eventually(lambda: robot.obeyed.matched == 0)
    assert robot.is_damped, "and nothing pulls after that"


@pytest.mark.parametrize("step", [3, 40], ids=["soft", "firm"])
def test_closing_while_it_stands_up_lays_it_down_without_a_jerk(
    env: Build, topic_quadruped: Build, eventually: Build, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Ctrl-C with soft springs, which the guard would not let become stiff at once, and with stiff ones half-way."""
    monkeypatch.setattr(standing, "RISE", AS_ON_THE_ROBOT)
    robot = topic_quadruped()
    e = env()
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
    assert (e.driver.stiffness_scale < 1.0) == (step == 3)
    e.close()
    eventually(lambda: robot.is_damped)
    stiffness = np.array([motors["kp"][0] for _, motors in robot.commands]) / 40
    assert stiffness.max() == pytest.approx(1.5)
    assert np.diff(stiffness).max() < 0.1, "a step every 20 ms"
    path = np.stack([motors["q"] for _, motors in robot.commands[sent - 1 :] if motors["kp"].any()])
    height = np.abs(path - robot.folded).max(1)
    assert height.max() < height[0] + 0.1, "straight down, not up first"
    assert np.abs(robot.position - robot.folded).max() < 0.1


def test_closing_after_a_silence_damps_without_ado(env: Build, topic_quadruped: Build, eventually: Build) -> None:
    robot = topic_quadruped()
    e = env(replace(WALK, horizon=500))
    e.reset(seed=0)
    e.step(ZERO)
    robot.silent = True
    with pytest.raises(NotReady, match="no joint state for 2 s: the robot is damped"):
        for _ in range(200):
            e.step(ZERO)
    assert robot.is_damped and e.loop.events.counts["stale state"] == 1
    begin = time.monotonic()
    e.close()
    assert time.monotonic() - begin < 0.6 and robot.is_damped, "no time to lie down in"


def test_a_dry_run_leaves_it_lying(env: Build, topic_quadruped: Build) -> None:
    robot = topic_quadruped()
    e = env(dry_run=True)
    for episode in range(2):
        e.reset(seed=episode)
        for k in range(1, 9):
            _, _, terminated, truncated, infos = e.step(ZERO)
            assert not terminated and bool(truncated) == (k == 8), "all of the episode is computed"
        assert not infos["success"], "which says nothing about the policy"
    # What stands on its belly is far from where the policy wants it: no command would have been sent for that.
    assert e.loop.events.counts["start mismatch"] == 16 and not e.loop.stopped and e.falls == 0
    assert not robot.commands and np.abs(robot.position - robot.folded).max() < 1e-6


def test_between_episodes_it_may_sink_and_is_stood_up_again(
    env: Build, topic_quadruped: Build, eventually: Build
) -> None:
    """No goals are due then: writing a video may take longer than a robot is held for."""
    robot = topic_quadruped()
    e = env()
    e.reset(seed=0)
    while not bool(e.step(ZERO)[3]):
        pass
    eventually(lambda: robot.is_damped and e.loop.is_damped)
    assert not e.loop.stopped
    e.reset(seed=1)
    assert np.abs(robot.position - robot.home).max() < 0.02 and not e.loop.stopped and e.falls == 0
    eventually(lambda: e.loop.stopped == "stale goal", "within one it owes")


def test_what_damps_it_whenever_it_stands_up_is_given_up_with_the_reason(
    env: Build, topic_quadruped: Build, eventually: Build, steady: SafetyConfig
) -> None:
    robot = topic_quadruped(twin=True)
    e = env(safety=replace(steady, guard_patience=0.1))
    eventually(lambda: e.on_twin)
    robot.guard = {"damping": "position out of limits", "latched": True, "damped": {}}
    with pytest.raises(NotReady, match=r"standing up failed 3 times: the guard damps.*position out of limits"):
        e.reset(seed=0)
