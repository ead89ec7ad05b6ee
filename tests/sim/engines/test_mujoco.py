"""The MuJoCo engine beside its parameters: resets, pictures, model files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.util.errors import UserError
from sim.engines.model import compile_model
from sim.scenes import Scene, robot_model

Build = Callable[..., Any]


def test_a_reset_robot_stands_still_also_with_a_long_delay(engine: Build, hold: Build, panda: Any) -> None:
    """The delay line must not hold the command of the episode before, nor zeros."""
    one = engine(2, robot__action_delay=[0.08, 0.005])
    hold(one, 30, 0.2)
    pose = np.tile([0.5, 0.15, 0.02, 1, 0, 0, 0], (2, 1))
    one.reset(np.arange(2), np.tile(panda.home, (2, 1)), {"cube": pose})
    for _ in range(6):
        hold(one, 5)
        position, velocity = one.joint_state()
        assert torch.allclose(position, torch.tensor(panda.home).expand(2, 7), atol=1e-4)
        assert velocity.abs().max() < 1e-2


def test_a_partial_reset_leaves_the_others(engine: Build, hold: Build, panda: Any) -> None:
    one, other = engine(3), engine(3)
    for e in (one, other):
        hold(e, 10, 0.1)
    one.reset(np.array([1]), np.array([panda.home]), {"cube": np.array([[0.4, 0, 0.05, 1, 0, 0, 0]])})
    assert one.joint_state()[0][1].tolist() == pytest.approx(panda.home)
    assert one.object_pose("cube")[1].tolist() == pytest.approx([0.4, 0, 0.05, 1, 0, 0, 0])
    assert float(one.gripper_width()[1]) == pytest.approx(panda.gripper.width)
    for e in (one, other):
        hold(e, 10, 0.1)
    assert np.array_equal(one.qpos[[0, 2]], other.qpos[[0, 2]])
    assert not np.array_equal(one.qpos[1], other.qpos[1])


def test_resets_in_any_order_of_ids(engine: Build, panda: Any) -> None:
    one = engine(3)
    poses = np.array([[0.4, 0.1 * k, 0.02, 1, 0, 0, 0] for k in (2, 0)])
    one.reset(np.array([2, 0]), np.tile(panda.home, (2, 1)), {"cube": poses})
    assert one.object_pose("cube")[:, 1].tolist() == pytest.approx([0, 0.15, 0.2])


def test_joints_go_where_they_are_told(engine: Build, hold: Build, panda: Any) -> None:
    one = engine(1)
    offset = torch.tensor([0.1, -0.1, 0.2, 0.1, -0.2, 0.1, 0.3])
    hold(one, 400, offset)
    assert torch.allclose(one.joint_state()[0][0], torch.tensor(panda.home) + offset, atol=1e-3)


@pytest.mark.parametrize("width", [0.0, 0.03, 0.08])
def test_fingers_go_to_the_width_asked_for(engine: Build, panda: Any, width: float) -> None:
    one = engine(1)
    one.step(torch.tensor(panda.home).expand(1, 200, 7), torch.full((1, 200, 1), width))
    assert float(one.gripper_width()) == pytest.approx(width, abs=2e-3)


def test_state_views_are_copies(engine: Build, hold: Build) -> None:
    one = engine(1)
    position, pose = one.joint_state()[0], one.object_pose("cube")
    before = position.clone(), pose.clone()
    hold(one, 20, 0.2)
    assert torch.equal(position, before[0]) and torch.equal(pose, before[1])


def test_pictures_show_this_environment(engine: Build) -> None:
    one = engine(2, cube__size=[0.02, 0.1])
    small, large = (one.render(i, "front", 48, 64) for i in range(2))
    assert small.shape == (48, 64, 3) and small.dtype == np.uint8 and small.std() > 5
    assert np.abs(small.astype(int) - large.astype(int)).max() > 40, "the larger cube is seen"
    assert np.array_equal(one.render(0, "front", 48, 64), small), "and it does not stay in the model"


def test_a_missing_model_file_is_named(panda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nowhere.xml: no such file"):
        robot_model(panda, "nowhere.xml")
    with pytest.raises(UserError, match="gone.xml is not beside the spec of 'panda'.*--mjcf"):
        robot_model(replace(panda, model="gone.xml"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="genesis-world.*not installed.*--mjcf"):
        robot_model(panda)


def test_the_model_is_found_without_importing_genesis(panda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "genesis", raising=False)
    assert robot_model(panda).is_file()
    assert "genesis" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<mujoco", "not a readable MJCF"),
        ("no XML at all", "not a readable MJCF"),
        ("<mujoco><worldbody/></mujoco>", "lacks the joints .*finger_joint1.*joint1"),
    ],
)
def test_a_foreign_model_file_is_named(panda: Any, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "arm.xml").write_text(text)
    with pytest.raises(UserError, match=rf"arm\.xml.*{message}") as error:
        compile_model(panda, Scene(), str(tmp_path / "arm.xml"))
    assert "\n" not in str(error.value)


def test_a_copy_of_the_model_works_and_without_its_meshes_is_named(panda: Any, tmp_path: Path) -> None:
    original = robot_model(panda)
    copy = tmp_path / "mine.xml"
    copy.write_bytes(original.read_bytes())
    with pytest.raises(UserError, match=r"mine\.xml does not compile: .*link0\.stl.*meshes") as error:
        compile_model(panda, Scene(), str(copy))
    assert "\n" not in str(error.value)
    (tmp_path / "assets").symlink_to(original.parent / "assets")
    ours, shipped = compile_model(panda, Scene(), str(copy)), compile_model(panda, Scene())
    assert np.array_equal(ours.body_mass, shipped.body_mass) and ours.nu == shipped.nu


def test_only_the_hand_collides_and_the_arm_carries_its_own_weight(panda: Any) -> None:
    model = compile_model(panda, Scene())
    for body in range(1, model.nbody):
        name = model.body(body).name
        geoms = range(model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body])
        assert any(model.geom_contype[g] for g in geoms) == (name in panda.collision_bodies), name
        assert model.body_gravcomp[body] == 1, name
