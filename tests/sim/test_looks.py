"""Visual randomization: a function of the episode, without an effect on physics."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.pipeline import Picture
from robot_rl.robots import robots
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.parameters import parameters
from sim.randomization import Randomize
from sim.rendering.looks import Appearance, VisualRandomization, add_camera_noise
from sim.tasks import tasks

Build = Callable[..., Any]
KEY, N = "observation.images.front", 4


@pytest.fixture(scope="module")
def engine() -> Any:
    made = MujocoEngine(TaskEnv("panda-lift").robot, tasks.get("panda-lift-cameras").scene, 1, threads=1)
    yield made
    made.close()


def looking(task: Build, *looks: Randomize) -> Any:
    shipped = task(pictures=(Picture("front", 48, 64),), horizon=5)
    return replace(shipped, randomization=(*shipped.randomization, *looks))


@pytest.mark.parametrize("name", sorted(parameters(robots.get("panda"), tasks.get("panda-lift-cameras").scene, "look")))
def test_every_visual_parameter_changes_one_picture_only(engine: Any, name: str) -> None:
    camera = name.split(".")[1] if name.startswith("camera.") else "front"
    ordinary = engine.render(0, camera, 48, 64)
    worn = {"picture.jpeg_loss": 60.0, "picture.blur": 1.0, "table.texture": 0.9, "picture.noise": 0.1}.get(name, 0.4)
    engine.look = lambda index: Appearance({name: worn}, (1, 2))
    other = engine.render(0, camera, 48, 64)
    engine.look = None
    assert np.array_equal(engine.render(0, camera, 48, 64), ordinary)
    assert np.abs(other.astype(int) - ordinary).mean() > 0.02, name
    engine.look = lambda index: Appearance({"cube.mass": 3.0}, (1, 2))
    assert np.array_equal(engine.render(0, camera, 48, 64), ordinary), "physical parameters do not change pictures"
    engine.look = None


def test_looks_depend_only_on_the_episode_and_keep_the_state(task: Build, same: Callable[..., bool]) -> None:
    looks = (Randomize("table.red", 0.0, 1.0), Randomize("picture.noise", 0.05, 0.1))
    many, one = TaskEnv(looking(task, *looks), N, threads=1), TaskEnv(looking(task, *looks), 1, threads=1)
    plain = TaskEnv(looking(task, *looks), N, threads=1, without=("table.red", "picture.noise"))
    seen, single, dull = many.reset(seed=5)[0], one.reset(seed=7)[0], plain.reset(seed=5)[0]
    for _ in range(7):  # across the end of an episode
        assert torch.equal(seen[KEY][2], single[KEY][0])
        assert not torch.equal(seen[KEY], dull[KEY])
        assert same(seen["observation.state"], dull["observation.state"])
        seen, single, dull = (env.step(torch.zeros(env.num_envs, 4))[0] for env in (many, one, plain))
    colours = seen[KEY].float().mean((1, 2))[:, 0]
    assert colours.unique().numel() == N
    state = many.state_dict()
    following = many.step(torch.ones(N, 4))[0][KEY]
    many.load_state_dict(state)
    assert torch.equal(many.step(torch.ones(N, 4))[0][KEY], following)
    for env in (many, one, plain):
        env.close()


def test_apply_moves_cameras_and_restores_the_model(engine: Any) -> None:
    scene, model = tasks.get("panda-lift-cameras").scene, engine.model
    before = {field: getattr(model, field).copy() for field in VisualRandomization.FIELDS}
    looks = VisualRandomization(model, scene)
    looks.apply({"camera.wrist.pitch": 0.1, "camera.front.x": 0.2, "light.x": 1.0, "robot.shade_scale": 0.5})
    wrist, front = (model.camera(f"scene/{name}").id for name in ("wrist", "front"))
    assert 2 * np.arccos(abs(model.cam_quat[wrist] @ before["cam_quat"][wrist])) == pytest.approx(0.1)
    moved = model.cam_pos - before["cam_pos"]
    assert np.linalg.norm(moved[front]) == pytest.approx(0.2) and not moved[wrist].any()
    looks.apply({})
    assert all(np.array_equal(getattr(model, field), value) for field, value in before.items())


def test_camera_noise_has_known_size() -> None:
    frame = np.full((64, 64, 3), 100, np.uint8)
    frame[:, 32:] = 150
    assert np.array_equal(add_camera_noise(frame, Appearance({}, (0, 0))), frame)
    bright = add_camera_noise(frame, Appearance({"picture.exposure_scale": 2.0}, (0, 0)))
    assert (bright[:, :32] == 200).all() and (bright[:, 32:] == 255).all()
    looks = [Appearance({"picture.noise": 0.02}, (3, step)) for step in (0, 1, 1)]
    noisy = [add_camera_noise(frame, look).astype(float) - frame for look in looks]
    assert noisy[0].std() == pytest.approx(0.02 * 255, rel=0.05) and abs(noisy[0].mean()) < 0.2
    assert np.array_equal(noisy[1], noisy[2]) and not np.array_equal(noisy[0], noisy[1])
    blurred = add_camera_noise(frame, Appearance({"picture.blur": 2.0}, (0, 0)))
    assert 0 < np.abs(np.diff(blurred[10, :, 0].astype(int))).max() < 15
    sharp = noisy[0].astype(np.uint8)
    packed = [add_camera_noise(sharp, Appearance({"picture.jpeg_loss": loss}, (0, 0))) for loss in (5.0, 80.0)]
    coarse = [np.abs(image.astype(int) - sharp).mean() for image in packed]
    assert 0 < coarse[0] < coarse[1]
