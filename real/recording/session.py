"""Signals that stop a run on a robot in order, and its video."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.data.video import encode_video, quoted, titled
from robot_rl.training.run import write_json
from robot_rl.util.files import replace_file

if TYPE_CHECKING:
    from real.episode.env import RobotEnv


_waiting: list[int] | None = None
"""Signals that came in an `uninterrupted` block; None outside of one."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay interrupts by signals until after the block. An exception raised by a signal inside a library's C code may
    come out as another one.
    """
    global _waiting
    _waiting = []
    try:
        yield
    finally:
        came, _waiting = _waiting, None
        if came:
            raise KeyboardInterrupt(came[0])


def stop_on_signals() -> None:
    """Turn SIGINT, SIGTERM, SIGQUIT, SIGTSTP (a suspended process cannot brake) and SIGHUP, unless ignored (nohup),
    into KeyboardInterrupt(number), so that `finally` blocks brake the robot.

    After the first one all but SIGINT are ignored: launchers escalate and closing terminals repeat signals, while
    braking and writing end by themselves. A second SIGINT interrupts these too, even in `uninterrupted`.
    """

    asked = 0

    def interrupt(number: int, _: object) -> None:
        nonlocal asked
        asked += 1
        for other in handled:
            if other != signal.SIGINT:
                signal.signal(other, signal.SIG_IGN)
        if _waiting is not None and asked == 1:
            _waiting.append(number)
            return
        raise KeyboardInterrupt(number)

    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    for number in handled:
        signal.signal(number, interrupt)


MOST = 2**29
"""Largest size of a video in memory, bytes, to protect the process that commands the robot."""


class VideoRecorder:
    """Record the robot's first camera, if any, in the first episodes, and write a video. Corrections are marked by a
    coloured edge; instructions stand above the frames. Recording ends at `MOST` bytes.
    """

    def __init__(self, episodes: int, corrected_only: bool = False):
        self.episodes, self.corrected_only = episodes, corrected_only
        self.filmed = 0
        self._episode: list[np.ndarray] = []
        self._corrected = False
        self.frames: list[np.ndarray] = []
        self.asked: list[list[str]] = []
        """What each episode was asked, one after the other."""
        self._told: list[str] = []
        """Instruction of each frame, the running episode's included; "" without instructions."""
        self.rate = 20.0

    def attach(self, env: RobotEnv) -> None:
        """Record every control period of `env`."""
        self.rate = 1 / env.period
        camera = next(iter(env.driver.images), None)

        def film(step: dict[str, Any]) -> None:
            if self.filmed < self.episodes:
                picture = env.driver.image(camera) if camera else None
                told = step.get("instruction", ("",))[0]
                self.add(picture, bool(step["intervention"][0]), bool(step["done"]), told)

        env.observers.append(film)

    def add(self, picture: np.ndarray | None, corrected: bool, done: bool, told: str = "") -> None:
        """Keep one frame, with what was asked; at the end of an episode decide whether to keep the episode."""
        self._corrected |= corrected
        if picture is not None:
            picture = picture.copy()
            if corrected:
                edge = np.array([255, 150, 0], np.uint8)
                picture[:2], picture[-2:], picture[:, :2], picture[:, -2:] = edge, edge, edge, edge
            self._episode.append(picture)
            self._told.append(told)
            if (len(self.frames) + len(self._episode)) * picture.nbytes > MOST:
                done, self.episodes = True, 0
        if done:
            if self._corrected or not self.corrected_only:
                episode = self._told[len(self.frames) :]
                self.frames += self._episode
                self.asked.append([text for text, _ in groupby(episode) if text])
                self.filmed += 1
            del self._told[len(self.frames) :]
            self._episode, self._corrected = [], False

    def write(self, folder: Path, caption: str) -> None:
        """Write videos/robot.mp4 and its caption, if there are frames."""
        if not self.frames:
            return
        video = folder / "videos" / "robot.mp4"
        import cv2

        height, width = self.frames[0].shape[:2]
        larger = max(1, 480 // height)  # a twin's are thumbnails
        size = (larger * width, larger * height)
        frames = (cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC) for frame in self.frames)
        pictures = map(titled, frames, self._told)
        replace_file(video, encode_video(pictures, self.rate))
        said = quoted(self.asked)
        write_json(video.with_name("captions.json"), {video.name: caption + (f": {said}" if said else "")})
