"""Twin, guard and policy in processes of their own, as they are on a robot: standing, walking to the end, dying."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from real.bus import Node, open_node, qos
from real.robots.wire import LOW_COMMAND, LOW_STATE, layout
from real.twin import HiddenQuadruped, QuadrupedTwin
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots.go2 import GO2
from sim.tasks import tasks

WALK = tasks.get("go2-velocity")
pytestmark = [pytest.mark.timeout(300), pytest.mark.unstalled]
START = 90.0
"""Seconds at most until a process has imported what it needs, on a busy machine."""
REACTION = 0.1
"""Seconds from a death to the first damping command, at most."""
Build = Callable[..., Any]


class Process:
    """A robot-rl command; `said` grows while it runs."""

    def __init__(self, *command: str, output: Path):
        self.output = output
        self.process = subprocess.Popen(
            [sys.executable, "-m", "robot_rl.cli.main", *command],
            stdout=subprocess.PIPE, stderr=output.open("w"), text=True,
        )  # fmt: skip

    @property
    def said(self) -> str:
        return self.output.read_text()

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


class Watch:
    """What the motors are told and how the trunk moves, as a bystander sees it."""

    def __init__(self, node: Node):
        self.wire = layout(LOW_COMMAND)
        self.is_damped = True
        self.damped_at = 0.0
        """When the guard began the newest stretch of damping, s since 1970."""
        self.commands = node.subscribe(LOW_COMMAND, "lowcmd", qos.SENSOR, self._on_command)
        self.truth = node.subscribe("nav_msgs/msg/Odometry", "twin/odom", qos.SENSOR)
        self.episode = node.subscribe("std_msgs/msg/String", "episode", qos.LATCHED)

    def _on_command(self, sample: Any) -> None:
        command = self.wire.open(sample.raw)
        assert command is not None
        is_damped = not command["motor_cmd"]["kp"].any()
        if is_damped and not self.is_damped:
            self.damped_at = sample.source_ns / 1e9
        self.is_damped = is_damped

    @property
    def walking(self) -> bool:
        """An episode runs: the robot stood up, and the policy acts."""
        return self.episode.latest is not None and "running" in self.episode.latest.msg.data and not self.is_damped

    @property
    def height(self) -> float:
        return self.truth.latest.msg.pose.pose.position.z if self.truth.latest else float("nan")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that does always the same: it stands, on legs straighter than at home, for the twin is heavy."""
    pipeline = Pipeline(WALK.interface)
    policy = FeedforwardPolicy(Size(pipeline.observer.spec.size, 12), FeedforwardConfig(hidden=(16,)))
    with torch.no_grad():
        for weight in policy.actor.parameters():
            weight.zero_()
        policy.actor[-1].bias.copy_(torch.tensor([0.0, -0.1, 0.2] * 4) / 0.6)
    path = tmp_path_factory.mktemp("stand") / "bundle"
    save_bundle(Bundle(policy, WALK.interface, GO2.fingerprint()), path)
    return path


@pytest.fixture
def start(private_domain: int, tmp_path: Path, eventually: Build) -> Iterator[Build]:
    running: list[Process] = []

    def build(*command: str, until: str = "") -> Process:
        running.append(Process(*command, output=tmp_path / f"{command[0]}-{len(running)}.txt"))
        process = running[-1]
        if until:
            eventually(lambda: until in process.said or process.process.poll() is not None, until, START)
            assert until in process.said, process.said
        return process

    yield build
    for process in running[::-1]:
        process.end(signal.SIGKILL)


@pytest.fixture
def watch(private_domain: int) -> Iterator[Watch]:
    with open_node("bystander") as node:
        yield Watch(node)


def deploy(start: Build, bundle: Path, folder: Path, seconds: float) -> tuple[Process, Process, Process]:
    """Twin, guard and policy, in any order, as a launch file starts them."""
    policy = start(
        "deploy", str(bundle), "--robot", "go2", "--episodes", "1", "--seconds", str(seconds), "--commands", "person",
        "--video-episodes", "0", "--json", "--out", str(folder),
    )  # fmt: skip
    twin = start("twin", "go2", "--task", "go2-velocity", "--no-camera")
    return twin, start("guard", "go2", "--wait", str(START), until="guard of go2 is up"), policy


def test_a_policy_that_stands_is_deployed_from_the_ground_and_back(
    start: Build, bundle: Path, watch: Watch, tmp_path: Path, eventually: Build
) -> None:
    twin, guard, policy = deploy(start, bundle, tmp_path / "run", 3.0)
    eventually(lambda: watch.height < 0.12, "the twin begins on its belly")
    eventually(lambda: watch.height > 0.25, "standing up", START)
    out, _ = policy.process.communicate(timeout=60)
    assert policy.process.returncode == 0, policy.said
    result = json.loads(out)
    assert result["success"] == 1.0 and result["falls"] == 0 and result["where"] == "twin"
    assert 0 <= result["fall_rate_low"] < result["fall_rate_high"] < 1
    assert result["velocity_error"]["mean"] < 0.15 and result["yaw_error"]["mean"] < 0.3
    eventually(lambda: watch.height < 0.12 and watch.is_damped, "lying down at the end")
    loop = json.loads((tmp_path / "run" / "loop.json").read_text())
    assert loop["rate"] == 500 and loop["ticks"] > 2000
    assert not set(loop["shield"]) & {"tilt", "joint speed", "stop", "start mismatch", "stale state"}, loop["shield"]
    assert guard.end() == 0 and re.search(r"guard: \d+ ticks, \d+ missed, lateness p50", guard.said)
    assert twin.end() == 0 and "wrong checksum: 0" in twin.said


def test_a_policy_killed_while_it_stands_is_damped(
    start: Build, bundle: Path, watch: Watch, tmp_path: Path, eventually: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, policy = deploy(start, bundle, tmp_path / "run", 60.0)
    eventually(lambda: watch.walking, "an episode", START)
    killed = time.time()
    policy.end(signal.SIGKILL)
    eventually(lambda: watch.is_damped)
    with capsys.disabled():
        print(f"\nSIGKILL of the policy to damping: {1e3 * (watch.damped_at - killed):.1f} ms")
    assert 0 < watch.damped_at - killed < REACTION
    eventually(lambda: watch.height < 0.15, "it sinks down")


def test_a_robot_that_falls_silent_is_damped(
    start: Build, bundle: Path, watch: Watch, tmp_path: Path, eventually: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    twin, guard, policy = deploy(start, bundle, tmp_path / "run", 60.0)
    eventually(lambda: watch.walking, "an episode", START)
    cut = time.time()
    twin.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: watch.is_damped)
        with capsys.disabled():
            print(f"\nsilence of the robot to damping: {1e3 * (watch.damped_at - cut):.1f} ms")
        assert 0 < watch.damped_at - cut < REACTION
        out, _ = policy.process.communicate(timeout=60)
        result = json.loads(out)
        seen = ("stale state", "the guard damps the robot: stale state")  # by whoever looked first
        stalled = f"{result['stopped']}".removesuffix(": the twin fell silent")
        assert stalled in seen and stalled != result["stopped"], policy.said
        assert (result["falls"], result["stalls"], result["standing"]) == (0, 1, 0), "no fall of the policy"
    finally:
        twin.process.send_signal(signal.SIGCONT)
    assert "damping: stale state" in guard.said or "damping: silence" in guard.said


def test_a_policy_that_hung_in_mid_stride_does_not_go_on(
    start: Build, bundle: Path, watch: Watch, tmp_path: Path, eventually: Build
) -> None:
    """It would pull a robot that sank meanwhile back to its feet at full stiffness."""
    _, guard, policy = deploy(start, bundle, tmp_path / "run", 60.0)
    eventually(lambda: watch.walking, "an episode", START)
    hung = time.time()
    policy.process.send_signal(signal.SIGSTOP)
    eventually(lambda: watch.is_damped)
    assert 0 < watch.damped_at - hung < REACTION
    policy.process.send_signal(signal.SIGCONT)
    out, _ = policy.process.communicate(timeout=60)
    assert watch.is_damped and watch.damped_at - hung < REACTION, "damped from then on"
    result = json.loads(out)
    assert (result["success"], result["falls"], result["stalls"], result["standing"]) == (0, 0, 1, 0)
    assert "this process stood still" in result["stopped"], policy.said
    loop = json.loads((tmp_path / "run" / "loop.json").read_text())
    assert loop["guard"] == {"silence": 1} and guard.said.count("damping: ") == 1


def test_interrupted_it_lies_down_first(
    start: Build, bundle: Path, watch: Watch, tmp_path: Path, eventually: Build
) -> None:
    _, guard, policy = deploy(start, bundle, tmp_path / "run", 60.0)
    eventually(lambda: watch.walking, "an episode", START)
    policy.process.send_signal(signal.SIGINT)
    guard.process.send_signal(signal.SIGINT)
    eventually(lambda: watch.is_damped)
    assert watch.height < 0.15, "it was down before it was let go"
    assert policy.process.wait(30) == 130 and guard.process.wait(30) == 0


def test_the_twin_counts_damaged_commands_and_keeps_the_last_sound_one(
    start: Build, watch: Watch, private_domain: int, eventually: Build
) -> None:
    from real.robots.lowlevel import FIRMEST, Motors

    twin = start("twin", "go2", "--task", "go2-velocity", "--no-camera", until="twin of go2 is up")
    wire, motors = layout(LOW_COMMAND), Motors(GO2)
    sound = wire.seal(motors.command(np.array(GO2.home), FIRMEST))
    with open_node("driver") as node:
        publisher = node.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        states = node.subscribe(LOW_STATE, "lowstate", qos.SENSOR)
        eventually(lambda: publisher.matched == 2)  # the twin and the bystander
        publisher.publish(sound)
        eventually(lambda: watch.height > 0.2, "one command is obeyed for ever")
        count = states.latest.count
        watch.commands.close()
        publisher.publish(sound[:-1] + bytes([sound[-1] ^ 1]))
        eventually(lambda: states.latest.count > count + 500)
        assert watch.height > 0.2
    assert twin.end() == 0 and "wrong checksum: 1" in twin.said


def test_the_twins_motors_hear_of_gains_as_late_as_of_set_points(private_domain: int) -> None:
    from real.bus import Stamped
    from real.robots.lowlevel import FIRMEST, Motors
    from real.twin.quadruped import QuadrupedTwin

    wire, motors = layout(LOW_COMMAND), Motors(GO2)
    with open_node("twin") as node:
        twin = QuadrupedTwin(node, WALK, HiddenQuadruped(action_delay=0.02), cameras=False)

        def pulls(command: Any, ticks: int) -> list[float]:
            """Strength of the knees' pull after each tick of 2 ms."""
            twin._on_command(Stamped(wire.seal(command), LOW_COMMAND, 0.0, 0, 1))
            found = []
            for count in range(ticks):
                twin.tick(count + 1)
                found.append(float(twin.engine.joint_torque()[0, 2::3].abs().min()))
            return found

        firm = pulls(motors.command(np.array(GO2.home), FIRMEST), 15)
        first = next(k for k, pull in enumerate(firm) if pull > 20)
        soft = pulls(motors.command(np.array(GO2.home), 0.2), 15)
        last = next(k for k, pull in enumerate(soft) if pull < 20)
        assert first == last == 10, (firm, soft)


def test_the_twins_motors_servo_on_their_own_encoders(private_domain: int) -> None:
    """Where the report agrees with the command, the joint is off by what its encoder reports too much."""
    from real.bus import Stamped
    from real.robots.lowlevel import FIRMEST, Motors
    from real.twin.quadruped import QuadrupedTwin

    wire, motors = layout(LOW_COMMAND), Motors(GO2)
    exact = {f.name: 0.0 for f in fields(HiddenQuadruped) if f.name.endswith("_noise")}
    with open_node("twin") as node:
        twin = QuadrupedTwin(node, WALK, HiddenQuadruped(encoder_offset=0.1, **exact), cameras=False)
        reports: list[np.ndarray] = []
        twin.states.publish = lambda raw: reports.append(wire_of_states.open(raw).copy())  # type: ignore[method-assign]
        wire_of_states = layout(LOW_STATE)
        command = motors.command(np.array(GO2.home), FIRMEST)
        twin._on_command(Stamped(wire.seal(command), LOW_COMMAND, 0.0, 0, 1))
        for count in range(1000):
            twin.tick(count)
        goal, stiffness = (command["motor_cmd"][name][twin._motor] for name in ("q", "kp"))
        reported, asked = reports[-1]["motor_state"]["q"][twin._motor], twin._apply_command()[0, 0].numpy()
        true = twin.engine.joint_state()[0][0].numpy()
    pull = reports[-1]["motor_state"]["tau_est"][twin._motor]
    stiffness = stiffness * twin.hidden.stiffness_scale * twin.hidden.strength_scale
    assert np.abs(true - reported).max() > 0.05
    assert pull == pytest.approx(stiffness * (goal - reported), abs=0.6), "springs between set-point and report"
    assert asked - true == pytest.approx(goal - reported, abs=1e-6)


LOW_IS_HARD = {"robot.stiffness_scale", "robot.strength_scale", "ground.friction"}
"""Of these training's lowest value is the edge; of all others the highest."""
AT_THE_EDGE = {"robot.action_delay", "base.com_x"}
"""Not beyond: the way of the messages comes on top of the delay."""


def test_every_hidden_quantity_is_at_or_beyond_the_edge_of_what_training_sees() -> None:
    drawn = {r.parameter: r for r in WALK.randomization}
    for field in fields(HiddenQuadruped):
        if field.name == "accelerometer_noise":  # no policy sees the accelerometer
            continue
        (name,) = [p for p in drawn if p.replace("push.", "push_").replace(".", "_").endswith(field.name)]
        value, seen = getattr(HiddenQuadruped(), field.name), drawn[name]
        beyond = seen.low - value if name in LOW_IS_HARD else value - seen.high
        if name == "push.speed":  # of the task, not of the robot: no weaker than training's are on average
            assert value >= (seen.low + seen.high) / 2
        else:
            assert beyond == 0 if name in AT_THE_EDGE else 0 < beyond < 0.2 * seen.high, (value, seen)


def test_the_twin_reports_with_the_noise_that_it_says(private_domain: int, eventually: Build) -> None:
    reports: list[np.ndarray] = []
    with open_node("twin") as node, open_node("driver") as driver:
        twin = QuadrupedTwin(node, WALK, cameras=False)
        wire = layout(LOW_STATE)
        states = driver.subscribe(
            LOW_STATE, "lowstate", qos.SENSOR, lambda sample: reports.append(wire.open(sample.raw))
        )
        assert driver.wait_for(lambda: twin.states.matched == 1, 30)
        hidden, motor = twin.hidden, twin._motor
        for count in range(400):  # it lies still
            twin.tick(count)
            eventually(lambda count=count: len(reports) > count)
        states.close()
    spread = {
        "joint_noise": np.array([r["motor_state"]["q"][motor] for r in reports]),
        "velocity_noise": np.array([r["motor_state"]["dq"][motor] for r in reports]),
        "gyro_noise": np.array([r["imu_state"]["gyroscope"] for r in reports]),
        "tilt_noise": 2 * np.array([r["imu_state"]["quaternion"][1:] for r in reports]),
    }
    for name, values in spread.items():
        white = np.diff(values, axis=0).std(0).mean() / np.sqrt(2)  # legs that settle are slow
        assert white == pytest.approx(getattr(hidden, name), rel=0.1), name
