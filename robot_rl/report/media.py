"""Embedded videos: mp4 and poster as base64, which keeps the report in one file."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_rl.report.blocks import Block
from robot_rl.report.folders import RunFolder

LARGEST = 32 * 2**20
"""Size limit of an embedded video, bytes; larger videos get a note. Phones fail on pages of about 100 MB."""


def videos_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return the videos of all runs with captions; add a note to the run for each video left out."""
    videos: list[dict[str, Any]] = []
    for run in runs:
        for path in run.videos:
            caption = run.captions.get(path.name)
            shown = caption if isinstance(caption, str) and caption.strip() else path.stem.replace("_", " ")
            try:
                videos.append({"run": run.name, "caption": shown, **_embedded(path)})
            except ValueError as error:
                run.notes.append(f"{path} {error} and was left out")
    return [Block("videos", {"videos": videos})] if videos else []


def _embedded(path: Path) -> dict[str, Any]:
    """Return a video and its poster as base64, with width and height. Raises ValueError with the reason on failure."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"has {size / 2**20:.0f} MiB, over {LARGEST // 2**20},")
        data = path.read_bytes()
    except OSError:
        raise ValueError("cannot be read") from None
    image, width, height = poster(data)
    return {"mp4": base64_text(data), "jpeg": base64_text(image), "width": width, "height": height}


def poster(data: bytes) -> tuple[bytes, int, int]:
    """Return a frame from the middle of a video as JPEG, with width and height. Raises ValueError without a frame."""
    import av
    import cv2

    try:
        with av.open(io.BytesIO(data), "r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            if stream.duration:
                container.seek(stream.duration // 2, stream=stream)
            image = next(container.decode(stream)).to_ndarray(format="bgr24")
    except (OSError, ValueError, IndexError, StopIteration, MemoryError):  # av.FFmpegError is an OSError or ValueError
        raise ValueError("cannot be decoded as a video") from None
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes(), image.shape[1], image.shape[0]


def base64_text(data: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")
