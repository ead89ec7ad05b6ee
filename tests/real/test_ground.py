"""Policies that scan the ground, which no robot measures, and twins of tasks on uneven ground."""

from typing import Any

import pytest

from real.episode.rig import Rig
from real.twin.quadruped import QuadrupedTwin
from robot_rl.util.errors import ConfigError
from sim.rendering.gl import mujoco
from sim.tasks import tasks


def test_a_policy_that_scans_the_ground_is_refused_on_a_robot() -> None:
    node: Any = None  # refused before anything is opened
    with pytest.raises(ConfigError, match="'go2-rough-scan' observe height_scan, which no driver measures; take"):
        Rig(node, tasks.get("go2-rough-scan").interface, (), None, True, None)


def test_the_ground_of_a_twin_is_level(nodes: Any) -> None:
    twin = QuadrupedTwin(nodes("twin", namespace="/level"), tasks.get("go2-rough"), cameras=False)
    assert twin.engine.model.geom("scene/table").type[0] == mujoco.mjtGeom.mjGEOM_PLANE
