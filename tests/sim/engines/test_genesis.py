"""Genesis in a task, with model files and devices; its motion is compared with MuJoCo's in test_engines.py."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName, UserError
from sim.demonstrators import make_expert
from sim.engines.genesis import GenesisEngine
from sim.engines.genesis_world import start
from sim.env import TaskEnv
from sim.objects import Box
from sim.randomization.checks import nominal
from sim.scenes import Scene, robot_model
from sim.tasks.panda_lift import TASK as LIFT

needs_genesis = pytest.mark.skipif(not find_spec("genesis"), reason="Genesis is not installed")
pytestmark = [pytest.mark.timeout(600), needs_genesis]

N, G, PANDA = 6, 9.81, robots.get("panda")  # N as in test_engines.py: Genesis compiles for each number of environments


def test_an_episode_starts_as_in_mujoco_and_the_expert_lifts_the_cube() -> None:
    """Same spaces and dtypes, and episode k of a task is the same episode."""
    options = {"without": ["cube.size"], "device": "cpu"}
    ours, theirs = (TaskEnv("panda-lift", N, engine=name, **options) for name in ("genesis", "mujoco"))  # type: ignore[arg-type]
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.simulation == {"engine": "genesis", "device": "cpu", "without": ["cube.size"]}
    for (a, _), (b, _) in ((ours.reset(seed=3), theirs.reset(seed=3)), (ours.reset(), theirs.reset())):
        for key in ours.single_observation_space:
            assert a[key].dtype == b[key].dtype == torch.float32
            assert torch.allclose(a[key], b[key], atol=1e-5), key
    expert, observation = make_expert(ours, "STEADY", 0), a
    running, lifted = torch.ones(N, dtype=torch.bool), torch.zeros(N, dtype=torch.bool)
    while running.any():
        observation, _, terminated, truncated, _ = ours.step(expert.act(observation))
        done = terminated | truncated
        lifted |= terminated & running
        running &= ~done
        expert.reset(done.nonzero().squeeze(-1))
    assert lifted.sum() >= 5 and ours.divergences == 0
    ours.close()


def test_masses_gains_and_forces_reach_the_solver_from_a_users_model_file(tmp_path: Path) -> None:
    """The gripper's 40 N are 20 N per finger, as MuJoCo's tendon distributes them. A joint's torque limit is the
    smaller one of spec (87 and 12 N m) and file."""
    source = robot_model(PANDA)
    spec = mujoco.MjSpec.from_file(str(source))
    spec.meshdir = str(source.parent / spec.meshdir)
    spec.actuator("actuator7").gainprm[0], spec.actuator("actuator7").biasprm[1] = 1000, -1000
    spec.actuator("actuator1").forcerange, spec.actuator("actuator3").forcerange = [-50, 50], [-500, 500]
    spec.joint("joint2").actfrcrange = [-30, 30]
    spec.compile()
    (tmp_path / "mine.xml").write_text(spec.to_xml())
    scene = Scene((Box("cube", size=0.02, mass=0.1),))
    engine = GenesisEngine(PANDA, scene, 6, mjcf=str(tmp_path / "mine.xml"), device="cpu")
    gains = engine.solver.get_dofs_act_gain(engine.world.joints)[0].tolist()
    assert gains == [4500, 4500, 3500, 3500, 2000, 2000, 1000]
    low, high = engine.solver.get_dofs_force_range(engine.world.fingers)
    assert PANDA.gripper.force == 40 and torch.allclose(high, torch.tensor(20.0)) and torch.allclose(low, -high)
    masses = np.array([0.03, 0.05, 0.1, 0.15, 0.2, 0.3])
    engine.parameters["cube.mass"](np.arange(6), masses)
    engine.parameters["robot.strength_scale"](np.arange(6), np.array([1, 1, 1, 1, 1, 0.5]))
    engine.reset(np.arange(6), np.tile(PANDA.home, (6, 1)), {"cube": np.tile([0.5, 0.15, 0.02, 1, 0, 0, 0], (6, 1))})
    low, high = (limit.clone() for limit in engine.solver.get_dofs_force_range(engine.world.joints))
    assert high[0].tolist() == [50, 30, 87, 87, 12, 12, 12] == (2 * high[5]).tolist() and torch.equal(low, -high)
    engine.step(torch.tensor(PANDA.home).expand(6, 200, 7), torch.full((6, 200, 1), 0.08))
    cube = engine.world.objects["cube"]
    assert cube.get_links_net_contact_force()[:, -1, 2].numpy() == pytest.approx(masses * G, rel=0.01)
    inertia = engine.solver.get_links_inertia([cube.links[-1].idx])[:, 0].numpy()
    assert inertia == pytest.approx(masses[:, None, None] * 0.04**2 / 6 * np.eye(3), rel=1e-5)
    engine.step(torch.tensor(PANDA.home).expand(6, 2, 7) + 0.2, torch.full((6, 2, 1), 0.08))
    forces = engine.solver.get_dofs_control_force(engine.world.joints)
    assert torch.allclose(forces, high), "far from their targets, motors give all of their torque"
    engine.close()
    with pytest.raises(UserError, match="nowhere.xml is not a file"):
        GenesisEngine(PANDA, Scene(), 1, mjcf="nowhere.xml", device="cpu")


def test_parameters_that_genesis_cannot_randomize_are_refused_before_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GenesisEngine, "__init__", lambda *a, **k: pytest.fail("was built"))
    required = tuple(replace(r, optional=False) for r in LIFT.randomization)
    with pytest.raises(UserError, match="'genesis' cannot randomize cube.size; it can: .*--without cube.size$"):
        TaskEnv(replace(LIFT, randomization=required), 2, engine="genesis")
    with pytest.raises(UnknownName, match="'cube.sise'; did you mean cube.size"):
        TaskEnv("panda-lift", 2, engine="genesis", without=["cube.sise"])
    assert nominal(LIFT, "genesis") == ["cube.size"] and nominal(LIFT, "mujoco") == [], "optional parameters are not"


def test_unavailable_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no cuda device.*--device cpu"):
        start("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES=1"):
        start("cuda:1")
