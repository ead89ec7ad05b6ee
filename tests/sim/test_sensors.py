"""Noise, bias and delay of the sensors are what their parameters say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.kinematics import Kinematics
from sim.step.sampling import EpisodeSampler
from sim.step.sensors import PARAMETERS, SensorModel

Build = Callable[..., Any]
PERIOD = 0.05


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normals(state: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(len(state.joint_position), 7 + 3 * len(state.objects), generator=generator)


def directions(objects: torch.Tensor) -> torch.Tensor:
    """Directions of the biases (n, biases), those of encoders and IMU are 0."""
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


def test_without_parameters_the_state_passes_unchanged(model: Build, true: Build) -> None:
    sensors, state = model(3), true(3)
    sensors.reset(torch.arange(3), state, torch.ones(3, sensors.biases))
    seen = sensors.measure(state, normals(state, rng()))
    for name in ("joint_position", "joint_velocity", "gripper_width", "last_action"):
        assert torch.equal(getattr(seen, name), getattr(state, name))
    assert torch.allclose(seen.tool_position, state.tool_position, atol=1e-6)
    assert torch.equal(seen.objects["cube"], state.objects["cube"])


def test_joint_noise_has_its_spread_and_moves_the_tool(model: Build, true: Build, panda: Any) -> None:
    n = 4000
    sensors, state = model(n, joint_noise=np.where(np.arange(n) < n // 2, 0.001, 0.004)), true(n)
    sensors.reset(torch.arange(n), state, directions(torch.zeros(n, 3)))
    seen = sensors.measure(state, normals(state, rng()))
    error = seen.joint_position - state.joint_position
    assert error[: n // 2].std(0).tolist() == pytest.approx([0.001] * 7, rel=0.06)
    assert error[n // 2 :].std(0).tolist() == pytest.approx([0.004] * 7, rel=0.06)
    assert error.mean(0).abs().max() < 3e-4
    assert torch.allclose(seen.tool_position, Kinematics(panda).forward(seen.joint_position)[0], atol=1e-6)


def test_object_noise_has_its_spread_and_is_drawn_anew(model: Build, true: Build) -> None:
    sensors, state, generator = model(4000, object_noise=0.002), true(4000), rng()
    sensors.reset(torch.arange(4000), state, directions(torch.zeros(4000, 3)))
    errors = [
        sensors.measure(state, normals(state, generator)).objects["cube"] - state.objects["cube"] for _ in range(2)
    ]
    for error in errors:
        assert error[:, :3].std(0).tolist() == pytest.approx([0.002] * 3, rel=0.06)
        assert not error[:, 3:].any(), "the orientation is reported as it is"
    correlation = torch.corrcoef(torch.stack([e[:, 0] for e in errors]))[0, 1]
    assert abs(float(correlation)) < 0.06


def test_bias_is_constant_in_an_episode_and_as_large_as_asked(model: Build, true: Build) -> None:
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
    assert torch.allclose(error[0, :3], torch.tensor([0.0, 0.0, 0.003]), atol=1e-7), "another episode, another bias"


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05])
def test_a_moving_object_is_reported_where_it_was(model: Build, true: Build, delay: float) -> None:
    """At constant speed, linear interpolation between control periods is exact."""
    speed = 0.4
    sensors = model(1, object_delay=delay)
    sensors.reset(torch.arange(1), true(1), directions(torch.zeros(1, 3)))
    for k in range(5):
        seen = sensors.measure(true(1, speed * PERIOD * k), normals(true(1, speed * PERIOD * k), rng())).objects[
            "cube"
        ][0, 0]
        when = max(0.0, PERIOD * k - delay)  # before the start the object stood still
        assert float(seen) == pytest.approx(0.5 + speed * when, abs=1e-6), k


def test_orientations_stay_normalized(model: Build, true: Build) -> None:
    sensors = model(1, object_delay=0.025)
    start, turned = true(1), true(1)
    turned.objects["cube"][0, 3:] = torch.tensor([0.6, 0.0, 0.0, 0.8])
    sensors.reset(torch.arange(1), start, directions(torch.zeros(1, 3)))
    sensors.measure(start, normals(start, rng()))
    seen = sensors.measure(turned, normals(turned, rng())).objects["cube"][0, 3:]
    assert float(seen.norm()) == pytest.approx(1, abs=1e-6) and 0 < seen[3] < 0.8


def test_a_delay_beyond_a_control_period_is_refused(model: Build) -> None:
    with pytest.raises(ValueError, match=r"sensor.object_delay: at most one control period \(0.05 s\), not 0.060"):
        model(1, object_delay=0.06)


def test_only_the_named_environments_change(model: Build) -> None:
    sensors = model(3)
    for name in PARAMETERS:
        sensors.set([name], torch.tensor([2]), [np.array([0.01])])
        assert sensors.values[:, PARAMETERS.index(name)].tolist() == pytest.approx([0, 0, 0.01])


def test_each_object_has_a_bias_of_its_own(panda: Any, state_at: Build) -> None:
    """Else where one object is from another would be known without a bias."""
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


def test_further_objects_change_no_number_that_was_drawn_without_them(task: Build, panda: Any) -> None:
    """Places, home and the first object's bias are those of a scene with one object; the others' biases differ."""
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
    assert more.abs().max() <= 1 and len(more.reshape(-1, 3).unique(dim=0)) == 12, "one of each object in each episode"
