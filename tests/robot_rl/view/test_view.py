"""The live view in a real browser: drawing, buttons, and no commands to the robot."""

import contextlib
import html
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from policies.execution import ChunkExecutor
from robot_rl.util.errors import UserError

pytest.importorskip("viser")
from benchmarks.chromium import CHROMIUM, Browser
from robot_rl.view import LiveView, Page, SimulationView, play
from sim.env import TaskEnv
from sim.experts.policy import ExpertPolicy

browses = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium: apt-get install chromium")
STEP = re.compile(r"step\s+(\d+) of")
EPISODE = re.compile(r"episode\s+(\d+), seed (\d+)")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path / "profile", 1000, 900)
    yield opened
    opened.close()


def number(browser: Browser, pattern: re.Pattern[str]) -> int:
    found = pattern.search(browser.text())
    return int(found[1]) if found else -1


def shown(browser: Browser, colour: tuple[int, int, int], reach: int = 60) -> float:
    """Return the fraction of the scene's pixels near a colour (R, G, B)."""
    image = cv2.imdecode(np.frombuffer(browser.picture(), np.uint8), cv2.IMREAD_COLOR)
    scene = image[150:, :650, ::-1].astype(int)  # without the panel and viser's notice
    return float((np.abs(scene - colour) < reach).all(-1).mean())


@pytest.fixture
def watched() -> Iterator[Callable[..., SimulationView]]:
    """Play a simulation in a thread."""
    with contextlib.ExitStack() as stack:

        def start(task: str, seed: int = 7) -> SimulationView:
            ready: list[SimulationView] = []

            def run() -> None:  # OpenGL requires rendering in the thread that opened it
                env = TaskEnv(task, 1)
                view = SimulationView(env)
                ready.append(view)
                with contextlib.suppress(_Ended):
                    play(env, _Until(ChunkExecutor(ExpertPolicy(env, "STEADY", 0), 1), ended), view, seed=seed)
                view.close()
                env.close()

            ended = threading.Event()
            thread = threading.Thread(target=run)
            thread.start()
            while not ready and thread.is_alive():
                thread.join(0.05)

            def end() -> None:
                ended.set()
                ready[0].pause(False)
                thread.join()

            stack.callback(end)
            return ready[0]

        yield start


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[TaskEnv, SimulationView]]]:
    """Open an environment and its view; both are closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def build(task: str, speed: float = 1.0, **options: Any) -> tuple[TaskEnv, SimulationView]:
            env = TaskEnv(task, 1, **options)
            stack.callback(env.close)
            view = SimulationView(env, speed=speed)
            stack.callback(view.close)
            return env, view

        yield build


class _Ended(Exception):  # noqa: N818
    pass


class _Until:
    """Actor that raises `_Ended` once an event is set."""

    def __init__(self, actor: Any, ended: threading.Event):
        self.actor, self.ended = actor, ended
        self.reset = actor.reset

    def act(self, observation: Any, rng: torch.Generator) -> torch.Tensor:
        if self.ended.is_set():
            raise _Ended
        action: torch.Tensor = self.actor.act(observation, rng)
        return action


@browses
def test_simulation_is_drawn_and_controlled_by_the_page(watched: Any, browser: Browser) -> None:
    view = watched("panda-lift")
    browser.open(view.page.address)
    browser.until(lambda: number(browser, STEP) > 0, 60.0)
    red, ground = (217, 51, 38), (225, 228, 232)  # the cube's colour, and the plane's
    browser.until(lambda: shown(browser, red) > 0.0003 and shown(browser, ground, 25) > 0.2, 60.0)
    # The panel contains the camera's picture, which has more than one colour.
    camera = browser.evaluate(
        "(async () => {const i = [...document.images].find(i => i.naturalHeight == 180); if (!i) return 0;"
        "const c = new OffscreenCanvas(240, 180), x = c.getContext('2d'); x.drawImage(i, 0, 0);"
        "return new Set(x.getImageData(0, 0, 240, 180).data).size})()"
    )
    assert camera > 20
    assert "tool_delta x" in browser.text()

    browser.click("Pause")
    browser.until(lambda: "paused" in browser.text())
    stopped, steps = number(browser, STEP), int(view.env.steps[0])
    until = time.monotonic() + 0.5  # ten control periods
    browser.until(lambda: time.monotonic() > until)
    assert number(browser, STEP) == stopped and int(view.env.steps[0]) == steps

    browser.click("Single step")
    browser.until(lambda: number(browser, STEP) == stopped + 1)
    assert int(view.env.steps[0]) in (steps + 1, 0), "0 if the episode ended"

    before, drawn = number(browser, EPISODE), view.env.episode_record(0)
    browser.click("Reset")
    browser.until(lambda: number(browser, EPISODE) == before + 1)
    assert view.step == 0 and view.seed == 7 + before + 1
    assert view.env.episode_record(0)["randomization/cube.x"] != drawn["randomization/cube.x"]

    browser.click("Go on")
    browser.until(lambda: number(browser, STEP) > 2)
    errors = [line for line in browser.said if "deprecated" not in line]
    assert not errors, errors


@browses
def test_view_follows_a_legged_robot(opened: Any, browser: Browser) -> None:
    env, view = opened("go2-velocity")
    env.reset(seed=3)
    env.engine.qpos[0, :2] = 300.7, -41.2  # metres away
    view.begin(0, 3)
    browser.open(view.page.address)
    dark = (25, 25, 25)  # legs
    browser.until(lambda: shown(browser, dark, 30) > 0.002, 60.0)


def test_successes_are_counted_and_randomized_boxes_have_their_size(opened: Any) -> None:
    env, view = opened("panda-lift", float("inf"))
    play(env, ChunkExecutor(ExpertPolicy(env, "STEADY", 0), 1), view, episodes=2, seed=11)
    assert view.episodes == 2 and view.successes >= 1
    geom = env.engine.model.geom("scene/cube").id
    env.reset(seed=4)
    view.begin(0, 4)
    (cube,) = [handle for k, handle in view.scene._shapes if k == geom]
    assert cube.dimensions == pytest.approx([2 * env.episode_record(0)["randomization/cube.size"]] * 3, abs=1e-6)
    assert cube.dimensions[0] != pytest.approx(2 * env.engine.model.geom_size[geom][0], abs=1e-5)


def test_current_instruction_is_shown(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env, view = opened("tabletop", float("inf"), threads=1, changes=1.0)
    shown: list[str] = []
    monkeypatch.setattr(view.page, "text", lambda name, content, now=False: shown.append(html.unescape(content)))
    observation, _ = env.reset(seed=3)
    view.begin(0, 3)
    first, hold = env.instruction(0), env.hold_action()
    while env.instruction(0) == first:
        assert view.asked == first and first in shown[-1]
        observation, *_ = env.step(hold)
        view.show(observation, hold)
    assert view.asked == env.instruction(0) and view.asked in shown[-1] and first not in shown[-1]


@pytest.mark.usefixtures("domain")
def test_instruction_of_a_robot_is_shown() -> None:
    """A view that starts in mid-episode receives the instruction too."""
    from real.bus import open_node, qos
    from real.topics import EPISODE_TOPIC, STATUS, Episode, status
    from robot_rl.robots import robots
    from sim.scenes import Scene

    with open_node("robot") as robot, open_node("view") as node:
        announcer = robot.publisher(STATUS, EPISODE_TOPIC, qos.LATCHED)
        announcer.publish(Episode(0, "running", "lift").message())
        view = LiveView(node, robots.get("panda"), Scene())

        def shows(text: str) -> bool:  # polled: `Node.wait_for` wakes for the graph, not for messages
            end = time.monotonic() + 10
            while view.session.episode.instruction != text and time.monotonic() < end:
                time.sleep(0.01)
            return view.session.episode.instruction == text

        assert shows("lift")
        for said, wanted in ((Episode(0, "running", "drop").message(), "drop"), (status("cpu", 0, "warm", {}), "")):
            announcer.publish(said)
            assert shows(wanted), said
        view.close()


class Hands:
    """Teleop device that lifts, then requests a reset, then quits."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Any:
        from real.teleop import Finished, Operator

        self.reads += 1
        if self.reads > 30:
            raise Finished
        return Operator(held=5 < self.reads <= 20, motion=(0.0, 0.0, 1.0), reset=self.reads in (21, 22))

    def close(self) -> None:
        pass


def test_person_takes_over_and_resets(opened: Any) -> None:
    from policies.base import RandomPolicy
    from policies.execution import ChunkExecutor
    from real.teleop import Finished
    from robot_rl.operators.intervention import InterventionWrapper
    from robot_rl.view.simulation import Person

    env, view = opened("panda-lift", float("inf"))
    heights: list[tuple[int, float]] = []
    show = view.show

    def shows(observation: Any, action: Any) -> None:
        heights.append((view.number, float(env.true.tool_position[0, 2])))
        show(observation, action)

    view.show = shows  # type: ignore[method-assign]
    actor = ChunkExecutor(RandomPolicy(env.pipeline.actions.size, 0.0), 1, hold_action=env.hold_action)
    with pytest.raises(Finished):
        play(InterventionWrapper(env, Person(env, Hands(), view.reset)), actor, view, seed=5)
    first = [height for number, height in heights if number == 0]
    assert len(first) == 21 and heights[-1][0] == 1, "one reset while the button is held"
    assert first[19] - first[4] > 0.1 and abs(first[4] - first[0]) < 0.02
    assert view.episodes == 0


def test_view_runs_in_real_time_until_a_reset(opened: Any) -> None:
    env, view = opened("panda-lift")
    env.reset(seed=0)
    began = time.monotonic()
    view.begin(0, 0)
    for _ in range(6):
        assert view.wait()
    assert time.monotonic() - began >= 5.9 / env.rate
    view.reset(4)
    assert not view.wait() and view.next == 4


def test_page_accepts_only_this_machine_and_has_its_own_port() -> None:
    page = Page("one")
    port = page.server.get_port()
    assert page.address == f"http://127.0.0.1:{port}"
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
        if not address.startswith("127."):
            with pytest.raises(OSError), socket.create_connection((address, port), 2.0):
                pass
    with pytest.raises(UserError, match=rf"port {port} is in use"):
        Page("two", port)
    other = Page("two")  # default: the next free port
    assert other.server.get_port() != port
    assert page.server.request_share_url() is None
    other.close()
    page.close()


def test_missing_viser_gives_install_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(UserError, match=r"\.\[view\]"):
        Page("nothing")


class Topics:
    """Publisher of a Panda's joint states and of a cube's pose."""

    def __init__(self, node: Any, turn: float):
        from real.bus import make, qos
        from robot_rl.robots import robots

        self.robot, self.turn = robots.get("panda"), turn
        self.names = [*self.robot.joint_names, *self.robot.gripper.joints]
        self.make = make
        self.states = node.publisher("sensor_msgs/msg/JointState", self.robot.driver.joint_states, qos.SENSOR)
        topic = self.robot.driver.object_pose.format(object="cube")
        self.cube = node.publisher("geometry_msgs/msg/PoseStamped", topic, qos.SENSOR)

    def send(self) -> None:
        position = np.array([self.turn, *self.robot.home[1:], 0.02, 0.02])
        self.states.publish(
            self.make("sensor_msgs/msg/JointState", name=self.names, position=position, velocity=0 * position,
                      effort=0 * position)
        )  # fmt: skip
        pose = {"position": {"x": 0.4, "y": -0.2, "z": 0.3}, "orientation": {"w": 1.0, "x": 0.0, "y": 0.0, "z": 0.0}}
        self.cube.publish(self.make("geometry_msgs/msg/PoseStamped", pose=pose))


@browses
@pytest.mark.usefixtures("domain")
def test_robot_is_drawn_from_its_topics_and_gets_no_commands(browser: Browser) -> None:
    from real.bus import open_node
    from robot_rl.robots import robots
    from sim.tasks import tasks

    with open_node("robot") as node, open_node("view") as mine:
        robot = Topics(node, 0.7)
        commands = node.subscribe("std_msgs/msg/Float64MultiArray", robot.robot.driver.command)
        view = LiveView(mine, robots.get("panda"), tasks.get("panda-lift").scene)
        browser.open(view.page.address)

        def turn() -> str:
            robot.send()
            view.show()
            return browser.text()

        browser.until(lambda: "nothing heard yet" in turn() or "live" in turn(), 60.0)
        browser.until(lambda: "live" in turn() and view.drawn > 3)
        seen = view.scene.data
        first = view.model.joint("joint1").qposadr[0]
        assert seen.qpos[first] == pytest.approx(0.7) and view._qpos[view._fingers] == pytest.approx([0.02, 0.02])
        assert seen.xpos[view.model.body("scene/cube").id] == pytest.approx([0.4, -0.2, 0.3], abs=1e-6)
        assert commands.matched == 0 and commands.latest is None
        until = time.monotonic() + 0.7

        def silence() -> bool:
            view.show()
            return time.monotonic() > until and "old: the robot may be elsewhere" in browser.text()

        browser.until(silence)
        view.close()


@pytest.mark.usefixtures("domain")
def test_legged_robot_without_odometry_stands_on_its_feet() -> None:
    from real.bus import open_node
    from real.drivers.state import JointReading
    from real.drivers.unitree import TrunkReading
    from robot_rl.robots import robots
    from sim.tasks import tasks

    with open_node("view") as node:
        robot = robots.get("go2")
        assert robot.base is not None
        view = LiveView(node, robot, tasks.get("go2-velocity").scene)
        leaning = np.array([np.cos(0.1), 0.0, np.sin(0.1), 0.0])  # by 0.2 rad
        home = np.array(robot.home)
        reading: JointReading = TrunkReading(home, 0 * home, 0.0, 0.0, leaning, np.zeros(3), np.zeros(4))
        view._pose(reading)
        heights = view.scene.heights(view._qpos, robot.base.feet)
        assert heights.min() == pytest.approx(robot.base.foot_radius, abs=1e-6)
        assert view._qpos[3:7] == pytest.approx(leaning)
        view.close()


def test_command_plays_an_episode_without_a_display() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    words = [sys.executable, "-m", "robot_rl.cli.main", "view", "panda-lift", "--episodes", "1", "--speed", "max"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:" in done.stderr and "of 1 episodes succeeded" in done.stderr


@pytest.mark.parametrize(("words", "said"), [
    (["panda-lfit"], "did you mean panda-lift"),
    (["robot:panda", "--teleop", "keyboard"], "robot-rl teleop keyboard"),
    (["gym:CartPole-v1"], "cannot draw"),
    (["expert:go2-velocity"], "zero:go2-velocity"),
    (["panda-lift", "--port", "70000"], "--port"),
])  # fmt: skip
def test_wrong_arguments_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from robot_rl.cli.main import main

    assert main(["view", *words]) in (1, 2)
    assert said in capsys.readouterr().err
