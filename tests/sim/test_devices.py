"""All tensors of a step stay on the device: checked with fake tensors, which have a shape and a device but no numbers.

A constant on the CPU raises an error, as on a GPU. Code that reads a number on the CPU, which would synchronize the
GPU, raises an error as well.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots import robots
from sim.engines.base import Engine
from sim.scenes import time_grid
from sim.step.episodes import Episodes
from sim.tasks import tasks
from sim.tasks.base import Task, view_sizes

N, CUDA = 5, torch.device("cuda", 0)
TASKS = {name: tasks.get(name) for name in tasks}
"""Created with real tensors, because a task checks its numbers."""


class Still(Engine):
    """Engine without motion, on a device that need not exist; it has only the methods of a step."""

    def __init__(self, task: Task, pipeline: Pipeline, device: torch.device):
        self.robot, self.scene, self.num_envs, self.device = pipeline.robot, task.scene, N, device
        own = ("last_action", "tool_position", "command", "phase")
        sizes = {name: size for name, size in view_sizes(task, pipeline).items() if name not in own}
        self._views = {name: torch.zeros(N, size, device=device) for name, size in sizes.items()}
        self.parameters = {r.parameter: lambda ids, values: None for r in task.randomization}

    def views(self) -> dict[str, Tensor]:
        return self._views

    def object_qpos(self, name: str) -> Tensor:
        return torch.zeros(N, 7 + self.scene.joints.get(name, 0), device=self.device)

    def diverged(self) -> Tensor:
        return torch.zeros(N, dtype=torch.bool, device=self.device)

    def step(self, joints: Tensor, gripper: Tensor) -> None:
        assert joints.device == gripper.device == self.device

    def push(self, velocity: Tensor) -> None:
        assert velocity.device == self.device and velocity.shape == (N, 3)


Still.__abstractmethods__ = frozenset()


pytestmark = pytest.mark.usefixtures("fake_cuda")


def build(name: str, device: torch.device) -> Episodes:
    """Return the episodes of a task with all its randomization."""
    task, robot = TASKS[name], robots.get(TASKS[name].interface.robot)
    pipeline = Pipeline(task.interface, robot, device)
    grid = time_grid(task.scene.timestep, robot.command_rate, task.interface.controller.rate)
    return Episodes(task, pipeline, Still(task, pipeline, device), list(range(len(task.randomization))), *grid, 0)


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor | np.ndarray):
        return [tree] if isinstance(tree, Tensor) else []
    return [t for value in (tree.values() if isinstance(tree, dict) else tree) for t in tensors(value)]


@pytest.mark.parametrize("name", list(TASKS))
def test_control_period_stays_on_the_device(name: str) -> None:
    episodes = build(name, CUDA)
    episodes.true = episodes._true_state()
    measured = episodes.sensors.measure(episodes.true, episodes.sampler.noise(episodes.steps, episodes.sensors.noises))
    episodes.state = episodes.chain.refer(measured)
    for _ in range(2):
        episodes.act(torch.zeros(N, episodes.pipeline.actions.size, device=CUDA))
        verdict = episodes.perceive()
        observation = episodes.observation()
        out = [observation, verdict.reward, verdict.success, verdict.terminated, verdict.truncated, verdict.infos]
        assert {t.device for t in tensors(out)} == {CUDA}
    kept = [part.state_dict() for part in episodes.parts.values()]
    assert {t.device for t in tensors([kept, episodes.steps, episodes.chain.events])} == {CUDA}
    assert {t.device for t in tensors([episodes.true.views, episodes.state.views])} == {CUDA}
    state = ObservationSpec.from_vector(episodes.pipeline.observer.spec)  # pictures are rendered on the CPU
    state.check({"observation.state": observation["observation.state"]}, CUDA)


def test_constant_on_another_device_raises() -> None:
    """Test of the method: with the shield's limits on the CPU, a step raises."""
    episodes = build("panda-lift", CUDA)
    episodes.true = episodes.state = episodes._true_state()
    shield = Pipeline(episodes.task.interface, episodes.pipeline.robot, "cpu").shield
    episodes.pipeline.shield = shield
    with pytest.raises(RuntimeError, match="device"):
        episodes.act(torch.zeros(N, 4, device=CUDA))
