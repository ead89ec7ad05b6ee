"""`robot-rl replay`: a bag in the live view, by its time, away from all robots."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("viser")
from real.bus import encode, make, open_node
from real.bus.messages import store
from real.recording.session_bag import EVENTS, STEPS
from robot_rl.cli.main import main
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from robot_rl.view import LiveView
from robot_rl.view.replay import NAMESPACE, Replay, read
from sim.tasks import tasks

STATE, COMMAND, TEXT = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray", "std_msgs/msg/String"
PANDA = robots.get("panda")
SECONDS, RATE = 5, 50


def angle(at: float) -> float:
    """Return the first joint's position at a time of the bag, rad."""
    return 0.1 * at


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """Five seconds of joint states, commands, steps and events."""
    from rosbags.rosbag2 import StoragePlugin, Writer

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"robot": "panda"}')
    path = tmp_path / "run" / "bag"
    step = {"acted": "person", "instruction": "", "policy": [0.5], "person": [1.0], "executed": [1.0], "shield": []}
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        kinds = {"/joint_states": STATE, "/" + str(PANDA.driver.command): COMMAND, STEPS: TEXT, EVENTS: TEXT}
        wires = {topic: writer.add_connection(topic, kind, typestore=store()) for topic, kind in kinds.items()}

        def write(topic: str, at: float, **fields: Any) -> None:
            message = encode(make(kinds[topic], **fields), kinds[topic])
            writer.write(wires[topic], 10**18 + round(1e9 * at), message)

        for k in range(SECONDS * RATE + 1):
            at = k / RATE
            names = list(PANDA.driver_names())
            position = [angle(at), *PANDA.home[1:], 0.02, 0.02]
            stamp = {"stamp": {"sec": 100 + int(at), "nanosec": round(1e9 * (at % 1))}}
            write("/joint_states", at, header=stamp, name=names, position=position, velocity=[0.0] * 9)
            write("/" + str(PANDA.driver.command), at, data=list(PANDA.home))
        for at, name in ((1.0, "takeover"), (3.0, "stop")):
            write(EVENTS, at, data=json.dumps({"event": name, "what": "x"}))
        write(STEPS, 2.0, data=json.dumps(step))
    return path


@pytest.fixture
def player(bag: Path, domain: Any) -> Iterator[Replay]:
    with ExitStack() as stack:
        seen, sent = (stack.enter_context(open_node(name, NAMESPACE)) for name in ("view", "bag"))
        view = LiveView(seen, PANDA, tasks.get("panda-lift").scene, cameras=False, recorded=True)
        stack.callback(view.close)
        player = Replay(sent, view, read(bag))
        end = time.monotonic() + 20
        while view.driver.reading() is None and time.monotonic() < end:  # until the nodes know each other
            player.seek(0.0)
            time.sleep(0.05)
        yield player


def shows(player: Replay, at: float) -> bool:
    """Return whether the view soon has the joint position of a time of the bag."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        reading = player.view.driver.reading()
        if reading is not None and abs(reading.position[0] - angle(at)) < 1e-6:
            return True
        time.sleep(0.01)
    return False


def test_plays_by_the_bags_time_and_goes_anywhere(player: Replay) -> None:
    player.advance(0.0)
    assert shows(player, 0.0)
    for _ in range(10):
        player.advance(0.25)
        assert shows(player, int(RATE * player.at + 1e-6) / RATE)
    assert "takeover" in player._said() and "stop" not in player._said() and "person" in player._said()
    player.seek(4.0)
    assert shows(player, 4.0) and "stop" in player._said()
    player.seek(0.5)
    assert "takeover" not in player._said() and "person" not in player._said()
    assert shows(player, 0.5)
    player.advance(100.0)
    assert player.at == SECONDS and shows(player, SECONDS)


def test_no_robot_hears_a_replay(player: Replay) -> None:
    with open_node("robot") as robot:
        commands = robot.subscribe(COMMAND, str(PANDA.driver.command))
        player.advance(2.0)
        assert shows(player, 2.0)
        assert commands.matched == 0 and commands.latest is None
        with pytest.raises(ValueError, match="a robot could hear it"):
            Replay(robot, player.view, player.rows)


def test_what_is_no_bag_is_said(tmp_path: Path, bag: Path, capfd: Any) -> None:
    with pytest.raises(UserError, match="name the folder with metadata.yaml, such as RUN/bag"):
        read(tmp_path)
    (bag.parent / "config.json").unlink()
    assert main(["replay", str(bag)]) == 2
    assert "name it with --robot" in " ".join(capfd.readouterr().err.split())
    assert main(["replay", str(bag), "--robot", "pandas"]) == 2
    assert "panda" in capfd.readouterr().err
    next(bag.glob("*.mcap")).write_bytes(b"torn")
    assert main(["replay", str(bag)]) == 1
    assert "cannot be read as a rosbag2 folder" in " ".join(capfd.readouterr().err.split())
