"""What the stages of a demonstration are made of; each is a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Stage = tuple[str, list[str]]
"""Name, and the arguments of `robot-rl`."""


@dataclass(frozen=True)
class Options:
    """Options of a demonstration."""

    folder: Path
    seed: int
    quick: bool
    """Run small stages."""
    robot: bool
    """Include the stages on the twin."""


@dataclass(frozen=True)
class Journey:
    """A demonstration."""

    stages: Callable[[Options], list[Stage]]
    check: Callable[[Path], bool]
    """Return whether a quick demonstration learned."""


def evaluation(what: str, label: str, episodes: int, film: int, folder: Path, *more: str, name: str = "") -> list[str]:
    """Return the command that evaluates a policy; its result and video, of `film` episodes, go to the folder."""
    suffix = f"_{name}" if name else ""
    video = ["--video", str(folder / "videos" / f"simulation{suffix}.mp4"), "--video-episodes", str(film)]
    out = ["--out", str(folder / f"evaluation{suffix}.json")]
    return ["evaluate", what, "--label", label, "--episodes", str(episodes), *out, *(video if film else []), *more]


def success(file: Path) -> float:
    """Return the success rate of an evaluation."""
    return float(json.loads(file.read_text())["success"])
