"""What a task is: an interface for the policy, a scene, a reward, and what differs between episodes.

It names no engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from robot_rl.interface.observations import Observer
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.success import objects_of
from robot_rl.interface.symmetry import Mirror
from robot_rl.util.errors import Misfit, UnknownName
from robot_rl.util.registry import load
from sim.commands import CommandSchedule
from sim.randomization import Randomize
from sim.rewards import Moment, Reward
from sim.scenes import Scene
from sim.tasks.views import check_views

PLACE = ("x", "y", "z", "yaw")
"""What places a box, as `<box>.x`."""


@dataclass(frozen=True)
class Task:
    interface: Interface
    scene: Scene
    randomization: tuple[Randomize, ...]
    """Drawn at each reset. A box without `<box>.x`, `.y`, `.z` and `.yaw` stands still at its default place."""
    expert: str = ""
    """module:function that builds a scripted demonstrator; empty: there is none."""
    rewards: tuple[Reward, ...] = ()
    """Empty: 1 on success."""
    privileged: tuple[str, ...] = ()
    """Observation terms of the true state, for critics; object poses and what was drawn are always there."""
    commands: CommandSchedule | None = None
    """Who asks for the interface's command while an episode runs."""
    measures: Callable[[Moment], dict[str, Tensor]] | None = None
    """Figures (n,) of every control period that are reported beside the reward."""
    mirror: Mirror | None = None
    """Left-right symmetry, with every parameter randomized."""

    def __post_init__(self) -> None:
        cameras = tuple(camera.name for camera in self.scene.cameras)
        object.__setattr__(self, "interface", replace(self.interface, cameras=cameras))
        # What a policy, a robot or an engine would stumble over is refused where the task's file is read.
        pipeline = Pipeline(self.interface)
        true = Observer(self.privileged, pipeline.robot, pipeline.actions, pipeline.command)
        tests = [test for test in (self.interface.success, self.interface.failure) if test]
        boxes = [box.name for box in self.scene.boxes]
        for name in (*pipeline.observer.objects, *true.objects, *(o for test in tests for o in objects_of(test))):
            if name not in boxes:
                raise UnknownName("object of the scene", name, boxes)
        check_views(self, pipeline, true)

    @property
    def name(self) -> str:
        return self.interface.task

    def make_expert(self, pipeline: Pipeline, num_envs: int, skill: str, seed: int) -> Any:
        """The scripted demonstrator; `skill` names a constant of its module, for example "CLUMSY"."""
        what, module = f"expert of task {self.name!r}", self.expert.partition(":")[0]
        if ":" not in self.expert:
            raise Misfit(f"{what} is {self.expert!r}; it is written module:function")
        build, steadiness = load(self.expert, what), load(f"{module}:{skill}", what)
        return build(pipeline.observer.spec, pipeline.controller, num_envs, steadiness, seed)
