"""Measure the live view of a twin: scene updates that the browser receives, frames it draws, late ticks of the twin;
and the console: time from a key to the robot's input, and gaps in that input.

    python -m benchmarks.view --out benchmarks/results/view.json

A twin runs in its own process: alone; for an arm, with a camera subscriber, so that the twin renders; with a view that
no browser shows; with a view in a headless Chromium; and with a console there, in which a person holds a key, with and
without its 3-D view. These cases alternate, so that machine noise affects all cases. The browser has no GPU: software
rendering takes both cores, as it does not on a person's own computer, where the case without 3-D comes closer. With
--apart the browser has one core, as a computer of its own, and twin and server the others.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.chromium import Browser

BAR = 20.0
"""Minimum number of scene updates that the browser must receive per second."""
CASES = ("alone", "cameras", "view", "browser", "console", "console, no 3-D")
KEY = "w"
PRESSES = 5
"""Number of times that a person takes over in the console."""
TWIN = """
import json, signal, sys, torch
from real.bus import open_node
from real.twin import open_twin
from sim.tasks import task_of
torch.set_num_threads(1)
with open_node("twin") as node:
    twin = open_twin(node, task_of(sys.argv[1]))
    signal.signal(signal.SIGINT, lambda *_: twin.close())
    print("up", flush=True)
    twin.run()
print(json.dumps(twin.timing), flush=True)
"""
LISTENER = """
import sys, time
from real.bus import open_node, qos
from real.drivers import open_driver
from robot_rl.robots import robots
from sim.tasks import task_of
with open_node("listener") as node:
    cameras = [camera.name for camera in task_of(sys.argv[1]).scene.cameras]
    open_driver(node, robots.get(sys.argv[1]), cameras=cameras, dry_run=True)
    print("up", file=sys.stderr, flush=True)
    try:
        time.sleep(1e6)
    except KeyboardInterrupt:
        pass
"""
VIEW = (sys.executable, "-m", "robot_rl.cli.main", "view")
FRAMES = """new Promise(done => {
  let frames = 0; const began = performance.now(), until = began + SECONDS * 1000;
  (function next() { frames++; performance.now() < until ? requestAnimationFrame(next)
    : done(frames / (performance.now() - began) * 1000) })()
})"""


def moves(message: bytes) -> bool:
    """Return whether a viser message moves the scene; a message has two sizes (8 bytes each), then msgpack in zstd."""
    import zstandard

    length = int.from_bytes(message[8:16], "little")
    return b"SetPositionMessage" in zstandard.ZstdDecompressor().decompress(message[16 : 16 + length])


def measure(robot: str, case: str, seconds: float, apart: bool = False) -> dict[str, Any]:
    """Run a twin for `seconds`; return the twin's timing and, with a browser, the rates of updates and drawn frames.
    `apart`: the browser has the last core."""
    cores = sorted(os.sched_getaffinity(0))
    ours, theirs = (cores[:-1], cores[-1:]) if apart else (cores, cores)
    domain = str(random.SystemRandom().randint(100, 199))
    environment = os.environ | {"ROS_DOMAIN_ID": domain, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    row: dict[str, Any] = {"robot": robot, "case": case}
    with contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, ours)
        view = browser = None
        if case != "alone":  # started first: the twin is measured beside it, not beside its start
            command = [*VIEW[:-1], "console", robot] if "console" in case else [*VIEW, f"robot:{robot}"]
            command = [sys.executable, "-c", LISTENER, robot] if case == "cameras" else command
            view = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            stack.callback(end, view)
            assert view.stderr is not None
            address = re.search(r"http://[\d.:]+(/\S+)?", view.stderr.readline())
            if case == "browser" or "console" in case:
                assert address is not None, "the view did not start"
                folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
                os.sched_setaffinity(0, theirs)
                browser = Browser(Path(folder))
                os.sched_setaffinity(0, ours)
                stack.callback(browser.close)
                inside = "document" if case == "browser" else "document.getElementById('scene').contentDocument"
                browser.open(address[0], f"!!{inside}.querySelector('canvas')")
                browser.until(lambda: "nothing heard" in browser.evaluate(f"{inside}.body.innerText"), 120.0)
        twin = subprocess.Popen([sys.executable, "-c", TWIN, robot], env=environment, stdout=subprocess.PIPE, text=True)
        stack.callback(end, twin)
        assert twin.stdout is not None
        twin.stdout.readline()
        if browser:
            browser.until(lambda: "live" in browser.evaluate(f"{inside}.body.innerText"), 120.0)
        if browser and "console" in case:
            if "no 3-D" in case:
                browser.evaluate("document.getElementById('scene').src = 'about:blank'")
            row |= operate(browser, robot, int(domain), seconds)
        elif browser:
            updates: list[float] = []
            browser.on_frame = lambda message: updates.append(time.monotonic()) if moves(message) else None
            began = time.monotonic()
            row["frames_drawn_per_s"] = browser.evaluate(FRAMES.replace("SECONDS", str(seconds)))
            row["updates_per_s"] = len(updates) / (time.monotonic() - began)
        else:
            time.sleep(seconds)
        twin.send_signal(signal.SIGINT)
        return row | json.loads(twin.stdout.read())


def let_go(browser: Browser) -> bool:
    """Hand back what a page keeps after it stood still, as a person does: take it, and let go."""
    kept = browser.evaluate("document.getElementById('keep').checked")
    if kept or "The robot waits for you" in browser.text():
        browser.click_on("keep")
        time.sleep(0.1)  # until the page has said so
    return True


def operate(browser: Browser, robot: str, domain: int, seconds: float) -> dict[str, Any]:
    """Take over in the console for `seconds` in all; return how long that took, and the input's gaps, ms."""
    from real.bus import open_node
    from real.teleop.commands import QOS, TYPE, from_joy, joy_topic

    heard: list[tuple[float, bool]] = []
    taken = []
    with open_node("robot", domain=domain) as node:
        node.subscribe(TYPE, joy_topic(robot), QOS, lambda s: heard.append((s.received, from_joy(s.msg).held)))
        browser.click("Take the controls")
        browser.until(lambda: len(heard) > 10, 120.0)
        first = len(heard)
        for _ in range(PRESSES):
            pressed, count = time.monotonic(), len(heard)
            browser.key("keyDown", KEY)
            until = pressed + seconds / PRESSES
            while time.monotonic() < until:
                time.sleep(0.05)
            taken.append(next(1e3 * (at - pressed) for at, held in heard[count:] if held))
            browser.key("keyUp", KEY)
            browser.until(lambda: let_go(browser) and not heard[-1][1])
    gaps = sorted(1e3 * (b[0] - a[0]) for a, b in zip(heard[first:], heard[first + 1 :], strict=False))
    over = sum(gap > 100 for gap in gaps)
    p99 = gaps[int(0.99 * len(gaps))]
    return {"takeover_ms": taken, "gap_p99_ms": p99, "gap_max_ms": gaps[-1], "gaps_over_100_ms": over}


def end(process: subprocess.Popen[str]) -> None:
    """Stop a process if it is still running."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=30.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each run")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case")
    parser.add_argument("--robots", nargs="+", default=["panda", "go2"])
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--apart", action="store_true", help="give the browser a core of its own")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for _ in range(args.runs):
        for robot in args.robots:
            for case in [c for c in args.cases if robot != "go2" or c != "cameras"]:
                rows.append(measure(robot, case, args.seconds, args.apart))
                rate = rows[-1].get("updates_per_s")
                said = f", page: {rate:.1f} updates/s, {rows[-1]['frames_drawn_per_s']:.1f} drawn/s" if rate else ""
                if "takeover_ms" in rows[-1]:
                    said = f", {({k: v for k, v in rows[-1].items() if '_ms' in k})}"
                print(f"{robot:6} {case:15} late {100 * rows[-1]['late_share']:.2f} %{said}", flush=True)
    machine = {"cores": os.cpu_count(), "platform": platform.platform(), "load_before": load}
    result = {"seconds": args.seconds, "apart": args.apart, "machine": machine}
    result |= {"summary": summarize(rows), "runs": rows}
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    slowest = min((row["updates_per_s"] for row in rows if row["case"] == "browser"), default=BAR)
    print(json.dumps(result["summary"], indent=2))
    return int(slowest < BAR)


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the measurements over the runs of each robot and case."""
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(f"{row['robot']} {row['case']}", []).append(row)
    keys = ("late_share", "updates_per_s", "frames_drawn_per_s", "gap_p99_ms", "gap_max_ms", "gaps_over_100_ms")
    return {
        name: {key: statistics.median(row[key] for row in group) for key in keys if key in group[0]}
        | {"lateness_p99_us": statistics.median(row["lateness_us"]["p99"] for row in group), "runs": len(group)}
        for name, group in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
