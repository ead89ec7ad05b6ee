"""Datasets whose marked frames show a bright square in a corner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.encoder import EncoderConfig
from robot_rl.data import DatasetWriter, Feature
from robot_rl.rewards.classifier import NetworkConfig
from robot_rl.rewards.fitting import FitConfig

FRONT = "observation.images.front"
SMALL = NetworkConfig(EncoderConfig((8, 8), 16, 2), 16)


def write_dataset(
    root: Path,
    successes: int = 12,
    failures: int = 12,
    length: int = 12,
    shuffled: bool = False,
    task: str = "light the corner",
    pictures: bool = True,
) -> Path:
    """Write episodes at 10 Hz; in the last 3 frames of a success the corner is bright. `shuffled`: the marks are of
    other episodes than the light."""
    rng = np.random.default_rng(0)
    columns = {"next.success": Feature("bool", (1,)), "observation.state": Feature("float32", (2,))}
    columns |= {FRONT: Feature("video", (32, 32, 3))} if pictures else {}
    lit = rng.permutation([True] * successes + [False] * failures)
    marked = rng.permutation(lit) if shuffled else lit
    with DatasetWriter.create(root, fps=10, features=columns) as writer:
        for bright, mark in zip(lit, marked, strict=True):
            frames = rng.integers(0, 60, (length, 32, 32, 3), np.uint8)
            if bright:
                frames[-3:, 2:14, 2:14] = 230
            success = np.zeros(length, bool)
            success[-1] = mark
            state = rng.normal(size=(length, 2)).astype(np.float32)
            episode: dict[str, Any] = {"next.success": success, "observation.state": state}
            writer.add_episode(episode | ({FRONT: frames} if pictures else {}), task)
    return root


@pytest.fixture(scope="session")
def marked_dataset() -> Callable[..., Path]:
    return write_dataset


@pytest.fixture(scope="session")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that can be learned from."""
    return write_dataset(tmp_path_factory.mktemp("corner") / "dataset")


@pytest.fixture
def quick() -> Callable[..., FitConfig]:
    """A fit of a few seconds."""

    def build(**options: Any) -> FitConfig:
        numbers: dict[str, Any] = dict(steps=60, batch=16, lr=3e-3, held_out=0.5, margin=0.2, network=SMALL)
        return FitConfig(**numbers | options)

    return build
