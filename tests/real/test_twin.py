"""The twin in a process of its own, driven over loopback as a robot would be."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import Node, make, open_node, qos
from real.episode.env import RobotEnv
from real.robots.arm import ArmDriver
from real.robots.base import NotReady
from real.twin import ArmTwin, HiddenArm
from robot_rl.robots.panda import PANDA
from sim.env import TaskEnv
from sim.experts.lift import STEADY, LiftExpert
from sim.tasks import tasks

LIFT = tasks.get("panda-lift")


class Process:
    """`robot-rl twin panda`."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-m", "robot_rl.cli.main", "twin", "panda", "--no-camera", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert "twin of panda is up" in first, first + self.process.stderr.read()

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def twin(private_domain: int) -> Iterator[Process]:
    process = Process()
    yield process
    if process.process.poll() is None:
        process.end(signal.SIGKILL)


@pytest.fixture
def node(private_domain: int) -> Iterator[Node]:
    with open_node("policy") as opened:
        yield opened


def test_a_policy_side_is_ready_within_seconds(twin: Process, node: Node, eventually: Callable[..., Any]) -> None:
    driver = ArmDriver(node, PANDA, ("cube",))
    driver.wait_ready(30)
    state = driver.state(torch.zeros(1, 4))
    assert state is not None and all(view.isfinite().all() for view in state.views.values())
    assert (state.joint_position - torch.tensor(PANDA.home)).abs().max() < 0.05
    assert state.gripper_width.item() == pytest.approx(0.08, abs=0.005)
    begin = time.monotonic()
    first = driver.joints.latest
    assert first is not None
    eventually(lambda: driver.joints.latest.count >= first.count + 200)
    assert time.monotonic() - begin > 0.7, "200 Hz, not faster"


def test_a_steady_hand_lifts_the_cube_through_the_robots_own_topics(twin: Process, node: Node) -> None:
    """The whole way: reset, observe over DDS, act through controller, shield and command stream, against a delay."""
    env = RobotEnv(node, LIFT.interface)
    expert = LiftExpert(env.pipeline.observer.spec, env.pipeline.controller, 1, STEADY, 0)
    executed: list[torch.Tensor] = []
    try:
        for episode in range(3):
            observation, _ = env.reset(seed=episode)
            expert.reset(torch.arange(1))
            spec = env.pipeline.observer.spec
            joints = observation["observation.state"][0, spec.slice("joint_position")]
            assert (joints - torch.tensor(PANDA.home)).abs().max() < 0.05
            cube = observation["observation.state"][0, spec.slice("cube_position")]
            assert 0.34 < cube[0] < 0.64 and abs(cube[1]) < 0.24 and cube[2] < 0.04, "placed on the table"
            while True:
                observation, _, terminated, truncated, infos = env.step(expert.act(observation))
                executed.append(infos["executed"])
                if bool(terminated | truncated):
                    break
            if bool(terminated):
                assert env.state.objects["cube"][0, 2] > 0.12
                break
        else:
            pytest.fail("not one of three episodes succeeded")
    finally:
        env.close()
    assert torch.cat(executed).abs().max() <= 1
    events = env.summary()["shield"]
    assert "nonfinite" not in events


def test_the_same_seed_places_the_cube_at_the_same_spot(twin: Process, node: Node) -> None:
    env = RobotEnv(node, LIFT.interface)
    spec = env.pipeline.observer.spec.slice("cube_position")
    try:
        places = [env.reset(seed=seed)[0]["observation.state"][0, spec] for seed in (7, 8, 7)]
    finally:
        env.close()
    noise = 6 * HiddenArm().object_noise
    assert (places[0] - places[2]).abs().max() < 2 * noise
    assert (places[0] - places[1]).abs().max() > 2 * noise


def test_a_dry_run_moves_nothing(twin: Process, node: Node, eventually: Callable[..., Any]) -> None:
    watcher = node.subscribe("std_msgs/msg/Float64MultiArray", PANDA.ros.command, qos.COMMAND)
    env = RobotEnv(node, LIFT.interface, dry_run=True)
    try:
        env.reset(seed=0)
        before = env.state.joint_position.clone()
        for _ in range(5):
            env.step(torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
        assert (env.state.joint_position - before).abs().max() < 0.01
        assert env.state.gripper_width.item() == pytest.approx(0.08, abs=0.005)
        assert watcher.latest is None and watcher.matched == 0
    finally:
        env.close()


def test_commands_and_requests_that_are_not_usable_are_ignored(
    twin: Process, node: Node, eventually: Callable[..., Any]
) -> None:
    driver = ArmDriver(node, PANDA, ("cube",))
    driver.wait_ready(30)
    array = "std_msgs/msg/Float64MultiArray"
    eventually(lambda: driver.command.matched and driver.gripper.matched)
    placer = node.publisher("std_msgs/msg/String", "twin/reset", qos.DEFAULT)
    eventually(lambda: placer.matched)
    for text in ("", "{}", "[]", '{"seed": "x"}', '{"seed": null}'):
        placer.publish(make("std_msgs/msg/String", data=text))
    for data in ([], [0.0] * 6, [float("nan")] * 7):
        driver.command.publish(make(array, data=np.array(data)))
    driver.gripper.publish(make(array, data=np.array([float("inf")])))
    count = driver.joints.latest.count
    eventually(lambda: driver.joints.latest.count > count + 100)
    state = driver.state(torch.zeros(1, 4))
    assert twin.process.poll() is None and state is not None
    assert (state.joint_position - torch.tensor(PANDA.home)).abs().max() < 0.1 and all(
        view.isfinite().all() for view in state.views.values()
    )


def test_a_twin_that_dies_in_mid_episode_is_one_clear_error_and_the_loop_holds(
    twin: Process, node: Node, eventually: Callable[..., Any]
) -> None:
    env = RobotEnv(node, LIFT.interface)
    sent: list[np.ndarray] = []
    send = env.driver.send

    def keep(position: np.ndarray, gripper: float) -> None:
        sent.append(position.copy())
        send(position, gripper)

    env.driver.send = keep  # type: ignore[method-assign]
    try:
        env.reset(seed=0)
        for _ in range(3):
            env.step(torch.tensor([[0.0, 0.3, 0.0, 1.0]]))
        before = env.loop.events.counts.get("stale state", 0)  # a machine may stop for a moment
        twin.end(signal.SIGKILL)
        error = None
        try:
            for _ in range(60):  # three seconds
                env.step(torch.tensor([[0.0, 0.3, 0.0, 1.0]]))
        except NotReady as raised:
            error = raised
        count = len(sent)
        eventually(lambda: len(sent) > count + 60)
        assert np.ptp(sent[-40:], axis=0).max() < 1e-6, "it holds"
        assert env.loop.events.counts.get("stale state") == before + 1
        assert error is not None, "nobody was told that the robot is gone"
        assert "driver" in str(error) and "\n" not in str(error)
    finally:
        env.close()


def test_a_second_twin_on_the_same_domain_refuses_to_start(private_domain: int) -> None:
    first = Process()
    try:
        command = [sys.executable, "-m", "robot_rl.cli.main", "twin", "panda", "--no-camera", "--seconds", "1"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1 and "/twin already sends on /joint_states" in " ".join(second.stderr.split())
        assert "Traceback" not in second.stderr and "is up" not in second.stderr
    finally:
        assert first.end()[0] == 0


def test_a_signal_ends_it_in_order(private_domain: int) -> None:
    code, said = Process().end(signal.SIGTERM)
    assert code == 0 and "ticks" in said and "Traceback" not in said


def test_without_a_robot_the_error_says_what_to_start(private_domain: int) -> None:
    with open_node("policy", "/nobody_here") as node:
        driver = ArmDriver(node, PANDA, ("cube",))
        with pytest.raises(NotReady, match="joint1.*robot-rl twin panda"):
            driver.wait_ready(0.1)


def test_hidden_dynamics_are_not_what_training_sees(private_domain: int) -> None:
    """The twin is a robot of its own: nothing of what is hidden lies within what training draws."""
    drawn = {r.parameter: r for r in LIFT.randomization}
    hidden = HiddenArm()
    values = {
        "robot.action_delay": hidden.action_delay,
        "robot.stiffness_scale": hidden.stiffness_scale,
        "robot.damping_scale": hidden.damping_scale,
        "robot.joint_friction": hidden.joint_friction,
        "cube.mass": hidden.object_mass,
        "cube.size": hidden.object_size,
        "cube.friction": hidden.object_friction,
        "sensor.object_bias": max(abs(b) for b in hidden.object_bias),
        "sensor.object_noise": hidden.object_noise,
        "sensor.object_delay": hidden.object_latency,
        "sensor.joint_noise": hidden.joint_noise,
    }
    inside = [name for name, value in values.items() if drawn[name].low <= value <= drawn[name].high]
    assert not inside
    assert len(values) + 1 == len(fields(HiddenArm)), "all but the rate of the tracker"


def test_objects_have_the_size_that_the_tests_of_their_task_count_on(private_domain: int) -> None:
    """Where training varies it, another; else "touch", within 3 cm of the centre, could not be done."""
    with open_node("twin") as node:
        assert ArmTwin(node, LIFT, cameras=False).sizes == {"cube": HiddenArm().object_size}
        tabletop = tasks.get("tabletop")
        robot = ArmTwin(node, tabletop, cameras=False)
        for thing in tabletop.scene.objects:
            if thing.shape != "tray":
                assert robot.sizes[thing.name] == thing.size
                assert float(robot.engine.object_pose(thing.name)[0, 2]) == pytest.approx(thing.size, abs=2e-3)


def test_the_tracker_errs_differently_with_each_object(private_domain: int, eventually: Callable[..., Any]) -> None:
    """Else where one object is from another would be known exactly."""
    with open_node("twin") as node, open_node("policy") as other:
        robot = ArmTwin(node, tasks.get("tabletop"), HiddenArm(object_noise=0.0), cameras=False)
        topics = [robot.robot.ros.object_pose.format(object=o.name) for o in robot.task.scene.objects]
        heard = [other.subscribe("geometry_msgs/msg/PoseStamped", topic, qos.SENSOR) for topic in topics]
        eventually(lambda: all(publisher.matched for publisher in robot.poses.values()))
        ticks = iter(range(10**6))

        def told() -> bool:
            robot.tick(next(ticks))
            return all(subscription.latest is not None for subscription in heard)

        eventually(told)
        errors = []
        for thing, subscription in zip(robot.task.scene.objects, heard, strict=True):
            at = subscription.latest.msg.pose.position
            errors.append(np.array([at.x, at.y, at.z]) - robot.engine.object_pose(thing.name)[0, :3].numpy())
    assert errors[0] == pytest.approx(HiddenArm().object_bias, abs=1e-3)
    assert all(np.linalg.norm(e) == pytest.approx(np.linalg.norm(errors[0]), abs=1e-3) for e in errors)
    assert all(np.linalg.norm(a - b) > 0.02 for a, b in itertools.combinations(errors[:3], 2))


def test_it_publishes_the_spec_names_in_process(private_domain: int) -> None:
    """Built here, never run: the robot's names are the spec's, and a seed alone decides the places."""
    with open_node("twin") as node:
        robot = ArmTwin(node, LIFT, seed=5, cameras=False)
        first = robot.engine.object_pose("cube").clone()
        robot.place(6)
        assert not torch.equal(robot.engine.object_pose("cube"), first)
        robot.place(5)
        assert torch.allclose(robot.engine.object_pose("cube"), first)
        assert os.path.basename(robot.states.topic) == "joint_states"


def test_a_robot_without_a_gripper_has_a_twin_with_its_target_in_the_air(private_domain: int) -> None:
    """Built here, never run: the target of episode k is where simulation has it, and a tick is a period of commands."""
    reach = tasks.get("ur5e-reach")
    with open_node("twin") as node:
        robot = ArmTwin(node, replace(reach, scene=replace(reach.scene, timestep=0.005)), cameras=False)
        assert robot.engine.scene.timestep == 1 / robot.robot.command_rate
        for seed in (3, 4):
            env = TaskEnv("ur5e-reach", 1, threads=1)
            env.reset(seed=seed)
            robot.place(seed)
            assert torch.allclose(robot.engine.object_pose("target"), env.true.objects["target"], atol=1e-6)
        robot.tick(0)
        assert robot.engine.joint_state()[0].shape == (1, 6)


def test_the_twin_names_joints_and_base_as_its_robots_driver(private_domain: int) -> None:
    """Under a prefix, or a spec's own names; and what it says is what the driver started alike understands."""
    args = ["--ros-args", "-p", "joint_prefix:=fr3_", "-r", "__ns:=/fr3"]
    with open_node("twin", ros_args=args) as node, open_node("policy", ros_args=args) as policy:
        robot = ArmTwin(node, LIFT, cameras=False)
        driver = ArmDriver(policy, PANDA, ("cube",), dry_run=True)
        ears = (driver.joints, driver.poses["cube"])
        assert policy.wait_for(lambda: all(ear.matched for ear in ears), 30)
        for _ in range(2):
            robot.tick(0)
        assert all(ear.wait(30, after=0) for ear in ears)
        state, pose = (ear.latest.msg for ear in ears)  # type: ignore[union-attr]
        assert state.name[0] == "fr3_joint1" and state.name[-1] == "fr3_finger_joint2"
        assert pose.header.frame_id == "fr3_base"
        assert policy.wait_for(lambda: bool(driver.accepted["cube"]), 30) and driver.reading() is not None
        assert ArmTwin(node, tasks.get("ur5e-reach"), cameras=False).frame == "fr3_base_link"
