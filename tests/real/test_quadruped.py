"""Twin of a walking robot: with guard and policy in separate processes, and single ticks in this process."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from real import clock
from real.bus import Node, Stamped, open_node, qos
from real.control.guard import COMMAND_TIMEOUT
from real.drivers.lowlevel import FIRMEST, REPORT, STATE_TIMEOUT, Motors
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from real.episode.env import RobotEnv
from real.topics import GUARD_TOPIC, STATUS, GuardReport
from real.twin import HiddenQuadruped, QuadrupedTwin
from real.twin.composed import composed_twin
from real.twin.quadruped import QUADRUPED
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots.go2 import GO2
from sim.tasks import tasks

WALK = tasks.get("go2-velocity")
pytestmark = pytest.mark.timeout(300)
START = 90.0  # longest time for a process's imports on a busy machine, s
SIM_TIME = ["--ros-args", "-p", "use_sim_time:=true"]
Build = Callable[..., Any]


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
        self.damped_at = self.wanted_at = 0.0  # start of the guard's last damping, and the policy's last command, s
        self.commands = node.subscribe(LOW_COMMAND, "lowcmd", qos.SENSOR, self._on_command)
        self.wanted = node.subscribe(LOW_COMMAND, "lowcmd_wanted", qos.SENSOR, self._on_wanted)
        self.truth = node.subscribe("nav_msgs/msg/Odometry", "twin/odom", qos.SENSOR)
        self.episode = node.subscribe(STATUS, "episode", qos.LATCHED)

    def _on_command(self, sample: Any) -> None:
        command = self.wire.open(sample.raw)
        is_damped = not command["motor_cmd"]["kp"].any()
        if is_damped and not self.is_damped:
            self.damped_at = sample.source_ns / 1e9
        self.is_damped = is_damped

    def _on_wanted(self, sample: Any) -> None:
        self.wanted_at = sample.source_ns / 1e9

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
    """Start twin and guard, in lockstep with `deploy`."""
    twin = start("twin", "go2", "--task", "go2-velocity", "--no-camera", "--lockstep", "deploy", "guard")
    return twin, start("guard", "go2", "--wait", str(START), *SIM_TIME, until="guard of go2 is up")


@pytest.mark.realtime  # in lockstep, but three processes need the machine
def test_policy_lies_down_at_its_end(robot: Any, deploy: Build, watch: Watch, tmp_path: Path, eventually: Any) -> None:
    """Also when it is interrupted."""
    twin, guard = robot
    eventually(lambda: watch.height < 0.12, "the twin on its belly")
    policy = deploy("run", 3.0, *SIM_TIME)
    eventually(lambda: watch.height > 0.25, "standing up", START)
    out, _ = policy.process.communicate(timeout=START)
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


@pytest.mark.realtime  # as above
def test_killed_policy_is_damped_and_another_may_follow(robot: Any, deploy: Any, watch: Watch, eventually: Any) -> None:
    twin, guard = robot
    policy = deploy("run", 60.0, *SIM_TIME)
    eventually(lambda: watch.walking, "an episode", START)
    policy.end(signal.SIGKILL)
    eventually(lambda: watch.is_damped)
    assert watch.damped_at - watch.wanted_at == pytest.approx(COMMAND_TIMEOUT + 0.002, abs=0.0011)
    eventually(lambda: watch.height < 0.15, "it sinks down")

    eventually(lambda: not watch.episode.matched, "the end of the killed policy's lease")
    policy = deploy("again", 60.0, *SIM_TIME)
    eventually(lambda: watch.episode.latest.msg.message != "running", "the second policy", START)
    eventually(lambda: watch.walking, "an episode", START)
    twin.end(signal.SIGKILL)
    assert policy.process.wait(30) == 1 and "the robot's simulator has ended" in policy.said
    guard.end()
    assert guard.process.returncode, "it cannot damp a robot that has gone"


# ---- faults at exact times ---------------------------------------------------------------------------------------
@pytest.fixture
def walk(private_domain: int) -> Iterator[SimpleNamespace]:
    """A robot that stands by a policy, in this process. `policy_stands`, `robot_silent`: intervals of faults, s."""
    world = SimpleNamespace(policy_stands=(0.0, 0.0), robot_silent=(0.0, 0.0), guard=[])
    interface = replace(WALK.interface, horizon=500)
    with composed_twin(WALK, cameras=False) as twin, open_node("policy") as node:
        publish = twin.states.publish

        def say(raw: bytes) -> None:
            if not world.robot_silent[0] <= clock.now() < world.robot_silent[1]:
                publish(raw)

        twin.states.publish = say  # type: ignore[method-assign]
        env = world.env = RobotEnv(node, interface)
        step, stood = env.loop._step, [0.0]

        def stand(late: float) -> bool:
            begin, end = world.policy_stands
            if begin <= clock.now() < end:
                stood[0] = end - begin
                return True
            late, stood[0] = late + stood[0], 0.0
            return step(late)

        env.loop._step = stand  # type: ignore[method-assign]
        node.subscribe(STATUS, GUARD_TOPIC, REPORT, lambda s: world.guard.append((s.received, GuardReport.of(s.msg))))
        world.twin, world.motion = twin, []
        node.subscribe("nav_msgs/msg/Odometry", "twin/odom", qos.SENSOR, lambda s: world.motion.append(moved(s)))
        world.height = lambda: float(twin.engine.base_state()["base_position"][0, 2])
        env.activate()
        env.reset(seed=0)
        world.act = torch.tensor([[0.0, -0.1, 0.2] * 4]) / 0.6
        for _ in range(25):
            env.step(world.act)
        assert not env.loop.stopped and world.height() > 0.25
        yield world
        env.close()


def moved(sample: Any) -> tuple[float, float, float]:
    """Return the time, s, and height, m, and tilt, degrees, of the trunk."""
    pose = sample.msg.pose.pose
    upright = 1 - 2 * (pose.orientation.x**2 + pose.orientation.y**2)
    return sample.received, pose.position.z, float(np.degrees(np.arccos(np.clip(upright, -1, 1))))


def outlive(world: SimpleNamespace) -> float:
    """Let the policy go on to the episode's end, and wait; return the time at which the guard began to damp, s."""
    heard, over = len(world.guard), False
    while not over:
        _, _, *ends, _ = world.env.step(world.act)
        over = any(map(bool, ends))
    clock.sleep(2.0)
    return next(at for at, report in world.guard[heard:] if report.damping)


def test_policy_that_stood_still_stays_damped(walk: SimpleNamespace) -> None:
    """It would pull the sunken robot up at full stiffness."""
    now = clock.now()
    walk.policy_stands = now + 0.1, now + 0.3
    assert outlive(walk) == pytest.approx(now + 0.1 + COMMAND_TIMEOUT, abs=0.01)
    assert walk.env.loop.stopped == "the guard damps the robot: silence: this process stood still for 200 ms"
    assert walk.guard[-1][1].damping == "silence" and walk.env.driver.damped == {"silence": 1} and walk.height() < 0.15
    walk.env.reset(seed=1)
    assert walk.height() > 0.25 and (walk.env.falls, walk.env.stalls) == (0, 1), "no fall of the policy"


def test_robot_that_was_silent_is_damped(walk: SimpleNamespace) -> None:
    now = clock.now()
    walk.robot_silent = now + 0.1, now + 2.0
    assert outlive(walk) == pytest.approx(now + 0.1 + STATE_TIMEOUT, abs=0.01)
    assert walk.env.loop.stopped.startswith("stale state"), walk.env.loop.stopped
    walk.env.reset(seed=1)
    assert walk.height() > 0.25 and (walk.env.falls, walk.env.stalls) == (0, 1), "no fall of the policy"


def test_low_battery_lays_the_robot_down(walk: SimpleNamespace) -> None:
    """The guard does it alone: the policy's process has only latched its stop."""
    walk.twin._report["bms_state"]["soc"] = 9
    outlive(walk)
    begin = next(at for at, report in walk.guard if report.damping == "battery at 9 %")
    assert walk.env.loop.stopped == "the guard damps the robot: battery at 9 %"
    clock.sleep(max(0.0, begin + 4.0 - clock.now()))
    heights = np.array([height for at, height, _ in walk.motion if at > begin])
    assert heights[-1] < 0.12 and np.diff(heights).min() > -0.0023, "0.15 m/s, against 0.33 m/s of damping"
    assert max(tilt for at, _, tilt in walk.motion if at > begin) < 10, "4 degrees, against 22 of damping"


# ---- single ticks ------------------------------------------------------------------------------------------------
EXACT = {name: 0.0 for name in QUADRUPED if name.endswith("_noise")}
WIRE = layout(LOW_COMMAND)


@pytest.fixture
def still(nodes: Build) -> Build:
    """Build a twin with hidden dynamics; its reports are appended to `reports`."""

    def build(reports: list[np.ndarray] | None = None, hidden: Any = None) -> QuadrupedTwin:
        values = HiddenQuadruped(QUADRUPED | (hidden or {}))
        twin = QuadrupedTwin(nodes("twin", namespace="/still"), WALK, values, cameras=False)
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
    twin = still(hidden={"robot.action_delay": 0.02})

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
    twin = still(reports, EXACT | {"sensor.encoder_offset": 0.1})
    command = send(twin, FIRMEST)
    for count in range(1000):
        twin.tick(count)
    goal, stiffness = (command["motor_cmd"][name][twin._motor] for name in ("q", "kp"))
    reported, setpoint = reports[-1]["motor_state"]["q"][twin._motor], twin._apply_command()[0, 0].numpy()
    true = twin.engine.joint_state()[0][0].numpy()
    torque = reports[-1]["motor_state"]["tau_est"][twin._motor]
    stiffness = stiffness * twin.values["robot.stiffness_scale"] * twin.values["robot.strength_scale"]
    assert np.abs(true - reported).max() > 0.05
    assert torque == pytest.approx(stiffness * (goal - reported), abs=0.6)
    assert setpoint - true == pytest.approx(goal - reported, abs=1e-6)


LOW_IS_HARD = {"robot.stiffness_scale", "robot.strength_scale", "ground.friction"}
"""Parameters that are hard at their lowest training value; all others at the highest."""
AT_THE_EDGE = {"robot.action_delay", "base.com_x"}
"""Parameters at the edge, not beyond: the messages' delay adds to the action delay."""


def test_hidden_dynamics_are_at_or_beyond_the_edge_of_training() -> None:
    drawn = {r.parameter: r for r in WALK.randomization}
    for name, value in HiddenQuadruped().values.items():
        seen = drawn[name]
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
        assert white == pytest.approx(twin.values[f"sensor.{name}"], rel=0.1), name
