"""Lockstep: order of threads and messages, a clock that stands or jumps, and two runs that are equal to the bit."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from typing import Any

import pytest

from real import clock, lockstep, sim_time
from real.bus import make, open_node, qos
from real.conductor import Conductor
from real.control.timing import Ticker
from real.drivers import open_driver
from real.drivers.state import NotReady
from real.lockstep import START, ClockError, Lockstep
from real.tick_line import ADDRESS, ADDRESS_TOPIC, JOIN, WAIT, Line
from real.twin.composed import composed_twin
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from sim.tasks import task_of

Build = Callable[..., Any]
DT = 0.005
NUMBER = "std_msgs/msg/Float64"


@pytest.fixture
def world(simulated: Any) -> Any:
    """Take part in lockstep with a robot that only counts."""
    simulated.ticks = []
    simulated.run(lambda: simulated.ticks.append(clock.now()))
    clock.join()
    return simulated


def test_time_goes_on_only_while_everything_waits(world: Any) -> None:
    before = len(world.ticks)
    time.sleep(0.05)
    assert len(world.ticks) == before, "the test is busy"
    clock.sleep(1.0)
    assert len(world.ticks) == before + 200 and clock.now() == pytest.approx(START + 1.0)
    assert not clock.wait(lambda: False, 0.1) and clock.now() == pytest.approx(START + 1.1)
    assert clock.wait(lambda: clock.now() > START + 1.2, 9.0) and clock.now() == pytest.approx(START + 1.205)


def test_what_is_due_runs_in_order_after_the_policys_thread(world: Any) -> None:
    done: list[tuple[str, float]] = []

    def step(name: str) -> Callable[[float], bool]:
        return lambda late: bool(done.append((name, round(clock.now() - START, 3))) or len(done) < 12)

    tasks = [clock.repeat(Ticker(2 * DT), step(name), name) for name in "ab"]
    for _ in range(3):
        clock.sleep(2 * DT)
        done.append(("policy", round(clock.now() - START, 3)))
    assert all(task.wait(1.0) for task in tasks)
    assert done[:8] == [
        (name, 2 * DT * k) for k in (1, 2) for name in ("policy", "a", "b")
    ] + [("policy", 6 * DT), ("a", 6 * DT)]  # fmt: skip


def test_lateness_is_zero_and_no_tick_is_missed(world: Any) -> None:
    ticker = Ticker(3 * DT)
    for _ in range(40):
        assert abs(ticker.wait()) < 1e-6
    assert ticker.timing.missed == 0


def test_messages_are_delivered_in_the_next_tick(world: Any) -> None:
    node, heard = world.node("policy"), []
    node.subscribe(NUMBER, "b", qos.DEFAULT, lambda s: heard.append((s.msg.data, s.received)))
    node.subscribe(NUMBER, "a", qos.COMMAND, lambda s: heard.append((s.msg.data, s.received)))
    b, a = (node.publisher(NUMBER, topic) for topic in "ba")
    assert node.wait_for(lambda: a.matched and b.matched, 10)
    clock.sleep(DT)
    now = clock.now()
    for value in (1.0, 2.0):
        b.publish(make(NUMBER, data=value))
        a.publish(make(NUMBER, data=10 * value))
    assert not heard
    clock.sleep(10 * DT)
    assert [value for value, _ in heard] == [10.0, 20.0, 1.0, 2.0], "by topic, and as they were sent"
    assert {round(at - now, 6) for _, at in heard} == {DT}


def test_messages_of_nodes_with_another_clock_arrive_too(world: Any) -> None:
    heard: list[float] = []
    world.clock.receive(1.7e9, "/joy", 0, heard.append)
    clock.sleep(DT)
    assert heard == [pytest.approx(clock.now())]


def test_error_in_a_step_ends_it_and_is_raised_where_its_result_is_awaited(world: Any) -> None:
    """A follower's thread reports it; here the robot's thread would end, so the step catches it as the loop does."""
    failed: list[BaseException] = []

    def step(late: float) -> bool:
        try:
            raise OSError("the cable is out")
        except OSError as error:
            failed.append(error)
            return False

    assert clock.repeat(Ticker(DT), step, "loop").wait(1.0) and len(failed) == 1


def test_clock_that_stands_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "STANDS", 0.1)
    standing = Lockstep()
    standing.join()
    with pytest.raises(ClockError, match=r"stood still for \d+ s: is its simulator running"):
        standing.sleep_until(START + 1.0)


def test_interrupted_session_ends_although_the_simulator_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "INTERRUPTED", 0.1)
    standing, over = Lockstep(), threading.Event()
    standing.join()

    def wait_for_another() -> None:
        while not over.wait(0.01):
            standing.keep_waiting()

    threading.Thread(target=wait_for_another, daemon=True).start()
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        standing.sleep_until(START + 1.0)
    with pytest.raises(ClockError, match="stood still"):
        standing.sleep_until(START + 1.0)  # what a session does at its end
    over.set()


def test_waiting_ends_with_the_reason_of_a_failure() -> None:
    failing = Lockstep()
    failing.join()
    threading.Timer(0.1, failing.fail, ["the robot's clock jumped back"]).start()
    with pytest.raises(ClockError, match="jumped back"):
        failing.sleep_until(START + 1.0)


@pytest.fixture
def follower(private_domain: int) -> Any:
    """A node that follows /clock, and its publisher."""
    with open_node("simulator") as simulator:
        time_of = simulator.publisher("rosgraph_msgs/msg/Clock", "/clock")
        with open_node("policy", ros_args=["--ros-args", "-p", "use_sim_time:=true"]):
            yield lambda now: time_of.publish(make(time_of.type_name, clock={"sec": int(now), "nanosec": 0}))
    clock.use(clock.WALL)


def test_simulator_that_is_restarted_is_noticed(follower: Build, eventually: Build) -> None:
    eventually(lambda: follower(5) or clock.now() == 5.0, "the clock is heard")
    clock.join()
    threading.Timer(0.2, follower, [2]).start()
    with pytest.raises(ClockError, match=r"jumped back from 5\.000 to 2\.000 s.*Start this again"):
        clock.sleep(10.0)


def test_clock_that_jumps_ahead_is_noticed(follower: Build, eventually: Build) -> None:
    eventually(lambda: follower(5) or clock.now() == 5.0, "the clock is heard")
    clock.join()
    threading.Timer(0.2, follower, [100]).start()
    with pytest.raises(ClockError, match=r"jumped ahead from 5\.000 to 100\.000 s.*Start this again"):
        clock.sleep(200.0)


def test_clock_that_repeats_one_time_stands_still(
    follower: Build, eventually: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator that is paused goes on publishing."""
    monkeypatch.setattr(lockstep, "STANDS", 0.5)
    eventually(lambda: follower(5) or clock.now() == 5.0, "the clock is heard")
    clock.join()
    over = threading.Event()

    def pause() -> None:
        while not over.wait(0.02):
            follower(5)

    threading.Thread(target=pause, daemon=True).start()
    with pytest.raises(ClockError, match="stood still"):
        clock.sleep(1.0)
    over.set()


@pytest.mark.parametrize("patient", [True, False])
def test_follower_waits_as_long_as_the_conductor_says_that_it_waits(
    private_domain: int, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """A session may learn for a minute between two episodes; a conductor that says nothing has gone."""
    monkeypatch.setattr(lockstep, "STANDS", 1.0)

    def conduct() -> None:
        line = Line(server.accept()[0])
        line.say_time(START, Counter())
        while JOIN not in line.hear():
            pass
        line.say(JOIN)
        line.say_time(START, Counter())
        for _ in range(30 if patient else 0):
            line.say(WAIT)
            time.sleep(0.1)
        if patient:
            line.say_time(START + 1.0, Counter())
        over.wait(10)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, open_node("simulator") as simulator:
        address = simulator.publisher(ADDRESS, ADDRESS_TOPIC, qos.LATCHED)
        address.publish(make(ADDRESS, data="{}:{}".format(*server.getsockname())))
        threading.Thread(target=conduct, daemon=True).start()
        with open_node("policy", ros_args=["--ros-args", "-p", "use_sim_time:=true"]):
            clock.join()
            with nullcontext() if patient else pytest.raises(ClockError, match="stood still"):
                clock.sleep(1.0)
            over.set()
    clock.use(clock.WALL)


def test_robot_without_a_clock_is_named_before_anything_moves(private_domain: int) -> None:
    with open_node("policy", ros_args=["--ros-args", "-p", "use_sim_time:=true"]) as node:
        driver = open_driver(node, robots.get("panda"))
        with pytest.raises(NotReady, match=r"no state of joint1.*nothing arrives on /clock either.*leave use_sim_time"):
            driver.preflight.wait_ready(0.3)
    clock.use(clock.WALL)


def test_program_that_is_no_follower_is_disconnected(private_domain: int) -> None:
    with open_node("robot") as node, closing(Conductor(node, (), DT, speed=100.0)) as conductor:
        conductor.begin(lambda: None, lambda: False)
        with socket.create_connection(conductor._server.getsockname(), timeout=10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\nHost: localhost\n\n")
            for _ in range(20):
                conductor.tick(lambda: None, lambda: False)
            while stranger.recv(1000):  # until the end of the connection
                pass
        assert clock.now() == pytest.approx(START + 20 * DT)
    clock.use(clock.WALL)


def test_without_a_clock_nothing_starts(follower: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_time, "FIRST", 0.1)
    with pytest.raises(ClockError, match=r"use_sim_time is true, but nothing arrived on /clock"):
        clock.join()


def test_session_that_fails_early_ends_its_twin_and_guard(private_domain: int) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="no policy"), composed_twin(task_of("go2"), cameras=False):
        raise UserError("no policy")
    assert time.monotonic() - began < 15 and not clock.in_lockstep()
    assert not [t for t in threading.enumerate() if t.name in ("twin", "guard")]


def test_twin_in_this_process_refuses_another_clock(private_domain: int) -> None:
    sim_time = ["--ros-args", "-p", "use_sim_time:=true"]
    with pytest.raises(UserError, match="leave use_sim_time out"), composed_twin(task_of("panda"), sim_time):
        pass
    clock.use(clock.WALL)


RUN = """
import hashlib, subprocess, sys
from contextlib import ExitStack
from dataclasses import replace
import torch
from real.bus import open_node
from real.episode.env import RobotEnv
from real.twin.composed import composed_twin
from sim.tasks import task_of
apart = sys.argv[1] == "apart"
command = [sys.executable, "-m", "robot_rl.cli.main"]
sim_time = ["--ros-args", "-p", "use_sim_time:=true"]
children = []
if apart:
    children += [subprocess.Popen([*command, "twin", "go2", "--no-camera", "--lockstep", "policy", "guard"])]
    children += [subprocess.Popen([*command, "guard", "go2", *sim_time])]
torch.set_num_threads(1)
seen, rng = hashlib.sha256(), torch.Generator().manual_seed(0)
try:
    with ExitStack() as opened:
        if not apart:
            opened.enter_context(composed_twin(task_of("go2"), cameras=False))
        node = opened.enter_context(open_node("policy", ros_args=sim_time if apart else []))
        env = RobotEnv(node, replace(task_of("go2").interface, horizon=20))
        env.activate()
        for seed in range(2):
            observation, _ = env.reset(seed=seed)
            for _ in range(20):
                seen.update(observation["observation.state"].numpy().tobytes())
                observation, *_ = env.step(torch.rand(1, env.pipeline.actions.size, generator=rng) - 0.5)
        print("SEEN", seen.hexdigest(), env.summary()["lateness_us"]["max"] < 1)
        env.close()
finally:
    for child in children:
        child.terminate()
    for child in children:
        child.wait(30)
"""


@pytest.mark.timeout(300)
@pytest.mark.realtime  # not judged by the clock, but three processes in lockstep and two busy ones need the machine
def test_runs_in_one_process_and_in_three_are_equal_to_the_bit(private_domain: int) -> None:
    """Twin, guard and policy, on an idle and on a busy machine; `benchmarks.lockstep` compares for longer."""
    results = []
    for where, busy in (("together", 0), ("apart", 2)):
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        command = [sys.executable, "-c", RUN, where]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            results += [line for line in run.communicate(timeout=140)[0].splitlines() if line.startswith("SEEN")]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)  # its children too
            for hog in hogs:
                hog.kill()
                hog.wait()
        assert len(results) == busy / 2 + 1, run.returncode
    assert results[0] == results[1] and results[0].endswith("True")
