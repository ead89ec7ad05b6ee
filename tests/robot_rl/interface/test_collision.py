"""Clearance of an arm: no contact that MuJoCo finds between its meshes is missed, and no goal leads into one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl.interface.collision import Clearance
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.shield import JointShield, ShieldConfig
from robot_rl.interface.stopping import Motion
from robot_rl.robots import robots
from sim.engines.spheres import Contacts, cover

ARMS = ("fr3", "panda", "ur5e")


def clearances(robot: RobotSpec, q: np.ndarray, table: float | None) -> np.ndarray:
    kinematics = Kinematics(robot)
    chain = kinematics.chain(torch.from_numpy(q).float())[2:]
    found: np.ndarray = Clearance(robot, kinematics, table)(*chain).numpy()
    return found


def postures(robot: RobotSpec, count: int, seed: int) -> np.ndarray:
    low, high = (np.array([getattr(joint, end) for joint in robot.joints]) for end in ("low", "high"))
    return np.random.default_rng(seed).uniform(low, high, (count, len(low)))


@pytest.mark.parametrize("name", ARMS)
def test_no_contact_of_the_meshes_is_missed(name: str) -> None:
    robot = robots.get(name)
    meshes, q = Contacts(robot), postures(robot, 1500, 7)
    apart, above = clearances(robot, q, None), clearances(robot, q, 0.0)
    hits = 0
    for posture, self_clearance, clearance in zip(q, apart, above, strict=True):
        pairs = meshes.pairs(posture)
        if pairs & set(robot.collision_pairs):
            hits += 1
            assert self_clearance < 0.005
        if any(body not in meshes.fingers and depth > 0 for body, depth in meshes.in_table().items()):
            assert clearance < 0.005
    assert hits > 20


@pytest.mark.parametrize("name", ARMS)
def test_home_is_clear(name: str) -> None:
    robot = robots.get(name)
    assert clearances(robot, np.array([robot.home]), 0.0)[0] > 0.02


def test_goals_into_the_arm_or_the_table_are_refused_and_goals_out_of_them_admitted() -> None:
    robot = robots.get("fr3")
    shield, meshes = JointShield(robot), Contacts(robot)
    rng = np.random.default_rng(3)
    goal = torch.tensor([robot.home] * 64)
    refused = 0
    for _ in range(400):
        wanted = goal + torch.from_numpy(rng.normal(0, 0.15, goal.shape)).float()
        goal, events = shield.admit(wanted, goal)
        refused += int(events["collision"].sum())
    assert refused > 20
    for posture in goal.double().numpy():
        assert not {pair for pair in meshes.pairs(posture) if pair in robot.collision_pairs}
    folded = torch.tensor([[0.0, 1.7, 0.0, -0.5, 0.0, 1.6, 0.0]])  # below the table
    deeper = folded + torch.tensor([0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert shield.admit(deeper, folded)[1]["collision"].all(), "no way deeper into it"
    out = folded + 0.1 * (torch.tensor([robot.home]) - folded)
    assert not shield.admit(out, folded)[1]["collision"].any(), "the way out of it"


def test_fast_arms_are_refused_goals_that_they_would_overshoot() -> None:
    robot = robots.get("ur5e")
    shield, home = JointShield(robot), torch.tensor([robot.home])
    towards = torch.zeros(1, 6)
    towards[0, 1] = float(shield.velocity[1])  # the shoulder leans towards the table
    low = home.clone()
    while not shield.admit(low + 0.02, low)[1]["collision"].any():
        low[0, 1] += 0.02
    stop = float(shield.velocity[1] ** 2 / shield.acceleration[1] / 2)
    near = low - (stop + 0.03) * towards.sign()
    goal = near + 0.05 * towards  # where it would be after a control period
    slow, fast = Motion(near, 0.1 * towards, 0.002, 25), Motion(near, towards, 0.002, 25)
    assert not shield.admit(goal, near, motion=slow)[1]["collision"].any()
    admitted, events = shield.admit(goal, near, motion=fast)
    assert events["collision"].all(), "after this period it could not stop before the table"
    torch.testing.assert_close(admitted, near + stop * towards.sign())
    assert clearances(robot, admitted.numpy(), 0.0)[0] > 0.005, "it brakes before the table"


def test_the_check_can_be_left_out() -> None:
    robot = robots.get("fr3")
    q = torch.tensor([[0.0, 1.7, 0.0, -0.5, 0.0, 1.6, 0.0]])
    assert "collision" not in JointShield(robot, ShieldConfig(clearance=None)).admit(q, q)[1]
    assert "collision" not in JointShield(replace(robot, spheres=(), collision_pairs=())).admit(q, q)[1]
    for wrong in ({"spheres": ()}, {"spheres": robot.spheres[1:]}, {"collision_pairs": ((0, 8),)}):
        with pytest.raises(ValueError, match="spheres|collision_pairs"):
            replace(robot, **wrong)


def test_spheres_contain_the_links_of_a_model_file() -> None:
    robot = robots.get("ur5e")
    spheres = cover(robot)
    assert len(spheres) == 7 and all(spheres)
    q, meshes = postures(robot, 300, 1), Contacts(robot)
    apart = clearances(replace(robot, spheres=spheres), q, None)
    for posture, distance in zip(q, apart, strict=True):
        if meshes.pairs(posture) & set(robot.collision_pairs):
            assert distance < 0.005
