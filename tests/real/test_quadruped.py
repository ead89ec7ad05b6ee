"""Twin of a walking robot: with guard and policy in separate processes, and single ticks in this process."""

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
from real.bus import Node, Stamped, qos
from real.drivers.lowlevel import FIRMEST, Motors
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from real.topics import STATUS
from real.twin import HiddenQuadruped, QuadrupedTwin
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots.go2 import GO2
from sim.tasks import tasks

WALK = tasks.get("go2-velocity")
pytestmark = pytest.mark.timeout(300)
START = 90.0  # longest time for a process's imports on a busy machine, s
SIM_TIME = ["--ros-args", "-p", "use_sim_time:=true"]
REACTION = 0.1  # longest time from a failure to the first damping command, s
Build = Callable[..., Any]


def processes(test: Any) -> Any:
    """Mark a test of processes in real time."""
    return pytest.mark.realtime(pytest.mark.unstalled(test))


class Process:
    """robot-rl command; `said` is its output so far."""

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
    """Subscriber of motor commands and trunk motion."""

    def __init__(self, node: Node):
        self.wire = layout(LOW_COMMAND)
        self.is_damped = True
        self.damped_at = 0.0  # start of the guard's last damping, s since 1970
        self.commands = node.subscribe(LOW_COMMAND, "lowcmd", qos.SENSOR, self._on_command)
        self.truth = node.subscribe("nav_msgs/msg/Odometry", "twin/odom", qos.SENSOR)
        self.episode = node.subscribe(STATUS, "episode", qos.LATCHED)

    def _on_command(self, sample: Any) -> None:
        command = self.wire.open(sample.raw)
        is_damped = not command["motor_cmd"]["kp"].any()
        if is_damped and not self.is_damped:
            self.damped_at = sample.source_ns / 1e9
        self.is_damped = is_damped

    @property
    def walking(self) -> bool:
        """Return whether an episode runs and the motors are not damped."""
        return self.episode.latest is not None and self.episode.latest.msg.message == "running" and not self.is_damped

    @property
    def height(self) -> float:
        return self.truth.latest.msg.pose.pose.position.z if self.truth.latest else float("nan")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policy with a constant action that stands on straighter legs than at home, as the twin is heavy."""
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
def watch(nodes: Build) -> Watch:
    return Watch(nodes("bystander"))


@pytest.fixture
def deploy(start: Build, bundle: Path, tmp_path: Path) -> Build:
    """Start a policy whose results are written to a folder of `tmp_path`."""
    words = ["--robot", "go2", "--episodes", "1", "--commands", "person", "--video-episodes", "0", "--json"]

    def run(folder: str, seconds: float = 60.0, *more: str) -> Process:
        out = ["--seconds", str(seconds), "--out", str(tmp_path / folder)]
        return start("deploy", str(bundle), *words, *out, *more)

    return run


@pytest.fixture
def robot(start: Build) -> tuple[Process, Process]:
    """Start twin and guard."""
    twin = start("twin", "go2", "--task", "go2-velocity", "--no-camera")
    return twin, start("guard", "go2", "--wait", str(START), until="guard of go2 is up")


@pytest.mark.realtime  # in lockstep, but three processes need the machine
def test_policy_lies_down_at_its_end(
    start: Build, deploy: Build, watch: Watch, tmp_path: Path, eventually: Any
) -> None:
    """Also when it is interrupted."""
    twin = start("twin", "go2", "--task", "go2-velocity", "--no-camera", "--lockstep", "deploy", "guard")
    guard = start("guard", "go2", "--wait", str(START), *SIM_TIME, until="guard of go2 is up")
    eventually(lambda: watch.height < 0.12, "the twin on its belly")
    policy = deploy("run", 3.0, *SIM_TIME)
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

    policy = deploy("again", 60.0, *SIM_TIME)
    eventually(lambda: watch.walking, "an episode", START)
    policy.process.send_signal(signal.SIGINT)
    guard.process.send_signal(signal.SIGINT)
    eventually(lambda: watch.is_damped)
    assert watch.height < 0.15, "it lay down before it was damped"
    assert policy.process.wait(30) == 130 and guard.process.wait(30) == 0
    assert re.search(r"guard: \d+ ticks, \d+ missed, lateness p50", guard.said)
    assert twin.end(signal.SIGTERM) == 0 and "wrong checksum: 0" in twin.said


@processes
def test_killed_policy_or_robot_is_damped(robot: Any, deploy: Any, watch: Watch, eventually: Any, capsys: Any) -> None:
    twin, guard = robot
    policy = deploy("run")
    eventually(lambda: watch.walking, "an episode", START)
    killed = time.time()
    policy.end(signal.SIGKILL)
    eventually(lambda: watch.is_damped)
    with capsys.disabled():  # the README's figure
        print(f"\nSIGKILL of the policy to damping: {1e3 * (watch.damped_at - killed):.1f} ms")
    assert 0 < watch.damped_at - killed < REACTION
    eventually(lambda: watch.height < 0.15, "it sinks down")

    eventually(lambda: not watch.episode.matched, "the end of the killed policy's lease")
    policy = deploy("again")
    eventually(lambda: watch.episode.latest.msg.message != "running", "the second policy", START)
    eventually(lambda: watch.walking, "an episode", START)
    before, cut = len(guard.said), time.time()
    twin.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: watch.is_damped)
        assert 0 < watch.damped_at - cut < REACTION
        out, _ = policy.process.communicate(timeout=60)
        result = json.loads(out)
        seen = ("stale state", "the guard damps the robot: stale state")  # whichever process noticed first
        stalled = f"{result['stopped']}".removesuffix(": the twin fell silent")
        assert stalled in seen and stalled != result["stopped"], policy.said
        assert (result["falls"], result["stalls"], result["standing"]) == (0, 1, 0), "no fall of the policy"
    finally:
        twin.process.send_signal(signal.SIGCONT)
    assert re.search("damping: (stale state|silence)", guard.said[before:])


@processes
def test_continued_policy_stays_damped(robot: Any, deploy: Any, watch: Watch, tmp_path: Path, eventually: Any) -> None:
    """It would pull the sunken robot up at full stiffness."""
    guard, policy = robot[1], deploy("run")
    eventually(lambda: watch.walking, "an episode", START)
    hung = time.time()
    policy.process.send_signal(signal.SIGSTOP)
    eventually(lambda: watch.is_damped)
    assert 0 < watch.damped_at - hung < REACTION
    policy.process.send_signal(signal.SIGCONT)
    out, _ = policy.process.communicate(timeout=60)
    assert watch.is_damped and watch.damped_at - hung < REACTION, "it stays damped"
    result = json.loads(out)
    assert (result["success"], result["falls"], result["stalls"], result["standing"]) == (0, 0, 1, 0)
    assert "this process stood still" in result["stopped"], policy.said
    loop = json.loads((tmp_path / "run" / "loop.json").read_text())
    assert loop["guard"] == {"silence": 1} and guard.said.count("damping: ") == 1


# ---- single ticks ------------------------------------------------------------------------------------------------
EXACT = {f.name: 0.0 for f in fields(HiddenQuadruped) if f.name.endswith("_noise")}
WIRE = layout(LOW_COMMAND)


@pytest.fixture
def still(nodes: Build) -> Build:
    """Build a twin with hidden dynamics; its reports are appended to `reports`."""

    def build(reports: list[np.ndarray] | None = None, **hidden: float) -> QuadrupedTwin:
        twin = QuadrupedTwin(nodes("twin", namespace="/still"), WALK, HiddenQuadruped(**hidden), cameras=False)
        if reports is not None:
            twin.states.publish = lambda raw: reports.append(layout(LOW_STATE).open(raw).copy())  # type: ignore
        return twin

    return build


def send(twin: QuadrupedTwin, stiffness: float) -> np.ndarray:
    """Command the home position."""
    command = Motors(GO2).command(np.array(GO2.home), stiffness)
    twin._on_command(Stamped(WIRE.seal(command), LOW_COMMAND, 0.0, 0, 1))
    return command


def test_damaged_commands_are_counted_and_ignored(still: Build) -> None:
    twin = still()
    valid = WIRE.seal(send(twin, FIRMEST))
    for damaged in (valid[:-1] + bytes([valid[-1] ^ 1]), valid[:-4], b""):
        twin._on_command(Stamped(damaged, LOW_COMMAND, 0.0, 0, 1))
    for count in range(500):
        twin.tick(count)
    assert twin.rejected == 3
    assert float(twin.engine.base_state()["base_position"][0, 2]) > 0.2, "it stands by the last valid command"


def test_gains_have_the_delay_of_setpoints(still: Build) -> None:
    twin = still(action_delay=0.02)

    def torques(stiffness: float) -> list[float]:
        """Return the smallest knee torque after each tick of 2 ms."""
        send(twin, stiffness)
        found = []
        for count in range(15):
            twin.tick(count + 1)
            found.append(float(twin.engine.joint_torque()[0, 2::3].abs().min()))
        return found

    firm, soft = torques(FIRMEST), torques(0.2)
    first = next(k for k, torque in enumerate(firm) if torque > 20)
    last = next(k for k, torque in enumerate(soft) if torque < 20)
    assert first == last == 10, (firm, soft)


def test_motors_servo_on_their_encoders(still: Build) -> None:
    """The true joint position has the encoder's offset from the setpoint."""
    reports: list[np.ndarray] = []
    twin = still(reports, encoder_offset=0.1, **EXACT)
    command = send(twin, FIRMEST)
    for count in range(1000):
        twin.tick(count)
    goal, stiffness = (command["motor_cmd"][name][twin._motor] for name in ("q", "kp"))
    reported, setpoint = reports[-1]["motor_state"]["q"][twin._motor], twin._apply_command()[0, 0].numpy()
    true = twin.engine.joint_state()[0][0].numpy()
    torque = reports[-1]["motor_state"]["tau_est"][twin._motor]
    stiffness = stiffness * twin.hidden.stiffness_scale * twin.hidden.strength_scale
    assert np.abs(true - reported).max() > 0.05
    assert torque == pytest.approx(stiffness * (goal - reported), abs=0.6)
    assert setpoint - true == pytest.approx(goal - reported, abs=1e-6)


LOW_IS_HARD = {"robot.stiffness_scale", "robot.strength_scale", "ground.friction"}
"""Parameters that are hard at their lowest training value; all others at the highest."""
AT_THE_EDGE = {"robot.action_delay", "base.com_x"}
"""Parameters at the edge, not beyond: the messages' delay adds to the action delay."""


def test_hidden_dynamics_are_at_or_beyond_the_edge_of_training() -> None:
    drawn = {r.parameter: r for r in WALK.randomization}
    for field in fields(HiddenQuadruped):
        if field.name == "accelerometer_noise":  # policies do not observe the accelerometer
            continue
        (name,) = [p for p in drawn if p.replace("push.", "push_").replace(".", "_").endswith(field.name)]
        value, seen = getattr(HiddenQuadruped(), field.name), drawn[name]
        beyond = seen.low - value if name in LOW_IS_HARD else value - seen.high
        if name == "push.speed":  # property of the task: at least training's mean
            assert value >= (seen.low + seen.high) / 2
        else:
            assert beyond == 0 if name in AT_THE_EDGE else 0 < beyond < 0.2 * seen.high, (value, seen)


def test_reported_noise_has_the_hidden_standard_deviation(still: Build) -> None:
    reports: list[np.ndarray] = []
    twin = still(reports)
    for count in range(400):
        twin.tick(count)
    spread = {
        "joint_noise": np.array([r["motor_state"]["q"][twin._motor] for r in reports]),
        "velocity_noise": np.array([r["motor_state"]["dq"][twin._motor] for r in reports]),
        "gyro_noise": np.array([r["imu_state"]["gyroscope"] for r in reports]),
        "tilt_noise": 2 * np.array([r["imu_state"]["quaternion"][1:] for r in reports]),
    }
    for name, values in spread.items():
        white = np.diff(values, axis=0).std(0).mean() / np.sqrt(2)  # differences: legs that settle are slow
        assert white == pytest.approx(getattr(twin.hidden, name), rel=0.1), name
