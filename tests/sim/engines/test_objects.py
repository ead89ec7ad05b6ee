"""Objects of every shape: resting poses, masses and inertias, and contacts with a tray."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from robot_rl.robots import robots
from sim.engines.base import Engine
from sim.engines.genesis_parameters import inertia_at
from sim.engines.model import compile_model
from sim.engines.mujoco import MujocoEngine
from sim.scenes import SCENE, TRAY_HEIGHT, Camera, Object, Scene, Shape

PANDA = robots.get("panda")
SHAPES = get_args(Shape)
CAMERAS = (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),)


def scene(*shapes: str) -> Scene:
    return Scene(tuple(Object(s, 0.06 if s == "tray" else 0.02, 0.1, shape=s) for s in shapes), CAMERAS)  # type: ignore[arg-type]


@pytest.fixture
def engine() -> Iterator[MujocoEngine]:
    engine = MujocoEngine(PANDA, scene(*SHAPES), 2, threads=1)
    yield engine
    engine.close()


def settle(engine: Engine, objects: dict[str, np.ndarray], steps: int = 40) -> None:
    """Reset all environments with objects at poses (7,), and simulate until they rest."""
    ids, home = np.arange(engine.num_envs), np.tile(PANDA.home, (engine.num_envs, 1))
    engine.reset(ids, home, {name: np.tile(pose, (engine.num_envs, 1)) for name, pose in objects.items()})
    joints = torch.from_numpy(home).float()[:, None].expand(-1, 5, -1)
    for _ in range(steps):
        engine.step(joints, torch.full((engine.num_envs, 5, 1), 0.08))


def pose(x: float, y: float, z: float) -> np.ndarray:
    return np.array([x, y, z, 1.0, 0, 0, 0])


def test_objects_of_all_shapes_rest_where_they_start(engine: MujocoEngine) -> None:
    at = {o.name: pose(0.4 + 0.15 * (k % 2), -0.2 + 0.1 * k, o.rest) for k, o in enumerate(engine.scene.objects)}
    settle(engine, at)
    for name, start in at.items():
        assert np.abs(engine.object_pose(name).numpy()[:, :3] - start[:3]).max() < 1e-3, name


@pytest.mark.parametrize("shape", ["box", "ball", "cylinder"])
def test_changed_size_and_mass_give_the_compiled_inertia(engine: MujocoEngine, shape: str) -> None:
    ids = np.array([1])
    engine.parameters[f"{shape}.size"](ids, np.array([0.03]))
    engine.parameters[f"{shape}.mass"](ids, np.array([0.25]))
    thing = Object(shape, 0.03, 0.25, shape=shape)  # type: ignore[arg-type]
    model = compile_model(PANDA, Scene((thing,), CAMERAS))
    body, geom, mine = model.body(SCENE + shape).id, model.geom(SCENE + shape).id, engine.model.body(SCENE + shape).id
    np.testing.assert_allclose(engine.batch.expand("body_inertia")[1, mine], model.body_inertia[body], rtol=1e-9)
    np.testing.assert_allclose(engine.batch.expand("body_mass")[1, mine], 0.25)
    bound = engine.batch.expand("geom_rbound")[1, engine.model.geom(SCENE + shape).id]
    np.testing.assert_allclose(bound, model.geom_rbound[geom])
    nominal = engine.model.body_inertia[mine]
    np.testing.assert_allclose(engine.batch.expand("body_inertia")[0, mine], nominal)


@pytest.mark.parametrize("shape", SHAPES)
def test_inertias_for_genesis_are_the_compiled_ones_at_another_mass(engine: MujocoEngine, shape: str) -> None:
    size = 0.06 if shape == "tray" else 0.02
    model = compile_model(PANDA, Scene((Object(shape, size, 0.25, shape=shape),), CAMERAS))  # type: ignore[arg-type]
    inertia = inertia_at(engine.model, shape, np.array([[0.1], [0.25]]))
    assert inertia.shape == (2, 1, 3, 3)
    for row, theirs in zip(inertia[:, 0], (engine.model, model), strict=True):
        np.testing.assert_allclose(row, np.diag(theirs.body(SCENE + shape).inertia), rtol=1e-9)


def test_a_tray_holds_objects_that_fall_into_it(engine: MujocoEngine) -> None:
    tray = pose(0.5, 0.0, TRAY_HEIGHT / 2)
    for name in ("box", "ball", "cylinder"):
        away = {n: pose(0.45, y, 0.02) for n, y in (("box", 0.25), ("ball", -0.25), ("cylinder", -0.35)) if n != name}
        settle(engine, {"tray": tray, name: pose(0.51, 0.01, 0.08), **away}, 60)
        x, y, z = engine.object_pose(name).numpy()[0, :3]
        assert abs(x - 0.5) < 0.045 and abs(y) < 0.045 and 0.02 < z < 0.03, name
    weight = sum(engine.model.body_mass[engine.model.body("scene/tray").id :][:1])
    assert weight == pytest.approx(0.1)


def test_a_tray_has_no_parameters_and_invalid_scenes_are_refused() -> None:
    names = MujocoEngine.can_randomize(PANDA, scene(*SHAPES))
    assert "ball.size" in names and "cylinder.mass" in names and not {n for n in names if n.startswith("tray.")}
    with pytest.raises(ValueError, match="object 'ball': unknown shape 'bal'; did you mean ball"):
        replace(Object("ball", 0.02, 0.1), shape="bal")  # type: ignore[arg-type]
    for duplicates in ({"objects": (Object("cube", 0.02, 0.1),) * 2}, {"cameras": CAMERAS * 2}):
        with pytest.raises(ValueError, match="are named '(cube|front)'"):
            Scene(**duplicates)  # type: ignore[arg-type]
