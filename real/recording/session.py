"""Signal handling and video of a run on a robot."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.data.video import encode_video, quoted, titled
from robot_rl.training.run import write_json
from robot_rl.util.files import replace_file

if TYPE_CHECKING:
    from real.episode.env import RobotEnv
    from real.episode.stream import StepRecord


_waiting: list[int] | None = None
"""Signals received in an `uninterrupted` block; None outside."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a signal's KeyboardInterrupt until the end of the block. C code of libraries may convert an exception that
    is raised inside it to another exception."""
    global _waiting
    _waiting = []
    try:
        yield
    finally:
        received, _waiting = _waiting, None
        if received:
            raise KeyboardInterrupt(received[0])


def stop_on_signals() -> None:
    """Raise KeyboardInterrupt(number) at SIGINT, SIGTERM, SIGQUIT, SIGTSTP and SIGHUP.

    `finally` blocks then brake the robot. SIGTSTP is included because a suspended process cannot brake. SIGHUP stays
    ignored under nohup. After the first signal all but SIGINT are ignored: launchers escalate and closing terminals
    repeat signals while the process brakes and writes. A second SIGINT interrupts even that, also in `uninterrupted`.
    """
    count = 0

    def interrupt(number: int, _: object) -> None:
        nonlocal count
        count += 1
        for other in handled:
            if other != signal.SIGINT:
                signal.signal(other, signal.SIG_IGN)
        if _waiting is not None and count == 1:
            _waiting.append(number)
            return
        raise KeyboardInterrupt(number)

    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    for number in handled:
        signal.signal(number, interrupt)


MOST = 2**29
"""Memory limit of a video's frames, bytes; it protects the process that commands the robot."""


class VideoRecorder:
    """Video of the robot's first camera, if it has one, in the first `episodes` episodes, up to `MOST` bytes. Frames of
    corrections have a coloured border. Instructions are written above the frames."""

    def __init__(self, episodes: int, corrected_only: bool = False):
        self.episodes, self.corrected_only = episodes, corrected_only
        self.filmed = 0
        self._episode: list[np.ndarray] = []
        self._corrected = False
        self.frames: list[np.ndarray] = []
        self.instructions: list[list[str]] = []
        """Successive instructions of each episode."""
        self._frame_instructions: list[str] = []
        """Instruction of each frame, including the running episode's; "" without instructions."""
        self.rate = 20.0
        """Frame rate of the video, 1/s."""

    def attach(self, env: RobotEnv) -> None:
        """Add a frame in each control period of `env`."""
        self.rate = 1 / env.period
        camera = next(iter(env.driver.scene.images), None)

        def film(step: StepRecord) -> None:
            if self.filmed < self.episodes:
                picture = env.driver.scene.image(camera) if camera else None
                self.add(picture, step.intervention, step.done, step.instruction)

        env.stream.on_step(film)

    def add(self, picture: np.ndarray | None, corrected: bool, done: bool, instruction: str = "") -> None:
        """Add a frame (H, W, 3); with `done`, end the episode and keep or drop its frames."""
        self._corrected |= corrected
        if picture is not None:
            picture = picture.copy()
            if corrected:
                edge = np.array([255, 150, 0], np.uint8)
                picture[:2], picture[-2:], picture[:, :2], picture[:, -2:] = edge, edge, edge, edge
            self._episode.append(picture)
            self._frame_instructions.append(instruction)
            if (len(self.frames) + len(self._episode)) * picture.nbytes > MOST:
                done, self.episodes = True, 0
        if done:
            if self._corrected or not self.corrected_only:
                instructions = self._frame_instructions[len(self.frames) :]
                self.frames += self._episode
                self.instructions.append([text for text, _ in groupby(instructions) if text])
                self.filmed += 1
            del self._frame_instructions[len(self.frames) :]
            self._episode, self._corrected = [], False

    def write(self, folder: Path, caption: str) -> None:
        """Write videos/robot.mp4 and its caption into `folder`; write nothing if there are no frames."""
        if not self.frames:
            return
        video = folder / "videos" / "robot.mp4"
        import cv2

        height, width = self.frames[0].shape[:2]
        scale = max(1, 480 // height)  # a twin's pictures are small
        size = (scale * width, scale * height)
        frames = (cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC) for frame in self.frames)
        replace_file(video, encode_video(map(titled, frames, self._frame_instructions), self.rate))
        text = quoted(self.instructions)
        write_json(video.with_name("captions.json"), {video.name: caption + (f": {text}" if text else "")})
