"""Sport mode of a Go2, driven by `cmd_vel`, against a server and a client of Unitree's own SDK."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from real import clock
from real.bus import Node, make, qos
from real.drivers.state import NotReady
from real.drivers.unitree_api import REQUEST, REQUESTS, RESPONSE
from real.drivers.unitree_sport import ASK, PATIENCE, SportService
from real.sessions.driving import Driving
from real.teleop.commands import TYPE, Operator, joy_topic, to_joy
from real.topics import BOOL, GUARD_TOPIC, STATUS
from robot_rl.interface.control import BaseVelocityConfig
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.robot import RobotSpec
from robot_rl.robots.go2 import GO2_SPORT
from robot_rl.util.errors import ConfigError, UserError
from tests.real.unitree.conftest import SIMS, SdkRobot

Build = Callable[..., Any]
DAMP, BALANCE_STAND, STOP_MOVE, MOVE = 1001, 1002, 1003, 1008
LIMITS = BaseVelocityConfig("base_velocity", 25.0, 0.6, 0.3, 1.0, 0.5)
TWIST = "geometry_msgs/msg/Twist"
PATIENT = SafetyConfig(goal_timeout=1.0, state_timeout=0.4, lost_timeout=5.0)  # a busy machine


@pytest.fixture(autouse=True)
def sport(robot: SdkRobot) -> None:
    robot.tell(mode="normal")


def patient(**config: Any) -> RobotSpec:
    return replace(GO2_SPORT, driver=replace(GO2_SPORT.driver, safety=PATIENT, **config))


def moves(robot: SdkRobot) -> list[tuple[float, float, float]]:
    """Return the velocities of all Move requests."""
    parameters = [p for name, api, p in list(robot.requests) if (name, api) == ("sport", MOVE)]
    return [(p["x"], p["y"], p["z"]) for p in parameters]


def halted(robot: SdkRobot) -> bool:
    """Return whether the newest request is to stop."""
    asked = robot.asked("sport")
    return bool(asked) and asked[-1] == STOP_MOVE


class Planner:
    """Publisher of `cmd_vel`, or with an `operator` of a teleop device's input, at 50 Hz until `close`."""

    def __init__(self, node: Node, operator: Operator | None = None):
        self.velocity, self.operator = (0.0, 0.0, 0.0), operator
        kind, topic = (TYPE, joy_topic(GO2_SPORT.name)) if operator else (TWIST, "cmd_vel")
        self.output = node.publisher(kind, topic, qos.DEFAULT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            x, y, yaw = self.velocity
            twist = make(TWIST, linear={"x": x, "y": y}, angular={"z": yaw})
            self.output.publish(to_joy(self.operator) if self.operator else twist)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def planner(nodes: Build) -> Iterator[Planner]:
    with closing(Planner(nodes("planner"))) as planner:
        yield planner


class Run:
    """A session in a thread, and how it ended."""

    def __init__(self, driving: Driving):
        self.driving, self.error = driving, BaseException()
        driving.activate()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.driving.run()
        except NotReady as error:
            self.error = error

    def ended(self) -> str:
        """Wait for the end; return its reason."""
        self._thread.join(30)
        assert not self._thread.is_alive() and isinstance(self.error, NotReady)
        return str(self.error)

    def close(self) -> None:
        self.driving.env.loop.stop("end of the test")
        self._thread.join(30)
        self.driving.close()


@pytest.fixture
def drive(nodes: Build) -> Iterator[Callable[[], Run]]:
    runs: list[Run] = []

    def start() -> Run:
        runs.append(Run(Driving(nodes("drive"), patient(), LIMITS)))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def test_requests_are_those_of_the_sdks_client(robot: SdkRobot, nodes: Build, drive: Build, eventually: Build) -> None:
    """The SDK's SportClient stands, moves and stops; so do we, with the same ids and JSON."""
    spy, seen = nodes("spy"), list[tuple[int, Any, bool]]()
    requests = spy.subscribe(
        REQUEST, "api/sport/request", replace(REQUESTS, depth=100),
        lambda s: seen.append((s.msg.header.identity.api_id, json.loads(s.msg.parameter), s.msg.header.policy.noreply)),
    )  # fmt: skip
    assert spy.wait_for(lambda: requests.matched == 1, 30), "the SDK's client"

    def heard() -> bool:  # the client's writer may discover the spy later than the spy the writer: ask again
        seen.clear()
        robot.requests.clear()
        robot.tell(mode="normal", drive=[0.5, -0.25, 0.75])
        return clock.wait(lambda: len(seen) == 3 and len(robot.requests) == 3, 3.0)

    eventually(heard)
    theirs = list(seen)
    assert [api for api, _, _ in theirs] == [BALANCE_STAND, MOVE, STOP_MOVE] and theirs[1][2], "Move wants no answer"
    seen.clear()
    robot.requests.clear()
    with closing(Planner(nodes("planner"))) as planner:
        drive()
        planner.velocity = (0.5, -0.25, 0.75)
        eventually(lambda: moves(robot)[-1:] == [planner.velocity])
    eventually(lambda: seen[-1][0] == STOP_MOVE)
    ours = {api: parameter for api, parameter, _ in seen if api != MOVE or parameter == theirs[1][1]}
    assert ours == {api: parameter for api, parameter, _ in theirs}
    assert theirs[1] in seen, "and most of ours neither"


def test_cmd_vel_is_limited_in_speed_and_acceleration(
    robot: SdkRobot, planner: Planner, drive: Build, eventually: Build
) -> None:
    run = drive()
    planner.velocity = (5.0, -5.0, -5.0)
    eventually(lambda: moves(robot)[-1:] == [(0.6, -0.3, -1.0)])
    planner.velocity = (float("nan"), 0.0, 0.0)
    eventually(lambda: halted(robot))
    sent = [(0.0, 0.0, 0.0), *moves(robot), (0.0, 0.0, 0.0)]
    top = (LIMITS.forward, LIMITS.left, LIMITS.turn)
    for before, after in zip(sent, sent[1:], strict=False):
        for was, now, most in zip(before, after, top, strict=True):
            assert abs(now) <= most and abs(now - was) <= most / LIMITS.ramp / GO2_SPORT.command_rate + 2e-4
    assert len(sent) > 40 and robot.asked("sport")[0] == BALANCE_STAND
    assert run.driving.env.loop.stopped == "" and DAMP not in robot.asked("sport")


def test_stale_cmd_vel_stops_the_robot_and_nothing_is_sent_at_rest(
    robot: SdkRobot, planner: Planner, drive: Build, eventually: Build
) -> None:
    run = drive()
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity])
    planner.close()
    closed = clock.now()
    eventually(lambda: halted(robot))
    assert 0.4 < robot.times[-1] - closed < 3.0
    count, loop = len(robot.asked("sport")), run.driving.env.loop
    goals = loop.goals
    eventually(lambda: loop.goals > goals + 25)
    assert len(robot.asked("sport")) == count and robot.asked("sport").count(STOP_MOVE) == 1


FAULTS = {
    "mode": ({"mode": ""}, "no mode of the robot is active"),
    "code": ({"mode": "normal", "sport": {str(MOVE): 4201}}, "'sport' of the robot answers with error 4201"),
    "tilt": ({"mode": "normal", "quat": [0.707, 0.707, 0.0, 0.0]}, "tilt"),
    "battery": ({"mode": "normal", "soc": 8}, "battery at 8 %"),
    "heat": ({"mode": "normal", "motor": {"temperature": {"3": 90}}}, "motor of FL_hip_joint at 90 degrees C"),
    "state": ({"mode": "normal", "mute": True}, "no joint state for 5 s"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_fault_of_the_robot_ends_in_stop_move(
    robot: SdkRobot, planner: Planner, drive: Build, eventually: Build, fault: str
) -> None:
    run = drive()
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity])
    faults, words = FAULTS[fault]
    robot.tell(**faults)
    eventually(lambda: halted(robot))
    assert words in run.ended()
    assert halted(robot) and DAMP not in robot.asked("sport"), "the planner still sends"


def test_guard_that_starts_later_ends_in_stop_move(
    robot: SdkRobot, planner: Planner, drive: Build, nodes: Build, eventually: Build
) -> None:
    run = drive()
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity])
    nodes("guard").publisher(STATUS, GUARD_TOPIC, qos.LATCHED)
    assert "/guard" in (reason := run.ended()) and "is a guard, which commands the motors" in reason
    assert halted(robot)


def test_program_that_commands_too_is_named_and_ends_in_stop_move(
    robot: SdkRobot, planner: Planner, drive: Build, eventually: Build
) -> None:
    """The SDK's client that was there before counts as one of the robot's own; one that starts later does not."""
    run = drive()
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity])
    code = (
        "from unitree_sdk2py.core.channel import ChannelFactoryInitialize as init; import os, sys; "
        "from unitree_sdk2py.go2.sport.sport_client import SportClient; "
        "init(int(os.environ['ROS_DOMAIN_ID']), 'lo'); client = SportClient(); client.Init(); sys.stdin.read()"
    )
    with subprocess.Popen([str(SIMS), "-c", code], stdin=subprocess.PIPE) as other:
        reason = run.ended()
        other.kill()
    assert "an unnamed DDS participant" in reason and "/api/sport/request too" in reason
    eventually(lambda: halted(robot))


def test_person_drives_stops_and_resets(
    robot: SdkRobot, nodes: Build, drive: Build, eventually: Build, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Planner(nodes("pad"), Operator())) as pad:
        run = drive()
        pad.operator = Operator(held=True, motion=(1.0, 0.0, -1.0))
        eventually(lambda: moves(robot)[-1:] == [(0.6, 0.0, -1.0)])
        pad.operator = Operator(held=True, motion=(1.0, 0.0, -1.0), stop=True)
        eventually(lambda: halted(robot) and run.driving.env.loop.stopped == "operator")
        count = len(moves(robot))

        def refused() -> bool:
            pad.operator = Operator(reset=not pad.operator.reset)  # type: ignore[union-attr]
            return "a joint moves at 0.11 rad/s" in caplog.text

        eventually(refused)  # as the SDK's state says
        assert run.driving.env.loop.stopped == "operator"
        robot.tell(mode="normal", motor={"dq": {str(k): 0.0 for k in range(12)}})

        def presses_reset() -> bool:  # a press before the enable button counts as released has no effect
            pad.operator = Operator(reset=not pad.operator.reset)  # type: ignore[union-attr]
            return not run.driving.env.loop.stopped

        eventually(presses_reset)
        assert len(moves(robot)) == count, "nothing moves before the reset"
        pad.operator = Operator(held=True, motion=(1.0, 0.0, 0.0))
        eventually(lambda: moves(robot)[-1:] == [(0.6, 0.0, 0.0)])
        assert robot.asked("sport").count(BALANCE_STAND) == 2


def test_service_that_does_not_answer_is_named(nodes: Build, eventually: Build) -> None:
    server, client = nodes("mute"), nodes("client")
    heard = server.subscribe(REQUEST, "api/mute/request", REQUESTS)
    server.publisher(RESPONSE, "api/mute/response", qos.DEFAULT)
    service = SportService(client, "mute")
    eventually(lambda: service.served and heard.matched)
    for _ in range(2):
        service.request(MOVE, {"x": 0.1, "y": 0.0, "z": 0.0})
    assert not service.objection(clock.now() + ASK)
    assert "has not answered for 2 s" in service.objection(clock.now() + PATIENCE)
    service.forget()
    assert not service.objection(clock.now() + PATIENCE)


@pytest.mark.realtime
def test_e_stop_and_silent_session_reach_the_robot_within_a_tenth_of_a_second(
    robot: SdkRobot, planner: Planner, nodes: Build, drive: Build, eventually: Build
) -> None:
    run, button = drive(), nodes("button")
    output = button.publisher(BOOL, "e_stop", qos.DEFAULT)
    assert button.wait_for(lambda: output.matched > 0, 30)
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity])
    pressed = clock.now()
    output.publish(make(BOOL, data=True))
    eventually(lambda: halted(robot))
    assert robot.times[-1] - pressed < 0.1
    assert "e_stop topic" in run.ended() and DAMP not in robot.asked("sport")


def test_dead_policy_ends_in_stop_move(robot: SdkRobot, nodes: Build, eventually: Build) -> None:
    """Goals stop, as if the process that posts them hung: the command thread notices."""
    driving = Driving(nodes("drive"), patient(), LIMITS)
    with closing(driving):
        driving.activate()
        goal = driving.env.command.new_tensor([[0.4, 0.0, 0.0]])
        eventually(lambda: driving.env.loop.set_goal(goal, 0.0, 0.04) and moves(robot)[-1:] == [(0.4, 0.0, 0.0)])
        eventually(lambda: halted(robot))
        assert driving.env.loop.holding == "stale goal"


@pytest.mark.parametrize(
    ("mode", "config", "words"),
    [
        ("", {}, "no mode of the robot is active.* choose sport mode in Unitree's app"),
        ("normal", {"service": "absent"}, "service 'absent' of the robot is not there; is the robot on"),
        ("normal", {"motion_switcher": "absent"}, "service 'absent' of the robot is not there"),
        ("guard", {}, "/guard.* is a guard, which commands the motors that sport mode commands; end it"),
        ("rival", {}, "/rival already sends commands on /api/sport/request; stop it first"),
    ],
)
def test_refused_before_anything_is_sent(
    robot: SdkRobot, nodes: Build, monkeypatch: pytest.MonkeyPatch, mode: str, config: dict[str, str], words: str
) -> None:
    if mode == "guard":
        nodes("guard").publisher(STATUS, GUARD_TOPIC, qos.LATCHED)
    if mode == "rival":
        nodes("rival").publisher(REQUEST, "api/sport/request", REQUESTS)
    robot.tell(mode=mode)
    if config:
        wait = Node.wait_for
        monkeypatch.setattr(Node, "wait_for", lambda self, holds, timeout: wait(self, holds, min(timeout, 2.0)))
    with pytest.raises(UserError, match=words):
        Driving(nodes("drive"), patient(**config), LIMITS)
    assert not robot.asked("sport")


@pytest.fixture
def process(robot: SdkRobot) -> "Iterator[subprocess.Popen[str]]":
    """`robot-rl drive` in a process of its own, killed at the end."""
    command = [sys.executable, "-m", "robot_rl.cli.main", "drive", "go2_sport"]
    pipe, default = subprocess.PIPE, partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, preexec_fn=default) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_the_robot(
    robot: SdkRobot, planner: Planner, process: "subprocess.Popen[str]", eventually: Build, number: int
) -> None:
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity], wait=90)  # importing takes long on a busy machine
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert halted(robot) and DAMP not in robot.asked("sport") and "up to 0.6 m/s, 0.3 m/s, 1 rad/s" in said


def test_after_sigkill_the_last_move_stays_the_last_request(
    robot: SdkRobot, planner: Planner, process: "subprocess.Popen[str]", nodes: Build, eventually: Build
) -> None:
    """Nothing of ours stops the robot then: only its own time-out of Move does (docs/safety.md)."""
    spy = nodes("spy")
    requests = spy.subscribe(REQUEST, "api/sport/request", REQUESTS)
    planner.velocity = (0.4, 0.0, 0.0)
    eventually(lambda: moves(robot)[-1:] == [planner.velocity], wait=90)  # importing takes long on a busy machine
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    spy.wait_for(lambda: not requests.writers(), 1.0)
    assert moves(robot)[-1] == planner.velocity and robot.asked("sport")[-1] == MOVE


def test_robot_that_takes_no_velocities_is_refused(nodes: Build) -> None:
    from robot_rl.robots import robots

    with pytest.raises(ConfigError, match="robot 'go2' takes no velocities; go2_sport does"):
        Driving(nodes("drive"), robots.get("go2"), LIMITS)
