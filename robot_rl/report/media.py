"""Videos inside the page: mp4 and poster as base64, so that the report is one file for ever."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from robot_rl.report.folders import RunFolder
from robot_rl.report.markup import Html, tag

LARGEST = 32 * 2**20
"""A longer video file is named instead of embedded, bytes; phones give up on pages beyond some 100 MB."""


def videos_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return the videos of all runs side by side, with their captions."""
    figures = [_figure(run, path) for run in runs for path in run.videos]
    shown = [figure for figure in figures if figure is not None]
    return tag("div", shown, class_="videos") if shown else None


def _figure(run: RunFolder, path: Path) -> Html | None:
    caption = run.captions.get(path.name)
    said = caption if isinstance(caption, str) and caption.strip() else path.stem.replace("_", " ").replace("-", " ")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            run.notes.append(f"{path} has {size / 2**20:.0f} MiB, over {LARGEST // 2**20}, and was left out")
            return None
        data = path.read_bytes()
    except OSError:
        run.notes.append(f"{path} cannot be read and was left out")
        return None
    still = poster(data)
    if still is None:
        run.notes.append(f"{path} cannot be decoded as a video and was left out")
        return None
    image, width, height = still
    player = tag(
        "video", "This browser cannot play the video.", src=f"data:video/mp4;base64,{_base64(data)}",
        poster=f"data:image/jpeg;base64,{_base64(image)}", width=width, height=height, controls=True, loop=True,
        muted=True, playsinline=True, preload="metadata", aria_label=said,
    )  # fmt: skip
    # paper shows no player: print the still in its place
    paper = tag("img", src=f"data:image/jpeg;base64,{_base64(image)}", alt=f"Still of: {said}", class_="still")
    return tag("figure", player, paper, tag("figcaption", said, " ", tag("span", run.name, class_="small")))


def poster(data: bytes) -> tuple[bytes, int, int] | None:
    """Return a frame from the middle of a video as JPEG, with width and height; None if it cannot be decoded."""
    import io

    import av
    import cv2

    try:
        with av.open(io.BytesIO(data), "r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            if stream.duration:
                container.seek(stream.duration // 2, stream=stream)
            frame = next(container.decode(stream))
            image = frame.to_ndarray(format="bgr24")
    except (
        OSError,
        ValueError,
        IndexError,
        StopIteration,
        MemoryError,
    ):  # av.FFmpegError is an OSError or ValueError
        return None
    done, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 85])
    return (encoded.tobytes(), image.shape[1], image.shape[0]) if done else None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
