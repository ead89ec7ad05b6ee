"""Objects: resting poses, masses and inertias, contacts, files, and parts with joints."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.engines.base import Engine
from sim.engines.genesis_parameters import inertia_at
from sim.engines.model import compile_model
from sim.engines.mujoco import MujocoEngine
from sim.objects import Ball, Box, Cylinder, Drawer, Mesh, Model, Object, Socket, Tray
from sim.objects.parts import PartPoses
from sim.rendering.gl import mujoco
from sim.scenes import SCENE, Camera, Scene

PANDA = robots.get("panda")
CAMERAS = (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),)
SIMPLE = {"box": Box, "ball": Ball, "cylinder": Cylinder}
CUBE_OBJ = """
v -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nv -1 -1 4\nv 1 -1 4\nv 1 1 4\nv -1 1 4
f 1 3 2\nf 1 4 3\nf 5 6 7\nf 5 7 8\nf 1 2 6\nf 1 6 5\nf 2 3 7\nf 2 7 6\nf 3 4 8\nf 3 8 7\nf 4 1 5\nf 4 5 8
"""
DOOR = """
<mujoco><compiler angle="radian"/><worldbody><body name="frame"><geom type="box" size=".02 .02 .1" pos="0 0 .1"/>
<body name="leaf" pos="0.02 0 0.1"><joint name="hinge" axis="0 0 1" pos="0 0.01 0" range="0 1.5"/>
<geom type="box" size=".05 .01 .08" pos="0.06 0 0" mass="0.5"/>
<body name="knob" pos="0.1 -0.03 0"><geom type="sphere" size="0.01"/></body></body></body></worldbody></mujoco>
"""


def things(size: float = 0.02, mass: float = 0.1) -> tuple[Object, ...]:
    return (*(kind(name, size, mass) for name, kind in SIMPLE.items()), Tray("tray", 0.06, mass))


@pytest.fixture
def engine() -> Iterator[MujocoEngine]:
    engine = MujocoEngine(PANDA, Scene(things(), CAMERAS), 2, threads=1)
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


@pytest.mark.parametrize("shape", SIMPLE)
def test_changed_size_and_mass_give_the_compiled_inertia(engine: MujocoEngine, shape: str) -> None:
    ids = np.array([1])
    engine.parameters[f"{shape}.size"](ids, np.array([0.03]))
    engine.parameters[f"{shape}.mass"](ids, np.array([0.25]))
    model = compile_model(PANDA, Scene((SIMPLE[shape](shape, 0.03, 0.25),), CAMERAS))
    body, geom, mine = model.body(SCENE + shape).id, model.geom(SCENE + shape).id, engine.model.body(SCENE + shape).id
    np.testing.assert_allclose(engine.batch.expand("body_inertia")[1, mine], model.body_inertia[body], rtol=1e-9)
    np.testing.assert_allclose(engine.batch.expand("body_mass")[1, mine], 0.25)
    bound = engine.batch.expand("geom_rbound")[1, engine.model.geom(SCENE + shape).id]
    np.testing.assert_allclose(bound, model.geom_rbound[geom])
    nominal = engine.model.body_inertia[mine]
    np.testing.assert_allclose(engine.batch.expand("body_inertia")[0, mine], nominal)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.5, 1.5), st.floats(0.05, 1.0))
def test_a_cuboid_keeps_its_proportions_when_its_size_changes(scale: float, mass: float) -> None:
    halves = (0.02, 0.03, 0.01)
    engine = MujocoEngine(PANDA, Scene((Box("brick", halves, 0.1),), CAMERAS), 1, threads=1)
    engine.parameters["brick.size"](np.array([0]), np.array([0.02 * scale]))
    engine.parameters["brick.mass"](np.array([0]), np.array([mass]))
    large = Box("brick", (0.02 * scale, 0.03 * scale, 0.01 * scale), mass)
    model = compile_model(PANDA, Scene((large,), CAMERAS))
    body, geom = model.body(SCENE + "brick").id, model.geom(SCENE + "brick").id
    np.testing.assert_allclose(engine.batch.expand("geom_size")[0, geom], model.geom_size[geom], rtol=1e-9)
    np.testing.assert_allclose(engine.batch.expand("body_inertia")[0, body], model.body_inertia[body], rtol=1e-9)
    engine.close()


@pytest.mark.parametrize("shape", [*SIMPLE, "tray"])
def test_inertias_for_genesis_are_the_compiled_ones_at_another_mass(engine: MujocoEngine, shape: str) -> None:
    thing = next(o for o in things(mass=0.25) if o.name == shape)
    model = compile_model(PANDA, Scene((thing,), CAMERAS))
    inertia = inertia_at(engine.model, shape, np.array([[0.1], [0.25]]))
    assert inertia.shape == (2, 1, 3, 3)
    for row, theirs in zip(inertia[:, 0], (engine.model, model), strict=True):
        np.testing.assert_allclose(row, np.diag(theirs.body(SCENE + shape).inertia), rtol=1e-9)


def test_a_tray_holds_objects_that_fall_into_it(engine: MujocoEngine) -> None:
    tray = pose(0.5, 0.0, 0.015)
    for name in SIMPLE:
        away = {n: pose(0.45, y, 0.02) for n, y in (("box", 0.25), ("ball", -0.25), ("cylinder", -0.35)) if n != name}
        settle(engine, {"tray": tray, name: pose(0.51, 0.01, 0.08), **away}, 60)
        x, y, z = engine.object_pose(name).numpy()[0, :3]
        assert abs(x - 0.5) < 0.045 and abs(y) < 0.045 and 0.02 < z < 0.03, name
    assert engine.model.body("scene/tray").mass[0] == pytest.approx(0.1)


def test_objects_name_their_parameters_and_invalid_scenes_are_refused() -> None:
    scene = Scene((*things(), Drawer("drawer"), Box("mark", solid=False)), CAMERAS)
    names = MujocoEngine.can_randomize(PANDA, scene)
    assert {"ball.size", "cylinder.mass", "drawer.joint_friction", "mark.size"} <= names
    assert not {"tray.size", "drawer.size", "ball.joint_friction", "mark.mass"} & names
    for duplicates in ({"objects": (Box("cube"),) * 2}, {"cameras": CAMERAS * 2}):
        with pytest.raises(ValueError, match="are named '(cube|front)'"):
            Scene(**duplicates)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'drawer_handle' is the name of an object and of a part"):
        Scene((Drawer("drawer"), Box("drawer_handle")))
    for name in ("", "a:b", "a.b", "a b"):
        with pytest.raises(ValueError, match="its name is empty or has one of"):
            Box(name)


# ---- fixed objects and parts -------------------------------------------------------------------------------------
def pull(engine: MujocoEngine, body: str, force: tuple[float, float, float], seconds: float) -> None:
    engine.batch.bind("xfrc_applied")[:, engine.model.body(SCENE + body).id, :3] = force
    joints = torch.tensor(PANDA.home).view(1, 1, -1).expand(engine.num_envs, 10, -1)
    for _ in range(round(seconds / (10 * 0.005))):
        engine.step(joints, torch.full((engine.num_envs, 10, 1), 0.08))


def test_a_drawer_slides_to_its_end_while_its_cabinet_stays() -> None:
    engine = MujocoEngine(PANDA, Scene((Drawer("drawer"),), CAMERAS), 2, threads=1)
    place = np.array([[0.65, 0.05, 0.055, np.cos(0.1), 0, 0, np.sin(0.1), 0.0], [0.7, 0.0, 0.055, 1, 0, 0, 0, 0.05]])
    engine.reset(np.arange(2), np.tile(PANDA.home, (2, 1)), {"drawer": place})
    assert engine.object_joints()["drawer"][:, 0].tolist() == pytest.approx([0.0, 0.05])
    pull(engine, "drawer_handle", (-20.0, 0.0, 0.0), 1.0)
    assert engine.object_joints()["drawer"][:, 0].tolist() == pytest.approx([0.2, 0.2], abs=2e-3)
    assert engine.object_pose("drawer").numpy() == pytest.approx(place[:, :7], abs=2e-4)
    engine.close()


def test_poses_of_parts_are_those_of_mujoco(tmp_path: Path) -> None:
    (tmp_path / "door.xml").write_text(DOOR)
    door = Model("door", file=str(tmp_path / "door.xml"), parts=("leaf", "knob"))
    rng = np.random.default_rng(0)
    for thing in (door, Drawer("drawer")):
        spec = thing.spec()
        spec.body(thing.name).add_freejoint(name="free")
        model, kinematics = spec.compile(), PartPoses(thing)
        data, count = mujoco.MjData(model), 7 + len(thing.joints)
        for _ in range(20):
            data.qpos[:] = rng.uniform(-1, 1, count)
            data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
            mujoco.mj_kinematics(model, data)
            for part in thing.poses[1:]:
                mine = kinematics(part, torch.from_numpy(data.qpos).float()[None])[0].numpy()
                assert mine[:3] == pytest.approx(data.body(part).xpos, abs=1e-6)
                assert abs(mine[3:] @ data.body(part).xquat) == pytest.approx(1.0, abs=1e-6)


def test_a_door_from_a_file_turns_and_its_parameters_act(tmp_path: Path) -> None:
    (tmp_path / "door.xml").write_text(DOOR)
    door = Model("door", file=str(tmp_path / "door.xml"), parts=("knob",))
    engine = MujocoEngine(PANDA, Scene((door,), CAMERAS), 2, threads=1)
    engine.parameters["door.joint_damping"](np.arange(2), np.array([0.0, 1.0]))
    engine.parameters["door.mass"](np.array([1]), np.array([2.0]))
    engine.parameters["door.joint_friction"](np.array([1]), np.array([0.01]))
    hinge = engine.model.joint(SCENE + "door_hinge").dofadr[0]
    assert engine.batch.expand("dof_frictionloss")[:, hinge].tolist() == [0.0, 0.01]
    engine.reset(np.arange(2), np.tile(PANDA.home, (2, 1)), {"door": np.tile([0.6, 0.2, 0, 1, 0, 0, 0, 0.2], (2, 1))})
    pull(engine, "door_knob", (0.0, 0.5, 0.0), 0.3)
    free, damped = engine.object_joints()["door"][:, 0].tolist()
    assert free > 0.3 > damped > 0.2
    bodies = [engine.model.body(SCENE + name).id for name in ("door_leaf", "door_knob")]
    assert engine.batch.expand("body_mass")[1, bodies].sum() == pytest.approx(2.0)
    state, before = engine.state_dict(), engine.object_pose("door_knob").clone()
    engine.place("door", np.tile(pose(0.5, 0.0, 0.0), (2, 1)))
    assert engine.object_joints()["door"][:, 0].tolist() == pytest.approx([free, damped])
    engine.load_state_dict(state)
    assert torch.equal(engine.object_pose("door_knob"), before)
    engine.close()


def test_a_peg_fits_its_socket_and_rests_in_it() -> None:
    peg, socket = Cylinder("peg", (0.01, 0.01, 0.04), 0.05), Socket("socket", 0.011)
    engine = MujocoEngine(PANDA, Scene((peg, socket), CAMERAS), 1, threads=1)
    settle(engine, {"socket": pose(0.6, 0.1, socket.rest), "peg": pose(0.6, 0.1, 0.1)})
    x, y, z = engine.object_pose("peg").numpy()[0, :3]
    assert abs(x - 0.6) < 0.002 and abs(y - 0.1) < 0.002 and z == pytest.approx(0.04 + socket.floor, abs=1e-3)
    engine.close()


# ---- files -------------------------------------------------------------------------------------------------------
def test_a_mesh_rests_and_has_the_inertia_of_its_volume(tmp_path: Path) -> None:
    (tmp_path / "block.obj").write_text(CUBE_OBJ)
    block = Mesh("block", file=str(tmp_path / "block.obj"), mass=0.2, scale=0.01)
    assert block.rest == pytest.approx(0.0, abs=1e-9), "its origin is at its bottom"
    mass, (x, y, z) = 0.2, (0.02, 0.02, 0.04)
    inertia = sorted([mass / 12 * (y * y + z * z), mass / 12 * (x * x + z * z), mass / 12 * (x * x + y * y)])
    assert sorted(block.compiled.body_inertia[1]) == pytest.approx(inertia, rel=1e-4)
    engine = MujocoEngine(PANDA, Scene((block,), CAMERAS), 1, threads=1)
    settle(engine, {"block": pose(0.5, 0.0, block.rest)})
    assert engine.object_pose("block").numpy()[0, :3] == pytest.approx([0.5, 0.0, 0.0], abs=1e-3)
    engine.close()


def test_broken_files_are_refused_with_their_remedy(tmp_path: Path) -> None:
    files = {
        "open.obj": CUBE_OBJ.rsplit("f ", 5)[0],
        "ball.xml": DOOR.replace('name="hinge" axis="0 0 1" pos="0 0.01 0" range="0 1.5"', 'name="b" type="ball"'),
        "two.xml": DOOR.replace("</worldbody>", "<body/></worldbody>"),
        "moves.xml": DOOR.replace('<body name="frame">', '<body name="frame"><joint name="j"/>'),
        "syntax.xml": "<mujoco>",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    at = {name: str(tmp_path / name) for name in (*files, "none.obj")}
    for thing, read, words in (
        (Mesh("m", file=at["none.obj"]), "rest", "is not a file; name an existing one"),
        (Mesh("m", file=at["open.obj"]), "rest", "it must be closed"),
        (Model("d", file=at["ball.xml"]), "joints", "neither a hinge nor a slide"),
        (Model("d", file=at["two.xml"]), "joints", "has 2 bodies in the world"),
        (Model("d", file=at["moves.xml"]), "joints", "moves its root"),
        (Model("d", file=at["syntax.xml"]), "joints", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words):
            getattr(thing, read)
    (tmp_path / "door.xml").write_text(DOOR)
    with pytest.raises(ConfigError, match="no body 'handle' to track; it has: leaf, knob"):
        Model("d", file=str(tmp_path / "door.xml"), parts=("handle",)).spec()
