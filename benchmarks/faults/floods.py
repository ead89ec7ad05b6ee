"""Measure an arm's command loop under floods: operator input and joint states at 5 kHz, pictures of 640x480.

    python -m benchmarks.faults.floods --seconds 10 --out floods.json

One process publishes the robot's topics, a second one floods. The main process runs driver, operator input and command
loop, and posts a goal every control period. Quiet and flooded intervals alternate; a bare loop measures the machine's
own lateness.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("quiet", "joy", "joint states", "pictures")
RATES = {"quiet": 200.0, "joy": 5000.0, "joint states": 5000.0, "pictures": 200.0}
"""Message rate of each kind of flood, Hz; pictures are sent at this rate or as fast as their process can."""


def _steadily(rate: float) -> Any:
    """Yield at `rate`, Hz; after a delay, catch up on the missed times."""
    due = time.monotonic()
    while True:
        due += 1 / rate
        if (pause := due - time.monotonic()) > 0:
            time.sleep(pause)
        yield


def send(kind: str) -> None:
    """Send messages until the process is terminated. The robot's process itself floods joint states."""
    import numpy as np

    from real.bus import encode, make, open_node, qos
    from real.teleop.commands import QOS, TYPE, Operator, joy_topic, to_joy
    from robot_rl.robots.panda import PANDA

    assert PANDA.gripper is not None
    with open_node("robot" if kind in ("quiet", "joint states") else kind) as node:
        if kind == "joy":
            output, raw = node.publisher(TYPE, joy_topic(PANDA.name), QOS), encode(to_joy(Operator()), TYPE)
        elif kind == "pictures":
            image = "sensor_msgs/msg/Image"
            data = np.zeros(480 * 640 * 3, np.uint8)
            msg = make(image, height=480, width=640, encoding="rgb8", step=1920, data=data)
            output, raw = node.publisher(image, "front/image_raw", qos.SENSOR), encode(msg, image)
        else:
            names = [*PANDA.joint_names, *PANDA.gripper.joints]
            msg = make("sensor_msgs/msg/JointState", name=names, position=np.array([*PANDA.home, 0.04, 0.04]))
            output = node.publisher("sensor_msgs/msg/JointState", "joint_states", qos.DEFAULT)
            raw = encode(msg, "sensor_msgs/msg/JointState")
            array = "std_msgs/msg/Float64MultiArray"
            node.subscribe(array, PANDA.driver.command, qos.COMMAND)  # type: ignore[union-attr]
            node.subscribe(array, PANDA.driver.gripper_command, qos.COMMAND)  # type: ignore[union-attr]
        for _ in _steadily(RATES[kind]):
            output.publish(raw)


def measure(kind: str, seconds: float) -> dict[str, Any]:
    """Return the command loop's timing during one kind of flood, and the number of received messages."""
    import torch

    from real.bus import open_node
    from real.control.loop import CommandLoop
    from real.control.timing import Ticker
    from real.drivers import open_driver
    from real.teleop.commands import OperatorInput
    from robot_rl.interface.pipeline import Pipeline
    from sim.tasks import tasks

    pipeline = Pipeline(tasks.get("panda-lift").interface)
    command = [sys.executable, "-m", "benchmarks.faults.floods", "--send"]
    robot = subprocess.Popen([*command, "joint states" if kind == "joint states" else "quiet"])
    flood = subprocess.Popen([*command, kind]) if kind in ("joy", "pictures") else None
    try:
        with open_node("deploy") as node:
            operator = OperatorInput(node, pipeline.robot.name)
            driver = open_driver(node, pipeline.robot, cameras=("front",) if kind == "pictures" else ())
            loop = CommandLoop(driver, pipeline)
            loop.arm()
            device = operator.subscriptions[1]
            if kind == "joy":
                device.wait(10.0)
            period = 1 / pipeline.interface.controller.rate
            ticker, end = Ticker(period), time.monotonic() + seconds
            sources = {"joy": device, "pictures": driver.scene.images.get("front")}
            source = sources.get(kind) or driver.state.joints
            first = source.latest.count if source.latest else 0
            while time.monotonic() < end:
                loop.set_goal(torch.tensor([pipeline.robot.home]), 0.08, period)
                operator.read()
                ticker.wait()
            came = (source.latest.count if source.latest else 0) - first
            loop.close()
            summary = loop.summary()
            stopped = loop.stopped
    finally:
        for process in (robot, flood):
            if process is not None:
                process.terminate()
                process.wait()
    keep = ("ticks", "missed", "late_share", "lateness_us")
    return {"kind": kind, "messages_per_s": came / seconds, "stopped": stopped} | {k: summary[k] for k in keep} | {
        "shield": summary["shield"]
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each stretch, s")
    parser.add_argument("--rounds", type=int, default=2, help="turns of all kinds")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--send", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.send:
        send(args.send)
        return
    import os

    from real.control.timing import bare_loop
    from robot_rl.cli.launch import private_domain
    from robot_rl.training.run import provenance

    os.environ.update(private_domain())
    rows = []
    for _ in range(args.rounds):
        for kind in KINDS:
            rows.append(measure(kind, args.seconds))
            row, late = rows[-1], rows[-1]["lateness_us"]
            sys.stdout.write(
                f"{kind:<13} {row['messages_per_s']:6.0f}/s  {row['ticks']} ticks, {row['missed']} missed, "
                f"p99 {late['p99']:.0f} us, max {late['max']:.0f} us  {row['stopped']}\n"
            )
            sys.stdout.flush()
    result = {"seconds": args.seconds, "rows": rows, "bare": bare_loop(200.0, args.seconds).summary()}
    result["provenance"] = provenance()
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
