"""Split the observations of Gymnasium environments into numbers and pictures.

A picture is uint8 from 0 to 255 of shape (height, width), or with 1 or 3 channels on the first or last axis. All other
parts are numbers, in the order of the space. This module imports only gymnasium and numpy, like gym_worker.py.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

EXACT, LARGEST = 2**24, float(np.finfo(np.float32).max)
"""Largest integer up to which float32 holds every integer, and largest number of float32."""


class Unsuitable(Exception):  # noqa: N818 - only its text is sent between processes
    """The environment is not supported."""


class Reader:
    """Reads observations of nested Dict and Tuple spaces: one vector of all numbers, and pictures by name."""

    def __init__(self, space: Any):
        import gymnasium.spaces as kinds

        self.numbers: list[tuple[Any, Any]] = []
        self.views: dict[str, Any] = {}
        self.sizes: dict[str, list[int]] = {}  # height and width of every picture
        for keys, part in _parts(space):
            name = ".".join(map(str, keys))
            what = f"observation {name!r}" if name else "the observation"
            if size := _picture_size(part):
                self.views[name.replace(".", "_") or "pixels"] = keys
                self.sizes[name.replace(".", "_") or "pixels"] = size
            elif not isinstance(part, kinds.Box | kinds.Discrete | kinds.MultiBinary | kinds.MultiDiscrete):
                raise Unsuitable(
                    f"{what} is {part}; Box, Discrete, MultiBinary and MultiDiscrete, and Dict and Tuple of them, can "
                    "be read"
                )
            elif len(part.shape or ()) > 2:
                raise Unsuitable(
                    f"{what} is {part}, which is no vector and no picture, (height, width, 3) uint8 from 0 to 255; "
                    "convert it with gymnasium.wrappers.TransformObservation"
                )
            else:
                self.numbers.append((keys, part))
        whole = [isinstance(part, kinds.Box) and part.dtype.kind in "iu" for _, part in self.numbers]
        sizes = [kinds.flatdim(part) for _, part in self.numbers]
        self.largest = [EXACT if w else LARGEST for w, size in zip(whole, sizes, strict=True) for _ in range(size)]
        """Largest magnitude of every number for an exact float32."""

    def numbers_of(self, observation: Any) -> np.ndarray:
        """Return the numbers (D,) float64; a Discrete value of n is one-hot, n numbers."""
        from gymnasium.spaces import Box, flatten

        parts = [np.zeros(0)]
        for keys, space in self.numbers:
            part = reduce(operator.getitem, keys, observation)
            parts.append(np.asarray(part if isinstance(space, Box) else flatten(space, part), np.float64).ravel())
        return np.concatenate(parts)

    def pictures_of(self, observation: Any) -> dict[str, np.ndarray]:
        """Return the pictures (height, width, 3) uint8; grey pictures have three equal channels."""
        pictures = {}
        for name, keys in self.views.items():
            pixels = np.atleast_3d(reduce(operator.getitem, keys, observation))
            pixels = pixels if pixels.shape[2] in (1, 3) else np.moveaxis(pixels, 0, 2)
            pictures[name] = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        return pictures


def _parts(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of nested spaces with their keys."""
    from gymnasium.spaces import Dict, Tuple

    if not isinstance(space, Dict | Tuple):
        yield keys, space
        return
    for key, part in space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces):
        yield from _parts(part, (*keys, key))


def _picture_size(space: Any) -> list[int] | None:
    """Return the height and width of a space of pictures; None for other spaces."""
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or space.dtype != np.uint8 or (space.low > 0).any() or (space.high < 255).any():
        return None
    shape = space.shape
    if len(shape) not in (2, 3):
        return None
    if len(shape) == 2 or shape[2] in (1, 3):
        return list(shape[:2])
    return list(shape[1:]) if shape[0] in (1, 3) else None
