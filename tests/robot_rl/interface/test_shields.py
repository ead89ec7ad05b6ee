"""Shields of commands that are not joint positions: limits hold for random goals."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.command import BaseVelocity, GripperCommand, JointPositions, ToolPose, Twist, choose
from robot_rl.interface.control import BaseVelocityConfig, BaseVelocityController, build_controller, kind_for
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import matrix_to_quat, quat_product, quat_to_matrix, rotation_quat, rotation_vector
from robot_rl.interface.shield import ShieldConfig
from robot_rl.interface.shields import LATEST, BaseVelocityShield, ToolPoseShield, TwistShield
from robot_rl.interface.state import RobotState
from robot_rl.robots.panda import PANDA
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

DT = 1 / PANDA.command_rate
HOME = torch.tensor(PANDA.home)[None]
LIFT = tasks.get("panda-lift").interface
POSES, TWISTS = ToolPoseShield(PANDA), TwistShield(PANDA)
BASE = BaseVelocityShield(ShieldConfig(), BaseVelocityConfig(forward=0.5, left=0.2, turn=1.0, ramp=0.5))
SEEDS = st.integers(0, 2**31)


def random_poses(seed: int, count: int) -> Tensor:
    """Return poses around and outside the workspace."""
    rng = torch.Generator().manual_seed(seed)
    quat = torch.randn(count, 4, generator=rng)
    return torch.cat([torch.randn(count, 3, generator=rng), quat / quat.norm(dim=-1, keepdim=True)], -1)


@given(SEEDS)
@settings(deadline=None, max_examples=8)
def test_quaternions_multiply_and_turn_like_matrices(seed: int) -> None:
    a, b = random_poses(seed, 4)[:, 3:], random_poses(seed + 1, 4)[:, 3:]
    product = quat_to_matrix(quat_product(a, b))
    assert torch.allclose(product, quat_to_matrix(a) @ quat_to_matrix(b), atol=1e-5)
    vector = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(rotation_vector(rotation_quat(vector)), vector, atol=1e-4) or vector.norm(dim=-1).max() > 3.1


@given(SEEDS, st.integers(1, 30))
@settings(deadline=None, max_examples=8)
def test_poses_stay_within_workspace_speed_and_acceleration(seed: int, hold: int) -> None:
    pose, rate = POSES.hold(HOME), torch.zeros(1, 6)
    for goal in random_poses(seed, 5):
        admitted, events = POSES.admit(goal[None], pose)
        assert (admitted[:, :3] >= POSES.low).all() and (admitted[:, :3] <= POSES.high).all()
        assert bool(events["workspace"]) == bool((admitted[0, :3] != goal[:3]).any())
        for _ in range(hold):
            before = rate
            pose, rate = POSES.follow(pose, rate, admitted, torch.zeros(1, 6), DT)
            assert (pose[:, :3] >= POSES.low - 1e-4).all() and (pose[:, :3] <= POSES.high + 1e-4).all()
            assert (rate.abs() <= POSES.velocity * 1.001).all(), "speed"
            assert ((rate - before).abs() <= POSES.acceleration * DT * 1.001 + 1e-5).all(), "acceleration"
            assert pose[:, 3:].norm() == pytest.approx(1.0, abs=1e-5)
    for part in (rate[:, :3], rate[:, 3:]):
        assert part.norm() <= max(0.5 * PANDA.tool.speed, 0.5 * PANDA.tool.turn_speed)  # type: ignore[union-attr]


def test_pose_arrives_and_rests() -> None:
    pose, rate = POSES.hold(HOME), torch.zeros(1, 6)
    goal = pose.clone()
    goal[:, :3] += 0.1 * torch.tensor([1.0, -0.5, -0.5])
    goal[:, 3:] = quat_product(rotation_quat(torch.tensor([[0.0, 0.0, 0.5]])), goal[:, 3:])
    assert POSES.moving(pose, torch.ones(1, 6)) and not POSES.moving(pose, rate)
    for _ in range(400):
        pose, rate = POSES.follow(pose, rate, goal, torch.zeros(1, 6), DT)
    assert torch.allclose(pose, goal, atol=1e-3) and not POSES.moving(pose, rate)
    halfway, change = POSES.path(POSES.hold(HOME), goal, 0.5)
    assert change[0, 5].item() == pytest.approx(0.5, abs=1e-3)
    assert halfway[0, 0].item() == pytest.approx(goal[0, 0].item() - 0.05, abs=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_poses_are_rejected(bad: float) -> None:
    home = POSES.hold(HOME)
    for column in (0, 4):
        goal = home.clone()
        goal[0, column] = bad
        admitted, events = POSES.admit(goal, home)
        assert torch.equal(admitted, home) and bool(events["nonfinite"])
    assert bool(POSES.admit(torch.cat([home[:, :3], torch.zeros(1, 4)], -1), home)[1]["nonfinite"]), "no orientation"
    assert not TWISTS.admit(torch.full((1, 6), bad), torch.ones(1, 6))[0].any(), "a bad velocity stops the tool"


@given(SEEDS)
@settings(deadline=None, max_examples=8)
def test_twist_lets_the_tool_brake_before_the_edge(seed: int) -> None:
    """Each goal lasts as long as it may, and the tool moves exactly as commanded."""
    rng = torch.Generator().manual_seed(seed)
    kinematics, joints = Kinematics(PANDA), HOME.clone()
    twist, rate = torch.zeros(1, 6), torch.zeros(1, 6)
    for _ in range(6):
        goal = torch.randn(1, 6, generator=rng)
        goal[:, 3:] = 0.0
        goal, _ = TWISTS.admit(goal, twist, joints)
        for tick in range(round(2 * LATEST / DT)):
            wanted = goal if tick * DT < LATEST - 0.05 else TWISTS.rest(twist)
            before = twist
            twist, rate = TWISTS.follow(twist, rate, wanted, rate, DT)
            assert ((twist - before).abs() <= TWISTS.acceleration * DT * 1.001).all()
            _, _, jacobian = kinematics.jacobian(joints)
            joints = joints + (torch.linalg.pinv(jacobian) @ (twist * DT)[..., None])[..., 0]
            position = kinematics.forward(joints)[0]
            assert (position > TWISTS.low - 2e-3).all() and (position < TWISTS.high + 2e-3).all()
        assert not TWISTS.moving(twist, rate)


@given(SEEDS)
@settings(deadline=None, max_examples=6)
def test_base_keeps_the_controllers_limits(seed: int) -> None:
    velocity, rate = torch.zeros(1, 3), torch.zeros(1, 3)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(5):
        goal, _ = BASE.admit(5 * torch.randn(1, 3, generator=rng), velocity)
        for _ in range(30):
            before = velocity
            velocity, rate = BASE.follow(velocity, rate, goal, rate, 0.01)
            assert (velocity.abs() <= BASE.velocity).all()
            assert ((velocity - before).abs() <= BASE.velocity / 0.5 * 0.01 + 1e-6).all()


def test_goal_far_from_the_robot_is_a_mismatch_only_for_positions() -> None:
    near, far = POSES.hold(HOME), POSES.hold(HOME + 0.4)
    safety = SafetyConfig()
    assert POSES.mismatch(far, HOME, 0.05, safety) and not POSES.mismatch(near, HOME, 0.05, safety)
    assert not TWISTS.mismatch(torch.ones(1, 6), HOME, 0.05, safety)
    assert not POSES.mismatch(far, HOME, 0.05, replace(safety, tool_mismatch=0.5))


@pytest.mark.parametrize("kind", [JointPositions, ToolPose, Twist])
def test_controller_gives_one_goal_in_each_kind(kind: Any) -> None:
    controller = build_controller(PANDA, LIFT.controller, kind)
    state = RobotState(HOME, torch.zeros_like(HOME), torch.zeros(1, 4))
    target = controller(state, torch.tensor([[0.02, 0.0, 0.01, 0.08]])).command
    assert type(target) is kind
    position, rotation = Kinematics(PANDA).forward(HOME)
    moved = {
        JointPositions: lambda v: Kinematics(PANDA).forward(v)[0] - position, ToolPose: lambda v: v[:, :3] - position,
        Twist: lambda v: v[:, :3] / LIFT.controller.rate,
    }[kind](target.values)  # fmt: skip
    assert moved[0].tolist() == pytest.approx([0.02, 0.0, 0.01], abs=2e-3)
    if kind is ToolPose:
        assert torch.allclose(target.values[:, 3:].abs(), matrix_to_quat(rotation).abs(), atol=1e-3)


def test_first_accepted_kind_is_chosen_and_none_is_refused() -> None:
    assert choose((JointPositions, ToolPose, Twist), (Twist, ToolPose)) is ToolPose
    assert kind_for(LIFT.controller, (Twist,), "x") is Twist
    with pytest.raises(ConfigError, match="robot 'x' takes base velocities, but a tool_delta controller.*gives joint"):
        kind_for(LIFT.controller, (BaseVelocity,), "robot 'x'")


def test_base_controller_leaves_out_what_the_base_cannot_do() -> None:
    controller = BaseVelocityController(PANDA, BaseVelocityConfig(forward=0.4, left=0.0, turn=0.8))
    assert controller.actions.size == 2
    twist = torch.tensor([[1.0, 0.5, 0.0, 0.0, 0.0, -1.0]])
    action = controller.from_twist(twist, torch.zeros(1, 1))
    assert action.tolist() == [[1.0, -1.0]] and controller.to_twist(action)[0][0].tolist() == [1, 0, 0, 0, 0, -1]
    target = controller(RobotState(HOME, HOME, action), controller.actions.to_physical(action)).command
    assert isinstance(target, BaseVelocity) and target.values[0].tolist() == pytest.approx([0.4, 0.0, -0.8])


def test_grippers_grasp_below_half_of_their_width() -> None:
    assert GripperCommand.of(PANDA, 0.03).action == "grasp" and GripperCommand.of(PANDA, 0.05).action == "release"
    assert GripperCommand.of(PANDA, 0.0) == GripperCommand(0.0, 40.0, "grasp")
