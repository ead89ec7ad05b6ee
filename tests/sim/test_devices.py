"""Nothing on the step path mixes devices: shown with fake tensors, which have shapes and a device but no numbers.

A constant that was left on the CPU raises at once, as it would on a GPU; so does anything that needs a number on the
host, which a GPU would have to wait for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.interface.pipeline import Picture, Pipeline
from robot_rl.robots import robots
from sim.engines.base import Engine
from sim.randomization.noise import normals, uniforms
from sim.scenes import time_grid
from sim.step.action_chain import ActionChain
from sim.step.episodes import Episodes
from sim.tasks import tasks
from sim.tasks.base import Task, view_sizes

N, CUDA = 5, torch.device("cuda", 0)
TASKS = {name: tasks.get(name) for name in tasks}
"""Read before tensors are fake: a task checks its own numbers."""


class Still(Engine):
    """Physics that never move, on a device that need not be there; nothing else of an engine is on the step path."""

    def __init__(self, task: Task, pipeline: Pipeline, device: torch.device):
        self.robot, self.scene, self.num_envs, self.device = pipeline.robot, task.scene, N, device
        own = ("last_action", "tool_position", "command", "phase")
        sizes = {name: size for name, size in view_sizes(task, pipeline).items() if name not in own}
        self._views = {name: torch.zeros(N, size, device=device) for name, size in sizes.items()}
        self._pose = torch.zeros(N, 7, device=device)
        self.parameters = {r.parameter: lambda ids, values: None for r in task.randomization}

    def views(self) -> dict[str, Tensor]:
        return self._views

    def object_pose(self, name: str) -> Tensor:
        return self._pose

    def diverged(self) -> Tensor:
        return torch.zeros(N, dtype=torch.bool, device=self.device)

    def step(self, joints: Tensor, gripper: Tensor) -> None:
        assert joints.device == gripper.device == self.device

    def push(self, velocity: Tensor) -> None:
        assert velocity.device == self.device and velocity.shape == (N, 3)


Still.__abstractmethods__ = frozenset()


pytestmark = pytest.mark.usefixtures("fake_cuda")


def build(name: str, device: torch.device) -> Episodes:
    """Episodes of a task with everything randomized."""
    task, robot = TASKS[name], robots.get(TASKS[name].interface.robot)
    pipeline = Pipeline(task.interface, robot, device)
    grid = time_grid(task.scene.timestep, robot.command_rate, task.interface.controller.rate)
    return Episodes(task, pipeline, Still(task, pipeline, device), list(range(len(task.randomization))), *grid, 0)


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [t for value in (tree.values() if isinstance(tree, dict) else tree) for t in tensors(value)]


@pytest.mark.parametrize("name", list(TASKS))
def test_a_control_period_stays_on_its_device(name: str) -> None:
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
    state = ObservationSpec.from_vector(episodes.pipeline.observer.spec)  # engines render pictures on the CPU
    state.check({"observation.state": observation["observation.state"]}, CUDA)


@pytest.mark.parametrize("name", list(TASKS))
def test_predicates_and_actions_stay_on_the_device(name: str) -> None:
    episodes = build(name, CUDA)
    state, pipeline = episodes._true_state(), episodes.pipeline
    for predicate in filter(None, (pipeline.success, pipeline.failure)):
        assert predicate(state).device == CUDA
    unit = torch.zeros(N, pipeline.actions.size, device=CUDA)
    physical = pipeline.actions.to_physical(unit)
    for out in (physical, pipeline.actions.to_unit(physical), pipeline.controller.hold_action(unit, unit[:, :1])):
        assert out.device == CUDA
    assert pipeline.actions.bounds(CUDA)[0] is pipeline.actions.bounds(CUDA)[0], "copied to the device once"


def test_a_constant_on_another_device_is_noticed() -> None:
    """What these tests rest on: the limits of the shield on the CPU, and a step raises."""
    episodes = build("panda-lift", CUDA)
    episodes.true = episodes.state = episodes._true_state()
    shield = Pipeline(episodes.task.interface, episodes.pipeline.robot, "cpu").shield
    episodes.pipeline.shield = shield
    with pytest.raises(RuntimeError, match="device"):
        episodes.act(torch.zeros(N, 4, device=CUDA))


@pytest.mark.parametrize("sample", [uniforms, normals])
def test_numbers_by_counter_are_made_where_their_keys_are(sample: Any) -> None:
    keys, steps = (torch.zeros(N, dtype=torch.long, device=CUDA) for _ in range(2))
    assert sample(keys, steps, 7).device == CUDA


def test_an_action_chain_alone_follows_its_pipeline() -> None:
    for task in TASKS.values():
        interface = replace(task.interface, pictures=(Picture(task.scene.cameras[0].name),))
        chain = ActionChain(Pipeline(interface, device=CUDA), N, 0.01, 2)
        assert all(t.device == CUDA for t in chain.state_dict().values())
        zeros = chain.pipeline.observation_spec.zeros(N, CUDA)
        chain.pipeline.observation_spec.check(zeros, CUDA)
        assert set(zeros) == {"observation.state", *chain.pipeline.extra_inputs} and len(zeros) > 1
