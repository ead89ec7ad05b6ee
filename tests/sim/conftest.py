"""Modules with Gymnasium environments."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import pytest


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module to a folder where this process and its child processes find it; forget it after the test."""
    names, registered = [], dict(gym.registry)

    def write(name: str, text: str) -> None:
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("ROBOT_RL_IMPORTS", name)

    yield write
    for name in names:
        sys.modules.pop(name, None)
    gym.registry.clear()
    gym.registry.update(registered)
