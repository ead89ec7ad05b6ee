"""Datasets that another program recorded train as ours do."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robot_rl.data import DatasetWriter, EpisodeData, Feature
from robot_rl.data.recording import load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.spec import numbered

INFO = EnvInfo("apart", numbered("state", [-1.0] * 3, [1.0] * 3), numbered("action", [-2.0] * 2, [2.0] * 2), 10.0)


def test_without_our_columns_every_episode_succeeds_at_its_end(tmp_path: Path) -> None:
    features = {"observation.state": Feature("float32", (3,)), "action": Feature("float32", (2,))}
    with DatasetWriter.create(tmp_path / "theirs", fps=10, features=features, robot_type="so100") as writer:
        for length in (4, 6):
            columns = {
                "observation.state": np.zeros((length, 3), np.float32),
                "action": np.ones((length, 2), np.float32),
            }
            writer.add_episodes([EpisodeData(columns, "put the cup down")])
    found = load_episodes(tmp_path / "theirs", INFO)
    assert [each["reward"].tolist() for each in found] == [[0, 0, 0, 1], [0, 0, 0, 0, 0, 1]]
    assert [each["terminated"].tolist() for each in found] == [[r > 0 for r in each["reward"]] for each in found]
    assert all(not each["intervention"].any() and (each["action"] == 0.5).all() for each in found)
