"""Tell whether episodes are those that were there before: the content of what is learned from, not names or files."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from robot_rl.data.dataset import Dataset
from robot_rl.data.lerobot import file_path
from robot_rl.data.recording import READ
from robot_rl.data.video import packets


def numbers_digest(data: Dataset) -> str:
    """Return the sha256 of the episodes' instructions and of the columns that learners read."""
    found = hashlib.sha256(json.dumps([[e.length, e.tasks] for e in data.episodes]).encode())
    for key, values in data.columns([key for key in READ if key in data.features]).items():
        found.update(key.encode() + values.numpy().tobytes())
    return found.hexdigest()


def pictures_digest(data: Dataset, cameras: list[str]) -> str:
    """Return the sha256 of the episodes' encoded pictures, which stays when others join them in a file."""
    found = hashlib.sha256()
    for key in cameras:
        stored = data.view.stored.get(key, key)
        spans: dict[str, list[tuple[int, int]]] = {}
        for episode in data.episodes:
            if not data.features[key].is_video:
                rows = np.arange(episode.start, episode.start + episode.length)
                for picture in data.encoded(stored, episode.data_file, rows):
                    found.update(picture or b"")
                continue
            file, begin = episode.videos[stored]
            first = round(begin * data.fps)
            path = file_path(data.info["video_path"], file, stored)
            spans.setdefault(path, []).append((first, first + episode.length))
        for path, wanted in spans.items():
            for packet in packets(data.root / path, wanted, data.fps):
                found.update(packet)
    return found.hexdigest()
