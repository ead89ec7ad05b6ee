"""Encode and decode the pictures of a dataset: mp4 files, and PNG or JPEG in the data table.

Encoding as in LeRobot: AV1 (libsvtav1), yuv420p, crf 30, and a key frame every second frame for fast seeks. Measured on
one core with 96x96 frames: 800 frames/s to encode, 2000 frames/s to decode.
"""

import io
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from robot_rl.data.lerobot import DatasetError

Array = np.ndarray[Any, np.dtype[Any]]

_ENCODERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("libsvtav1", {"g": "2", "crf": "30", "preset": "9", "svtav1-params": "lp=1"}),
    ("libx264", {"g": "2", "crf": "23", "preset": "veryfast", "bf": "0"}),
)
"""Encoders in order of preference, with options; encoding uses one thread, since a robot needs the other cores."""
_SKIP = 8
"""Largest distance to a later frame, in frames, over which decoding goes on instead of seeking."""
SLACK = 0.45
"""Largest distance of a frame from its nominal time, in frame periods of the dataset."""
INK, PAPER = (240, 240, 240), (20, 22, 26)
FONT = cv2.FONT_HERSHEY_SIMPLEX


def encode_video(frames: Iterable[Array], fps: float) -> bytes:
    """Return an mp4 of frames (H, W, 3) uint8 at exactly `fps`."""
    codec, options = _encoder()
    rate = Fraction(fps).limit_denominator(10_000)  # exact for 100/3 and 29.97
    buffer = io.BytesIO()
    os.environ.setdefault("SVT_LOG", "1")  # errors only, instead of 20 lines per file
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = None
        for number, image in enumerate(frames):
            if stream is None:
                stream = container.add_stream(codec, rate=rate, options=dict(options))
                stream.height, stream.width = image.shape[:2]
                stream.pix_fmt = "yuv420p"
                stream.codec_context.thread_count = 1
                _open_without_priority(stream.codec_context)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def _open_without_priority(context: Any) -> None:
    """Open an encoder and restore the priority of all threads.

    libsvtav1, if permitted, gives its threads and caller the highest real-time priority, above a robot's command loop.
    """
    if sys.platform != "linux":
        return
    policy, param, highest = os.sched_getscheduler(0), os.sched_getparam(0), os.sched_get_priority_max(os.SCHED_FIFO)
    try:
        context.open(strict=False)
    finally:
        os.sched_setscheduler(0, policy, param)
        for task in map(int, os.listdir("/proc/self/task")):
            with suppress(OSError):  # the thread has just ended
                if os.sched_getparam(task).sched_priority == highest:
                    os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))


def video_info(source: Path | bytes) -> dict[str, Any]:
    """Return LeRobot's `info` of a video feature, read from a video file or its bytes."""
    with _open(source) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 0)
        return {
            "video.height": stream.height, "video.width": stream.width, "video.codec": stream.codec.canonical_name,
            "video.pix_fmt": stream.pix_fmt, "video.is_depth_map": False,
            "video.fps": int(rate) if rate.is_integer() else rate, "video.channels": 3,
            "has_audio": bool(container.streams.audio),
        }  # fmt: skip


def frame_times(path: Path) -> tuple[Array, tuple[int, int]]:
    """Decode a whole video; return its frame times (n,), s, and (height, width)."""
    with _open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        base = stream.time_base or Fraction(1)
        times = [float((frame.pts or 0) * base) for frame in container.decode(stream)]
        return np.array(times), (stream.height, stream.width)


def packets(path: Path, spans: Sequence[tuple[int, int]], fps: float) -> Iterator[bytes]:
    """Yield the encoded frames of a video whose frame numbers are in one of `spans`, each [first, last)."""
    wanted = {number for first, last in spans for number in range(first, last)}
    with _open(path) as container:
        stream = container.streams.video[0]
        base = stream.time_base or Fraction(1)
        for packet in container.demux(stream):
            number = None if packet.pts is None else round(float(packet.pts * base) * fps)
            if number in wanted:
                yield bytes(packet)


def decode_frames(path: Path, times: Sequence[float] | Array, fps: float, out: Array) -> None:
    """Decode the frames at `times` (n,), s, into `out` (n, H, W, 3) uint8; fastest for ascending times.

    DatasetError if the video has no frame within `SLACK` periods of `fps` from a time.
    """
    slack = SLACK / fps
    with _open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        base = stream.time_base or Fraction(1)
        decoder = container.decode(stream)
        at = -1 / fps
        image: Array | None = None
        for row, nominal in enumerate(float(time) for time in times):
            if not at - slack <= nominal <= at + _SKIP / fps:
                container.seek(round(nominal / base), stream=stream)
                decoder = container.decode(stream)
                at = -math.inf
            while at < nominal - slack:
                frame = next(decoder, None)
                if frame is None:
                    raise DatasetError(
                        f"{path} ends before its frame at {nominal:.3f} s; restore it, and look for more damage with "
                        "`robot-rl dataset verify`"
                    )
                at = float((frame.pts or 0) * base)
                if at >= nominal - slack:
                    image = frame.to_ndarray(format="rgb24")
            if image is None or at > nominal + slack:
                raise DatasetError(
                    f"{path} has no frame at {nominal:.3f} s, and the next one is at {at:.3f} s; its timing is damaged,"
                    " restore it"
                )
            if image.shape != out.shape[1:]:
                raise DatasetError(f"{path} has frames of {image.shape}, meta/info.json says {out.shape[1:]}")
            out[row] = image


def decode_picture(data: Any) -> Array | None:
    """Decode PNG or JPEG bytes to a picture (H, W, 3) uint8; None for other data."""
    if not isinstance(data, bytes) or not data:
        return None
    try:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:  # more pixels than OpenCV accepts
        return None
    return None if picture is None else picture[..., ::-1]


@contextmanager
def _open(source: Path | bytes) -> Iterator[Any]:
    """Open a video for reading; errors while opening or reading become a DatasetError that names the file."""
    name = "video" if isinstance(source, bytes) else str(source)
    try:
        container = av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source))
    except (OSError, ValueError, av.FFmpegError) as error:
        raise DatasetError(f"{name} cannot be opened as a video ({error}); restore the file") from error
    with container:
        if not container.streams.video:
            raise DatasetError(f"{name} holds no video; restore the file")
        if container.streams.video[0].codec_context is None:
            raise DatasetError(f"{name} is damaged (its codec is unknown); restore the file")
        try:
            yield container
        except av.FFmpegError as error:
            raise DatasetError(f"{name} is damaged ({error}); restore the file") from error


def _encoder() -> tuple[str, dict[str, str]]:
    """Return the preferred encoder of this PyAV build, with its options."""
    for name, options in _ENCODERS:
        if name in av.codecs_available:
            return name, options
    raise DatasetError("PyAV has neither libsvtav1 nor libx264; install the wheel: pip install --upgrade av")


def titled(frame: Array, text: str) -> Array:
    """Put a strip with a text above a frame (H, W, 3) uint8; characters beyond ASCII show as "?".

    The strip is above the frame, since the controls of a video player cover the lower edge of a video.
    """
    if not text:
        return frame
    width = frame.shape[1]
    (wide, high), _ = cv2.getTextSize(text, FONT, 1.0, 1)
    scale = min(width / 640, 0.94 * width / wide)
    strip = np.full((2 * round(width / 32), width, 3), PAPER, np.uint8)
    corner = round((width - scale * wide) / 2), round((len(strip) + scale * high) / 2)
    cv2.putText(strip, text, corner, FONT, scale, INK, 1, cv2.LINE_AA)
    return np.concatenate([strip, frame])


def quoted(episodes: Iterable[Sequence[str]]) -> str:
    """Quote each episode's instructions, in order, for a caption; episodes with equal instructions appear once."""
    captions = [", then ".join(f"\u201c{text}\u201d" for text in texts) for texts in episodes]
    return "; ".join(dict.fromkeys(filter(None, captions)))
