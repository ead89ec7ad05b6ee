"""Black box: the messages of the last half minute, as a bag that other tools read."""

from pathlib import Path
from typing import Any

import pytest
from rosbags.highlevel import AnyReader

from real import clock
from real.bus import make, open_node, qos
from real.episode.stream import Event
from real.recording import black_box
from real.recording.black_box import BlackBox

NUMBER, IMAGE = "std_msgs/msg/Float64", "sensor_msgs/msg/Image"


def numbers(folder: Path) -> dict[str, list[float]]:
    """Return the numbers in a bag by topic, as rosbags reads them."""
    found: dict[str, list[float]] = {}
    with AnyReader([folder]) as reader:
        for connection, _, raw in reader.messages():
            message: Any = reader.deserialize(raw, connection.msgtype)
            found.setdefault(connection.topic, []).append(message.data)
    return found


def test_a_stop_leaves_a_bag_of_what_was_sent_and_received(tmp_path: Path, private_domain: int) -> None:
    with open_node("one") as one, open_node("two") as two:
        sent, pictures = one.publisher(NUMBER, "sent", qos.DEFAULT), one.publisher(IMAGE, "pictures", qos.DEFAULT)
        heard, other = one.subscribe(NUMBER, "heard", qos.DEFAULT), two.publisher(NUMBER, "heard", qos.DEFAULT)
        assert clock.wait(lambda: heard.matched and other.matched, 5)
        box = BlackBox(tmp_path, [sent, pictures, heard])
        for k in range(5):
            sent.publish(make(NUMBER, data=float(k)))
            other.publish(make(NUMBER, data=10.0 + k))
        assert clock.wait(lambda: heard.latest is not None and heard.latest.count == 5, 5)
        pictures.publish(make(IMAGE, data=bytes(black_box.LARGEST + 1)))
        box.on_event(Event("stop", "the robot stopped", 0.0))
        sent.publish(make(NUMBER, data=5.0))
        box.close()
        sent.publish(make(NUMBER, data=6.0))
    assert [folder.name for folder in (tmp_path / "black_box").iterdir()] == ["stop-0"]
    found = numbers(tmp_path / "black_box" / "stop-0")
    assert found == {"/sent": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "/heard": [10.0, 11.0, 12.0, 13.0, 14.0]}


def test_only_the_last_half_minute_is_kept(
    tmp_path: Path, private_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(black_box.time, "time_ns", lambda: int(1e9 * now))
    with open_node("one") as one:
        sent = one.publisher(NUMBER, "sent", qos.DEFAULT)
        box = BlackBox(tmp_path, [sent])
        for k in range(100):
            now = float(k)
            sent.publish(make(NUMBER, data=now))
        assert numbers(box.write("bag"))["/sent"] == [float(k) for k in range(69, 100)]
        box.close()


def test_without_a_stop_nothing_is_written(tmp_path: Path, private_domain: int) -> None:
    with open_node("one") as one:
        box = BlackBox(tmp_path, [one.publisher(NUMBER, "sent", qos.DEFAULT)])
        box.on_event(Event("phase", "running", 0.0))
        box.close()
    assert not list(tmp_path.iterdir())
