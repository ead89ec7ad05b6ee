"""Twin of an arm: as a process driven over loopback, and single ticks in this process."""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import Node, decode, make, open_node, qos
from real.drivers import open_driver
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.topics import INT
from real.twin import ArmTwin, HiddenArm
from real.twin.arm import ARM
from robot_rl.interface.command import Command, GripperCommand
from robot_rl.robots.panda import PANDA
from sim.env import TaskEnv
from sim.experts.lift import STEADY, LiftExpert
from sim.tasks import tasks

LIFT = tasks.get("panda-lift")
ARRAY, POSE = "std_msgs/msg/Float64MultiArray", "geometry_msgs/msg/PoseStamped"
TWIN = [sys.executable, "-m", "robot_rl.cli.main", "twin", "panda", "--no-camera"]
realtime = pytest.mark.realtime
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def twin(private_domain: int, twin_process: Build) -> Iterator[subprocess.Popen[str]]:
    with twin_process("panda", "--no-camera") as process:
        yield process


# ---- the process -------------------------------------------------------------------------------------------------
@realtime
def test_driver_receives_the_state_in_real_time(twin: Any, node: Node, eventually: Build) -> None:
    driver = open_driver(node, PANDA, ("cube",))
    driver.preflight.wait_ready(30)
    state = driver.observe(torch.zeros(1, 4))
    assert state is not None and all(view.isfinite().all() for view in state.views.values())
    assert (state.joint_position - torch.tensor(PANDA.home)).abs().max() < 0.05
    assert state.gripper_width.item() == pytest.approx(0.08, abs=0.005)
    begin = time.monotonic()
    first = driver.state.joints.latest
    eventually(lambda: driver.state.joints.latest.count >= first.count + 200)
    assert time.monotonic() - begin > 0.7, "200 Hz, not faster"


@pytest.fixture
def node_in_lockstep(private_domain: int, twin_process: Build) -> Iterator[Node]:
    """Node on whose commands a twin in another process waits."""
    apart = ["--ros-args", "-r", "__ns:=/lockstep"]
    with (
        twin_process("panda", "--no-camera", "--lockstep", "policy", *apart),
        open_node("policy", ros_args=[*apart, "-p", "use_sim_time:=true"]) as node,
    ):
        yield node


def test_expert_lifts_the_cube_over_the_robots_topics(node_in_lockstep: Node) -> None:
    """Reset, observation over DDS, and actions through controller, shield and command stream."""
    env = RobotEnv(node_in_lockstep, LIFT.interface)
    env.activate()
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
    assert torch.cat(executed).abs().max() <= 1 and "nonfinite" not in env.summary()["shield"]


@realtime
def test_second_twin_of_a_domain_refuses_to_start(twin: Any) -> None:
    second = subprocess.run([*TWIN, "--seconds", "1"], capture_output=True, text=True, timeout=60)
    assert second.returncode == 1 and "/twin already sends on /joint_states" in " ".join(second.stderr.split())
    assert "Traceback" not in second.stderr and "is up" not in second.stderr


@realtime
def test_killed_twin_is_reported_and_the_command_loop_holds(twin: Any, node: Node, eventually: Build) -> None:
    env = RobotEnv(node, LIFT.interface)
    env.activate()
    sent: list[np.ndarray] = []
    send = env.driver.send

    def keep(command: Command, rate: torch.Tensor, gripper: GripperCommand) -> None:
        sent.append(command.values[0].numpy().copy())
        send(command, rate, gripper)

    env.driver.send = keep  # type: ignore[method-assign]
    try:
        env.reset(seed=0)
        for _ in range(3):
            env.step(torch.tensor([[0.0, 0.3, 0.0, 1.0]]))
        before = env.loop.events.counts.get("stale state", 0)  # this machine may have stalled
        twin.kill()
        with pytest.raises(NotReady, match="driver") as error:
            for _ in range(60):  # three seconds
                env.step(torch.tensor([[0.0, 0.3, 0.0, 1.0]]))
        assert "\n" not in str(error.value)
        count = len(sent)
        eventually(lambda: len(sent) > count + 60)
        assert np.ptp(sent[-40:], axis=0).max() < 1e-6, "it holds"
        assert env.loop.events.counts.get("stale state") == before + 1
    finally:
        env.close()


# ---- single ticks ------------------------------------------------------------------------------------------------
@pytest.fixture
def build(nodes: Build) -> Build:
    """Build twins that do not run; their topics are in another namespace than the process's."""
    node = nodes("twin", namespace="/still")
    return lambda task=LIFT, *args, **options: ArmTwin(node, task, *args, cameras=False, **options)


@pytest.fixture
def policy(nodes: Build) -> Node:
    return nodes("policy", namespace="/still")


def test_invalid_commands_and_requests_are_ignored(build: Build, policy: Node, eventually: Build) -> None:
    twin, heard = build(), []
    arm, hand = (policy.publisher(ARRAY, topic.topic, qos.DEFAULT) for topic in (twin.command, twin.gripper))
    placer = policy.publisher(INT, "twin/reset", qos.DEFAULT)
    eventually(lambda: arm.matched and hand.matched and placer.matched)
    state = policy.subscribe("sensor_msgs/msg/JointState", twin.states.topic, callback=lambda s: heard.append(s.msg))
    eventually(lambda: state.matched)
    for seed in (-1, 7):
        placer.publish(make(INT, data=seed))
    hand.publish(make(ARRAY, data=np.array([float("inf")])))
    for count, data in enumerate(([], [0.0] * 6, [float("nan")] * 7), 1):
        arm.publish(make(ARRAY, data=np.array(data)))
        eventually(lambda count=count: twin.command.latest and twin.command.latest.count == count)
        for _ in range(20):
            twin.tick(1)
    # States are sent best effort: go on until enough have come.
    eventually(lambda: twin.tick(1) or (list(twin._requests) == [7] and len(heard) >= 60))
    assert np.abs(np.array(heard[-1].position[:7]) - PANDA.home).max() < 0.05
    assert heard[-1].position[7:].sum() == pytest.approx(0.08, abs=0.005)


def test_hidden_dynamics_lie_outside_the_training_ranges() -> None:
    drawn = {r.parameter: r for r in LIFT.randomization}
    values = HiddenArm().of(LIFT)
    bias = max(abs(values.pop(f"cube.bias_{axis}")) for axis in "xyz")
    values["sensor.object_bias"] = bias
    assert len(values) == len(ARM) - 2, "every value is compared"
    assert not [name for name, value in values.items() if drawn[name].low <= value <= drawn[name].high]


def test_object_sizes_change_only_where_training_randomizes_them(build: Build) -> None:
    """Success tests such as "within 3 cm of the centre" depend on the size."""
    assert build().values["cube.size"] == ARM["<object>.size"]
    tabletop = tasks.get("tabletop")
    twin = build(tabletop)
    assert not [name for name in twin.values if name.endswith(".size")]
    for thing in tabletop.scene.objects:
        assert float(twin.engine.object_pose(thing.name)[0, 2]) == pytest.approx(thing.rest, abs=2e-3)


def test_tracker_errors_differ_between_objects(build: Build) -> None:
    """With equal errors relative poses would be exact."""
    twin = build(tasks.get("tabletop"), HiddenArm(ARM | {"sensor.object_noise": 0.0}))
    measured: dict[str, np.ndarray] = {}
    for name, publisher in twin.poses.items():
        publisher.publish = lambda raw, name=name: measured.update({name: decode(raw, POSE).pose.position})
    twin.tick(0)
    true = {name: twin.engine.object_pose(name)[0, :3].numpy() for name in measured}
    errors = [np.array([at.x, at.y, at.z]) - true[name] for name, at in measured.items()]
    assert errors[0] == pytest.approx([ARM[f"<object>.bias_{axis}"] for axis in "xyz"], abs=1e-3)
    assert all(np.linalg.norm(e) == pytest.approx(np.linalg.norm(errors[0]), abs=1e-3) for e in errors)
    assert all(np.linalg.norm(a - b) > 0.02 for a, b in itertools.combinations(errors[:3], 2))


def test_seed_determines_the_placement(build: Build) -> None:
    twin = build(seed=5)
    first = twin.engine.object_pose("cube").clone()
    twin.place(6)
    assert not torch.equal(twin.engine.object_pose("cube"), first)
    twin.place(5)
    assert torch.allclose(twin.engine.object_pose("cube"), first)


def test_arm_without_gripper_has_the_target_of_the_simulation(build: Build) -> None:
    reach = tasks.get("ur5e-reach")
    twin = build(replace(reach, scene=replace(reach.scene, timestep=0.005)))
    assert twin.engine.scene.timestep == 1 / twin.robot.command_rate, "a tick is a command period"
    for seed in (3, 4):
        env = TaskEnv("ur5e-reach", 1, threads=1)
        env.reset(seed=seed)
        twin.place(seed)
        assert torch.allclose(twin.engine.object_pose("target"), env.true.objects["target"], atol=1e-6)
    twin.tick(0)
    assert twin.engine.joint_state()[0].shape == (1, 6)


def test_twin_and_driver_agree_on_prefixed_names(private_domain: int) -> None:
    args = ["--ros-args", "-p", "joint_prefix:=fr3_", "-r", "__ns:=/fr3"]
    with open_node("twin", ros_args=args) as node, open_node("policy", ros_args=args) as policy:
        robot = ArmTwin(node, LIFT, cameras=False)
        driver = open_driver(policy, PANDA, ("cube",), dry_run=True)
        ears = (driver.state.joints, driver.scene.poses["cube"])
        assert policy.wait_for(lambda: all(ear.matched for ear in ears), 30)
        for _ in range(2):
            robot.tick(0)
        assert all(ear.wait(30, after=0) for ear in ears)
        state, pose = (ear.latest.msg for ear in ears)  # type: ignore[union-attr]
        assert state.name[0] == "fr3_joint1" and state.name[-1] == "fr3_finger_joint2"
        assert pose.header.frame_id == "fr3_base"
        assert policy.wait_for(lambda: bool(driver.scene.accepted["cube"]), 30) and driver.reading() is not None
        assert ArmTwin(node, tasks.get("ur5e-reach"), cameras=False).frame == "fr3_base_link"
