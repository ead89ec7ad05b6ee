"""The console: a person's path in a real browser on a twin, and what those who may not move the robot try."""

import json
import math
import re
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
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

pytest.importorskip("viser")
from benchmarks.chromium import CHROMIUM, Browser
from real import clock
from real.bus import open_node
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.teleop.commands import TIMEOUT, TYPE, OperatorInput, joy_topic
from robot_rl.interface.kinematics import Kinematics
from robot_rl.robots import robots
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
        sent = {"Cookie": cookie, "Origin": self.origin} | headers
        self.socket: ClientConnection = connect(
            self.origin.replace("http", "ws") + "/socket", additional_headers=sent, proxy=None
        )
        self.page = self.hear("page")
        self.news: dict[str, Any] = {}

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, (str, bytes)) else json.dumps(message))

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
    assert main(["console", "panda", "--certificate", str(tmp_path / "none.pem")]) in (1, 2)
    assert "none.pem" in capsys.readouterr().err


@pytest.mark.usefixtures("private_domain")
def test_https_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    from robot_rl.cli.seat import CERTIFICATE

    subprocess.run(CERTIFICATE.split(), cwd=tmp_path, check=True, capture_output=True)
    files = "--certificate", str(tmp_path / "console.pem"), "--key", str(tmp_path / "console.key")
    with console("--host", "0.0.0.0", *files) as at:
        trust = ssl.create_default_context(cafile=str(tmp_path / "console.pem"))
        trust.check_hostname = False
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
        first.send(REST)
        assert clock.wait(lambda: heard.devices == 1, 10)
        second.send(UP)  # ignored: no seat
        second.send({"type": "event", "word": "rerecord"})
        assert second.hear("answer") == "take the controls first"
        first.send(REST)
        assert "has control" in second.take()
        first.send(UP)
        assert clock.wait(lambda: (reading := heard.read()) and reading.held, 10)
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


def test_a_page_that_stood_still_moves_nothing_until_its_hands_have_rested(private_domain: int) -> None:
    from robot_rl.view.seat import Input, Seat

    with open_node("robot") as robot, open_node("console") as node:
        heard, now = OperatorInput(robot, "panda"), [100.0]
        seat = Seat(node, "panda", None, clock=lambda: now[0])
        assert seat.take("a") == "" and clock.wait(lambda: heard.devices == 1, 10)

        def after(seconds: float, message: dict[str, Any]) -> Any:
            now[0] += seconds
            count = heard.subscriptions[0].latest.count if heard.subscriptions[0].latest else 0
            seat.receive("a", Input.model_validate_json(json.dumps(message)))
            new = lambda: (s := heard.subscriptions[0].latest) and s.count > count  # noqa: E731
            assert clock.wait(new, 10)
            return heard.read()

        assert after(0.03, UP).motion == (0.0, 0.0, 0.0), "a key that was down before counts for nothing"
        after(0.03, REST)
        moving = after(0.03, UP)
        assert moving.held and moving.motion == (0.0, 0.0, 0.5)
        back = after(TIMEOUT + 0.2, UP)
        assert back.held and back.motion == (0.0, 0.0, 0.0)
        assert after(0.03, UP | {"motion": [0.0] * 6}).held
        assert after(0.03, UP).motion == (0.0, 0.0, 0.5)
        seat.close()


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


def take(browser: Browser) -> None:
    browser.click("Take the controls")
    browser.until(lambda: "Leave the controls" in browser.text())


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
    browser.until(lambda: "autonomous" in browser.text())
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
    open_page(browser, address)
    take(browser)
    browser.key("keyDown", "r")
    browser.until(lambda: "you have control" in browser.text())
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
        assert np.abs(arm.tool - held).max() < 0.005 and not arm.said("operator", "handing back", began)
        take(browser)
        browser.until(lambda: arm.said("operator", "handing back", began))


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
    box = browser.evaluate("(() => {const b = plane.getBoundingClientRect(); return [b.x + b.width / 2, b.y + 4]})()")
    browser.evaluate("document.getElementById('scene').src = 'about:blank'")  # without a GPU it would stall the page
    before = arm.tool

    def moved() -> bool:
        if browser.evaluate("document.getElementById('keep').checked"):  # the page was slow: a person presses again
            browser.touch("touchEnd")
            browser.click_on("keep")
            browser.touch("touchStart", *box)
        return bool(arm.tool[0] > before[0] + 0.02)

    browser.touch("touchStart", *box)
    browser.until(moved)
    browser.touch("touchEnd")
    browser.until(lambda: "autonomous" in browser.text())
    assert browser.evaluate("document.querySelector('main').clientHeight") > 200, "the view keeps some room"
