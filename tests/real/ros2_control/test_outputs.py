"""Every profile moves the arm of a mock driver through its own controller, which refuses nothing that it is sent."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.bundle import save_bundle
from real.bus import make, qos
from robot_rl.cli.bench.loop import acting
from robot_rl.cli.main import main
from robot_rl.interface.kinematics import Kinematics
from robot_rl.robots import robots

Build = Callable[..., Any]
PREFIXED = [f"fr3_joint{k}" for k in range(1, 8)]
ARRAY, TRAJECTORY = "std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory"
UR = {
    "ur_robot_driver": "forward_position_controller", "ur_velocity": "forward_velocity_controller",
    "ur_trajectory": "scaled_joint_trajectory_controller",
}  # fmt: skip


def tool(robot: str, joints: list[float]) -> torch.Tensor:
    return Kinematics(robots.get(robot)).forward(torch.tensor(joints)[None])[0][0]


def move(env: Any, mock: Any, controller: str, *gripper: float) -> dict[str, Any]:
    """Move the tool by 10 actions along x, check where it is, and return what the controller received."""
    robot = env.pipeline.robot
    env.activate()
    env.reset(seed=0)
    before = tool(robot.name, mock.ask(controller)["q"])
    for _ in range(10):
        env.step(torch.tensor([[0.4, 0.0, 0.0, *gripper]]))
    asked: dict[str, Any] = mock.ask(controller)
    moved = tool(robot.name, asked["q"]) - before
    assert 0.03 < moved[0] < 0.18, f"10 actions of 16 mm along x from where it is measured: {moved}"
    assert moved[1:].abs().max() < 0.02
    assert asked["accepted"] > 20 and asked["refused"] == 0, asked["why"]
    assert not env.loop.stopped
    return asked


@pytest.mark.realtime  # the mock driver integrates velocities by the wall clock
@pytest.mark.parametrize("profile", list(UR))
def test_ur_moves_by_each_controller(
    profile: str, spec_of: Build, start_ur: Build, open_env: Build, eventually: Build
) -> None:
    mock = start_ur(active=UR[profile])
    env = open_env(spec_of("ur5e", profile))
    asked = move(env, mock, UR[profile])
    if profile == "ur_trajectory":
        assert asked["names"] == list(robots.get("ur5e").joint_names)
        assert asked["ahead"] == 2 * 2_000_000, "two periods at 500 Hz, ns"
    env.close()
    eventually(lambda: not any(mock.ask(UR[profile])["v"]), "a last velocity of zero")
    eventually(lambda: mock.ask(UR[profile])["q"] == mock.ask(UR[profile])["q"], "rest")
    assert mock.ask(UR[profile])["refused"] == 0


@pytest.mark.realtime  # the driver's states may be late by half a second on a busy computer
def test_deploy_takes_the_profile(start_ur: Build, nodes: Build, tmp_path: Path, capsys: Any) -> None:
    start_ur(active=UR["ur_trajectory"])
    save_bundle(acting(robots.get("ur5e"), None), tmp_path / "bundle")
    poses = nodes("tracker").publisher("geometry_msgs/msg/PoseStamped", "objects/target/pose", qos.SENSOR)
    target = make("geometry_msgs/msg/PoseStamped", pose={"position": {"x": 0.5, "y": 0.0, "z": 0.2}})
    done = threading.Event()

    def track() -> None:
        while not done.wait(0.02):
            poses.publish(target)

    thread = threading.Thread(target=track)
    thread.start()
    try:
        words = ["deploy", tmp_path / "bundle", "--robot", "ur5e", "--profile", "ur_trajectory", "--episodes", 1]
        words += ["--seconds", 1, "--video-episodes", 0, "--out", tmp_path / "run", "--json"]
        assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    finally:
        done.set()
        thread.join()
    seen = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert seen["stopped"] == "" and seen["steps"] == 20
    assert json.loads((tmp_path / "run" / "config.json").read_text())["profile"] == "ur_trajectory"


@pytest.mark.realtime  # as above
def test_moveit_servo_gets_velocities_with_stamp_and_frame(spec_of: Build, start_ur: Build, open_env: Build) -> None:
    controllers = {
        "forward_position_controller": ("position", "active"), "joint_state_broadcaster": ("broadcaster", "active"),
        "servo_node": ("servo", "active"),
    }  # fmt: skip
    mock = start_ur(controllers=controllers)
    env = open_env(spec_of("ur5e", "ur_servo"))
    assert move(env, mock, "servo_node")["frame"] == "base_link"


def test_franka_ros2_moves_by_trajectories_and_grips_by_an_action(
    spec_of: Build, start_fr3: Build, open_env: Build, eventually: Build
) -> None:
    mock = start_fr3("fr3_arm_controller", "trajectory", gripper_action="franka_gripper/gripper_action")
    env = open_env(spec_of("fr3", "franka_ros2"))
    asked = move(env, mock, "fr3_arm_controller", 1.0)
    assert asked["names"] == PREFIXED and asked["ahead"] == 4 * 10_000_000, "four periods at 100 Hz, ns"
    eventually(lambda: mock.grips() == [0.04], "one goal: each finger opens by half of the width")
    mock.hold(False)
    for _ in range(10):  # the gripper does not answer: the arm goes on
        env.step(torch.tensor([[-0.4, 0.0, 0.0, -1.0]]))
    assert mock.ask("fr3_arm_controller")["accepted"] > asked["accepted"] + 20 and not env.loop.holding
    assert mock.grips() == [0.04]
    mock.hold(True)
    eventually(lambda: mock.grips()[-1] == 0.0, "closed")


def test_crisp_gets_poses_and_the_fraction_by_which_the_gripper_is_open(
    spec_of: Build, start_fr3: Build, open_env: Build, eventually: Build
) -> None:
    topic = "gripper/gripper_position_controller/commands"
    mock = start_fr3("cartesian_impedance_controller", "impedance", gripper_command=topic)
    env = open_env(spec_of("fr3", "crisp"))
    assert move(env, mock, "cartesian_impedance_controller", 1.0)["frame"] == "base"
    assert mock.grips()[-1] == pytest.approx(1.0)
    env.step(torch.tensor([[0.0, 0.0, 0.0, -1.0]]))
    eventually(lambda: mock.grips()[-1] == 0.0, "closed")


def test_mock_refuses_what_the_real_controllers_refuse(start_ur: Build, nodes: Build, eventually: Build) -> None:
    """The tests above count refusals: this one shows that there would be some."""
    mock, node = start_ur(), nodes("careless")
    names = list(robots.get("ur5e").joint_names)
    position, trajectory = UR["ur_robot_driver"], UR["ur_trajectory"]

    def sent(controller: str, what: str, kind: str, message: Any) -> dict[str, Any]:
        topic = {ARRAY: "commands", TRAJECTORY: "joint_trajectory"}[kind]
        publisher = node.publisher(kind, f"{controller}/{topic}", qos.COMMAND)
        assert node.wait_for(lambda: publisher.matched > 0, 10.0)
        before = mock.ask(controller)[what]
        publisher.publish(message)
        eventually(lambda: mock.ask(controller)[what] == before + 1, what)
        publisher.close()
        return mock.ask(controller)  # type: ignore[no-any-return]

    home = mock.ask(position)["q"]
    assert "5 numbers" in sent(position, "refused", ARRAY, make(ARRAY, data=home[:5]))["why"]
    assert sent(position, "refused", ARRAY, make(ARRAY, data=[*home[:5], float("nan")]))["why"] == "not finite"
    assert mock.ask(position)["q"] == home
    point = {"positions": home, "time_from_start": {"nanosec": 4}}
    good = make(TRAJECTORY, joint_names=names, points=[point])
    assert sent(trajectory, "ignored", TRAJECTORY, good)["accepted"] == 0, "inactive"
    mock.set(position, "inactive")
    mock.set(trajectory, "active")
    for fields, why in (
        ({"joint_names": names[:5], "points": [point]}, "are not the controller's"),
        ({"joint_names": names, "points": []}, "no points"),
        ({"joint_names": names, "points": [point, point]}, "times do not increase"),
        ({"joint_names": names, "points": [point | {"velocities": [1.0] * 6}]}, "a velocity at the end"),
        ({"joint_names": names, "points": [point | {"positions": home[:5]}]}, "too few"),
    ):
        assert why in sent(trajectory, "refused", TRAJECTORY, make(TRAJECTORY, **fields))["why"]
    assert sent(trajectory, "accepted", TRAJECTORY, good)["names"] == names
