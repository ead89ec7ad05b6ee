"""Small dataset with all kinds of features, and its episodes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data import DatasetWriter, EpisodeData, Feature

Episode = dict[str, Any]
CAMERA = "observation.images.front"


def make_features(video: bool = True) -> dict[str, Feature]:
    features = {
        "observation.state": Feature("float32", (3,), names=["x", "y", "z"]),
        "action": Feature("float32", (2,), names=["a", "b"]),
        "next.reward": Feature("float32", (1,)),
        "next.done": Feature("bool", (1,)),
    }
    if video:
        features[CAMERA] = Feature("video", (32, 48, 3), names=["height", "width", "channels"])
    return features


def make_episode(index: int, length: int = 4, video: bool = True) -> Episode:
    rng = np.random.default_rng(index)
    columns: Episode = {
        "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
        "action": rng.uniform(-1, 1, size=(length, 2)).astype(np.float32),
        "next.reward": np.arange(length, dtype=np.float32) + 100 * index,
        "next.done": np.arange(length) == length - 1,
    }
    if video:
        grey = (37 * index + 20 * np.arange(length)) % 256  # one level per frame, recognizable after lossy encoding
        columns[CAMERA] = np.broadcast_to(grey[:, None, None, None], (length, 32, 48, 3)).astype(np.uint8)
    return columns


@pytest.fixture
def features() -> Callable[..., dict[str, Feature]]:
    return make_features


@pytest.fixture
def episode() -> Callable[..., Episode]:
    return make_episode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lift"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "lift"
    with DatasetWriter.create(root, fps=10, features=make_features(), robot_type="panda") as writer:
        writer.add_episode(make_episode(0), "lift", {"randomization/cube_mass": 0.05})
        push = EpisodeData(make_episode(2, 3), "push", {"operator": "eve"})
        writer.add_episodes([EpisodeData(make_episode(1, 6), "lift"), push])
    return root


@pytest.fixture
def recorded(template: Path, root: Path) -> Path:
    """Dataset of three episodes in two files: a copy for each test."""
    return Path(shutil.copytree(template, root))
