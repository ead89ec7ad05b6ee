"""Physics steps, command periods and control periods must divide; scenes and cameras are validated."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.scenes import Camera, Scene, time_grid
from sim.tasks import tasks


@pytest.mark.parametrize(("timestep", "command_rate", "rate", "grid"), [
    (0.01, 500.0, 50.0, (0.01, 2)),  # go2-velocity: physics steps are longer than command periods
    (0.005, 200.0, 20.0, (0.005, 10)),  # panda-lift
    (0.002, 500.0, 20.0, (0.002, 25)),  # ur5e-reach
    (0.001, 500.0, 50.0, (0.002, 10)),
    (0.02, 500.0, 50.0, (0.02, 1)),
])  # fmt: skip
def test_valid_periods(timestep: float, command_rate: float, rate: float, grid: tuple[float, int]) -> None:
    assert time_grid(timestep, command_rate, rate) == grid


@pytest.mark.parametrize(("timestep", "command_rate", "rate", "message", "unit"), [
    (0.007, 500.0, 50.0, "50 Hz is 0.02 s, which is 2.857 physics steps of 0.007 s", "timestep"),
    (0.01, 500.0, 60.0, "60 Hz is 0.0166667 s, which is 1.667 physics steps of 0.01 s", "timestep"),
    (0.00201, 500.0, 60.0, "which is 8.292 physics steps", "timestep"),
    (0.1, 500.0, 50.0, "which is 0.2 physics steps of 0.1 s", "timestep"),
    (0.0015, 500.0, 50.0, "a command every 0.002 s, which is 1.333 physics steps of 0.0015 s", "timestep"),
    (0.005, 200.0, 60.0, "which is 3.333 commands of 0.005 s", "rate"),
])  # fmt: skip
def test_invalid_periods_raise_with_a_valid_one(
    timestep: float, command_rate: float, rate: float, message: str, unit: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        time_grid(timestep, command_rate, rate)
    remedy = re.search(rf"a {unit} of ([0-9.e-]+) (s|Hz) would do", str(error.value))
    assert remedy is not None
    would = float(remedy[1])
    time_grid(*((would, command_rate, rate) if unit == "timestep" else (timestep, command_rate, would)))


def test_env_raises_before_it_creates_an_engine() -> None:
    walk = tasks.get("go2-velocity")
    with pytest.raises(ConfigError, match="50 Hz"):
        TaskEnv(replace(walk, scene=replace(walk.scene, timestep=0.007)), mjcf="nowhere.xml")


@pytest.mark.parametrize(("changes", "message"), [
    ({"timestep": math.nan}, "timestep nan s is not a positive time"),
    ({"iterations": 0}, "scene: iterations is 0; it must be "),
    ({"cone": "eliptic"}, "unknown cone 'eliptic'; did you mean elliptic"),
    ({"fovy": -3}, "camera 'front': fovy is -3; it must be "),
    ({"position": (0.0, math.nan, 1.0)}, "camera 'front': position is nan; it must be "),
    ({"target": (1.0, 0.0, 0.0)}, "camera 'front': it looks straight up or down"),
])  # fmt: skip
def test_invalid_scene_or_camera_raises(changes: dict[str, Any], message: str) -> None:
    camera = {"name": "front", "position": (1.0, 0.0, 1.0), "target": (0.0, 0.0, 0.0)}
    of_camera = {"fovy", "position", "target"} & set(changes)
    with pytest.raises(ValueError, match=message):
        Camera(**camera | changes) if of_camera else Scene(**changes)  # type: ignore[arg-type]
