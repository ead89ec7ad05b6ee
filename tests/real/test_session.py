"""Signals of a run on a robot, and its video."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from real.episode.stream import Stream
from real.recording import session
from real.recording.session import VideoRecorder, uninterrupted
from robot_rl.data.video import decode_frames, video_info


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP])
def test_signal_interrupts_after_the_block(stopping: None, number: int) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt) as error, uninterrupted():
        os.kill(os.getpid(), number)
        done.append("the rest of the block")
    assert done and error.value.args == (number,)


def test_signal_outside_a_block_interrupts_at_once(stopping: None) -> None:
    with uninterrupted():
        pass
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("no interrupt")


def test_second_ctrl_c_interrupts_the_block(stopping: None) -> None:
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):  # of a closing terminal
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("no interrupt")


def test_video_is_bounded_in_memory_and_enlarged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.zeros((96, 96, 3), np.uint8)
    monkeypatch.setattr(session, "MOST", 10 * picture.nbytes)
    film = VideoRecorder(episodes=3)
    for k in range(50):
        if film.filmed < film.episodes:
            film.add(picture, corrected=False, done=k % 6 == 5)
    assert len(film.frames) == 11 and film.filmed == 2, "an episode and part of the next"
    film.write(tmp_path, "a robot")
    found = video_info(tmp_path / "videos" / "robot.mp4")
    assert (found["video.height"], found["video.width"]) == (480, 480), "enlarged"
    large = VideoRecorder(episodes=1)
    large.add(np.zeros((480, 640, 3), np.uint8), corrected=True, done=True)
    large.write(tmp_path, "a robot")
    assert video_info(tmp_path / "videos" / "robot.mp4")["video.height"] == 480


def test_video_has_the_control_rate(tmp_path: Path) -> None:
    film = VideoRecorder(episodes=1)
    env: Any = SimpleNamespace(period=0.08, driver=SimpleNamespace(scene=SimpleNamespace(images={})), stream=Stream())
    film.attach(env)
    for k in range(25):
        film.add(np.full((96, 96, 3), 200, np.uint8), corrected=False, done=k == 24)
    film.write(tmp_path, "on the twin")
    assert video_info(tmp_path / "videos" / "robot.mp4")["video.fps"] == 12.5


def test_instructions_are_in_frames_and_caption(tmp_path: Path) -> None:
    film = VideoRecorder(episodes=2)
    picture = np.full((96, 96, 3), 200, np.uint8)
    for instruction, done in (("touch it", False), ("lift it", True), ("touch it", True), ("not filmed", False)):
        film.add(picture, corrected=False, done=done, instruction=instruction)
    film.write(tmp_path, "on the twin")
    captions = json.loads((tmp_path / "videos" / "captions.json").read_text())
    assert captions == {"robot.mp4": "on the twin: “touch it”, then “lift it”; “touch it”"}
    frames = np.zeros((3, 510, 480, 3), np.uint8)
    decode_frames(tmp_path / "videos" / "robot.mp4", [k / film.rate for k in range(3)], film.rate, frames)
    assert frames[:, :30].max() > 150 > frames[:, :30].mean(), "light text on a dark strip"
    strip = frames[:, :30].astype(int)
    assert abs(strip[0] - strip[2]).mean() < 5 < abs(strip[0] - strip[1]).mean(), "the frame's instruction"
