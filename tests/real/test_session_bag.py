"""A session's bag, as the libraries of MCAP and of rosbags read it."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mcap.exceptions import McapError
from mcap.reader import make_reader
from mcap.records import Message
from mcap.stream_reader import StreamReader
from mcap_ros2.decoder import DecoderFactory
from rosbags.highlevel import AnyReader

from real.bus import open_node
from real.episode.env import RobotEnv
from real.episode.stream import Event, Stream
from real.recording import session_bag
from real.recording.journal import Journal
from real.recording.session_bag import EVENTS, STEPS, SessionBag
from real.twin.composed import composed_twin
from sim.tasks import tasks

LIFT = tasks.get("panda-lift")
STATE = "/joint_states"


def read(folder: Path) -> dict[str, list[Any]]:
    """Return the messages by topic, as the library mcap decodes them."""
    (file,) = folder.glob("*.mcap")
    assert file.name == f"{folder.name}.mcap"
    found: dict[str, list[Any]] = {}
    with open(file, "rb") as stream:
        for _, channel, _, message in make_reader(stream, decoder_factories=[DecoderFactory()]).iter_decoded_messages():
            found.setdefault(channel.topic, []).append(message)
    return found


@pytest.mark.usefixtures("short_bare_loop")
def test_session_can_be_read_step_by_step(private_domain: int, tmp_path: Path) -> None:
    executed: list[list[float]] = []
    with composed_twin(LIFT, cameras=False), open_node("policy") as node:
        env = RobotEnv(node, LIFT.interface)
        journal = Journal(tmp_path, env, bag=True)
        env.stream.on_step(lambda step: executed.append(step.executed[0].tolist()))
        env.activate()
        env.reset(seed=0)
        for k in range(12):
            env.step(torch.tensor([[0.1 * (k % 3), 0.0, -0.1, 1.0]]))
        env.close()
        journal.close()
        journal.close()
    assert not list(tmp_path.glob("*.part"))
    found = read(tmp_path / "bag")
    steps = [json.loads(message.data) for message in found[STEPS]]
    assert [step["executed"] for step in steps] == executed and len(steps) == 12
    assert all(step["acted"] == "policy" and step["person"] is None and step["shield"] == [] for step in steps)
    assert [step["step"] for step in steps] == list(range(1, 13))
    events = [json.loads(message.data) for message in found[EVENTS]]
    noted = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e["what"]) for e in events] == [(e["event"], e["what"]) for e in noted]
    assert len(found[STATE]) > 12 and len(found[STATE][0].position) == len(found[STATE][0].name) > 6
    with AnyReader([tmp_path / "bag"]) as reader:
        counts = {connection.topic: connection.msgcount for connection in reader.connections}
        stamps = [at for _, at, _ in reader.messages([c for c in reader.connections if c.topic == STEPS])]
        _, _, raw = next(reader.messages([c for c in reader.connections if c.topic == STATE]))
        message: Any = reader.deserialize(raw, "sensor_msgs/msg/JointState")
    assert np.diff(stamps) == pytest.approx(1e9 / LIFT.interface.controller.rate), "the time of the simulation"
    assert counts == {topic: len(messages) for topic, messages in found.items()}
    assert message.position.tolist() == list(found[STATE][0].position), "equal to the other reader's"


@pytest.fixture
def bag(tmp_path: Path) -> Iterator[Callable[[], SessionBag]]:
    opened: list[SessionBag] = []

    def build() -> SessionBag:
        opened.append(SessionBag(tmp_path, SimpleNamespace(wires=[], stream=Stream())))  # type: ignore[arg-type]
        return opened[-1]

    yield build
    for one in opened:
        one.close()


def test_second_session_of_a_run_has_a_bag_of_its_own(bag: Callable[[], SessionBag], tmp_path: Path) -> None:
    for k in range(2):
        one = bag()
        one._event(Event("phase", k, 0.0))
        one.close()
    (tmp_path / "bag-2.part").mkdir()  # a killed session's
    assert bag().folder.name == "bag-3"
    assert [json.loads(read(tmp_path / name)[EVENTS][0].data)["what"] for name in ("bag", "bag-1")] == [0, 1]


def test_full_disk_ends_the_bag_and_not_the_robot(
    bag: Callable[[], SessionBag], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rosbags.rosbag2 import Writer

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Writer, "write", full)
    one = bag()
    one._event(Event("phase", "running", 0.0))
    one._thread.join(20)
    one._event(Event("phase", "resting", 0.0))
    one.close()
    assert "No space left" in one.error and "the robot goes on" in caplog.text and not one.folder.exists()


def test_slow_disk_delays_nothing(
    bag: Callable[[], SessionBag], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rosbags.rosbag2 import Writer

    held, write = threading.Event(), Writer.write
    monkeypatch.setattr(session_bag, "WAITING", 10)
    monkeypatch.setattr(Writer, "write", lambda *args: held.wait(20) and write(*args))
    one = bag()
    for k in range(30):
        one._event(Event("phase", k, 0.0))
    assert one.dropped >= 19
    held.set()
    one.close()
    assert "too slow" in caplog.text and len(read(one.folder)[EVENTS]) == 30 - one.dropped


def test_pictures_are_left_out(bag: Callable[[], SessionBag]) -> None:
    one = bag()
    one.keep("/pictures", "sensor_msgs/msg/Image", bytes(session_bag.LARGEST + 1))
    one._event(Event("phase", "running", 0.0))
    one.close()
    assert set(read(one.folder)) == {EVENTS}


def test_killed_session_leaves_what_was_written(tmp_path: Path) -> None:
    """The process is killed; what had reached the disk is read by the recovery of the library mcap."""
    code = f"""
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from real.episode.stream import Event, Stream
from real.recording.session_bag import SessionBag
bag = SessionBag(Path({str(tmp_path)!r}), SimpleNamespace(wires=[], stream=Stream()))
for k in range(20000):
    bag._event(Event("phase", "x" * 500, 0.0))
    while bag._rows.qsize() > 100:
        time.sleep(0.001)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (file,) = (tmp_path / "bag.part" / "bag").glob("*.mcap")
    assert file.stat().st_size > 1_000_000
    shutil.copy(file, tmp_path / "kept.mcap")
    count = 0
    with open(tmp_path / "kept.mcap", "rb") as stream, pytest.raises((McapError, EOFError)):
        for record in StreamReader(stream).records:
            count += isinstance(record, Message)
    assert count > 1000
