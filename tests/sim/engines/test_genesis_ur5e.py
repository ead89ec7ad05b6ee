"""A UR5e in Genesis against MuJoCo: another robot's own model file, bare flange, 2 ms steps.

Building a scene type compiles for a minute the first time on a machine.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.robots import robots
from sim.engines.model import MAX_ACTION_DELAY
from sim.engines.mujoco import MujocoEngine
from sim.tasks import tasks

needs_genesis = pytest.mark.skipif(not find_spec("genesis"), reason="Genesis, whose import takes long, is not there")
pytestmark = [pytest.mark.timeout(600), needs_genesis]

UR5E, SCENE = robots.get("ur5e"), tasks.get("ur5e-reach").scene
HOME, DT, J = torch.tensor(UR5E.home), SCENE.timestep, len(UR5E.joints)
VALUES = {
    "robot.action_delay": [DT, 0.02, MAX_ACTION_DELAY, DT, DT, DT],
    "robot.stiffness_scale": [1.0, 1.0, 1.0, 0.75, 1.3, 1.0],
    "robot.damping_scale": [1.0, 1.0, 1.0, 1.3, 0.75, 1.0],
    "robot.joint_friction": [0.0, 0.0, 0.0, 0.0, 0.0, 2.0],
}
"""Of one environment each: the nominal robot first, and the corners of what the task randomizes."""
N = len(VALUES["robot.action_delay"])


@pytest.fixture(scope="module")
def paths() -> dict[str, torch.Tensor]:
    """Joint positions (T, N, J) over a second of the same smooth targets in free space, every 10 ms, by engine."""
    from sim.engines.genesis import GenesisEngine

    time = DT * torch.arange(1, round(1 / DT) + 1)[:, None]
    size = torch.tensor([0.5, -0.3, 0.4, 0.5, -0.5, 0.8])
    rate = torch.tensor([0.5, 0.7, 0.6, 0.9, 1.0, 1.1])
    way = HOME + size * (1 - torch.cos(2 * torch.pi * rate * time)) / 2
    found = {}
    engines: dict[str, Any] = {"mujoco": MujocoEngine(UR5E, SCENE, N, threads=1)}
    engines["genesis"] = GenesisEngine(UR5E, SCENE, N, device="cpu")
    for name, engine in engines.items():
        for parameter, values in VALUES.items():
            engine.parameters[parameter](np.arange(N), np.array(values))
        target = np.tile([0.5, 0.1, 0.3, 1.0, 0, 0, 0], (N, 1))
        engine.reset(np.arange(N), np.tile(UR5E.home, (N, 1)), {"target": target})
        rows = []
        for part in way.split(5):
            engine.step(part.expand(N, -1, -1), torch.zeros(N, len(part), 1))
            rows.append(engine.joint_state()[0])
        found[name] = torch.stack(rows)
        engine.close()
    return found


def test_joints_move_as_in_mujoco(paths: dict[str, torch.Tensor]) -> None:
    ours, theirs = paths["genesis"], paths["mujoco"]
    rmse = (ours - theirs).square().mean((0, 2)).sqrt()
    assert rmse.max() < 1e-5, rmse  # rad; the project's threshold is 1e-3
    travelled = theirs.amax((0, 1)) - theirs.amin((0, 1))
    assert (travelled > 0.2).all(), travelled
    effect = (theirs[:, 1:] - theirs[:, :1]).square().mean((0, 2)).sqrt()
    assert (effect > 20 * rmse.max()).all(), "each parameter moves the joints by far more than the engines differ"
