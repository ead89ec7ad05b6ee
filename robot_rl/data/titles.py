"""Words above the frames of a video: what the robot was asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import numpy as np

INK, PAPER = (240, 240, 240), (20, 22, 26)
FONT = cv2.FONT_HERSHEY_SIMPLEX


def titled(frame: np.ndarray, text: str) -> np.ndarray:
    """Return a frame (H, W, 3) uint8 under a strip that holds the text; letters beyond ASCII show as "?".

    The strip is above, since a player's controls lie over the lower edge.
    """
    if not text:
        return frame
    width = frame.shape[1]
    (wide, high), _ = cv2.getTextSize(text, FONT, 1.0, 1)
    scale = min(width / 640, 0.94 * width / wide)
    strip = np.full((2 * round(width / 32), width, 3), PAPER, np.uint8)
    where = round((width - scale * wide) / 2), round((len(strip) + scale * high) / 2)
    cv2.putText(strip, text, where, FONT, scale, INK, 1, cv2.LINE_AA)
    return np.concatenate([strip, frame])


def quoted(episodes: Iterable[Sequence[str]]) -> str:
    """Return what each episode was asked, in order, for a caption; equal episodes are named once."""
    said = [", then ".join(f"\u201c{text}\u201d" for text in asked) for asked in episodes]
    return "; ".join(dict.fromkeys(filter(None, said)))
