"""Robots that `robot-rl robot` cannot hold."""

import pytest

from robot_rl.cli.main import main


@pytest.mark.parametrize(("words", "said"), [
    (["fr3", "--host", "127.0.0.77"], "127.0.0.77: Connection to FCI refused"),
    (["fr3", "--host", "127.0.0.77", "--max-force", "1000"], "driver.max_force"),
    (["panda", "--host", "127.0.0.77"], "has a driver of its own"),
])  # fmt: skip
def test_robots_that_cannot_be_held_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["robot", *words]) == 1
    assert said in capsys.readouterr().err
