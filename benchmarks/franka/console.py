"""A person's path through the console, on a simulator that others wrote: the gizmo moves an FR3 by its protocol.

    make sims
    python -m benchmarks.franka.console

Open, watch, take over by the gizmo, hand back, mark, stop: each step is done in a headless Chromium and seen at the
robot. With --keys a key takes over instead, with the 3-D view closed: a browser without a GPU, beside the simulator on
two cores, stands still too often to drag anything. The simulator is franky-sim (benchmarks/franka/world.py);
`robot-rl robot fr3` holds its arm, and `robot-rl record` is the session, which needs no policy.
"""

import argparse
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.chromium import Browser
from benchmarks.franka.lift import PROGRAM, World
from benchmarks.view import let_go
from real.bus import open_node
from real.drivers import open_driver
from robot_rl.interface.kinematics import Kinematics
from robot_rl.robots import robots
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parents[1] / "results" / "franka_console.json"
EYE, AT, ANGLE = np.array([1.75, -1.15, 0.95]), np.array([0.3, 0.0, 0.25]), np.radians(40)
"""Position, target and vertical field of view of the view's camera."""
ARROW = np.array([0.0, 0.0, 0.09])
"""Where the gizmo's upper arrow is held, from the tool, m."""
RISE = 0.05
"""How far the tool must follow, m."""
BOX = (
    "(() => {const f = document.getElementById('scene'), a = f.getBoundingClientRect(),"
    "c = f.contentDocument.querySelector('canvas').getBoundingClientRect();"
    "return [a.x + c.x, a.y + c.y, c.width, c.height]})()"
)


def place(browser: Browser, point: np.ndarray) -> tuple[float, float]:
    """Return where the page shows a point (3,) of the robot's base frame."""
    left, top, width, height = browser.evaluate(BOX)
    ahead = (AT - EYE) / np.linalg.norm(AT - EYE)
    right = np.cross(ahead, [0, 0, 1]) / np.linalg.norm(np.cross(ahead, [0, 0, 1]))
    d, f = point - EYE, height / 2 / np.tan(ANGLE / 2)
    x, y = d @ right / (d @ ahead), d @ np.cross(ahead, right) / (d @ ahead)
    return left + width / 2 + f * x, top + height / 2 + f * y


def walk(browser: Browser, tool: Callable[[], np.ndarray], step: Callable[[str], None], keys: bool) -> None:
    """Go through the page as a person does; `step` is called after each step has been seen at the robot."""
    browser.click("Take the controls")
    browser.until(lambda: "Leave the controls" in browser.text())
    browser.until(lambda: "waiting" in browser.text(), 120.0)
    step("open, watch, take the controls")
    before = tool()

    def follows() -> bool:  # without a GPU the page stands still now and then, and a person takes hold again
        kept = browser.evaluate("document.getElementById('keep').checked")
        if kept or "take hold again" in browser.text():
            release()
            if kept:
                browser.click_on("keep")
            hold(tool())
        return bool(tool()[2] > before[2] + RISE)

    def hold(at: np.ndarray) -> None:
        browser.key("keyDown", "r") if keys else drag(browser, at)

    def release() -> None:
        browser.key("keyUp", "r") if keys else browser.mouse("mouseReleased", *place(browser, before + 2.2 * ARROW))

    if keys:
        for kind in ("mousePressed", "mouseReleased"):  # a page gets keys after a click
            browser.mouse(kind, 20.0, 10.0)
        browser.evaluate("document.getElementById('scene').src = 'about:blank'")
    hold(before)
    browser.until(follows, 90.0)
    step("the tool moves")
    release()

    browser.until(lambda: let_go(browser) and "autonomous" in browser.text())
    step("hand back")
    browser.click("Correction")
    browser.click("Success")
    browser.until(lambda: "1 of 1 succeeded" in browser.text(), 60.0)
    step("mark")
    browser.until(lambda: "episode 1: waiting" in browser.text(), 120.0)
    hold(tool())
    browser.until(lambda: "episode 1: running" in browser.text())
    browser.click("STOP")
    browser.until(lambda: "stopped" in browser.text())
    step("stop")


def drag(browser: Browser, tool: np.ndarray) -> None:
    """Hold the gizmo's upper arrow at the tool, and pull it up."""
    (x, y), (u, v) = place(browser, tool + ARROW), place(browser, tool + 2.2 * ARROW)
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y)
    for k in range(1, 11):
        browser.mouse("mouseMoved", x + (u - x) * k / 10, y + (v - y) * k / 10)


def run(sims: Path, host: str, folder: Path, keys: bool) -> dict[str, Any]:
    """Return the seconds at which each step was done."""
    done: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        world = World(sims, host, "true")
        stack.callback(world.close)

        def start(*words: str) -> Any:
            process = subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, text=True)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            return process

        robot = start("robot", "fr3", "--host", host, "--max-torque", "100")
        assert "is up" in (said := robot.stderr.readline()), said
        page = start("console", "fr3", "--task", "fr3-lift", "--cameras", "off", "--present")
        address = re.search(r"http://\S+", page.stderr.readline())
        assert address
        start("record", "fr3-lift", "--robot", "fr3", "--episodes", "2", "--out", str(folder / "data"), "--no-camera")
        node = stack.enter_context(open_node("watch"))
        driver, chain = open_driver(node, robots.get("fr3"), (), (), dry_run=True), Kinematics(robots.get("fr3"))

        def tool() -> np.ndarray:
            reading = driver.reading()
            assert reading is not None
            return np.asarray(chain.forward(torch.from_numpy(reading.position)[None].float())[0][0])

        browser = Browser(folder / "profile", 760, 560)  # small: it is drawn without a GPU
        stack.callback(browser.close)
        browser.open(address[0], "!!document.getElementById('scene').contentDocument?.querySelector('canvas')")
        began = time.monotonic()

        def step(name: str) -> None:
            done[name] = round(time.monotonic() - began, 1)
            print(f"{done[name]:6.1f} s  {name}", flush=True)

        walk(browser, tool, step, keys)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sims", type=Path, default=Path(".venv-sims/bin/python"), help="Python of the simulators")
    parser.add_argument("--host", default="127.0.0.5", help="address of the simulated robot")
    parser.add_argument("--keys", action="store_true", help="take over by a key, without the 3-D view")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    os.environ.setdefault("ROS_DOMAIN_ID", str(random.SystemRandom().randrange(100, 200)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = run(a.sims, a.host, Path(folder), a.keys)
    write_json(a.out, {"seconds": done, "provenance": provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
