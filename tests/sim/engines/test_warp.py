"""What is particular to MuJoCo Warp: room for contacts, memory, delays in float32, parameters from the host."""

import copy
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError
from sim.engines import warp_world
from sim.engines.model import MAX_ACTION_DELAY
from sim.engines.mujoco import MujocoEngine
from sim.engines.warp import WarpEngine
from sim.engines.warp_world import start
from sim.env import TaskEnv
from sim.objects import Box
from sim.scenes import Scene
from sim.tasks import tasks

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not find_spec("mujoco_warp"), reason="mujoco_warp is not installed"),
]
Hold = Callable[..., None]
PANDA, DT = robots.get("panda"), 0.005
SCENE = Scene((Box("cube", size=0.02, mass=0.1),))


@pytest.fixture
def engine() -> Iterator[Callable[..., WarpEngine]]:
    """Builder of n Pandas at home, each with a cube to its left."""
    built = []

    def build(n: int = 2, height: float = 0.02, **values: Any) -> WarpEngine:
        built.append(engine := WarpEngine(PANDA, SCENE, n, threads=1, device="cpu"))
        for name, value in values.items():
            engine.parameters[name.replace("__", ".")](np.arange(n), np.array(value, float))
        reset(engine, height)
        return engine

    yield build
    for engine in built:
        engine.close()


def reset(engine: WarpEngine, height: float = 0.02) -> None:
    n = engine.num_envs
    pose = np.tile([0.5, 0.15, height, 1.0, 0, 0, 0], (n, 1))
    engine.reset(np.arange(n), np.tile(PANDA.home, (n, 1)), {"cube": pose})


def test_number_of_worlds_does_not_change_them(engine: Any, hold: Hold) -> None:
    """Bit-identical, with contacts and parameters that differ."""
    masses, frictions = [0.05, 0.1, 0.4], [0.3, 1.0, 1.5]
    many = engine(3, 0.04, cube__mass=masses, cube__friction=frictions)
    hold(many, 60, 0.1)
    for i in range(3):
        one = engine(1, 0.04, cube__mass=masses[i : i + 1], cube__friction=frictions[i : i + 1])
        hold(one, 60, 0.1)
        assert np.array_equal(one.qpos[0], many.qpos[i]) and np.array_equal(one.qvel[0], many.qvel[i])


def test_a_cube_rests_at_its_randomized_size_and_is_rendered_with_it(engine: Any, hold: Hold) -> None:
    cubes = engine(2, 0.04, cube__size=[0.015, 0.03])
    hold(cubes, 150)
    assert cubes.object_pose("cube")[:, 2].tolist() == pytest.approx([0.015, 0.03], abs=1e-3)
    assert cubes.geom_sizes[:, cubes.model.geom("scene/cube").id, 0].tolist() == [0.015, 0.03]


def test_delays_are_exact_after_a_long_time(engine: Any, hold: Hold) -> None:
    """At 18 s, times in float32 are in steps of 2e-6 s."""
    steps = [1, 3, 8, round(MAX_ACTION_DELAY / DT)]
    delayed = engine(4, robot__action_delay=[DT * k for k in steps])
    hold(delayed, 3600)
    assert float(delayed.state["time"][0]) == pytest.approx(18, abs=1e-3)
    first = [0] * 4
    for tick in range(1, 25):
        hold(delayed, 1, 0.1)
        moving = delayed.joint_state()[1].abs().amax(1) > 1e-2
        first = [at or tick * bool(m) for at, m in zip(first, moving, strict=True)]
    assert [at - first[0] for at in first] == [k - 1 for k in steps]


def test_gains_between_steps_are_those_of_mujoco(engine: Any, hold: Hold) -> None:
    ours = engine(2)
    theirs = MujocoEngine(PANDA, SCENE, 2, threads=1)
    reset(theirs)  # type: ignore[arg-type]
    stiff, damp = np.full((2, 7), 400.0), np.full((2, 7), 40.0)
    stiff[1], torque = 200.0, np.full((2, 7), 2.0)
    for one in (ours, theirs):
        one.set_springs(stiff, damp, torque)
        hold(one, 40, 0.1)
    assert torch.allclose(ours.joint_state()[0], theirs.joint_state()[0], atol=1e-5)


def test_a_world_without_room_for_its_contacts_diverged(
    engine: Any, hold: Hold, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warp_world, "capacity", lambda model: (64, 12))  # a cube on the table has 16 constraints
    cubes = engine(2)
    cubes.state["qpos"][1, 11] = 1.0  # the second cube is in the air
    hold(cubes, 2)
    assert cubes.diverged().tolist() == [True, False]
    with caplog.at_level(logging.WARNING):
        reset(cubes)
        reset(cubes)
    assert [record.message.partition(":")[0][-17:] for record in caplog.records] == ["ended the episode"]
    assert not cubes.diverged().any()


def test_memory_is_measured_and_too_many_worlds_are_refused(engine: Any) -> None:
    world = engine(2).world
    each = world.bytes_per_world()
    rows = sum(view.numel() for view in (world.state | world.views).values()) / 2
    assert 4 * rows < each < 2**21, "state and solver of a Panda"
    world.num_envs = 1000
    world._check_memory(1200 * each)
    with pytest.raises(ConfigError, match=r"1000 environments need .* GiB on cpu, of which .* free; 450 fit"):
        world._check_memory(500 * each)


def test_what_warp_cannot_do_is_refused(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(1)
    one._host.batch.expand("opt.impratio")[:] = 5.0
    with pytest.raises(ConfigError, match="one value of opt.impratio for all"):
        reset(one)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="cpu and cuda, not on 'mps'"):
        start("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no cuda device.*--device cpu"):
        start("cuda")
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    with pytest.raises(UserError, match=r'pip install "robot-rl\[warp\]"'):
        start("cpu")


def test_results_equal_those_without_prefetched_resets(same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all randomization of a Panda and its cube, and with the state for a resume."""
    task = tasks.get("panda-lift")
    short = replace(task, interface=replace(task.interface, horizon=4))

    def story() -> Any:
        env = TaskEnv(short, 3, threads=1, engine="warp", device="cpu")
        out = [env.reset(seed=5, options={"stagger": True})[0]]
        rng = torch.Generator().manual_seed(0)
        for _ in range(10):
            out.append(copy.deepcopy(env.step(2 * torch.rand(3, 4, generator=rng) - 1)))
        assert (env.prefetched is None) == without
        state = env.state_dict()["engine"]
        env.close()
        return out, {k: v for k, v in state.items() if not k.startswith("host.")}

    without = False
    expected = story()
    monkeypatch.setattr(WarpEngine, "clone", lambda self: None)
    without = True
    assert same(story(), expected)
