"""Drivers of other kinds than the project's own: poses and velocities of a tool, joint velocities, suction, a base."""

import importlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from real import clock
from real.bus import Node, make, open_node, qos
from real.drivers import drivers, open_driver
from real.drivers.commands import ARRAY, Commands, GripperCommands, GripperWidth, JointVelocities
from real.drivers.driver import DriverParts
from real.drivers.joint_states import JointStates
from real.drivers.state import NotReady, StateReader
from real.episode.env import RobotEnv
from real.topics import INT
from real.twin import open_twin
from real.twin.composed import composed_twin
from robot_rl.interface.command import BaseVelocity, Command, GripperCommand, ToolPose, Twist
from robot_rl.interface.control import BaseVelocityConfig
from robot_rl.interface.driver import JointTopics, SafetyConfig
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import Gripper, RobotSpec
from robot_rl.interface.rotation import quat_to_matrix, rotation_error
from robot_rl.robots import robots
from robot_rl.robots.panda import PANDA
from robot_rl.util.errors import ConfigError
from sim.tasks import task_of, tasks

Build = Callable[..., Any]
LIFT = tasks.get("panda-lift").interface
RATE = 200
MOVES = torch.tensor([[0.4, 0.0, 0.0, 1.0]])
HOLDS = torch.tensor([[0.0, 0.0, 0.0, -1.0]])


@dataclass(frozen=True, kw_only=True)
class Topics(JointTopics):
    """One topic of numbers, whose meaning is the driver's, and a switch for suction."""

    driver: ClassVar[str] = "numbers"
    command: str = "numbers"
    vacuum: str = "vacuum"


class Numbers(Commands):
    """Publisher of a command's values."""

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        self.publishers = [node.publisher(ARRAY, robot.driver.command, qos.COMMAND)]  # type: ignore[attr-defined]

    def send(self, command: Command, rate: Tensor) -> None:
        self.publishers[0].publish(make(ARRAY, data=command.values[0].double().numpy()))


class Poses(Numbers):
    accepts = (ToolPose,)


class Twists(Numbers):
    accepts = (Twist,)


class Bases(Numbers):
    accepts = (BaseVelocity,)


class Suction(GripperCommands):
    """Publisher of a switch; the joint states have no fingers."""

    def __init__(self, node: Node, robot: RobotSpec):
        super().__init__(node, robot)
        self.publishers = [node.publisher("std_msgs/msg/Bool", "vacuum", qos.COMMAND)]
        self.open, self.on = robot.gripper.width, False  # type: ignore[union-attr]

    def send(self, command: GripperCommand) -> None:
        self.on = command.action == "grasp"
        self.publishers[0].publish(make("std_msgs/msg/Bool", data=self.on))

    def width(self) -> float:
        return 0.0 if self.on else self.open


CUP = Gripper((), width=0.08, force=20.0)
KINDS = {"poses": Poses, "twists": Twists, "joint velocities": JointVelocities}


class Plant:
    """Arm that integrates the numbers that it receives, at `RATE` Hz, without dynamics."""

    def __init__(self, node: Any, kind: str, fingers: bool = False):
        self.node, self.kind = node, kind
        self.names = [*PANDA.joint_names, *(PANDA.fingers if fingers else ())]
        self.kinematics = Kinematics(PANDA)
        self.q = torch.tensor(PANDA.home)[None] + 0.05
        self.numbers: list[np.ndarray] = []
        self.silent, self.vacuum = False, list[bool]()
        self.states = node.publisher("sensor_msgs/msg/JointState", "joint_states", qos.SENSOR)
        self.pose = node.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", qos.SENSOR)
        self.placer = node.subscribe(INT, "twin/reset", qos.DEFAULT)
        node.subscribe(ARRAY, "numbers", replace(qos.COMMAND, depth=1000), self._commanded)
        node.subscribe("std_msgs/msg/Bool", "vacuum", qos.COMMAND, lambda s: self.vacuum.append(bool(s.msg.data)))

    def _commanded(self, sample: Any) -> None:
        self.move(np.array(sample.msg.data))

    def move(self, command: np.ndarray) -> None:
        numbers = torch.from_numpy(command).float()[None]
        self.numbers.append(numbers[0].numpy())
        position, rotation, jacobian = self.kinematics.jacobian(self.q)
        if self.kind == "base":
            return
        if self.kind == "joint velocities":
            self.q = self.q + numbers / RATE
            return
        if self.kind == "poses":
            turn = rotation_error(rotation, quat_to_matrix(numbers[:, 3:]))
            step = torch.cat([numbers[:, :3] - position, turn], -1)
        else:
            step = numbers / RATE
        self.q = self.q + (torch.linalg.pinv(jacobian) @ step[..., None])[..., 0]

    @property
    def tool(self) -> Tensor:
        return self.kinematics.forward(self.q)[0][0]

    def tick(self) -> None:
        if self.silent:
            return
        position = np.full(len(self.names), 0.04)
        position[:7] = self.q[0].double().numpy()
        state = {"name": self.names, "position": position, "velocity": 0 * position}
        self.states.publish(make("sensor_msgs/msg/JointState", **state))
        self.pose.publish(make("geometry_msgs/msg/PoseStamped", pose={"position": {"x": 0.5, "y": 0.0, "z": 0.02}}))


@pytest.fixture
def robot_of(monkeypatch: pytest.MonkeyPatch) -> Build:
    """Register a variant of the Panda with a driver of one kind and a suction cup."""

    def build(commands: type[Commands], **config: Any) -> RobotSpec:
        parts = DriverParts(JointStates, commands, Suction)
        monkeypatch.setitem(drivers.entries, "numbers", parts)  # type: ignore[index]
        spec = replace(PANDA, name="panda-other", variant_of="panda", gripper=CUP, driver=Topics(**config))
        monkeypatch.setitem(robots.entries, spec.name, spec)  # type: ignore[index]
        return spec

    return build


@pytest.fixture
def start(simulated: Any, robot_of: Build) -> Iterator[Build]:
    """Start an arm with a driver of one kind, and its environment."""
    with ExitStack() as opened:

        def build(kind: str, **config: Any) -> tuple[Plant, RobotEnv]:
            spec = robot_of(KINDS[kind], **config)
            plant = Plant(simulated.node("arm"), kind)
            simulated.run(plant.tick)
            env = RobotEnv(simulated.node("policy"), replace(LIFT, robot=spec.name))
            opened.enter_context(closing(env))
            env.activate()
            return plant, env

        yield build


@pytest.mark.parametrize("kind", list(KINDS))
def test_policy_moves_the_tool_through_any_kind_of_command(start: Build, kind: str) -> None:
    plant, env = start(kind)
    env.reset(seed=0)
    home = Kinematics(PANDA).forward(torch.tensor(PANDA.home)[None])[0][0]
    assert (plant.tool - home).norm() < 0.03, "homed"
    before = plant.tool.clone()
    for _ in range(10):
        env.step(MOVES)
    moved = plant.tool - before
    assert 0.08 < moved[0] < 0.17 and moved[1:].abs().max() < 0.02, "10 actions of 16 mm along x, less the lag"
    assert env.state.gripper_width.item() == pytest.approx(0.08) and not plant.vacuum[-1]
    for _ in range(3):
        env.step(HOLDS)
    assert env.state.gripper_width.item() == 0.0 and plant.vacuum[-1], "sucks"
    env.loop.stop("test")
    for _ in range(4):
        env.step(MOVES)
    held = plant.tool.clone()
    for _ in range(4):
        env.step(MOVES)
    assert (plant.tool - held).norm() < 1e-3, "no action moves a stopped robot"
    assert np.isfinite(np.concatenate(plant.numbers)).all()


@pytest.mark.parametrize("kind", list(KINDS))
def test_tool_stays_in_the_workspace(start: Build, kind: str) -> None:
    plant, env = start(kind)
    env.reset(seed=0)
    low, high = torch.tensor(PANDA.tool.workspace)  # type: ignore[union-attr]
    slack = LIFT.shield.workspace_slack + 0.01  # the arm of this test lags behind its commands
    for action in ([1.0, 1.0, -1.0, 1.0], [-1.0, -1.0, 1.0, 1.0]):
        for _ in range(25):
            env.step(torch.tensor([action]))
            assert (plant.tool > low - slack).all() and (plant.tool < high + slack).all()


def test_robot_that_holds_itself_gets_no_commands_at_rest(start: Build, simulated: Any) -> None:
    plant, env = start("twists", stop="robot_holds")
    env.reset(seed=0)
    for _ in range(5):
        env.step(MOVES)
    assert np.abs(plant.numbers[-1]).max() > 0.05
    env.loop.stop("test")
    simulated.until(lambda: np.abs(plant.numbers[-1]).max() == 0.0)
    count = len(plant.numbers)
    clock.sleep(0.5)
    assert len(plant.numbers) == count, "silence"


def test_joint_velocities_end_at_zero(start: Build, simulated: Any) -> None:
    plant, env = start("joint velocities")
    env.reset(seed=0)
    for _ in range(5):
        env.step(MOVES)
    assert np.abs(plant.numbers[-1]).max() > 0.1
    plant.silent = True
    clock.sleep(SafetyConfig().state_timeout + 0.03)
    assert not plant.numbers[-1].any(), "the state is old"
    plant.silent = False
    clock.sleep(0.05)

    def fails(*_: Any) -> None:
        raise RuntimeError("test")

    env.driver.send = fails  # type: ignore[method-assign]
    simulated.until(lambda: env.loop.error is not None)
    simulated.until(lambda: not plant.numbers[-1].any())


def test_parts_that_do_not_fit_are_refused(robot_of: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"Numbers\.accepts names no kind"):
        open_driver(None, robot_of(Numbers))  # type: ignore[arg-type]
    spec = robot_of(Poses)
    monkeypatch.setitem(drivers.entries, "numbers", DriverParts(JointStates, Poses, GripperWidth))  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"no finger joints, so GripperWidth needs a method width"):
        open_driver(None, spec)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="driver.stop is 'damp'"):
        replace(PANDA, driver=Topics(stop="damp"))


def test_driver_that_takes_none_of_the_bundles_commands_is_refused(robot_of: Build, nodes: Build) -> None:
    spec = robot_of(Bases)
    node = nodes("policy")
    with pytest.raises(ConfigError, match=r"panda-other.*driver numbers.* takes base velocities, but a tool_delta"):
        RobotEnv(node, replace(LIFT, robot=spec.name))


def test_variant_runs_the_policies_and_tasks_of_its_kind(robot_of: Build) -> None:
    spec = robot_of(Twists)
    own = replace(spec, gripper=PANDA.gripper)
    assert own.fingerprint() == PANDA.fingerprint()
    assert task_of(spec.name).interface.robot == spec.name and task_of("panda").interface.robot == "panda"


def test_nothing_moves_before_activation(robot_of: Build, simulated: Any) -> None:
    spec = robot_of(Twists)
    plant = Plant(simulated.node("arm"), "twists")
    simulated.run(plant.tick)
    env = RobotEnv(simulated.node("policy"), replace(LIFT, robot=spec.name))
    clock.join()
    clock.sleep(0.5)
    with pytest.raises(NotReady, match="activate"):
        env.reset(seed=0)
    assert not plant.numbers, "configured"
    for _ in range(2):
        before = len(plant.numbers)
        env.activate()
        clock.sleep(0.1)
        assert 19 <= len(plant.numbers) - before <= 21, "one in every tick"
        env.deactivate()


def test_base_moves_within_the_limits_of_its_controller(robot_of: Build, simulated: Any) -> None:
    spec = robot_of(Bases)
    drive = BaseVelocityConfig(rate=20.0, forward=0.5, turn=1.0, ramp=0.2)
    interface = replace(
        LIFT, robot=spec.name, controller=drive, observations=("joint_position",), success="", failure="", horizon=30
    )
    plant = Plant(simulated.node("base"), "base")
    simulated.run(plant.tick)
    env = RobotEnv(simulated.node("policy"), interface)
    env.activate()
    env.reset(seed=0)
    for _ in range(10):
        env.step(torch.tensor([[1.0, -3.0]]))
    assert plant.numbers[-1].tolist() == pytest.approx([0.5, 0.0, -1.0])
    change = np.abs(np.diff(plant.numbers, axis=0)).max(0) * RATE
    assert (change <= np.array([0.5, 0.0, 1.0]) / 0.2 + 1e-3).all()
    env.step(torch.full((1, 2), math.nan))
    assert env.loop.events.counts["nonfinite"] == 1
    env.close()
    assert not plant.numbers[-1].any(), "the last command is to stand"


def test_limits_out_of_range_are_refused() -> None:
    for change, words in (
        ({"state_timeout": 0.0}, "state_timeout is 0"), ({"goal_timeout": 5.0}, "goal_timeout is 5"),
        ({"state_timeout": 0.9}, "lost_timeout is 0.5 s; it must not be below"), ({"tilt": 120.0}, "tilt is 120"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            SafetyConfig(**change)
    with pytest.raises(ValueError, match="follow is 'spline'"):
        Topics(follow="spline")  # type: ignore[arg-type]
    nameless = replace(PANDA, driver=JointTopics())
    with pytest.raises(ConfigError, match="JointTopics names no driver"):
        open_driver(None, nameless)  # type: ignore[arg-type]


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RobotSpec]:
    """The robot of docs/add-a-driver.md, with its driver and twin as they are written there."""
    page = (Path(__file__).parents[2] / "docs" / "add-a-driver.md").read_text()
    for path, code in re.findall(r"^```python\n# (my_lab/\w+\.py)\n(.*?)^```", page, re.M | re.S):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_lab.pose_arm")
    robot: RobotSpec = module.PANDA_POSES
    monkeypatch.setitem(drivers.entries, "pose_arm", module.DRIVER)  # type: ignore[index]
    monkeypatch.setitem(robots.entries, robot.name, robot)  # type: ignore[index]
    assert robot.fingerprint() == PANDA.fingerprint(), "it runs the Panda's bundles"
    yield robot
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_documented_driver_runs_a_policy(documented: RobotSpec, simulated: Any) -> None:
    robot = documented
    node = simulated.node("arm")
    plant = Plant(node, "poses", fingers=True)
    gripped: list[bool] = []

    def posed(sample: Any) -> None:
        p, q = sample.msg.pose.position, sample.msg.pose.orientation
        assert sample.msg.header.frame_id == "base"
        plant.move(np.array([p.x, p.y, p.z, q.w, q.x, q.y, q.z]))

    node.subscribe("geometry_msgs/msg/PoseStamped", "target_pose", replace(qos.COMMAND, depth=100), posed)
    node.subscribe("std_msgs/msg/Bool", "grip", qos.COMMAND, lambda s: gripped.append(bool(s.msg.data)))
    simulated.run(plant.tick)
    env = RobotEnv(simulated.node("policy"), replace(LIFT, robot=robot.name))
    env.activate()
    env.reset(seed=0)
    before = plant.tool.clone()
    for _ in range(10):
        env.step(MOVES)
    assert (plant.tool - before)[0] > 0.08 and not gripped[-1]
    env.step(HOLDS)
    env.step(HOLDS)
    assert gripped[-1]
    env.close()


def moved_on_twin(robot: str) -> tuple[Tensor, float]:
    """Move a twin's tool, then close its gripper; return how far the tool moved, (3,) m, and the gripper's width, m."""
    task = task_of(robot, "panda-lift")
    with composed_twin(task, cameras=False), open_node("policy") as node:
        env = RobotEnv(node, task.interface)
        env.activate()
        env.reset(seed=0)
        before = env.state.tool_position.clone()
        for _ in range(20):
            env.step(MOVES)
        assert env.state.gripper_width.item() == pytest.approx(0.08, abs=0.005)
        moved = (env.state.tool_position - before)[0]
        for _ in range(20):
            env.step(HOLDS)
        assert not env.loop.events.counts
        env.close()
        return moved, env.state.gripper_width.item()


def test_documented_twin_follows_poses_as_the_own_twin_follows_joints(documented: RobotSpec) -> None:
    moved, width = moved_on_twin(documented.name)
    own, _ = moved_on_twin("panda")
    assert own[0] > 0.04 and (moved - own).norm() < 0.005
    assert width < 0.01


def test_twins_that_do_not_fit_are_refused(robot_of: Build, nodes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, node = robot_of(Poses), nodes("twin")
    task = task_of(spec.name, "panda-lift")
    for path, words in (
        ("", "has no twin: its driver 'numbers' names none; write one .* docs/add-a-driver.md, part 4"),
        ("real.twin:open_twin", "open_twin is no subclass of real.twin.base.Twin"),
        ("real.twin.base:Twin", "lacks the methods place, publish, tick"),
        ("real.twin.arm:ArmTwin", "ArmTwin follows ForwardPosition's messages, not those of Topics; write a subclass"),
    ):
        parts = DriverParts(JointStates, Poses, Suction, twin=path)
        monkeypatch.setitem(drivers.entries, "numbers", parts)  # type: ignore[index]
        with pytest.raises(ConfigError, match=words):
            open_twin(node, task)
