"""Sensor model of an arm with objects: noise, bias and delay match their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.kinematics import Kinematics
from sim.step.sampling import EpisodeSampler
from sim.step.sensors import SensorModel

Build = Callable[..., Any]
PERIOD = 0.05


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normals(state: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(len(state.joint_position), 7 + 3 * len(state.objects), generator=generator)


def directions(objects: torch.Tensor) -> torch.Tensor:
    """Return bias directions (n, biases) for objects (n, 3); those of encoders and IMU are 0."""
    return torch.cat([torch.zeros(len(objects), 13), objects], 1)


@pytest.fixture
def model(panda: Any) -> Callable[..., SensorModel]:
    def build(n: int, **values: Any) -> SensorModel:
        sensors = SensorModel(panda, ("cube",), n, PERIOD)
        for name, value in values.items():
            sensors.set([f"sensor.{name}"], torch.arange(n), [np.broadcast_to(np.asarray(value, float), n).copy()])
        return sensors

    return build


@pytest.fixture
def true(panda: Any, state_at: Build) -> Callable[..., Any]:
    def build(n: int, place: float = 0.0) -> Any:
        pose = torch.zeros(n, 7)
        pose[:, 0], pose[:, 3] = 0.5 + place, 1.0
        return state_at(torch.tensor(panda.home).expand(n, 7), objects={"cube": pose})

    return build


def test_joint_noise_moves_the_tool(model: Build, true: Build, panda: Any) -> None:
    sensors, state = model(5, joint_noise=0.004), true(5)
    sensors.reset(torch.arange(5), state, directions(torch.zeros(5, 3)))
    seen = sensors.measure(state, normals(state, rng()))
    assert (seen.joint_position != state.joint_position).all()
    assert torch.allclose(seen.tool_position, Kinematics(panda).forward(seen.joint_position)[0], atol=1e-6)


def test_object_noise_has_its_size_and_is_independent_over_time(model: Build, true: Build) -> None:
    sensors, state, generator = model(4000, object_noise=0.002), true(4000), rng()
    sensors.reset(torch.arange(4000), state, directions(torch.zeros(4000, 3)))
    errors = [
        sensors.measure(state, normals(state, generator)).objects["cube"] - state.objects["cube"] for _ in range(2)
    ]
    for error in errors:
        assert error[:, :3].std(0).tolist() == pytest.approx([0.002] * 3, rel=0.06)
        assert not error[:, 3:].any(), "the orientation is exact"
    correlation = torch.corrcoef(torch.stack([e[:, 0] for e in errors]))[0, 1]
    assert abs(float(correlation)) < 0.06


def test_bias_has_its_size_and_is_constant_in_an_episode(model: Build, true: Build) -> None:
    sensors, state = model(2, object_bias=[0.003, 0.0]), true(2)
    direction = torch.tensor([[1.0, -0.5, 0.0], [1.0, 1.0, 1.0]])
    sensors.reset(torch.arange(2), state, directions(direction))
    generator = rng()
    for _ in range(2):
        error = sensors.measure(state, normals(state, generator)).objects["cube"] - state.objects["cube"]
        assert torch.allclose(error[0, :3], torch.tensor([0.003, -0.0015, 0.0]), atol=1e-7)
        assert not error[1].any()
    sensors.reset(torch.tensor([0]), state.select(torch.tensor([0])), directions(torch.tensor([[0.0, 0.0, 1.0]])))
    error = sensors.measure(state, normals(state, generator)).objects["cube"] - state.objects["cube"]
    assert torch.allclose(error[0, :3], torch.tensor([0.0, 0.0, 0.003]), atol=1e-7), "new bias in the next episode"


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05])
def test_object_delay(model: Build, true: Build, delay: float) -> None:
    """At constant speed, linear interpolation between control periods is exact."""
    speed = 0.4
    sensors = model(1, object_delay=delay)
    sensors.reset(torch.arange(1), true(1), directions(torch.zeros(1, 3)))
    for k in range(5):
        state = true(1, speed * PERIOD * k)
        seen = sensors.measure(state, normals(state, rng())).objects["cube"][0, 0]
        when = max(0.0, PERIOD * k - delay)  # the object is at rest before the start
        assert float(seen) == pytest.approx(0.5 + speed * when, abs=1e-6), k


def test_objects_have_independent_biases(panda: Any, state_at: Build) -> None:
    """The relative position of two objects has a bias, too."""
    sensors = SensorModel(panda, ("cube", "tray"), 1, PERIOD)
    sensors.set(["sensor.object_bias"], torch.arange(1), [np.array([0.01])])
    pose = torch.tensor([[0.5, 0.0, 0.02, 1.0, 0.0, 0.0, 0.0]])
    state = state_at(torch.tensor([panda.home]), objects={"cube": pose, "tray": pose})
    direction = torch.zeros(1, sensors.biases)
    direction[0, -6:] = torch.tensor([1.0, -0.5, 0.0, 0.0, 0.2, -1.0])
    sensors.reset(torch.arange(1), state, direction)
    seen = sensors.measure(state, torch.zeros(1, sensors.noises)).objects
    assert torch.allclose(seen["cube"][0, :3] - pose[0, :3], torch.tensor([0.01, -0.005, 0.0]), atol=1e-7)
    assert torch.allclose(seen["tray"][0, :3] - pose[0, :3], torch.tensor([0.0, 0.002, -0.01]), atol=1e-7)


def test_further_objects_do_not_change_other_samples(task: Build, panda: Any) -> None:
    """Positions, home and the first object's bias equal those of a scene with one object; other biases differ."""
    one = task()
    crate, peg = (replace(one.scene.objects[0], name=name) for name in ("crate", "peg"))
    three = replace(one, scene=replace(one.scene, objects=(*one.scene.objects, crate, peg)))
    samples = []
    for task_ in (one, three):
        biases = SensorModel(panda, [o.name for o in task_.scene.objects], 1, PERIOD).biases
        columns = list(range(len(task_.randomization)))
        samples.append(EpisodeSampler(task_, panda, columns, biases, 4, 0, torch.device("cpu")).sample(np.arange(4)))
    first, other = samples
    assert np.array_equal(first.joints, other.joints) and np.array_equal(first.objects["cube"], other.objects["cube"])
    width = first.bias_direction.shape[1]
    assert torch.equal(first.bias_direction, other.bias_direction[:, :width])
    more = other.bias_direction[:, width - 3 :].view(4, 3, 3)
    assert more.abs().max() <= 1 and len(more.reshape(-1, 3).unique(dim=0)) == 12, "one bias per object and episode"
