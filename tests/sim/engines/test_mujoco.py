"""MuJoCo models and engines: servos, images, model files."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.util.errors import UserError
from sim.engines.model import compile_model
from sim.scenes import Scene, robot_model
from sim.tasks import tasks

Build = Callable[..., Any]


@pytest.mark.parametrize("width", [0.0, 0.03, 0.08])
def test_fingers_reach_the_commanded_width(engine: Build, hold: Build, width: float) -> None:
    one = engine(1)
    hold(one, 200, width=width)
    assert float(one.gripper_width()) == pytest.approx(width, abs=2e-3)


def test_images_show_their_own_environment(engine: Build) -> None:
    one = engine(2, cube__size=[0.02, 0.1])
    small, large = (one.render(i, "front", 48, 64) for i in range(2))
    assert small.shape == (48, 64, 3) and small.dtype == np.uint8 and small.std() > 5
    assert np.abs(small.astype(int) - large.astype(int)).max() > 40
    assert np.array_equal(one.render(0, "front", 48, 64), small), "sizes are not kept in the model"


def test_a_model_file_is_found_without_genesis_or_named(panda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "genesis", raising=False)
    assert robot_model(panda).is_file() and "genesis" not in sys.modules
    with pytest.raises(UserError, match="nowhere.xml is not a file"):
        robot_model(panda, "nowhere.xml")
    with pytest.raises(UserError, match="gone.xml is not beside the spec of 'panda'.*--mjcf"):
        robot_model(replace(panda, model="gone.xml"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="genesis-world.*not installed.*--mjcf"):
        robot_model(panda)


def test_a_copied_model_file_needs_its_meshes(panda: Any, tmp_path: Path) -> None:
    original = robot_model(panda)
    copy = tmp_path / "mine.xml"
    copy.write_bytes(original.read_bytes())
    with pytest.raises(UserError, match=r"mine\.xml does not compile: .*link0\.stl.*meshes") as error:
        compile_model(panda, Scene(), str(copy))
    assert "\n" not in str(error.value)
    (tmp_path / "assets").symlink_to(original.parent / "assets")
    ours, shipped = compile_model(panda, Scene(), str(copy)), compile_model(panda, Scene())
    assert np.array_equal(ours.body_mass, shipped.body_mass) and ours.nu == shipped.nu


def test_only_the_hand_collides_and_all_bodies_have_gravity_compensation(panda: Any) -> None:
    model = compile_model(panda, Scene())
    for body in range(1, model.nbody):
        name = model.body(body).name
        geoms = range(model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body])
        assert any(model.geom_contype[g] for g in geoms) == (name in panda.collision_bodies), name
        assert model.body_gravcomp[body] == 1, name


def test_rods_drawn_along_the_legs_do_not_affect_the_physics(go2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.engines import model as module

    scene = tasks.get("go2-velocity").scene
    drawn = module.compile_model(go2, scene)
    monkeypatch.setattr(module, "_draw_bones", lambda *_: None)
    bare = module.compile_model(go2, scene)
    for name in ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_invweight0", "actuator_acc0"):
        assert np.array_equal(getattr(drawn, name), getattr(bare, name)), name
    rods = [g for g in range(drawn.ngeom) if drawn.geom_group[g] == 2 and not drawn.geom_contype[g]]
    assert len(rods) == drawn.ngeom - bare.ngeom == 12 and not drawn.geom_conaffinity[rods].any()
    lengths = sorted(2 * drawn.geom_size[rods, 1])
    assert lengths[-8:] == pytest.approx([0.213] * 8, abs=1e-3)
