"""Robots to deploy a policy on: their processes, what moves, and the faults that they can be told."""

import json
import math
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.franka import strict
from benchmarks.franka.tracker import Tracker
from real.bus import Node, make, qos
from real.drivers.wire import LOW_COMMAND, layout
from robot_rl.robots import robots

PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
ARRAY = "std_msgs/msg/Float64MultiArray"
LONGEST = 60.0
"""Longest time until a process is ready, s."""
HOST = "127.0.0.5"


class Stand:
    """A robot's processes, by name, and the record of what it is commanded or does.

    `trace` holds tuples: time, s; positions, rad; whether the robot is held up (a Go2 that is not damped).
    """

    robot: ClassVar[str] = ""

    def __init__(self, node: Node, folder: Path):
        self.node, self.folder = node, folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.trace: list[tuple[float, np.ndarray, bool]] = []
        self.start()

    def start(self) -> None:
        """Start the robot's processes."""

    def spawn(self, name: str, *command: str, ready: str) -> subprocess.Popen[str]:
        """Start a process, and wait until it has printed `ready`."""
        log = (self.folder / f"{self.robot}-{name}").open("w+")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
        self.processes[name] = process
        end = time.monotonic() + LONGEST
        while ready not in Path(log.name).read_text():
            assert process.poll() is None and time.monotonic() < end, Path(log.name).read_text()
            time.sleep(0.02)
        return process

    def tell(self, word: str) -> None:
        """Let the robot's side do `word`; "": no fault."""
        side = self.processes["robot"]
        assert side.stdin
        side.stdin.write(word + "\n")
        side.stdin.flush()

    def pid(self, name: str) -> int:
        """Return the id of a process."""
        return self.processes[name].pid

    def interfere(self, fault: str) -> list[Any]:
        """Publish as another program does, from now on; return what has to be closed."""
        return []

    def close(self) -> None:
        for process in [*self.processes.values()][::-1]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Forger(threading.Thread):
    """Another program that publishes a message at 100 Hz."""

    def __init__(self, publisher: Any, message: Any, rate: float = 100.0):
        super().__init__(daemon=True)
        self.publisher, self.message, self.rate, self.ended = publisher, message, rate, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(1 / self.rate):
            self.publisher.publish(self.message)

    def close(self) -> None:
        self.ended.set()
        self.join()
        self.publisher.close()


class Arm(Stand):
    """An arm whose policy follows a target that moves in a circle."""

    def __init__(self, node: Node, folder: Path):
        frame = robots.get(self.robot).driver.base_frames[0]  # type: ignore[union-attr]
        self.tracker, self.ended = Tracker("target", lambda _: None, frame), threading.Event()
        self.thread = threading.Thread(target=self._move_target, daemon=True)
        self.thread.start()
        super().__init__(node, folder)

    def _move_target(self) -> None:
        while not self.ended.wait(1 / 30):
            angle = math.pi * time.monotonic()
            self.tracker.publish((0.48, 0.12 * math.cos(angle), 0.27 + 0.1 * math.sin(angle)))

    def interfere(self, fault: str) -> list[Any]:
        spec: Any = robots.get(self.robot)
        if fault == "foreign":  # another arm's states on this arm's topic
            names = [f"other_{k}" for k in range(6)]
            message = make("sensor_msgs/msg/JointState", name=names, position=np.zeros(6))
            return [Forger(self.node.publisher(message.__msgtype__, spec.driver.joint_states, qos.DEFAULT), message)]
        # The other program wants the arm to stay: what it is sent is told from a jump of ours.
        message = make(ARRAY, data=self.trace[-1][1].tolist())
        return [Forger(self.node.publisher(ARRAY, spec.driver.command, qos.COMMAND), message)]

    def close(self) -> None:
        super().close()
        self.ended.set()
        self.thread.join()
        self.tracker.node.close()


class Ur5e(Arm):
    """A UR5e behind a mock of ros2_control: its joints are where its controller was told."""

    robot = "ur5e"

    def start(self) -> None:
        self.spawn("robot", sys.executable, "-m", "benchmarks.faults.real.side", "ur5e", ready="ready")
        self.node.subscribe(ARRAY, "forward_position_controller/commands", qos.COMMAND, self._on_command)

    def _on_command(self, sample: Any) -> None:
        self.trace.append((time.time(), np.array(sample.msg.data), True))


class Fr3(Arm):
    """An FR3 of franka-sim, held by `robot-rl robot`: its joints are those of the simulation."""

    robot = "fr3"
    TOLD: ClassVar[dict[str, dict[str, Any]]] = {
        "": {}, "delayed": {"late": 200}, "frozen": {"late": 0}, "jump": {"jump": 1.0}, "silent": {"cut": True},
        "nan": {"q": [math.nan] * 7}, "inactive": {"robot_mode": 3}, "reflex": {"abort": [0]},
    }  # fmt: skip

    def start(self) -> None:
        script, sims = Path(strict.__file__).parents[2] / "tests/real/franka/strict_server.py", ".venv-sims/bin/python"
        truth = self.folder / "truth"
        self.processes["robot"] = strict.start(Path(sims), self.folder, HOST, (script, truth))
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > 1:  # a robot's controller has a computer of its own
            for task in os.listdir(f"/proc/{self.pid('robot')}/task"):
                os.sched_setaffinity(int(task), cpus[-1:])
            os.sched_setaffinity(0, cpus[:-1])
        self.spawn("node", *PROGRAM, "robot", "fr3", "--host", HOST, ready="is up")
        with truth.open("r+b") as file:
            self.truth = mmap.mmap(file.fileno(), 64)
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def _watch(self) -> None:
        while not self.ended.wait(0.005):
            _, *q = struct.unpack("8d", self.truth[:64])
            self.trace.append((time.time(), np.array(q), True))

    def tell(self, word: str) -> None:
        super().tell(json.dumps(self.TOLD[word]))

    def pid(self, name: str) -> int:
        if name in self.processes:
            return super().pid(name)
        found = subprocess.run(
            ["pgrep", "-P", str(super().pid("node")), "-f", f"real.franka.{name}"], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return int(found.stdout)


class Go2(Stand):
    """The twin of a Go2 in real time, and its guard, whose commands are recorded."""

    robot = "go2"

    def start(self) -> None:
        self.spawn("robot", sys.executable, "-m", "benchmarks.faults.real.side", "go2", ready="ready")
        self.spawn("guard", *PROGRAM, "guard", "go2", "--wait", str(LONGEST), ready="is up")
        self.wire = layout(LOW_COMMAND)
        self.node.subscribe(LOW_COMMAND, "lowcmd", qos.SENSOR, self._on_command)

    def _on_command(self, sample: Any) -> None:
        if (command := self.wire.open(sample.raw)) is None:  # of the second writer
            return
        motors = command["motor_cmd"]
        self.trace.append((time.time(), motors["q"][:12].copy(), bool(motors["kp"].any())))

    def interfere(self, fault: str) -> list[Any]:
        topic, kind = {"foreign": ("lowstate", "unitree_go/msg/LowState")}.get(fault, ("lowcmd", LOW_COMMAND))
        return [Forger(self.node.publisher(kind, topic, qos.COMMAND), make(kind))]


STANDS: tuple[type[Stand], ...] = (Fr3, Ur5e, Go2)
