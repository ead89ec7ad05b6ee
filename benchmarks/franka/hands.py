"""Take over from a policy and hand back with each device, on a simulator that enforces the limits of a real FR3.

    make sims
    python -m benchmarks.franka.hands

Each device is a process `robot-rl teleop`, or the messages of a joystick node, and is moved by what it reads: bytes of
a terminal, of a joystick's device file and of a Spaceball's serial line before spacenavd, joint states of a leader arm.
`robot-rl robot fr3` holds the arm of franka-sim, which aborts motions beyond Franka's limits of speed, acceleration and
jerk; this program is the session. A computer without real-time kernel loses cycles, and many in a row end in a reflex:
such a run is repeated, and told of. Passed: each takeover in the first control period after the device's message, each
control handed back, no reflex. Results: benchmarks/results/franka_hands.json.
"""

import argparse
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tty
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.franka import strict
from benchmarks.franka.reach import HOST, PROGRAM, Target
from real.bus import make, open_node, qos
from real.bus.stamps import stamp
from real.drivers.lowlevel import REPORT
from real.episode.env import RobotEnv
from real.episode.intervention import Phase
from real.teleop.commands import QOS, TYPE, OperatorInput, from_joy, joy_topic
from real.topics import GUARD_TOPIC, STATUS, GuardReport
from robot_rl.interface.shield import ShieldConfig
from robot_rl.robots import robots
from robot_rl.training.run import provenance, write_json
from sim.tasks import tasks

RESULTS = Path(__file__).parents[1] / "results" / "franka_hands.json"
FR3 = robots.get("fr3")
ATTEMPTS, BRIDGED = 4, 2
"""Runs of a device, which is repeated after a reflex if this computer lost more cycles in a row than motions allow for;
see `FrankaControl.jerk`."""
STATE = "sensor_msgs/msg/JointState"
XBOX = (
    "0" * 32 + ",pad,leftx:a0,lefty:a1,rightx:a3,righty:a4,lefttrigger:a2,righttrigger:a5,leftshoulder:b4,"
    "rightshoulder:b5,a:b0,b:b1,x:b2,start:b7,platform:Linux,\n"
)
"""Layout of the gamepad, as in SDL's database."""


class Hand(ABC):
    """A device and the person at it, who is asked at 30 Hz what the hand does: `held`, and a direction up or down."""

    def __init__(self, folder: Path, node: Any):
        self.folder, self.node, self.held, self.way = folder, node, False, 1.0
        self.process = self.start()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    @abstractmethod
    def start(self) -> subprocess.Popen[bytes]:
        """Prepare the device, and start its process."""

    @abstractmethod
    def move(self, before: bool) -> None:
        """Do what the hand does now; `before`: whether it held the device last time."""

    def teleop(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        log = (self.folder / "hand").open("wb")
        command = [*PROGRAM, "teleop", *words, "--robot", "fr3"]
        return subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, start_new_session=True)

    def _live(self) -> None:
        before = False
        while not self.ended.wait(1 / 30):
            held = self.held
            self.move(before)
            before = held

    def close(self) -> None:
        self.ended.set()
        self.thread.join()
        self.process.terminate()
        self.process.wait(20)


class Keyboard(Hand):
    """A key that is held down, which a terminal repeats."""

    def start(self) -> subprocess.Popen[bytes]:
        self.master, slave = pty.openpty()
        return self.teleop("keyboard", stdin=slave)

    def move(self, before: bool) -> None:
        if self.held:
            os.write(self.master, b"r" if self.way > 0 else b"f")


class Gamepad(Hand):
    """Events of a joystick's device file: the left shoulder button and the right stick."""

    def start(self) -> subprocess.Popen[bytes]:
        path, layout = self.folder / "js0", self.folder / "pads.txt"
        os.mkfifo(path)
        layout.write_text(XBOX)
        self.wire = os.open(path, os.O_RDWR)
        self.send(*((0x82, k, -32767 if k in (2, 5) else 0) for k in range(6)))
        return self.teleop("gamepad", "--path", str(path), "--map", str(layout))

    def send(self, *events: tuple[int, int, int]) -> None:
        os.write(self.wire, b"".join(struct.pack("=IhBB", 0, value, kind, number) for kind, number, value in events))

    def move(self, before: bool) -> None:
        if self.held != before:
            self.send((1, 4, int(self.held)), (2, 4, round(-32767 * self.way * self.held)))


class SpaceMouse(Hand):
    """A Spaceball at a serial line, which spacenavd reads."""

    def start(self) -> subprocess.Popen[bytes]:
        self.line, line = pty.openpty()
        tty.setraw(line)
        (self.folder / "run").mkdir()
        config, path = self.folder / "spnavrc", self.folder / "run" / "spnav.sock"
        config.write_text(f"serial = {os.ttyname(line)}\n")
        self.daemon = subprocess.Popen(
            ["spacenavd", "-d", "-c", config], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        asked = b""
        while b"@RESET" not in asked:
            asked += os.read(self.line, 64)
        os.write(self.line, b"\r@1 Spaceball alive and well after a poweron reset.\r@2 Firmware version 2.43\r")
        until(path.exists, "the daemon's socket")
        return self.teleop("spacemouse", "--path", str(path))

    def move(self, before: bool) -> None:
        if self.held or before:
            tremor = random.randrange(-5, 6)  # spacenavd tells of changes only
            raw = b"\0\0" + struct.pack(">6h", 0, round((250 + tremor) * self.way * self.held), 0, 0, 0, 0)
            escaped = {0x11: b"^Q", 0x13: b"^S", 0x0D: b"^M", ord("^"): b"^^"}
            os.write(self.line, b"D" + b"".join(escaped.get(byte, bytes([byte])) for byte in raw) + b"\r")

    def close(self) -> None:
        super().close()
        self.daemon.terminate()
        self.daemon.wait(20)


class Leader(Hand):
    """Joint states of a leader arm, and the key that takes over: its shoulder turns away from the robot's."""

    def start(self) -> subprocess.Popen[bytes]:
        self.turned, self.at = 0.0, np.array(FR3.home)
        self.states = self.node.publisher(STATE, "leader/joint_states", qos.SENSOR)
        self.robot = self.node.subscribe(STATE, FR3.driver.joint_states, qos.SENSOR)
        self.master, slave = pty.openpty()
        return self.teleop("leader", stdin=slave)

    def move(self, before: bool) -> None:
        if not self.held and self.robot.latest:
            self.at, self.turned = np.array(self.robot.latest.msg.position[:7]), 0.0
        self.turned += 0.006 * self.way * self.held
        at = self.at + [self.turned, *[0.0] * 6]
        self.states.publish(make(STATE, name=list(FR3.driver_names()[:7]), position=at.tolist()))
        if self.held != before:
            os.write(self.master, b"h")

    def close(self) -> None:
        super().close()
        self.states.close()
        self.robot.close()


class JoyNode(Hand):
    """An Xbox pad before the package joy, in a process of its own: left shoulder button and right stick."""

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.franka.hands", "--publish", type(self).__name__]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin
        self.wire = process.stdin.fileno()
        return process

    def move(self, before: bool) -> None:
        os.write(self.wire, struct.pack("d", self.way * self.held))

    @classmethod
    def message(cls, way: float) -> dict[str, Any]:
        """Return axes and buttons; `way`: 0 for a hand off the pad."""
        held = [int(k == 4 and way != 0) for k in range(11)]
        return {"axes": [0.0, 0.0, 1.0, 0.0, way, 1.0, 0.0, 0.0], "buttons": held}

    @classmethod
    def publish(cls) -> None:
        """Publish what standard input says, until it ends."""
        with open_node("joy") as node:
            joy = node.publisher(TYPE, joy_topic("fr3"), QOS)
            while data := os.read(0, 8):
                message = cls.message(*struct.unpack("d", data))
                joy.publish(make(TYPE, header={"stamp": stamp()}, **message))


class SpacenavNode(JoyNode):
    """A SpaceMouse before the package spacenav: the cap."""

    @classmethod
    def message(cls, way: float) -> dict[str, Any]:
        return {"axes": [0.0, 0.0, 0.7 * way, 0.0, 0.0, 0.0], "buttons": [0, 0]}


HANDS: dict[str, type[Hand]] = {
    "keyboard": Keyboard, "gamepad": Gamepad, "spacemouse": SpaceMouse, "leader": Leader, "joy_node": JoyNode,
    "spacenav_node": SpacenavNode,
}  # fmt: skip


def until(holds: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    """Wait until something holds; AssertionError after some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.01)


class Session:
    """A policy that moves the tool to and fro on the robot, and a person who takes over now and then."""

    def __init__(self, node: Any):
        task = tasks.get("fr3-reach")
        gentle = ShieldConfig(acceleration=0.15)  # where this computer loses cycles, the robot sees more acceleration
        interface = replace(task.interface, success="reached:target:1e-6", horizon=10**6, shield=gentle)
        self.node, self.heard, self.states = node, list[tuple[float, bool]](), list[Any]()
        self.reports: list[GuardReport] = []
        self.env = RobotEnv(node, interface, operator=OperatorInput(node, "fr3"))
        self.period = 1 / interface.controller.rate
        hear = lambda sample: self.heard.append((time.monotonic(), from_joy(sample.msg).held))  # noqa: E731
        node.subscribe(TYPE, joy_topic("fr3"), QOS, hear)
        every = replace(qos.SENSOR, depth=1000)
        node.subscribe(STATE, FR3.driver.joint_states, every, lambda s: self.states.append(s.msg))
        node.subscribe(STATUS, GUARD_TOPIC, REPORT, lambda s: self.reports.append(GuardReport.of(s.msg)))
        self.k = 0

    def step(self) -> tuple[float, dict[str, Any]]:
        """Run one control period; return when it began, and its infos."""
        self.k += 1
        action = torch.zeros(1, self.env.pipeline.actions.size)
        action[0, 1] = 0.4 if self.k // 20 % 2 else -0.4
        began = time.monotonic()
        return began, self.env.step(action)[4]

    def turn(self, hand: Hand) -> dict[str, float]:
        """Let the person take over, move and let go; return the delays in control periods."""
        for _ in range(15):
            self.step()
        self.heard.clear()
        hand.held = True
        pressed, (began, infos) = time.monotonic(), self.step()
        while not infos["takeover"]:
            assert began < pressed + 5, "the person never had control"
            began, infos = self.step()
        message = next(at for at, held in self.heard if held)
        for _ in range(25):
            self.step()
            assert self.env.arbiter.phase is Phase.CORRECTING, f"control was lost: {self.env.arbiter.phase}"
        hand.held = False
        released = time.monotonic()
        while not infos["handed_back"]:
            assert time.monotonic() < released + 5, "control was not handed back"
            back, infos = self.step()
        return {
            "takeover_periods": (began - message) / self.period, "takeover_seconds": began - pressed,
            "hand_back_seconds": back - released,
        }  # fmt: skip

    def reflexes(self) -> list[str]:
        """Return why the robot stopped."""
        return [report.damping for report in self.reports if report.damping]

    def motion(self) -> dict[str, float]:
        """Return the largest joint speed and step between two states, as shares of the robot's limits."""
        limits, states = FR3.limit("velocity").numpy(), list(self.states)
        q = np.array([state.position[:7] for state in states])
        stamps = np.array([state.header.stamp.sec + 1e-9 * state.header.stamp.nanosec for state in states])
        speed = np.abs(np.array([state.velocity[:7] for state in states])) / limits
        gaps = np.maximum(np.diff(stamps), 1 / FR3.state_rate)[:, None]
        return {"speed": float(speed.max()), "step": float((np.abs(np.diff(q, axis=0)) / gaps / limits).max())}


def measure(name: str, session: Session, folder: Path, times: int) -> dict[str, Any]:
    """Return the delays and the motion of takeovers and hand-backs with one device."""
    hand = HANDS[name](folder, session.node)
    try:
        session.heard.clear()
        until(lambda: session.heard, f"message of {name}, see {folder}")
        for _ in range(40):  # a joystick must be seen released once
            session.step()
        session.states.clear()
        session.reports.clear()
        turns = []
        for k in range(times):
            hand.way = 1.0 if k % 2 else -1.0
            turns.append(session.turn(hand))
            if session.reflexes():
                break
    finally:
        hand.close()
    delays = {key: [round(turn[key], 4) for turn in turns] for key in turns[0]}
    row: dict[str, Any] = delays | session.motion()
    row |= {"reflexes": sorted(set(session.reflexes()))}
    row["passed"] = not row["reflexes"] and max(delays["takeover_periods"]) <= 1
    return row


def run(name: str, sims: Path, times: int, folder: Path) -> dict[str, Any]:
    """Measure one device with a simulator of its own; return the results."""
    (folder / "robot").mkdir(parents=True)
    with ExitStack() as stack:
        server = strict.start(sims, folder / "robot", HOST)
        stack.callback(server.wait, 30)
        stack.callback(server.send_signal, signal.SIGINT)
        cpus = sorted(os.sched_getaffinity(server.pid))
        if len(cpus) > 1:  # a robot's controller has a computer of its own
            for task in os.listdir(f"/proc/{server.pid}/task"):
                os.sched_setaffinity(int(task), cpus[-1:])
        robot = subprocess.Popen([*PROGRAM, "robot", "fr3", "--host", HOST], stderr=subprocess.PIPE, text=True)
        try:
            assert robot.stderr and "is up" in (said := robot.stderr.readline()), said
            target = Target()
            stack.callback(target.close)
            session = Session(stack.enter_context(open_node("policy")))
            try:
                session.env.activate()
                session.env.reset(seed=0)
                row = measure(name, session, folder, times)
            finally:
                session.env.close()
        finally:
            robot.terminate()
            last = robot.communicate(timeout=20)[1].strip().splitlines()
            print(said.strip(), *last, sep="\n", flush=True)
    lost, cycles, most = map(int, re.findall(r"(\d+) of (\d+) cycles lost, at most (\d+)", last[-1])[0])
    row |= {"cycles": cycles, "lost": lost, "lost_in_row": most}
    print(name, json.dumps(row), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=list(HANDS), choices=list(HANDS), help="devices to measure")
    parser.add_argument("--times", type=int, default=10, help="takeovers with each device")
    parser.add_argument("--sims", type=Path, default=Path(".venv-sims/bin/python"), help="Python of the simulators")
    parser.add_argument("--publish", choices=["JoyNode", "SpacenavNode"], help="be this node")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    if a.publish:
        {"JoyNode": JoyNode, "SpacenavNode": SpacenavNode}[a.publish].publish()
        return 0
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    os.environ.setdefault("ROS_DOMAIN_ID", str(random.SystemRandom().randrange(100, 200)))
    with tempfile.TemporaryDirectory() as folder:
        rows = {}
        for name in a.devices:
            repeated = []
            for k in range(ATTEMPTS):
                rows[name] = run(name, a.sims, a.times, Path(folder) / f"{name}-{k}")
                if not (rows[name]["reflexes"] and rows[name]["lost_in_row"] > BRIDGED):
                    break
                repeated.append(rows[name])
            rows[name] |= {"repeated": repeated}
    write_json(a.out, {"devices": rows, "provenance": provenance()})
    return 0 if all(row["passed"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
