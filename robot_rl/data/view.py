"""Options for reading a dataset: renamed columns, only the first episodes, resized pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np

from robot_rl.data.lerobot import Feature
from robot_rl.util.errors import ConfigError, nearest

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class DatasetView:
    """Options for reading a dataset; the defaults change nothing."""

    rename: tuple[str, ...] = ()
    """Renames: OLD=NEW renames a column, COLUMN/OLD=NEW renames one component of a column."""
    episodes: int | None = None
    """Number of episodes to read, from the first one on; None: all."""
    image_size: int = 0
    """Height and width of all pictures, pixels; 0: stored size."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], episodes: int | None = None) -> DatasetView:
        """Return the view that a run's settings describe, on the first `episodes` episodes."""
        return cls(tuple(settings.get("rename", ())), episodes, settings.get("image_size", 0))

    @classmethod
    def inherited(cls, settings: Mapping[str, Any], features: Mapping[str, Feature]) -> DatasetView:
        """Return the view of a run's settings for another dataset; renames of columns that it lacks are left out."""
        view = cls.of(settings)
        named = {key: [key, *(f"{key}/{name}" for name in feature.names or ())] for key, feature in features.items()}
        known = {name for names in named.values() for name in names}
        return replace(view, rename=tuple(pair for pair in view.rename if pair.partition("=")[0] in known))

    @cached_property
    def stored(self) -> dict[str, str]:
        """Stored name of each renamed column, by its new name."""
        return {new: old for old, new in self._pairs if "/" not in old}

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        pairs = []
        for text in self.rename:
            old, _, new = text.partition("=")
            if not old or not new or "=" in new:
                raise ConfigError(f"--rename {text}: write OLD=NEW, observation.images.wrist=observation.images.hand")
            pairs.append((old, new))
        for names in ([old for old, _ in pairs], [new for old, new in pairs if "/" not in old]):
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ConfigError(f"--rename names {twice} twice")
        return pairs

    def features(self, features: Mapping[str, Feature]) -> dict[str, Feature]:
        """Apply the view to a dataset's features; ConfigError for a missing old name or an existing new name."""
        viewed = dict(features)
        for old, new in self._pairs:
            column, _, component = old.partition("/")
            if column not in features:
                raise ConfigError(f"--rename {old}={new}: no column {column!r}; {nearest(column, features)}")
            if component:
                viewed[column] = replace(viewed[column], names=_named(viewed[column], component, new))
        renamed = {old: new for new, old in self.stored.items()}
        if taken := [new for new in self.stored if new in features and new not in renamed]:
            raise ConfigError(f"--rename {self.stored[taken[0]]}={taken[0]}: there is a column {taken[0]!r} already")
        size = self.image_size
        for key, feature in viewed.items():
            if feature.is_camera and size:
                viewed[key] = replace(feature, shape=(size, size, feature.shape[2]))
        return {renamed.get(key, key): feature for key, feature in viewed.items()}


def _named(feature: Feature, old: str, new: str) -> list[str]:
    """Return the names of a feature's components with name `old` replaced by `new`."""
    names = list(feature.names or [])
    if old not in names or new in names:
        reason = f"there is {new!r} already" if old in names else nearest(old, names)
        raise ConfigError(f"--rename: number {old!r} cannot be called {new!r}; {reason}")
    return [new if name == old else name for name in names]


def resized(frames: Array, size: int) -> Array:
    """Resize frames (n, H, W, 3) uint8 to (n, size, size, 3) by pixel averaging; the aspect ratio may change."""
    if frames.shape[1:3] == (size, size):
        return frames
    out = np.empty((len(frames), size, size, frames.shape[3]), np.uint8)
    for k, frame in enumerate(frames):
        cv2.resize(frame, (size, size), dst=out[k], interpolation=cv2.INTER_AREA)
    return out
