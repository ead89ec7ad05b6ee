"""Measure the time from a robot's state to its command: 12 joints at 500 Hz, against a bare CycloneDDS echo.

    python -m benchmarks.latency

The robot's side is bare CycloneDDS: it writes a JointState and waits for the Float64MultiArray that answers it. The
other process answers in one of these ways:

- `bare`: bare CycloneDDS writes a constant command;
- `dds`, `rclpy`: our driver reads the state, the shield limits the command, the driver sends it, on either bus;
- `loop`: the same, but the command loop sends at its own 500 Hz, as when deployed;
- `plain rclpy`: an rclpy node copies the positions, without checks.

Each command holds the joints where they were measured, so it names the state that it answers. Results go to
benchmarks/results/latency.json.
"""

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from robot_rl.robots.go2 import GO2
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "latency.json"
STATE, COMMAND = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray"
TOPICS = {STATE: "joint_states", COMMAND: "forward_position_controller/commands"}
STEP = 1e-6
"""Motion of the first joint from state to state, rad."""
WAYS = ("bare", "dds", "loop", "rclpy", "plain rclpy")
HOME = np.array(GO2.home)


def state(number: int) -> Any:
    from real.bus import make
    from real.bus.stamps import stamp

    position = HOME.copy()
    position[0] += STEP * number
    header = {"stamp": stamp(time.time_ns())}
    return make(STATE, header=header, name=list(GO2.joint_names), position=position, velocity=0 * HOME, effort=0 * HOME)


def command_bytes() -> bytes:
    from real.bus import encode, make

    return bytes(encode(make(COMMAND, data=HOME), COMMAND))


def first_joint(raw: bytes) -> slice:
    """Return where the first joint's position is."""
    at = raw.index(HOME.tobytes())
    return slice(at, at + 8)


@contextmanager
def bare(reads: str, writes: str, heard: Callable[[bytes], None]) -> Iterator[Callable[[Any], None]]:
    """Open a topic to read and one to write on bare CycloneDDS; yield a function that writes bytes."""
    from cyclonedds._clayer import ddspy_take, ddspy_write
    from cyclonedds.core import ReadCondition, WaitSet
    from cyclonedds.domain import Domain, DomainParticipant
    from cyclonedds.pub import DataWriter
    from cyclonedds.qos import Policy, Qos
    from cyclonedds.sub import DataReader
    from cyclonedds.topic import Topic

    from real.bus.domain import configuration, domain_id
    from real.bus.messages import store
    from real.bus.participant import idl_struct

    held = Domain(domain_id(None), configuration())
    dp = DomainParticipant(domain_id(None))
    qos = Qos(Policy.Reliability.Reliable(100_000_000), Policy.History.KeepLast(1))
    topics = {name: Topic(dp, f"rt/{TOPICS[name]}", idl_struct(name, store(), {})) for name in (reads, writes)}
    writer, reader = DataWriter(dp, topics[writes], qos), DataReader(dp, topics[reads], qos)
    waitset, condition, over = WaitSet(dp), ReadCondition(reader, 127), threading.Event()
    waitset.attach(condition)

    def run() -> None:
        while not over.is_set():
            if waitset.wait(50_000_000):
                for raw, info in ddspy_take(reader._ref, 127, 8):
                    if info.valid_data:
                        heard(raw)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield lambda raw: ddspy_write(writer._ref, raw)
    over.set()
    thread.join()
    del held


def answer(way: str) -> None:
    """Answer states until the end of the standard input."""
    if way == "bare":
        from real.bus import encode

        there, here = first_joint(bytes(encode(state(0), STATE))), first_joint(command_bytes())
        command = bytearray(command_bytes())

        def echo(raw: bytes) -> None:
            command[here] = raw[there]
            write(command)

        with bare(STATE, COMMAND, echo) as write:
            wait()
    elif way == "plain rclpy":
        plain_rclpy()
    else:
        ours(way)


def wait() -> None:
    print("ready", flush=True)
    sys.stdin.read()


def plain_rclpy() -> None:
    import rclpy
    from rclpy.qos import QoSProfile
    from sensor_msgs.msg import JointState
    from std_msgs.msg import Float64MultiArray

    rclpy.init(domain_id=int(os.environ["ROS_DOMAIN_ID"]))
    node = rclpy.create_node("plain")
    publisher = node.create_publisher(Float64MultiArray, TOPICS[COMMAND], QoSProfile(depth=1))
    node.create_subscription(
        JointState, TOPICS[STATE], lambda m: publisher.publish(Float64MultiArray(data=m.position)), QoSProfile(depth=1)
    )
    threading.Thread(target=rclpy.spin, args=(node,), daemon=True).start()
    wait()
    os._exit(0)


def ours(way: str) -> None:
    """Answer with the stack: driver, shield, command loop."""
    import torch

    from real import clock
    from real.bus import open_node
    from real.control.follow import Goal
    from real.control.loop import CommandLoop
    from real.drivers import open_driver
    from robot_rl.interface.command import JointPositions
    from robot_rl.interface.driver import ForwardPosition
    from robot_rl.interface.pipeline import Pipeline
    from sim.tasks import task_of

    torch.set_num_threads(1)
    pipeline = Pipeline(task_of("go2").interface)
    robot = replace(GO2, driver=ForwardPosition())
    parts: Any = SimpleNamespace(
        robot=robot, shield=pipeline.shield, tick=pipeline.tick, controller=SimpleNamespace(command=JointPositions)
    )
    with open_node("answer", backend="rclpy" if way == "rclpy" else "dds") as node:
        driver = open_driver(node, robot)
        loop = CommandLoop(driver, parts)
        loop.note = lambda _event, _what: None
        joints, read = driver.state.joints, driver.state.joints._callback
        assert read is not None

        def react(sample: Any) -> None:
            read(sample)
            if driver.reading() is None:
                return
            if loop._goal is None:
                loop.arm() if way == "loop" else start()
            with torch.inference_mode():
                loop._goal = hold()
                if way != "loop":
                    loop._tick(clock.now())

        def hold() -> Goal:
            """Return the goal to stay where the joints are."""
            at = loop.measured()
            return Goal(at, at, 0.0, clock.now(), pipeline.tick)

        def start() -> None:
            loop.setpoint, loop.rate = loop.measured(), torch.zeros(1, len(HOME))

        joints._callback = react
        wait()
        loop.close()


def measure(way: str, rate: float, seconds: float) -> np.ndarray:
    """Return the times from state to command, us; NaN without an answer before the next state."""
    from real.bus import encode

    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.latency", "--answer", way],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    count = int(rate * seconds)
    sent, back = np.full(count, np.nan), np.full(count, np.nan)
    first = first_joint(command_bytes()).start

    def heard(raw: bytes) -> None:
        now = time.perf_counter()
        number = round((struct.unpack_from("<d", raw, first)[0] - HOME[0]) / STEP)
        if 0 <= number < count and np.isnan(back[number]):
            back[number] = now

    with bare(COMMAND, STATE, heard) as write:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        messages = [bytearray(encode(state(number), STATE)) for number in range(count)]
        begin = time.perf_counter() + 1.0
        for number, message in enumerate(messages):
            pause = begin + number / rate - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            struct.pack_into("<iI", message, 4, *divmod(time.time_ns(), 10**9))  # its stamp
            sent[number] = time.perf_counter()
            write(message)
        time.sleep(0.2)
    process.stdin.close()
    process.wait(30)
    return 1e6 * (back - sent)[100:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500.0, help="states per second")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each way, in turn")
    parser.add_argument("--answer", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer(args.answer)
        return
    os.environ.update(ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST")
    trips: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    for _ in range(args.repeats):
        for way in WAYS:
            os.environ["ROS_DOMAIN_ID"] = str(random.SystemRandom().randint(100, 199))
            trips[way].append(measure(way, args.rate, args.seconds))
    rows = {}
    for way in WAYS:
        trip = np.concatenate(trips[way])
        known = trip[np.isfinite(trip)]
        if not len(known):
            raise SystemExit(f"{way} answered nothing")
        rows[way] = {f"p{q}_us": round(float(np.percentile(known, q))) for q in (50, 90, 99)}
        rows[way] |= {"answered": round(len(known) / len(trip), 4)}
    above = {way: rows[way]["p50_us"] - rows["bare"]["p50_us"] for way in WAYS[1:]}
    result = {"rate": args.rate, "joints": len(HOME), "ways": rows, "p50_above_bare_us": above}
    write_json(RESULTS, result | {"provenance": provenance()})
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
