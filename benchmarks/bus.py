"""Measure the bus: round trip of a 12-joint state at 500 Hz through two processes, against bare CycloneDDS.

    python -m benchmarks.bus --json

The bus and bare DDS send the same 532 bytes, in turn. The bus encodes and decodes at every hop; bare DDS copies bytes.
"""

import argparse
import json
import os
import platform
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

STATE = "sensor_msgs/msg/JointState"
LOOPBACK = (
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='false'/></Interfaces>"
    "</General></Domain></CycloneDDS>"
)


def state(number: int) -> Any:
    from real.bus import make

    ones = np.ones(12)
    header = {"frame_id": "base_link", "stamp": {"nanosec": number}}
    names = [f"joint_{i:02d}" for i in range(12)]
    return make(STATE, header=header, name=names, position=ones, velocity=ones, effort=ones)


@contextmanager
def bus(here: str, there: str, handle: Callable[[int, Any], Any], depth: int) -> Iterator[Any]:
    """Open topics `here` (in) and `there` (out) on the bus; yield `send(number)`. Results of `handle` are sent, too."""
    from real.bus import QoS, Stamped, open_node

    with open_node(f"bench_{here}", backend="dds") as node:
        qos = QoS(depth=depth)
        pub = node.publisher(STATE, there, qos)
        msg = state(0)

        def on_sample(sample: Stamped) -> None:
            answer = handle(sample.msg.header.stamp.nanosec, sample.msg)
            if answer is not None:
                pub.publish(answer)

        sub = node.subscribe(STATE, here, qos, on_sample)

        def send(number: int) -> None:
            msg.header.stamp.nanosec = number
            pub.publish(msg)

        if not node.wait_for(lambda: pub.matched > 0 and sub.matched > 0, 10.0):
            raise SystemExit("the other process was not found on loopback")
        yield send


@contextmanager
def bare(here: str, there: str, handle: Callable[[int, Any], Any], depth: int) -> Iterator[Any]:
    """Do the same as `bus` on bare CycloneDDS: raw bytes and a wait set, without codec and bus."""
    from cyclonedds._clayer import ddspy_take, ddspy_write
    from cyclonedds.core import ReadCondition, WaitSet
    from cyclonedds.domain import Domain, DomainParticipant
    from cyclonedds.pub import DataWriter
    from cyclonedds.qos import Policy, Qos
    from cyclonedds.sub import DataReader
    from cyclonedds.topic import Topic

    from real.bus import encode
    from real.bus.domain import configuration, domain_id
    from real.bus.messages import store
    from real.bus.participant import idl_struct

    domain = domain_id(None)
    held = Domain(domain, configuration())
    dp = DomainParticipant(domain)
    cls = idl_struct(STATE, store(), {})
    qos = Qos(Policy.Reliability.Reliable(100_000_000), Policy.History.KeepLast(depth))
    writer = DataWriter(dp, Topic(dp, f"bare/{there}", cls), qos)
    reader = DataReader(dp, Topic(dp, f"bare/{here}", cls), qos)
    waitset = WaitSet(dp)
    condition = ReadCondition(reader, 127)
    waitset.attach(condition)
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if waitset.wait(50_000_000):
                for raw, info in ddspy_take(reader._ref, 127, depth):
                    if info.valid_data:
                        answer = handle(struct.unpack_from("<I", raw, 8)[0], raw)
                        if answer is not None:
                            ddspy_write(writer._ref, answer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    payload = bytearray(encode(state(0), STATE))

    def send(number: int) -> None:
        struct.pack_into("<I", payload, 8, number)
        ddspy_write(writer._ref, payload)

    deadline = time.monotonic() + 10.0
    while not (writer.get_matched_subscriptions() and reader.get_matched_publications()):
        if time.monotonic() > deadline:
            raise SystemExit("the other process was not found on loopback")
        time.sleep(0.01)
    yield send
    stop.set()
    thread.join()
    del held


WAYS: dict[str, Callable[..., Any]] = {"bus": bus, "bare": bare}


def measure(send: Callable[[int], None], times: list[tuple[float, float]], rate: float, seconds: float) -> np.ndarray:
    """Send numbered states at `rate`, Hz, with absolute deadlines; return the duration of each send call, us."""
    calls = []
    begin = time.perf_counter()
    for i in range(int(rate * seconds)):
        wait = begin + i / rate - time.perf_counter()
        if wait < -1 / rate:
            continue  # a missed slot is skipped, never caught up in a burst
        time.sleep(max(wait, 0.0))
        before = time.perf_counter()
        times.append((before, 0.0))
        send(len(times) - 1)
        calls.append(time.perf_counter() - before)
    time.sleep(0.2)  # the last ones come back
    return np.array(calls) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rate", type=float, default=500.0, help="states per second [Hz]")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured time for each way [s]")
    parser.add_argument(
        "--depth", type=int, default=1, help="keep-last depth; at 1 a stalled reader sees only the newest"
    )
    parser.add_argument("--echo", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.echo:
        with WAYS[args.echo]("ping", "pong", lambda _, sample: sample, args.depth):
            print("ready", flush=True)
            sys.stdin.read()  # until the parent is gone
        return

    base = random.SystemRandom().randint(100, 198)
    os.environ.update(ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST", CYCLONEDDS_URI=LOOPBACK)
    results: dict[str, Any] = {}
    trips: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    calls: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    lost = dict.fromkeys(WAYS, 0)
    for _ in range(2):
        for number, (way, opened) in enumerate(WAYS.items()):
            os.environ["ROS_DOMAIN_ID"] = str(base + number)
            command = [sys.executable, "-m", "benchmarks.bus", "--echo", way, "--depth", str(args.depth)]
            echo = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            times: list[tuple[float, float]] = []

            def back(index: int, _: Any, times: list[tuple[float, float]] = times) -> None:
                times[index] = (times[index][0], time.perf_counter())

            with opened("pong", "ping", back, args.depth) as send:
                assert echo.stdout is not None
                echo.stdout.readline()
                calls[way].append(measure(send, times, args.rate, args.seconds / 2)[20:])
            echo.communicate()
            pairs = np.array(times[20:])  # the first ones meet cold caches
            trips[way].append((pairs[:, 1] - pairs[:, 0])[pairs[:, 1] > 0] * 1e6)
            lost[way] += int((pairs[:, 1] == 0).sum())
    for way in WAYS:
        trip = np.concatenate(trips[way])
        results[way] = {
            "samples": len(trip), "overwritten": lost[way],
            **{f"p{q}_us": round(float(np.percentile(trip, q)), 1) for q in (50, 90, 99)},
            "max_us": round(float(trip.max()), 1),
            "send_p50_us": round(float(np.median(np.concatenate(calls[way]))), 1),
        }  # fmt: skip
    results["bus_minus_bare_p50_us"] = round(results["bus"]["p50_us"] - results["bare"]["p50_us"], 1)
    results["rate_hz"], results["bytes"] = args.rate, 532
    results["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if args.json:
        print(json.dumps(results, indent=1))
        return
    for way in WAYS:
        print(way, results[way])


if __name__ == "__main__":
    main()
