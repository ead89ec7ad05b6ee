"""The console: a person's path in a real browser on a twin, and what those who may not move the robot try."""

import json
import math
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

pytest.importorskip("viser")
from benchmarks.chromium import CHROMIUM, Browser
from real import clock
from real.bus import open_node
from real.drivers.state import JointReading, NotReady
from real.episode.env import RobotEnv
from real.teleop.commands import TIMEOUT, TYPE, OperatorInput, from_joy, joy_topic
from robot_rl.interface.kinematics import Kinematics
from robot_rl.robots import robots
from robot_rl.view.gizmo import Gizmo
from robot_rl.view.seat import Input, Seat
from robot_rl.view.server import MOST
from sim.tasks import tasks

browses = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium: apt-get install chromium")
REST = {"type": "input", "held": False, "motion": [0.0] * 6, "gripper": 0.0}
UP = REST | {"held": True, "motion": [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]}
EYE, AT, ANGLE = np.array([1.75, -1.15, 0.95]), np.array([0.3, 0.0, 0.25]), math.radians(40)
"""Position, target and vertical field of view of the view's camera."""


@contextmanager
def console(*options: str) -> Iterator[str]:
    """Run the console of a Panda; yield its address."""
    command = [sys.executable, "-m", "robot_rl.cli.main", "console", "panda", "--cameras", "off", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"https?://\S+token=\S+", line):
                break
        else:
            raise AssertionError("the console did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[0]
    finally:
        process.terminate()
        assert process.wait(30) in (0, 143)


@pytest.fixture(scope="module")
def address(private_domain: int) -> Iterator[str]:
    """A console that no robot answers."""
    with console() as at:
        yield at


def cookie_of(address: str) -> str:
    """Return the cookie that a browser gets for the token."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.build_opener(Stay).open(address, timeout=10)
    assert answer.value.code == 302
    return str(answer.value.headers["Set-Cookie"])


class Tab:
    """A page of the console, without a browser."""

    def __init__(self, address: str, **headers: str):
        self.origin = address.split("/?")[0]
        cookie = cookie_of(address).split(";")[0]
        self.cookie = sent = {"Cookie": cookie, "Origin": self.origin} | headers
        self.socket: ClientConnection = connect(
            self.origin.replace("http", "ws") + "/socket", additional_headers=sent, proxy=None
        )
        self.page = self.hear("page")
        self.news: dict[str, Any] = {}

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, (str, bytes)) else json.dumps(message))

    def act(self, message: dict[str, Any]) -> None:
        """Send an input, as a page does: with the count of the newest news."""
        self.send(message | {"seen": self.hear("count")})

    def hear(self, key: str) -> Any:
        """Return the value of the next message that has this key."""
        while True:
            message = json.loads(self.socket.recv(timeout=20))
            if key in message:
                return message[key]

    def take(self) -> str:
        """Take the controls; return why not, empty if this page has them."""
        self.send({"type": "seat", "take": True})
        while True:
            message = json.loads(self.socket.recv(timeout=20))
            if "answer" in message:
                return str(message["answer"])
            if message.get("holder") == self.page:
                return ""

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def tab(address: str) -> Iterator[Callable[..., Tab]]:
    with ExitStack() as opened:

        def build(**headers: str) -> Tab:
            made = Tab(address, **headers)
            opened.callback(made.close)
            return made

        yield build


# ---- who gets in --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/", "/console.js", "/scene/x/", "/?token=", "/?token=guessed"])
def test_nobody_gets_in_without_the_token(address: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address.split("/?")[0] + path, timeout=10)
    assert refused.value.code == 403 and b"token" in refused.value.read()


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_see(address: str) -> None:
    cookie = cookie_of(address)
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    opener = urllib.request.build_opener()
    opener.addheaders = [("Cookie", cookie.split(";")[0])]
    for path, kind in (("/", "text/html"), ("/console.js", "text/javascript"), ("/console.css", "text/css")):
        with opener.open(address.split("/?")[0] + path, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    with pytest.raises(urllib.error.HTTPError) as missing:
        opener.open(address.split("/?")[0] + "/../pyproject.toml", timeout=10)
    assert missing.value.code == 404


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Cookie": "robot_rl_8080=guessed"}]
)
def test_sockets_of_other_sites_and_without_the_cookie_are_refused(tab: Any, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        tab(**headers)
    assert refused.value.response.status_code == 403


def test_the_viewer_accepts_only_connections_of_the_console(private_domain: int) -> None:
    """Another program of this computer finds viser's port, but not the robot."""
    from robot_rl.view.viewer import Drawn, Viewer

    viewer = Viewer(Drawn("panda", cameras=False), lambda *_: None)
    try:
        with (
            pytest.raises(ConnectionClosed) as closed,
            connect(f"ws://127.0.0.1:{viewer.port}/", subprotocols=[_viser()], proxy=None) as socket,
        ):
            for _ in range(100):
                assert not socket.recv(timeout=10), "nothing is sent before the check"
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    finally:
        viewer.close()
    assert not viewer.process.is_alive()


def _viser() -> Any:
    import viser

    return f"viser-v{viser.__version__}"


def test_other_computers_need_https(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from robot_rl.cli.main import main

    assert main(["console", "panda", "--host", "0.0.0.0"]) == 2
    assert "openssl req -x509" in capsys.readouterr().err
    assert main(["console", "panda", "--host", "192.168.1.10"]) == 2
    assert "subjectAltName=IP:192.168.1.10" in capsys.readouterr().err
    assert main(["console", "panda", "--certificate", str(tmp_path / "none.pem")]) in (1, 2)
    assert "none.pem" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl: apt-get install openssl")
@pytest.mark.usefixtures("private_domain")
def test_https_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    from robot_rl.cli.seat import CERTIFICATE

    subprocess.run(CERTIFICATE.format(name="IP:127.0.0.1").split(), cwd=tmp_path, check=True, capture_output=True)
    files = "--certificate", str(tmp_path / "console.pem"), "--key", str(tmp_path / "console.key")
    with console("--host", "0.0.0.0", *files) as at:
        trust = ssl.create_default_context(cafile=str(tmp_path / "console.pem"))
        here = at.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(here.split("token=")[0] + "token=x", timeout=10, context=trust)
        assert here.startswith("https://") and refused.value.code == 403
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(here.replace("https", "http"), timeout=10)


# ---- what a page may send -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("message", [
    "not json", b"\x00\x01", json.dumps({"type": "input"}), REST | {"motion": [0.0] * 5},
    REST | {"motion": [1.01, 0, 0, 0, 0, 0]}, REST | {"held": "yes"}, REST | {"press": ["fire"]}, REST | {"extra": 1},
    json.dumps(REST).replace("0.0", "NaN"), json.dumps(REST).replace("0.0", "1e999"), {"type": "shutdown"},
    {"type": "say", "text": "x" * 501}, {"type": "event", "word": "success; rm"}, "[" * 1000, " " * 5000,
])  # fmt: skip
def test_a_forged_message_disconnects_its_page_and_nothing_else(tab: Any, message: Any) -> None:
    forger, other = tab(), tab()
    assert forger.take() == ""
    forger.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        forger.hear("never")
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    assert other.take() == "", "the seat is free again"


def test_a_flood_disconnects_its_page(tab: Any) -> None:
    flood, other = tab(), tab()
    with pytest.raises(ConnectionClosed) as closed:
        for _ in range(3 * MOST):
            flood.send(REST)
        flood.hear("never")
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    assert other.take() == ""


def test_one_page_has_the_controls_and_others_only_watch(tab: Any, private_domain: int) -> None:
    first, second = tab(), tab()
    with open_node("robot") as node:
        heard = OperatorInput(node, "panda")
        assert first.take() == ""
        first.act(REST)
        assert clock.wait(lambda: heard.devices == 1, 10)
        second.act(UP)  # ignored: no seat
        second.send({"type": "event", "word": "rerecord"})
        assert second.hear("answer") == "take the controls first"
        first.act(REST)
        assert "has control" in second.take()

        def holds() -> bool:
            first.act(UP)
            return bool((reading := heard.read()) and reading.held)

        assert clock.wait(holds, 10)
        second.send({"type": "event", "word": "terminate"})  # whoever watches may stop the robot
        assert clock.wait(lambda: (reading := heard.read()) and reading.stop, 10)
        first.send({"type": "seat", "take": False})
        assert clock.wait(lambda: heard.devices == 0, 10)
        assert second.take() == ""


def test_two_devices_never_move_one_robot(tab: Any, private_domain: int) -> None:
    with open_node("pad") as node:
        node.publisher(TYPE, joy_topic("panda"))
        page = tab()
        deadline = time.monotonic() + 10
        while not (refusal := page.take()) and time.monotonic() < deadline:  # until it is discovered
            page.send({"type": "seat", "take": False})
        assert "/pad moves this robot already" in refusal


class Seated:
    """A seat with a clock of its own, and what the robot hears of it. The tool follows the gizmo at once."""

    def __init__(self, robot: Any, node: Any):
        self.heard, self.now, self.paused = OperatorInput(robot, "panda"), 100.0, False
        self.gizmo = Gizmo(robots.get("panda"), lambda: self.reading, turns=False)
        home = np.array(robots.get("panda").home)
        self.reading = JointReading(home, 0 * home, 0.04, 0.0)
        self.seat = Seat(node, "panda", self.gizmo, paused=lambda: self.paused, clock=lambda: self.now)
        assert self.seat.take("a") == "" and clock.wait(lambda: self.heard.devices == 1, 10)

    @property
    def samples(self) -> int:
        latest = self.heard.subscriptions[0].latest
        return latest.count if latest else 0

    def after(self, seconds: float, message: dict[str, Any], page: str = "a") -> Any:
        """Send an input of the page; return what the robot hears."""
        self.now += seconds
        seen = {"seen": self.seat.number_news()} | message
        return self._heard(lambda: self.seat.receive(page, Input.model_validate_json(json.dumps(seen))))

    def drag(self, phase: str, up: float) -> Any:
        """Drag the gizmo to a height above the tool's, m; return what the robot hears."""
        tool = self.gizmo.kinematics.forward(torch.from_numpy(self.reading.position)[None].float())[0][0]
        place = (tool + torch.tensor([0.0, 0.0, up])).tolist()
        return self._heard(lambda: self.seat.drag(phase, place, (1.0, 0.0, 0.0, 0.0)))

    def _heard(self, act: Callable[[], None]) -> Any:
        before = self.samples
        act()
        assert clock.wait(lambda: self.samples > before, 10)
        return from_joy(self.heard.subscriptions[0].latest.msg)  # type: ignore[union-attr]


@pytest.fixture
def seated(private_domain: int) -> Iterator[Seated]:
    with open_node("robot") as robot, open_node("console") as node:
        made = Seated(robot, node)
        yield made
        made.seat.close()


STILL = UP | {"motion": [0.0] * 6}
NONE = (0.0, 0.0, 0.0)


def test_a_page_that_stood_still_moves_nothing_until_its_hands_have_rested(seated: Seated) -> None:
    assert seated.after(0.03, UP).motion == NONE, "a key that was down before counts for nothing"
    seated.after(0.03, REST)
    moving = seated.after(0.03, UP)
    assert moving.held and moving.motion == (0.0, 0.0, 0.5)
    back = seated.after(TIMEOUT + 0.2, UP)
    assert back.held and back.motion == NONE
    assert seated.after(0.03, STILL).held
    assert seated.after(0.03, UP).motion == (0.0, 0.0, 0.5)


def test_after_a_loss_only_a_person_who_took_control_hands_back(seated: Seated) -> None:
    """Neither coming back nor taking the seat lets the policy go on."""
    seated.after(0.03, REST)
    assert seated.after(0.03, STILL).held
    assert seated.after(30.0, REST).held, "it comes back after a silence, with its hands off"
    assert seated.after(0.03, STILL).held and not seated.after(0.03, REST).held
    seated.paused = True
    seated.seat.leave("a", lost=True)
    assert seated.seat.take("b") == "" and clock.wait(lambda: seated.heard.devices == 1, 10)
    assert seated.after(0.03, REST, "b").held
    assert seated.after(0.03, STILL, "b").held and not seated.after(0.03, REST, "b").held


def test_input_that_comes_too_late_is_no_input(seated: Seated) -> None:
    seated.after(0.03, REST)
    seen = seated.seat.count
    for _ in range(10):
        seated.now += 0.05
        seated.seat.number_news()
    for wrong in (seen, 10**9, 0):
        seated.seat.receive("a", Input.model_validate_json(json.dumps(UP | {"seen": wrong})))
        assert not seated.seat.held
    seated.seat.receive("a", Input.model_validate_json(json.dumps(UP | {"seen": seated.seat.count})))
    assert seated.seat.held


def test_the_tool_follows_the_gizmo_while_a_finger_is_down(seated: Seated) -> None:
    seated.after(0.03, REST)
    seated.seat.drag("start", (0.5, 0.0, 0.4), (1.0, 0.0, 0.0, 0.0))
    assert not seated.seat.held, "the page has not said that a finger is down"
    assert seated.after(0.03, REST | {"pointer": True}).held
    moving = seated.drag("update", 0.1)
    assert moving.held and moving.motion[2] == 1.0 and abs(moving.motion[0]) < 1e-3
    seated.seat.drag("update", (math.nan, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    assert seated.after(0.03, REST | {"pointer": True}).motion[2] == 1.0, "what is no place changes nothing"
    assert seated.drag("end", 0.1).held, "viser lost its connection; the finger is down"
    let_go = seated.after(0.03, REST)
    assert not let_go.held and let_go.motion == NONE and seated.gizmo.goal is None


@pytest.mark.parametrize("why", ["another phase", "the page lost sight of the hands"])
def test_the_goal_of_a_drag_is_forgotten(seated: Seated, why: str) -> None:
    seated.after(0.03, REST)
    seated.after(0.03, STILL | {"pointer": True})
    seated.drag("start", 0.1)
    kept = seated.after(0.03, STILL)
    assert kept.held and kept.motion[2] == 1.0, "control is kept, and the gizmo stays where it was left"
    if why == "another phase":
        seated.seat.drop()  # as `Console` does
    after = seated.after(0.03, STILL | {"still": why != "another phase"})
    assert after.held and after.motion == NONE


def test_a_viewer_that_dies_leaves_the_robot_holding(private_domain: int) -> None:
    """The console ends, but hands nothing back to the policy."""
    from robot_rl.util.errors import UserError
    from robot_rl.view.console import Console
    from robot_rl.view.viewer import Drawn

    with open_node("robot") as robot, open_node("console") as node:
        heard = OperatorInput(robot, "panda")
        page = Console(node, robots.get("panda"), Drawn("panda", cameras=False))
        runs = threading.Thread(target=lambda: errors.append(_error_of(lambda: page.run(lambda s: time.sleep(s)))))
        errors: list[BaseException | None] = []
        runs.start()
        tab = Tab(page.server.address)
        assert tab.take() == ""

        def holds() -> bool:
            tab.act(STILL)
            return bool((reading := heard.read()) and reading.held)

        assert clock.wait(holds, 10)
        page.viewer.process.kill()
        runs.join(10)
        page.close()
        assert isinstance(errors[0], UserError) and "view" in str(errors[0])
        assert clock.wait(lambda: (reading := heard.read()) is not None and reading.lost, 10)


def _error_of(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except Exception as error:
        return error
    return None


def test_nobody_else_opens_the_view_of_a_page(tab: Any) -> None:
    """Its gizmo would come with it."""
    first, second = tab(), tab()
    assert first.take() == ""
    cookie = second.cookie
    other = second.origin.replace("http", "ws") + f"/scene/{first.page}/"
    with (
        pytest.raises(ConnectionClosed) as closed,
        connect(other, additional_headers=cookie, subprotocols=[_viser()], proxy=None) as socket,
    ):
        socket.recv(timeout=10)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


# ---- a person's path in the browser -------------------------------------------------------------------------------
class Session:
    """A policy that holds a twin's arm still, stepped in a thread."""

    def __init__(self, env: RobotEnv, inputs: OperatorInput):
        self.env, self.inputs = env, inputs
        self.events: list[tuple[str, Any, float]] = []
        self.kinematics = Kinematics(robots.get("panda"))
        env.stream.on_event(lambda event: self.events.append((event.name, event.what, event.time)))
        env.stream.on_step(lambda step: self.steps.append(step))
        self.steps: list[Any] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.env.reset()
                over = False
                while not over and not self._ended.is_set():
                    *_, terminated, truncated, infos = self.env.step(self.env.hold_action())
                    over = bool(terminated | truncated | infos["discarded"])
            except NotReady:
                self._ended.wait(0.1)

    @property
    def tool(self) -> np.ndarray:
        """Return the tool's position (3,), m."""
        return np.asarray(self.kinematics.forward(self.env.state.joint_position)[0][0])

    def said(self, name: str, what: Any, since: int = 0) -> bool:
        """Return whether an event was noted after the first `since`."""
        return any((event, value) == (name, what) for event, value, _ in self.events[since:])

    def wait_steps(self, count: int) -> None:
        """Wait for a number of control periods."""
        first = len(self.steps)
        assert clock.wait(lambda: len(self.steps) >= first + count, 10)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)


@pytest.fixture
def session(twin: Any, robot_env: Any, private_domain: int) -> Iterator[tuple[Session, str]]:
    twin("panda-lift")
    interface = replace(tasks.get("panda-lift").interface, horizon=4000)
    with open_node("hands") as node, console("--task", "panda-lift") as at:
        inputs = OperatorInput(node, "panda")
        made = Session(robot_env(interface, inputs), inputs)
        yield made, at
        made.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path / "profile", 1100, 800)
    yield opened
    opened.close()


def open_page(browser: Browser, address: str) -> None:
    browser.open(address, "!!document.getElementById('scene').contentDocument?.querySelector('canvas')")
    browser.until(lambda: "episode 0: running" in browser.text(), 60.0)
    for kind in ("mousePressed", "mouseReleased"):  # a page gets keys after a click
        browser.mouse(kind, 20.0, 10.0)


def take(browser: Browser) -> None:
    browser.click("Take the controls")
    browser.until(lambda: "Leave the controls" in browser.text())


def blank(browser: Browser) -> None:
    """Remove the 3-D view, which without a GPU makes the page stand still."""
    browser.evaluate("document.getElementById('scene').src = 'about:blank'")


def hold_key(browser: Browser, address: str) -> None:
    """Open the page, take the controls, and hold the key that moves the tool up."""
    open_page(browser, address)
    take(browser)
    blank(browser)
    browser.key("keyDown", "r")
    browser.until(lambda: "you have control" in browser.text())


def handed_back(browser: Browser) -> bool:
    """Return whether the policy acts; where the page stood still, and so kept control, clear that as a person would."""
    kept, text = browser.evaluate("document.getElementById('keep').checked"), browser.text()
    if kept or "The robot waits for you" in text:
        browser.click_on("keep")
        time.sleep(0.1)  # until the page has said so
    return "autonomous" in text


def place(browser: Browser, point: np.ndarray) -> tuple[float, float]:
    """Return where the page shows a point (3,) of the robot's base frame."""
    left, top, width, height = browser.evaluate(
        "(() => {const f = document.getElementById('scene'), a = f.getBoundingClientRect(),"
        "c = f.contentDocument.querySelector('canvas').getBoundingClientRect();"
        "return [a.x + c.x, a.y + c.y, c.width, c.height]})()"
    )
    ahead = (AT - EYE) / np.linalg.norm(AT - EYE)
    right = np.cross(ahead, [0, 0, 1]) / np.linalg.norm(np.cross(ahead, [0, 0, 1]))
    d, f = point - EYE, height / 2 / math.tan(ANGLE / 2)
    x, y = d @ right / (d @ ahead), d @ np.cross(ahead, right) / (d @ ahead)
    return left + width / 2 + f * x, top + height / 2 + f * y


@browses
@pytest.mark.realtime
def test_a_persons_path_from_the_page_to_the_arm_and_back(session: Any, browser: Browser) -> None:
    """Open, watch, take over by the gizmo, correct, mark, hand back, stop, go on."""
    arm, address = session
    open_page(browser, address)
    take(browser)
    before = arm.tool

    up = np.array([0.0, 0.0, 0.09])
    (x, y), (u, v) = place(browser, before + up), place(browser, before + 2.2 * up)
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y)
    for k in range(1, 11):
        browser.mouse("mouseMoved", x + (u - x) * k / 10, y + (v - y) * k / 10)
    browser.until(lambda: "you have control" in browser.text())
    browser.until(lambda: arm.tool[2] > before[2] + 0.05)
    browser.mouse("mouseReleased", u, v)
    browser.until(lambda: handed_back(browser))
    assert arm.said("operator", "correcting") and arm.said("operator", "handing back")
    executed = [step for step in arm.steps if step.intervention]
    assert executed and all(step.executed.abs().max() <= 1 for step in executed)
    assert abs(arm.tool - before)[:2].max() < 0.04, "along the arrow only"

    browser.click("Correction")
    browser.until(lambda: arm.said("mark", "correction"))
    browser.key("keyDown", "h")  # keep control at rest
    browser.key("keyUp", "h")
    browser.until(lambda: "you have control" in browser.text())
    browser.key("keyDown", "h")
    browser.key("keyUp", "h")
    browser.until(lambda: "autonomous" in browser.text())
    browser.click("Success")
    browser.until(lambda: "episode 1" in browser.text() and "1 of 1 succeeded" in browser.text())
    browser.until(lambda: "episode 1: running" in browser.text(), 60.0)
    browser.click("STOP")
    browser.until(lambda: "stopped: operator" in browser.text() and "1 of 2 succeeded" in browser.text())

    def goes_on() -> bool:
        if "Once it is safe" in browser.text():
            browser.click("Reset")
            time.sleep(0.7)  # a person waits too: robot and hands must have rested
        return "episode 2: running" in browser.text()

    browser.until(goes_on, 60.0)
    assert not browser.said or all("THREE.Clock" in line for line in browser.said)


@browses
@pytest.mark.realtime
@pytest.mark.parametrize("way", ["frozen", "closed"])
def test_a_page_that_freezes_or_closes_stops_the_motion_within_100_ms(session: Any, browser: Browser, way: str) -> None:
    arm, address = session
    hold_key(browser, address)
    began = len(arm.events)
    gone = clock.now()
    if way == "frozen":
        browser.freeze()
    else:
        browser.close_page()
    assert clock.wait(lambda: arm.said("operator", "paused", began), 5)
    paused = next(at for name, what, at in arm.events[began:] if (name, what) == ("operator", "paused"))
    late = paused - max(gone, arm.inputs._received)
    assert late < TIMEOUT + 2 * arm.env.period, "after the last message, and in the next control period"
    arm.wait_steps(5)  # it brakes
    held = arm.tool
    arm.wait_steps(5)
    assert np.abs(arm.tool - held).max() < 0.005
    if way == "frozen":
        browser.freeze(False)
        browser.until(lambda: "paused" in browser.text() and "Take the controls" in browser.text())
        take(browser)
        browser.until(lambda: "The robot waits for you" in browser.text())
        arm.wait_steps(5)
        assert np.abs(arm.tool - held).max() < 0.005 and not arm.said("operator", "handing back", began)
        blank(browser)
        browser.key("keyDown", "h")
        arm.wait_steps(5)
        browser.until(lambda: handed_back(browser) and arm.said("operator", "handing back", began))


@browses
@pytest.mark.realtime
@pytest.mark.parametrize("way", ["instruction box", "speed", "Ctrl"])
def test_no_key_gets_stuck(session: Any, browser: Browser, way: str) -> None:
    """Where the page would not hear that a key goes up, it lets go, and keeps control at rest."""
    arm, address = session
    hold_key(browser, address)
    if way == "Ctrl":
        browser.key("keyDown", "Control", modifiers=2)
    else:
        browser.evaluate(f"document.getElementById('{'text' if way == 'instruction box' else 'speed'}').focus()")
    browser.until(lambda: "you keep control, at rest" in browser.text())
    arm.wait_steps(6)
    held = arm.tool
    arm.wait_steps(6)
    assert np.abs(arm.tool - held).max() < 0.005
    assert not arm.said("operator", "handing back")


@browses
@pytest.mark.realtime
def test_the_page_fits_a_phone(session: Any, browser: Browser) -> None:
    arm, address = session
    browser.resize(390, 844, phone=True)
    open_page(browser, address)
    take(browser)
    outside = browser.evaluate(
        "[...document.querySelectorAll('button, select, input, .pad')].filter(e => e.offsetParent)"
        ".filter(e => {const b = e.getBoundingClientRect(); return b.left < 0 || b.right > innerWidth ||"
        "b.bottom > innerHeight || b.top < 0}).map(e => e.id || e.innerText)"
    )
    assert outside == []
    blank(browser)
    box = browser.evaluate("(() => {const b = plane.getBoundingClientRect(); return [b.x + b.width / 2, b.y + 18]})()")
    before = arm.tool

    def moved() -> bool:
        if not browser.evaluate("document.querySelector('#plane i').style.transform"):  # slow: press again
            browser.touch("touchEnd")
            handed_back(browser)
            browser.touch("touchStart", *box)
            time.sleep(0.2)
        return bool(arm.tool[0] > before[0] + 0.02)

    browser.touch("touchStart", *box)
    browser.until(moved)
    browser.touch("touchEnd")
    browser.until(lambda: handed_back(browser))
    assert browser.evaluate("document.querySelector('main').clientHeight") > 200, "the view keeps some room"
