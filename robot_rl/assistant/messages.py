"""Messages of a conversation, as chat completions take them: text and pictures."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np

Role = Literal["system", "user", "assistant"]
Message = dict[str, Any]
"""{"role": ..., "content": text, or a list of parts}"""


def message(role: Role, text: str, *pictures: np.ndarray) -> Message:
    """Return a message of a text and any pictures, uint8 (height, width, 3) RGB."""
    if not pictures:
        return {"role": role, "content": text}
    parts = [{"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures]
    return {"role": role, "content": [{"type": "text", "text": text}, *parts]}


def data_url(picture: np.ndarray) -> str:
    """Return a picture, uint8 (height, width, 3) RGB, as a PNG in a data URL; ValueError for another array."""
    import cv2

    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise ValueError(f"a picture is uint8 (height, width, 3), not {picture.dtype} {picture.shape}")
    done, png = cv2.imencode(".png", picture[:, :, ::-1])
    if not done:
        raise ValueError(f"a picture of shape {picture.shape} cannot be written as PNG")
    return "data:image/png;base64," + base64.b64encode(png.tobytes()).decode()
