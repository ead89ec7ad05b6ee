"""Robots that `robot-rl robot` cannot hold."""

import socket

import pytest

from real.held.node import HeldNode
from robot_rl.cli.main import main


@pytest.mark.parametrize(("words", "said", "status"), [
    (["fr3", "--host", "127.0.0.77"], "127.0.0.77: Connection to FCI refused", 1),
    (["fr3", "--host", "no.invalid"], "Host not found; correct --host: the robot's address, as in the browser", 1),
    (["fr3"], "where is the robot? robot-rl robot fr3 --host ADDRESS", 2),
    (["fr3", "--host", "127.0.0.77", "--max-force", "10000"], "--max-force is 10000; it must be", 2),
    (["panda", "--host", "127.0.0.77"], "has a driver of its own", 2),
    (["fr3", "--host", "127.0.0.77", "--release", "--id", "x", "--port", "y"],
     "--port and --id and --release: for an arm of LeRobot, and not for fr3", 2),
    (["so101", "--port", "/dev/null", "--max-force", "5", "--realtime"],
     "--realtime and --max-force: for a Franka, and not for so101", 2),
])  # fmt: skip
def test_robots_that_cannot_be_held_are_refused(
    words: list[str], said: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["robot", *words]) == status
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_host_that_never_answers_is_named_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldNode, "CONNECT", 2.0)
    with socket.create_server(("127.0.0.78", 1337)), socket.create_server(("127.0.0.78", 1338)):  # arm and hand
        assert main(["robot", "fr3", "--host", "127.0.0.78"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "no state of the arm at 127.0.0.78 within 2 s: is it a Franka, and is FCI activated in Desk?" in said
