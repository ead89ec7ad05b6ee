"""Definition of a task: interface of the policy, scene, rewards and randomization, for any engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.observations import Observer, scan_points
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.interface.success import objects_of
from robot_rl.interface.symmetry import Mirror
from robot_rl.util.errors import ConfigError, UnknownName
from robot_rl.util.registry import load
from sim.commands import CommandSchedule
from sim.parameters import PLACE
from sim.randomization import Randomize
from sim.rewards import Reward, Transition
from sim.scenes import Scene
from sim.step.sensors import UNSEEN

__all__ = ["PLACE", "Task"]


@dataclass(frozen=True)
class Task:
    """Complete definition of a task, validated on creation."""

    interface: Interface
    scene: Scene
    randomization: tuple[Randomize, ...]
    """Parameters sampled at each reset. An object without `<object>.x`, `.y`, `.z` and `.yaw` has its default pose."""
    expert: str = ""
    """Function that builds the scripted demonstrator, written module:function; empty: no demonstrator."""
    expert_observations: tuple[str, ...] = ()
    """Observation terms of the demonstrator; empty: those of the policy."""
    rewards: tuple[Reward, ...] = ()
    """Reward terms; empty: the reward is 1 on success and 0 otherwise."""
    privileged: tuple[str, ...] = ()
    """Observation terms of the true state for critics, besides object poses and sampled parameters."""
    commands: CommandSchedule | None = None
    """Generator of velocity commands during an episode."""
    metrics: Callable[[Transition], dict[str, Tensor]] | None = None
    """Function that returns metrics (n,) of a control period by name, reported with the reward."""
    mirror: Mirror | None = None
    """Left-right symmetry of actions and of the observations of an environment that randomizes all parameters."""

    def __post_init__(self) -> None:
        cameras = tuple(camera.name for camera in self.scene.cameras)
        object.__setattr__(self, "interface", replace(self.interface, cameras=cameras))
        # Fail here rather than later in a policy, on a robot or in an engine.
        pipeline = Pipeline(self.interface)
        if self.scene.ground and not pipeline.robot.base:
            raise ConfigError(f"task {self.name!r} has uneven ground, and robot {pipeline.robot.name!r} does not walk")
        true = Observer(self.privileged, pipeline.robot, pipeline.actions, pipeline.command)
        tests = self.interface.tests
        views = self.scene.views
        for name in (*pipeline.observer.objects, *true.objects, *(o for test in tests for o in objects_of(test))):
            if name not in views:
                raise UnknownName("object of the scene", name, views)
        check_views(self, pipeline, true)

    @property
    def name(self) -> str:
        return self.interface.task

    def on(self, robot: str) -> "Task":
        """Return the task for a robot, the task's own or a variant of it."""
        return self if self.interface.robot == robot else replace(self, interface=replace(self.interface, robot=robot))

    @property
    def expert_interface(self) -> Interface:
        """Return the interface with the demonstrator's observations."""
        return replace(self.interface, observations=self.expert_observations or self.interface.observations)

    def make_expert(self, pipeline: Pipeline, num_envs: int, skill: str, seed: int) -> Any:
        """Build the scripted demonstrator for a pipeline of `expert_interface`. `skill` is a constant in the
        demonstrator's module, for example "CLUMSY"."""
        what, module = f"expert of task {self.name!r}", self.expert.partition(":")[0]
        if ":" not in self.expert:
            raise ConfigError(f"{what} is {self.expert!r}; it is written module:function")
        build, errors = load(self.expert, what), load(f"{module}:{skill}", what)
        return build(pipeline.observer.spec, pipeline.controller, num_envs, errors, seed)


def view_sizes(task: Task, pipeline: Pipeline) -> dict[str, int]:
    """Return the sizes of the views of the robot's true state in this task, by name; object poses are left out."""
    robot, joints = pipeline.robot, len(pipeline.robot.joints)
    sizes = {"joint_position": joints, "joint_velocity": joints, "last_action": pipeline.actions.size}
    if robot.tool:
        sizes["tool_position"] = 3
    if robot.gripper:
        sizes["gripper_width"] = 1
    if robot.base:
        feet = len(robot.base.feet)
        sizes |= {"base_position": 3, "base_quat": 4, "base_velocity": 3, "base_angular_velocity": 3}
        sizes |= {"foot_position": 3 * feet, "foot_velocity": 3 * feet, "foot_force": feet, "joint_torque": joints}
    if task.scene.ground and robot.base:
        sizes |= {"ground_height": 1, "ground_normal": 3, "foot_ground_height": len(robot.base.feet)}
        true = Observer(task.privileged, robot, pipeline.actions, pipeline.command)
        if scan := scan_points([*pipeline.observer.terms, *true.terms]):
            sizes["height_scan"] = len(scan)
    if task.commands:
        sizes["command"] = pipeline.command.size
    if task.interface.gait:
        sizes["phase"] = 1
    if task.interface.instructions:
        sizes["instruction"] = 1
    return sizes


class _Zeros:
    """State of one robot with zeros in all views; reading an unavailable view raises ConfigError with the reason."""

    def __init__(self, task: Task, robot: str, sizes: dict[str, int], unseen: Sequence[str] = ()):
        self.objects = {name: torch.zeros(1, 7) for name in task.scene.poses}
        self.object_joints = {name: torch.zeros(1, count) for name, count in task.scene.joints.items()}
        for name, size in sizes.items():
            if name not in unseen:
                setattr(self, name, torch.zeros(1, size))
        self._reasons = {"command": "and the task has no commands", "phase": "and the interface has no gait"}
        self._reasons["instruction"] = "and the interface has no instructions"
        self._reasons |= dict.fromkeys(("height_scan", "ground_normal"), "and the scene has no uneven ground")
        self._reasons |= {name: "which no sensor measures" for name in unseen if name in sizes}
        self._robot = robot

    ground_height = foot_ground_height = ABSENT  # as on level ground, unless __init__ sets them
    base_height = RobotState.base_height

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ConfigError(f"{name}, {self._reasons.get(name, f'which robot {self._robot!r} does not have')}")


def check_views(task: Task, pipeline: Pipeline, privileged: Observer) -> None:
    """Raise ConfigError if an observation term, the controller, or a test of success or failure reads an unavailable
    view."""
    sizes = view_sizes(task, pipeline)
    true, measured = (_Zeros(task, pipeline.robot.name, sizes, unseen) for unseen in ((), UNSEEN))
    action = torch.zeros(1, pipeline.actions.size)
    vars(measured)["reference"] = pipeline.controller.reference(1)
    readers: list[tuple[str, Callable[[Any], Any], Any]] = [
        ("the controller", lambda s: pipeline.target(s, action), measured)
    ]
    for observer, state in ((pipeline.observer, measured), (privileged, true)):
        terms = zip(observer.names, observer.terms, strict=True)
        readers += [(f"observation term {name!r}", term.compute, state) for name, term in terms]
    success = task.interface.success or "of the instructions"
    for name, test in ((success, pipeline.success), (task.interface.failure, pipeline.failure)):
        if test:
            readers.append((f"test {name!r}", test, true))
    for what, read, state in readers:
        try:
            read(state)
        except ConfigError as error:
            raise ConfigError(f"{what} reads {error}") from None
