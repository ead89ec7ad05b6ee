"""Fixtures of the robot side: a private loopback domain per module, robots that exist only as topics, and operators."""

import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from real import clock as real_clock
from real.bus import make, open_node, qos
from real.control import timing as clock
from real.drivers.lowlevel import REPORT
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from real.episode.env import RobotEnv
from real.lockstep import START, Lockstep
from real.recording.session import stop_on_signals
from real.teleop.commands import RELEASED
from real.topics import BOOL, INT, STATUS, GuardReport
from robot_rl.interface.driver import SafetyConfig
from robot_rl.robots import robots

WAIT = 30.0  # time limit for conditions that normally hold within a second, s: the machine may be busy


def _eventually(holds: Callable[[], Any], what: str = "the condition", wait: float = WAIT) -> Any:
    """Poll until `holds()` is true and return its value."""
    end = time.monotonic() + wait
    while not (value := holds()):
        assert time.monotonic() < end, f"{what} did not happen within {wait:g} s"
        time.sleep(0.002)
    return value



@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    return _eventually


@pytest.fixture
def stopping() -> Iterator[None]:
    """Install the signal handlers of a session on a robot."""
    names = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGTSTP", "SIGHUP")
    before = {number: signal.getsignal(number) for number in (getattr(signal, name) for name in names)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    stop_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def private_domain() -> Iterator[int]:
    """Domain on `lo` with a tag that no other test session uses."""
    domain = random.SystemRandom().randint(100, 199)
    uri = (
        "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='false'/></Interfaces>"
        "<AllowMulticast>false</AllowMulticast></General>"
        f"<Discovery><Tag>robot-side-{os.getpid()}</Tag><ParticipantIndex>auto</ParticipantIndex>"
        "<MaxAutoParticipantIndex>32</MaxAutoParticipantIndex><Peers><Peer address='127.0.0.1'/></Peers>"
        "</Discovery></Domain></CycloneDDS>"
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ROS_DISTRO", "ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS"):
            patch.delenv(name, raising=False)
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        patch.setenv("CYCLONEDDS_URI", uri)
        yield domain


class Pad:
    """Device file of a gamepad, as a FIFO. The kernel does not know it; its map file is that of an Xbox pad."""

    XBOX = (
        "leftx:a0,lefty:a1,rightx:a3,righty:a4,lefttrigger:a2,righttrigger:a5,"
        "leftshoulder:b4,rightshoulder:b5,a:b0,b:b1,x:b2,start:b7"
    )

    def __init__(self, folder: Path):
        self.path, self.map_file = str(folder / "js0"), str(folder / "pads.txt")
        os.mkfifo(self.path)
        self.map(self.XBOX)
        self.wire: int | None = os.open(self.path, os.O_RDWR)

    def map(self, pairs: str, guid: str = "0" * 32) -> None:
        Path(self.map_file).write_text(f"# pads\n{guid},fifo,{pairs},platform:Linux,\n")

    def write(self, data: bytes) -> None:
        os.write(self.wire, data)

    def send(self, *events: tuple[int, int, int]) -> None:
        """Send (kind, number, value): kind 1 is a button, 2 an axis; 0x80 added marks the initial state."""
        self.write(b"".join(struct.pack("=IhBB", 0, value, kind, number) for kind, number, value in events))

    def rest(self, *triggers: int) -> None:
        """Report six axes at rest, as the kernel does when a device is opened."""
        self.send(*((0x82, k, -32767 if k in (triggers or (2, 5)) else 0) for k in range(6)))

    def unplug(self) -> None:
        if self.wire is not None:
            os.close(self.wire)
            self.wire = None


@pytest.fixture(scope="session")
def pad_in() -> Callable[[Path], Pad]:
    return Pad


@pytest.fixture
def pad(tmp_path: Path) -> Iterator[Pad]:
    yield (pad := Pad(tmp_path))
    pad.unplug()


class Periodic:
    """Owner of a node and of a thread that calls `tick` at `rate` Hz from `start` to `close`."""

    rate: float
    tick: Callable[[], None]

    def start(self, node: Any) -> None:
        self.node, self._closing = node, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(1 / self.rate):
            self.tick()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.node.close()


def _built(kind: type[Periodic]) -> Iterator[Callable[..., Any]]:
    with ExitStack() as built:
        yield lambda **options: built.enter_context(closing(kind(open_node("robot"), **options)))


class TopicRobot(Periodic):
    """Panda without dynamics that jumps to each commanded position, and a cube.

    It has only the robot side of the topics, so tests of the policy side are exact. Unlike a robot, it queues commands
    and misses none.
    """

    rate = 200

    def __init__(self, node: Any, places_objects: bool = True):
        self.robot = robots.get("panda")
        ros = self.robot.driver
        self.position = np.array(self.robot.home)
        self.width, self.cube = 0.08, np.array([0.5, 0.0, 0.022])
        self.commands: list[np.ndarray] = []
        self.widths: list[float] = []
        self.seeds: list[int] = []
        self.states = node.publisher("sensor_msgs/msg/JointState", ros.joint_states, qos.SENSOR)
        self.pose = node.publisher("geometry_msgs/msg/PoseStamped", ros.object_pose.format(object="cube"), qos.SENSOR)
        array = "std_msgs/msg/Float64MultiArray"
        every = replace(qos.COMMAND, depth=1000)
        self.arm = node.subscribe(array, ros.command, every, self._commanded)
        self.hand = node.subscribe(array, ros.gripper_command, every, self._gripped)
        self.placer = None
        if places_objects:
            self.placer = node.subscribe(INT, "twin/reset", qos.DEFAULT, self._placed)
        self.follows = True
        self.wall = np.inf  # upper limit of joint 1, rad
        self.thick = 0.0  # width of the object between the fingers, m
        self.silent = self.blind = False  # no joint states; no object poses
        self.start(node)

    def _commanded(self, sample: Any) -> None:
        self.commands.append(np.array(sample.msg.data))
        if self.follows:
            self.position = np.minimum(self.commands[-1], [self.wall, *[np.inf] * 6])

    def _gripped(self, sample: Any) -> None:
        self.widths.append(float(sample.msg.data[0]))
        self.width = max(self.thick, self.widths[-1])

    def _placed(self, sample: Any) -> None:
        self.seeds.append(int(sample.msg.data))
        self.cube = np.array([0.5, 0.0, 0.022])

    def tick(self) -> None:
        if self.silent:
            return
        fingers = self.robot.gripper.joints
        position = np.concatenate([self.position, np.full(len(fingers), self.width / len(fingers))])
        states = {"name": [*self.robot.joint_names, *fingers], "position": position, "velocity": 0 * position}
        self.states.publish(make("sensor_msgs/msg/JointState", **states))
        if not self.blind:
            x, y, z = (float(v) for v in self.cube)
            pose = {"position": {"x": x, "y": y, "z": z}, "orientation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}}
            self.pose.publish(make("geometry_msgs/msg/PoseStamped", pose=pose))


@pytest.fixture
def topic_robot(private_domain: int) -> Iterator[Callable[..., TopicRobot]]:
    yield from _built(TopicRobot)


@pytest.fixture
def robot(topic_robot: Callable[..., TopicRobot]) -> TopicRobot:
    return topic_robot()


class TopicQuadruped(Periodic):
    """Go2 without dynamics that jumps to each commanded position and folds while damped.

    It has only the robot side of the topics and, by default, the guard's reports.
    """

    rate = 250

    def __init__(self, node: Any, commands: str = "lowcmd_wanted", twin: bool = False, lying: bool = True):
        self.robot = robots.get("go2")
        self.motor = np.array([self.robot.driver.motors.index(name) for name in self.robot.joint_names])
        self.home, self.folded = np.array(self.robot.home), np.array(self.robot.base.lying)
        self.position = (self.folded if lying else self.home).copy()
        self.speed, self.sag = np.zeros(12), np.zeros(12)
        """Joint speeds, rad/s, and deflection of each joint from its set-point by the robot's weight, rad."""
        self.quat = np.array([1.0, 0.0, 0.0, 0.0])
        self.gyroscope, self.force = np.zeros(3), np.array([10, 20, 30, 40])
        self.remote = np.zeros(40, np.uint8)
        self.temperature, self.charge = np.full(20, 30), 90  # degrees C, %
        self.commands: list[tuple[float, np.ndarray]] = []
        """Arrival of each command, monotonic s, and its motors in the order of the spec."""
        self.seeds: list[int] = []
        self.silent = self.frozen = False  # no states; the same state again and again
        self._tick = 0
        self.guard: dict[str, Any] | None = None  # guard's report; None: no reports
        if commands == "lowcmd_wanted":
            self.guard = {"damping": "", "latched": False, "damped": {}}
        self.height: float | None = None  # trunk height that a twin reports, m; None: no reports
        self._wire, self._state = layout(LOW_COMMAND), layout(LOW_STATE)
        self.states = node.publisher(LOW_STATE, "lowstate", qos.SENSOR)
        self.reports = node.publisher(STATUS, "guard", REPORT) if self.guard else None
        self.truth = node.publisher("nav_msgs/msg/Odometry", "twin/odom", qos.SENSOR) if twin else None
        every = replace(qos.COMMAND, depth=1000)
        self.obeyed = node.subscribe(LOW_COMMAND, commands, every, self._commanded)
        if twin:
            self.placer = node.subscribe(INT, "twin/reset", qos.DEFAULT, self._placed)
        self.start(node)

    @property
    def is_damped(self) -> bool:
        return bool(self.commands) and not self.commands[-1][1]["kp"].any()

    def _commanded(self, sample: Any) -> None:
        command = self._wire.open(sample.raw)
        if command is None:
            return
        motors = command["motor_cmd"][self.motor]
        self.commands.append((sample.received, motors))
        pulled = motors["kp"] > 0
        self.position = np.where(pulled, motors["q"], self.position + 0.05 * (self.folded - self.position))

    def _placed(self, sample: Any) -> None:
        self.seeds.append(int(sample.msg.data))
        self.quat = np.array([1.0, 0.0, 0.0, 0.0])

    def message(self) -> np.ndarray:
        message = self._state.empty()
        self._tick += not self.frozen
        message["tick"] = 4 * self._tick
        for name, values in (("q", self.position + self.sag), ("dq", self.speed)):
            message["motor_state"][name][self.motor] = values
        message["imu_state"]["quaternion"], message["imu_state"]["gyroscope"] = self.quat, self.gyroscope
        message["foot_force"], message["wireless_remote"] = self.force, self.remote
        message["motor_state"]["temperature"] = self.temperature
        message["bms_state"]["soc"], message["bms_state"]["cell_vol"][:8] = self.charge, 3800
        return message

    def tick(self) -> None:
        if not self.silent:
            self.states.publish(self._state.seal(self.message()))
        if self.reports and self.guard is not None:
            self.reports.publish(GuardReport(**self.guard).message())
        if self.truth and self.height is not None:
            pose = {"position": {"x": 0.0, "y": 0.0, "z": self.height}}
            self.truth.publish(make("nav_msgs/msg/Odometry", pose={"pose": pose}))


@pytest.fixture
def topic_quadruped(private_domain: int) -> Iterator[Callable[..., TopicQuadruped]]:
    yield from _built(TopicQuadruped)


@contextmanager
def _twin_process(robot: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "robot_rl.cli.main", "twin", robot, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = ""  # a warning of the bus may come first
    while f"twin of {robot} is up" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.fixture(scope="session")
def twin_process() -> Callable[..., Any]:
    """Start a robot's twin process, wait until it is up, and end it with the context."""
    return _twin_process


@pytest.fixture
def twin(private_domain: int) -> Iterator[Callable[..., Any]]:
    """Start a Panda's twin process of a task."""
    with ExitStack() as running:
        yield lambda task, *options: running.enter_context(_twin_process("panda", "--task", task, *options))


class Simulated:
    """Lockstep within the test's process: nodes, and a thread that simulates robots. Time goes on while the test waits
    by `real.clock`. Before the test takes part (`clock.join`, `RobotEnv.activate`) time stands, and robots repeat their
    state."""

    def __init__(self, period: float = 0.005):
        self.clock = Lockstep()
        self.clock.lead = period / 2
        self.period, self._over, self._opened = period, threading.Event(), ExitStack()
        self._threads: list[threading.Thread] = []
        real_clock.use(self.clock)

    def node(self, name: str, **options: Any) -> Any:
        return self._opened.enter_context(open_node(name, **options))

    def run(self, tick: Callable[[], None]) -> None:
        """Call `tick` at every tick of the clock from now on."""

        def conduct() -> None:
            count = 0
            while not self._over.is_set():
                if not self.clock.joined:
                    tick()
                    self._over.wait(0.002)
                    continue
                count += 1
                now = START + count * self.period
                self.clock.deliver(now)
                tick()
                self.clock.advance(now)

        self._threads.append(threading.Thread(target=conduct, daemon=True))
        self._threads[-1].start()

    def until(self, holds: Callable[[], Any], timeout: float = 10.0) -> None:
        """Wait until a predicate holds, for at most `timeout` simulated seconds."""
        assert real_clock.wait(lambda: bool(holds()), timeout), "did not happen"

    def close(self) -> None:
        self._over.set()
        self.clock.leave()
        for thread in self._threads:
            thread.join(10)
        real_clock.use(real_clock.WALL)
        self._opened.close()


@pytest.fixture
def simulated(private_domain: int) -> Iterator[Simulated]:
    with closing(Simulated()) as world:
        yield world


class LockstepArm:
    """Arm in lockstep that jumps to each commanded position, a cube, and an emergency stop button beside it."""

    def __init__(self, node: Any, reliable: bool = True, robot: str = "panda"):
        self.robot, self.node = robots.get(robot), node
        self.position, self.width = np.array(self.robot.home), 0.08
        self.speed = 0.0  # reported speed of each joint, rad/s
        self.button: bool | None = None  # level that the button repeats at 20 Hz; None: it is silent
        self._ticks = 0
        ros, array = self.robot.driver, "std_msgs/msg/Float64MultiArray"
        self.states = node.publisher("sensor_msgs/msg/JointState", ros.joint_states, qos.SENSOR)
        self.pose = node.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", qos.SENSOR)
        self.stop = node.publisher(BOOL, "e_stop", replace(qos.COMMAND, reliable=reliable))
        self.placer = node.subscribe(INT, "twin/reset", qos.DEFAULT)
        node.subscribe(array, ros.command, qos.COMMAND, self._commanded)
        node.subscribe(array, ros.gripper_command, qos.COMMAND, self._gripped)

    def _commanded(self, sample: Any) -> None:
        self.position = np.array(sample.msg.data)

    def _gripped(self, sample: Any) -> None:
        self.width = float(sample.msg.data[0])

    def press(self, down: bool) -> None:
        self.stop.publish(make(BOOL, data=down))

    def tick(self) -> None:
        position = np.append(self.position, [self.width / 2, self.width / 2])
        states = {"name": [*self.robot.joint_names, *self.robot.fingers], "position": position}
        self.states.publish(make("sensor_msgs/msg/JointState", **states, velocity=0 * position + self.speed))
        self.pose.publish(make("geometry_msgs/msg/PoseStamped", pose={"position": {"x": 0.5, "y": 0.0, "z": 0.02}}))
        self._ticks += 1
        if self.button is not None and self._ticks % 10 == 0:
            self.press(self.button)


@pytest.fixture
def lockstep_arm(simulated: Simulated, hands: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Start an arm in lockstep, and an episode of panda-lift; return arm, environment, operator input and events."""
    with ExitStack() as opened:

        def build(interface: Any, **options: Any) -> tuple[LockstepArm, RobotEnv, Any, list[tuple[str, Any]]]:
            arm, operator, events = LockstepArm(simulated.node("arm"), **options), hands(), []
            simulated.run(arm.tick)
            env = RobotEnv(simulated.node("policy"), interface, operator=operator)
            opened.enter_context(closing(env))
            env.stream.on_event(lambda event: events.append((event.name, event.what)))
            env.activate()
            env.reset(seed=0)
            return arm, env, operator, events

        yield build


@pytest.fixture
def nodes(private_domain: int) -> Iterator[Callable[..., Any]]:
    with ExitStack() as opened:
        yield lambda name, **options: opened.enter_context(open_node(name, **options))


@pytest.fixture
def node(nodes: Callable[..., Any]) -> Any:
    return nodes("policy")


@pytest.fixture
def short_bare_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the idle loop beside a deployed policy for half a second instead of two."""
    measure = clock.bare_loop
    monkeypatch.setattr(clock, "bare_loop", lambda rate: measure(rate, 0.5))


@pytest.fixture
def steady() -> Any:
    """Time limits that tolerate stalls of a third of a second, as on shared machines."""
    return SafetyConfig(
        state_timeout=0.6, goal_timeout=0.5, object_timeout=0.6, lost_timeout=2.0, max_misses=100, max_gap=0.5
    )


@pytest.fixture
def robot_env(private_domain: int, steady: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Environment of the robot on the topics, with `hands` as operator input."""
    monkeypatch.setattr("real.drivers.unitree.GUARD_TIMEOUT", 1.0)
    monkeypatch.setattr("real.control.loop.STALL", 10.0)  # most tests must tolerate stalls
    with ExitStack() as opened:

        def build(interface: Any, hands: Any = None, **options: Any) -> RobotEnv:
            node = opened.enter_context(open_node("policy"))
            limits = replace(steady, goal_timeout=1.0) if robots.get(interface.robot).base else steady
            env = RobotEnv(node, interface, operator=hands, **{"safety": limits} | options)
            opened.enter_context(closing(env))
            env.activate()
            return env

        yield build


@pytest.fixture
def hands() -> Callable[..., Any]:
    """Operator input from the test: `hands.now = Operator(...)`, or `script` for one input per reading."""

    def build(*script: Any) -> Any:
        queue = list(script)
        hands = SimpleNamespace(now=RELEASED, reads=0, speaks=True, devices=1)

        def read(now: float | None = None) -> Any:
            hands.reads += 1
            if not hands.speaks:
                return RELEASED
            return queue.pop(0) if queue else hands.now

        def only_in_decisions(arbiter: Any) -> None:
            """Follow the script only in the arbiter's decisions, not while the arm goes home."""
            decide, hands.speaks = arbiter.decide, False

            def wrapped(*arguments: Any) -> Any:
                hands.speaks = True
                try:
                    return decide(*arguments)
                finally:
                    hands.speaks = False

            arbiter.decide = wrapped

        hands.read, hands.only_in_decisions = read, only_in_decisions
        return hands

    return build


class TerminalProcess:
    """robot-rl command in its own terminal."""

    def __init__(self, *words: str):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        # The terminal that a session leader opens becomes its controlling terminal, so Ctrl-C reaches it.
        command = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(self.slave)]
        command += [sys.executable, "-m", "robot_rl.cli.main", *words]
        default = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # ignored in children of nohup
        self.process = subprocess.Popen(command, start_new_session=True, preexec_fn=default)
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, text: str, hold: bytes = b"") -> None:
        """Read until the text appears and forget the output up to it; meanwhile hold a key."""
        end = time.monotonic() + 120.0
        while text not in self.shown:
            assert time.monotonic() < end and self.process.poll() is None, self.shown
            self.type(hold)
            self._read(0.05)
        self.shown = self.shown.partition(text)[2]

    def end(self) -> int:
        """Return the exit status."""
        end = time.monotonic() + 120.0
        while self.process.poll() is None:
            assert time.monotonic() < end, self.shown
            self._read(0.05)
        return self.process.returncode

    def _read(self, wait: float) -> None:
        if select.select([self.master], [], [], wait)[0]:
            self.shown += os.read(self.master, 65536).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., TerminalProcess]]:
    with ExitStack() as started:
        yield lambda *words: started.enter_context(closing(TerminalProcess(*words)))
