"""Controllers: end-effector control by differential inverse kinematics, joint offsets from home, joint positions."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface import control
from robot_rl.interface.control import (
    JointOffsetConfig,
    JointOffsetController,
    JointPositionConfig,
    JointPositionController,
    ToolDeltaConfig,
    ToolDeltaController,
    controller_config,
)
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import quat_to_matrix, rotation_error, rotation_matrix
from robot_rl.interface.state import RobotState
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.tasks import tasks

Build = Callable[..., Any]


def around_home(panda: Any, count: int, spread: float = 0.1) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.tensor(panda.home) + spread * (2 * torch.rand(count, 7, generator=rng) - 1)


def steps(count: int, size: float = 0.02) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    delta = size * (2 * torch.rand(count, 3, generator=rng) - 1)
    return torch.cat([delta, torch.full((count, 1), 0.03)], -1)


@pytest.mark.parametrize(("damping", "size", "tolerance"), [(1e-3, 0.005, 2e-4), (0.05, 0.02, 0.004)])
def test_tool_moves_by_the_command(panda: Any, state_at: Build, damping: float, size: float, tolerance: float) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig(damping=damping))
    q = torch.tensor(panda.home).expand(64, 7)
    action = steps(64, size)
    target = controller(state_at(q), action)
    before, after = (Kinematics(panda).forward(x)[0] for x in (q, target.command.values))
    assert ((after - before) - action[:, :3]).norm(dim=-1).max() < tolerance


@pytest.mark.parametrize(
    ("requested", "width"), [(0.0, 0.0), (0.03, 0.0), (0.05, 0.08), (0.08, 0.08), (float("nan"), None)]
)
def test_gripper_opens_or_closes_fully(panda: Any, state_at: Build, requested: float, width: float | None) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    action = torch.tensor([[0.0, 0.0, 0.0, requested]])
    gripper = float(controller(state_at(torch.tensor(panda.home)[None]), action).gripper)
    assert gripper == pytest.approx(width) if width is not None else gripper != gripper


def test_tool_stays_inside_the_workspace(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    low, high = torch.tensor(panda.tool.workspace)
    directions = torch.cat([torch.eye(3), -torch.eye(3)])
    q, action = torch.tensor(panda.home).repeat(6, 1), torch.cat([0.04 * directions, torch.zeros(6, 1)], 1)
    for _ in range(60):
        q = controller(state_at(q), action).command.values
        assert ((q >= panda.limit("low")) & (q <= panda.limit("high"))).all()
    position = Kinematics(panda).forward(q)[0]
    assert ((position > low - 0.003) & (position < high + 0.003)).all()
    wall = torch.where(directions > 0, high, low)[directions != 0]
    assert torch.allclose(position[directions != 0], wall, atol=0.01), "the wall can be reached"


@pytest.mark.parametrize("lead", [0.02, 0.2])
def test_lead_limits_joint_steps_and_keeps_their_direction(panda: Any, state_at: Build, lead: float) -> None:
    q = around_home(panda, 32, 0.3)
    action = steps(32, 0.04)
    free = ToolDeltaController(panda, ToolDeltaConfig(lead=3.0))(state_at(q), action).command.values - q
    assert free.abs().max() < 3.0, "not limited"
    bound = ToolDeltaController(panda, ToolDeltaConfig(lead=lead))(state_at(q), action).command.values - q
    assert bound.abs().max() <= lead + 1e-6
    inside = (q + free > panda.limit("low")).all(-1) & (q + free < panda.limit("high")).all(-1)
    similarity = torch.nn.functional.cosine_similarity(free[inside], bound[inside])
    assert inside.any() and torch.allclose(similarity, torch.ones(int(inside.sum())), atol=1e-4)
    if lead == 0.02:
        assert (bound.abs().amax(-1) > 0.0199).any(), "the limit is active"


def test_orientation_is_restored(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    q = around_home(panda, 16, 0.2)
    hold = torch.zeros(16, 4)
    start = rotation_error(controller.kinematics.forward(q)[1], controller.rotation).norm(dim=-1)
    assert start.max() > 0.1
    for _ in range(60):
        q = controller(state_at(q), hold).command.values
    assert rotation_error(controller.kinematics.forward(q)[1], controller.rotation).norm(dim=-1).max() < 0.01


def test_null_space_posture_returns_home_without_moving_the_tool(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    home = torch.tensor(panda.home)[None]
    _, _, jacobian = controller.kinematics.jacobian(home)
    null = torch.linalg.svd(jacobian)[2][:, -1]  # motion of the elbow alone
    q = home + 0.3 * null
    for _ in range(80):
        q = controller(state_at(q), torch.tensor([[1e-9, 0.0, 0.0, 0.0]])).command.values  # practically no step
    tool = controller.kinematics.forward(home)[0]
    away = controller.kinematics.forward(home + 0.3 * null)[0]
    assert ((q - home) * null).sum().abs() < 0.1
    assert (controller.kinematics.forward(q)[0] - tool).norm() < (away - tool).norm() + 0.02


def test_rows_are_independent(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    q, action = around_home(panda, 8), steps(8)
    together = controller(state_at(q), action).command.values
    alone = torch.cat([controller(state_at(q[k : k + 1]), action[k : k + 1]).command.values for k in range(8)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_arm_without_gripper(panda: Any, state_at: Build) -> None:
    bare, q = replace(panda, gripper=None), around_home(panda, 4)
    controller = ToolDeltaController(bare, ToolDeltaConfig())
    assert controller.actions.names == ["tool_delta.x", "tool_delta.y", "tool_delta.z"]
    assert not controller.hold_action(torch.rand(4, 3), torch.zeros(4, 1)).any()
    alone = controller(state_at(q), steps(4)[:, :3])
    with_gripper = ToolDeltaController(panda, ToolDeltaConfig())(state_at(q), steps(4))
    assert torch.equal(alone.command.values, with_gripper.command.values)
    assert torch.equal(alone.gripper, torch.zeros(4, 1))


def turning(robot: Any, count: int, requested: float, pulls: int = 10) -> tuple[Any, Any]:
    """Return a controller, and a state after rotations of up to `requested` rad about each axis with ideal servos."""
    controller = ToolDeltaController(robot, ToolDeltaConfig(turn=0.1))
    rng = torch.Generator().manual_seed(2)
    turn = requested / pulls * (2 * torch.rand(count, 3, generator=rng) - 1)
    action = twist(controller, torch.cat([torch.zeros(count, 3), turn], -1))
    q = torch.tensor(robot.home).repeat(count, 1)
    state = RobotState(q, torch.zeros_like(q), action, reference=controller.reference(count))
    for _ in range(pulls + 10):
        target = controller(state, action if pulls > 0 else torch.zeros_like(action))
        state, pulls = replace(state, joint_position=target.command.values, reference=target.reference), pulls - 1
    return controller, state


def twist(controller: Any, physical: Tensor) -> Tensor:
    """Return physical actions that move the tool by twists (n, 6), m and rad, with the gripper open."""
    relative, count = physical / controller.twist_limit, len(physical)
    unit = controller.from_twist(relative, torch.ones(count, 1), torch.zeros(count, controller.actions.size))
    return controller.actions.to_physical(unit)


def pose(controller: Any, q: Tensor) -> tuple[Tensor, Tensor]:
    return controller.kinematics.forward(q)


@pytest.mark.parametrize("arm", ["panda", "ur5e"])
def test_tool_rotates_about_the_base_axes_in_place(arm: str) -> None:
    controller, state = turning(robots.get(arm), 64, 0.5)
    begin = pose(controller, controller.home[None])
    rng = torch.Generator().manual_seed(2)
    rate = 0.05 * (2 * torch.rand(64, 3, generator=rng) - 1)
    wanted = torch.linalg.matrix_power(rotation_matrix(rate), 10) @ begin[1]
    position, rotation = pose(controller, state.joint_position)
    assert rotation_error(rotation, wanted).norm(dim=-1).max() < 0.01
    assert (position - begin[0]).norm(dim=-1).max() < 0.01


@pytest.mark.parametrize("arm", ["panda", "ur5e"])
@pytest.mark.parametrize("turn", [0.0, 0.1])
def test_hold_does_not_drift_in_ten_seconds(arm: str, turn: float) -> None:
    """With slow servos, without and with the twin's encoder noise, from postures away from home."""
    controller, state = turning(robots.get(arm), 16, 0.5)
    if not turn:  # home orientation at another position
        controller = ToolDeltaController(robots.get(arm), ToolDeltaConfig())
        q = torch.tensor(robots.get(arm).home).repeat(16, 1)
        step = torch.zeros(16, 6)
        step[:, :3] = torch.linspace(-0.01, 0.01, 16)[:, None]
        for _ in range(10):
            action = twist(controller, step / controller.twist_limit.clamp_min(1))
            q = controller(RobotState(q, q, q), action).command.values
        state = RobotState(q, torch.zeros_like(q), q)
    state = state.map(lambda name, view: view.repeat(2, 1))  # rows without, then rows with noise
    held = controller.hold_action(torch.rand(32, controller.actions.size), torch.zeros(32, 1))
    hold, noise = controller.actions.to_physical(held), torch.tensor([0.0, 0.0006]).repeat_interleave(16)[:, None]
    rng, q = torch.Generator().manual_seed(0), state.joint_position
    before = pose(controller, q)
    for _ in range(200):
        target = controller(replace(state, joint_position=q + noise * torch.randn(q.shape, generator=rng)), hold)
        q, state = q + 0.6 * (target.command.values - q), replace(state, reference=target.reference)
    after = pose(controller, q)
    moved, turned = (after[0] - before[0]).norm(dim=-1), rotation_error(before[1], after[1]).norm(dim=-1)
    assert moved[:16].max() < 1e-3 and moved[16:].max() < 0.01
    assert turned[:16].max() < 5e-3 and turned[16:].max() < 6e-3


def test_translations_do_not_rotate_the_tool() -> None:
    controller, state = turning(robots.get("ur5e"), 32, 0.5)
    rng, velocity = torch.Generator().manual_seed(1), torch.zeros(32, 3)
    before = pose(controller, state.joint_position)[1]
    for _ in range(200):
        velocity = (0.9 * velocity + 0.012 * torch.randn(32, 3, generator=rng)).clamp(-0.04, 0.04)
        target = controller(state, twist(controller, torch.cat([velocity, torch.zeros(32, 3)], -1)))
        state = replace(state, joint_position=target.command.values, reference=target.reference)
    assert rotation_error(before, pose(controller, state.joint_position)[1]).norm(dim=-1).mean() < 0.005


def test_reference_does_not_wind_up_when_the_arm_is_blocked(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig(turn=0.1))
    q = torch.tensor(panda.home)[None]
    state = state_at(q, reference=controller.reference(1))
    full = twist(controller, torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 0.1]]))
    for _ in range(50):
        state = replace(state, reference=controller(state, full).reference)
    ahead = rotation_error(pose(controller, q)[1], quat_to_matrix(state.reference)).norm()
    assert ahead <= 0.2 + 1e-3, "one step ahead of the arm, plus this step"
    assert (controller(state, full).command.values - q).abs().max() <= controller.config.lead + 1e-6


def test_nan_actions_are_passed_to_the_shield(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig(turn=0.1))
    state = state_at(torch.tensor(panda.home)[None], reference=controller.reference(1))
    assert controller(state, torch.full((1, 7), math.nan)).command.values.isnan().all()
    assert controller.from_twist(torch.full((1, 6), math.nan), torch.zeros(1, 1), torch.zeros(1, 7)).isnan().any()


twists = st.lists(st.floats(-2, 2, width=32), min_size=7, max_size=7)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(twists, st.sampled_from(["panda", "ur5e"]), st.sampled_from([0.0, 0.1]))
def test_twist_round_trip_is_clipped(values: list[float], arm: str, turn: float) -> None:
    controller = ToolDeltaController(robots.get(arm), ToolDeltaConfig(turn=turn))
    requested, gripper = torch.tensor([values[:6]]), torch.tensor([values[6:]])
    hold = controller.hold_action(torch.zeros(1, controller.actions.size), torch.full((1, 1), controller.width))
    action = controller.from_twist(requested, gripper, hold)
    assert action.shape == hold.shape and action.abs().max() <= 1
    back, fingers = controller.to_twist(action)
    assert torch.equal(back, requested.clamp(-1, 1) * (controller.twist_limit > 0))
    if controller.width:
        assert fingers == (gripper.clamp(-1, 1) if gripper else 1), "0 keeps the gripper open"
    assert torch.equal(controller.from_twist(back, fingers, hold), action)
    assert torch.equal(controller.from_twist(torch.zeros(1, 6), torch.zeros(1, 1), hold), hold)


def test_joint_offset_controller_refuses_twists_and_its_robot_has_no_tool(go2: Any) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig())
    assert not controller.twist_limit.any()
    with pytest.raises(ConfigError, match="joint_offset"):
        controller.from_twist(torch.zeros(1, 6), torch.zeros(1, 1), torch.zeros(1, 12))
    with pytest.raises(ConfigError, match="joint_offset"):
        controller.to_twist(torch.zeros(1, 12))
    with pytest.raises(ValueError, match="'go2' has no tool"):
        ToolDeltaController(go2, ToolDeltaConfig())


def test_actions_are_offsets_of_joints_from_home(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig())
    unit = torch.zeros(2, 12)
    target = controller(standing(2), controller.actions.to_physical(unit))
    assert torch.allclose(target.command.values, torch.tensor(go2.home).repeat(2, 1), atol=1e-7)
    assert torch.equal(target.gripper, torch.zeros(2, 1))
    controller = JointOffsetController(go2, JointOffsetConfig(reach=0.3))
    physical = controller.actions.to_physical(torch.eye(12))
    assert torch.allclose(physical, 0.3 * torch.eye(12), atol=1e-7)
    offset = controller(standing(12), physical).command.values - torch.tensor(go2.home)
    assert torch.allclose(offset, 0.3 * torch.eye(12), atol=1e-6)


def test_setpoints_do_not_depend_on_the_measured_state_and_stay_inside_the_limits(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig())
    action = 0.2 * torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    fallen = standing(3, joint_position=torch.full((3, 12), 9.0), joint_velocity=torch.full((3, 12), 5.0))
    assert torch.equal(controller(standing(3), action).command.values, controller(fallen, action).command.values)
    controller = JointOffsetController(go2, JointOffsetConfig(reach=3.5))
    for sign, limit in ((9.0, go2.limit("high")), (-9.0, go2.limit("low"))):
        assert torch.equal(controller(standing(1), torch.full((1, 12), sign)).command.values[0], limit)


SWING = JointOffsetConfig(swing=(0.0, 0.3, -0.6) * 4, swing_from=(0.5,) * 3 + (0.0,) * 6 + (0.5,) * 3)
COMMAND = torch.tensor([[0.5, 0.0, 0.0]])


def test_legs_swing_in_their_half_of_the_gait_cycle_if_commanded_and_actions_add(go2: Any, standing: Build) -> None:
    """Front right and rear left in the first half, the other diagonal in the second, highest in the middle."""
    controller = JointOffsetController(go2, SWING)
    phase = torch.tensor([[0.0], [0.25], [0.5], [0.75], [0.9999]])
    state = standing(5, phase=phase, command=COMMAND.expand(5, 3))
    offset = (controller(state, torch.zeros(5, 12)).command.values - torch.tensor(go2.home)).view(5, 4, 3)
    assert torch.allclose(offset[[0, 2, 4]], torch.zeros(3, 4, 3), atol=1e-5)
    top = torch.tensor([0.0, 0.3, -0.6])
    for moment, up, down in ((1, [1, 2], [0, 3]), (3, [0, 3], [1, 2])):
        assert torch.allclose(offset[moment, up], top.expand(2, 3), atol=1e-5)
        assert torch.allclose(offset[moment, down], torch.zeros(2, 3), atol=1e-6)
    state = standing(2, phase=torch.full((2, 1), 0.25), command=torch.cat([torch.zeros(1, 3), COMMAND]))
    rest, walking = controller(state, torch.zeros(2, 12)).command.values
    assert torch.allclose(rest, torch.tensor(go2.home), atol=1e-6)
    assert (walking - rest).abs().max() > 0.5
    action = 0.1 * torch.ones(2, 12)
    assert torch.allclose(controller(state, action).command.values - action, torch.stack([rest, walking]), atol=1e-6)


STRIDE = replace(SWING, swing=(0.0,) * 12, stride=((0.0, 0.3, 0.1), (-0.3, 0.0, 0.1), (0.0, 0.0, 0.0)) * 4)


def test_legs_stride_as_commanded(go2: Any, standing: Build) -> None:
    """Offsets are the stride at touchdown, change linearly to the opposite in stance, and return smoothly in swing."""
    controller = JointOffsetController(go2, STRIDE)
    phase = torch.linspace(0, 1, 1001)[:, None]
    command = torch.tensor([[0.5, -0.2, 1.0]])
    state = standing(1001, phase=phase, command=command.expand(1001, 3))
    offset = controller(state, torch.zeros(1001, 12)).command.values - torch.tensor(go2.home)
    ahead = command @ torch.tensor(STRIDE.stride).T
    assert ahead[0, :3].tolist() == pytest.approx([0.04, -0.05, 0.0])
    rises_first = offset[:, 3:6]  # leg that swings in the first half of the cycle
    assert torch.allclose(rises_first[[500, 750, 1000]], ahead[:, 3:6] * torch.tensor([[1.0], [0], [-1]]), atol=1e-5)
    assert torch.allclose(offset[:501, :3], rises_first[500:], atol=1e-5), "half a cycle later"
    speed = rises_first.double().diff(dim=0)
    assert torch.allclose(speed[500:], speed[500:].mean(0), atol=1e-6), "constant speed in stance"
    assert torch.allclose(speed[[0, 499]], speed[500:].mean(0).expand(2, 3), atol=0.05 * float(speed[500:].abs().max()))
    assert rises_first.abs().max() < 1.1 * ahead.abs().max()


def test_controllers_are_built_from_configs_that_fit_the_robot(go2: Any, panda: Any) -> None:
    for robot, config, message in (
        (go2, JointOffsetConfig(swing=(0.1,)), "controller.swing has 1 numbers for the 12 joints"),
        (go2, JointOffsetConfig(swing=(0.1,) * 12), "swing_from has 0 numbers"),
        (go2, replace(SWING, stride=((0.1,),)), "controller.stride has 1 numbers for the 12 joints"),
        (go2, JointOffsetConfig(stride=((0.1,),) * 12), "controller.swing has 0 numbers"),
        (go2, JointOffsetConfig(reach=6.0), r"controller\.reach is 6 rad, but no joint .* has more than 3\.53"),
        (panda, JointOffsetConfig(), "'panda' has no joint stiffness and damping"),
    ):
        with pytest.raises(ValueError, match=message):
            JointOffsetController(robot, config)
    assert isinstance(control.build_controller(go2, JointOffsetConfig()), JointOffsetController)
    assert isinstance(control.build_controller(panda, ToolDeltaConfig()), ToolDeltaController)
    for config in (JointOffsetConfig(rate=25.0, reach=0.2), SWING, STRIDE, ToolDeltaConfig(step=0.01)):
        assert control.controller_config(json.loads(json.dumps(asdict(config)))) == config


# ---- joint positions of arms ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("step", [0.0, 0.1])
@pytest.mark.parametrize("arm", ["panda", "ur5e", "so101"])
def test_joint_targets_are_the_actions_within_lead_and_limits(arm: str, step: float) -> None:
    robot = robots.get(arm)
    controller = JointPositionController(robot, JointPositionConfig(step=step, lead=0.2))
    count = controller.actions.size
    home, low, high = torch.tensor(robot.home), robot.limit("low"), robot.limit("high")
    rng = torch.Generator().manual_seed(0)
    unit = 2 * torch.rand(200, count, generator=rng) - 1
    unit[0] = 0.0
    measured = home + 0.3 * torch.randn(200, len(home), generator=rng)
    measured[0] = home
    action = controller.actions.to_physical(unit)
    target = controller(SimpleNamespace(joint_position=measured), action)  # type: ignore[arg-type]
    wanted = action[:, : len(home)] + (measured if step else 0.0)
    share = (wanted - measured).abs().amax(1, keepdim=True).clamp_min(0.2) / 0.2
    expected = (measured + (wanted - measured) / share).clamp(low, high)
    assert torch.allclose(target.command.values, expected, atol=1e-5)
    assert torch.allclose(target.command.values[0], home, atol=1e-6), "an action of 0 is home, or stays there"
    if robot.gripper:
        assert torch.allclose(target.gripper[:, 0], (unit[:, -1] + 1) / 2 * robot.gripper.width, atol=1e-6)
    broken = controller(SimpleNamespace(joint_position=measured[:1]), action[:1] * float("nan"))  # type: ignore[arg-type]
    assert broken.command.values.isnan().all(), "for the shield to reject"


@pytest.mark.parametrize("step", [0.0, 0.1])
def test_joint_positions_are_held_and_cannot_be_steered(step: float) -> None:
    panda = robots.get("panda")
    controller = JointPositionController(panda, JointPositionConfig(step=step))
    last = torch.full((1, 8), 0.3)
    hold = controller.hold_action(last, torch.tensor([[0.02]]))
    assert hold[0, 7] == pytest.approx(2 * 0.02 / controller.width - 1)
    assert torch.equal(hold[:, :7], torch.zeros(1, 7) if step else last[:, :7])
    with pytest.raises(ConfigError, match="joint_position controller moves joints"):
        controller.from_twist(torch.zeros(1, 6), torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"controller\.step is 0\.3 rad, above controller\.lead"):
        JointPositionConfig(step=0.3)


def test_joint_positions_restore_from_json_and_name_their_units() -> None:
    config = JointPositionConfig(rate=10.0, reach=1.0)
    assert controller_config(json.loads(json.dumps(asdict(config)))) == config
    fields = JointPositionController(robots.get("so101"), config).actions.fields
    assert [field.name for field in fields] == ["joint_position", "gripper"] and fields[0].unit == "rad"
    assert fields[0].low[0] == robots.get("so101").home[0] - 1.0


def test_a_simulated_arm_follows_a_policy_of_joint_positions() -> None:
    """In the task and on the tested path of the robot: the shield passes what the controller gives."""
    task = tasks.get("panda-lift")
    interface = replace(task.interface, controller=JointPositionConfig(), shield=task.interface.shield)
    env = TaskEnv(replace(task, interface=interface, expert=""), 2, seed=0)
    env.reset(seed=0)
    home = torch.tensor(env.robot.home)
    goal = home + torch.tensor([0.3, -0.2, 0.1, -0.3, 0.2, 0.1, -0.3])
    action = env.pipeline.actions.to_unit(torch.cat([goal, torch.tensor([0.08])]))
    for _ in range(40):
        _, _, terminated, _, _ = env.step(action.repeat(2, 1))
        assert not terminated.any()
    assert (env.true.joint_position - goal).abs().max() < 0.05
    env.close()
