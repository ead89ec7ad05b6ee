"""Sensor model of a legged robot: every error has its size and sign, and changes only its own view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.observations import down
from robot_rl.interface.rotation import quat_to_matrix, rotation_error
from robot_rl.interface.state import ABSENT
from sim.step.sensors import PARAMETERS, SensorModel, can_randomize

Build = Callable[..., Any]
PERIOD, MANY = 0.02, 3000
UNSEEN = ("base_position", "base_velocity", "foot_position", "foot_velocity", "joint_torque")
GYRO, TILT = slice(12, 15), slice(15, 18)
"""Columns of the IMU in the bias directions, after those of the encoders."""


@pytest.fixture
def model(go2: Any) -> Callable[..., SensorModel]:
    def build(n: int, **values: Any) -> SensorModel:
        sensors = SensorModel(go2, (), n, PERIOD)
        for name, value in values.items():
            sensors.set([f"sensor.{name}"], torch.arange(n), [np.broadcast_to(np.asarray(value, float), n).copy()])
        return sensors

    return build


def numbers(sensors: SensorModel, n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, sensors.noises, generator=torch.Generator().manual_seed(seed))


def errors(sensors: SensorModel, state: Any, direction: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
    """Return measured minus true values by view; for the orientation, the rotation vector in the trunk's frame."""
    n = len(state.joint_position)
    sensors.reset(torch.arange(n), state, torch.zeros(n, sensors.biases) if direction is None else direction)
    seen = sensors.measure(state, numbers(sensors, n, seed))
    found = {name: view - state.views[name] for name, view in seen.views.items() if name != "base_quat"}
    true, turned = quat_to_matrix(state.base_quat), quat_to_matrix(seen.base_quat)
    rest = rotation_error(torch.eye(3).expand(n, 3, 3), true.transpose(1, 2) @ turned)
    return found | {"base_quat": rest}


@pytest.fixture
def walking(standing: Build) -> Callable[..., Any]:
    """Builder of tilted robots in motion, with equal or different states."""

    def build(n: int, alike: bool = True) -> Any:
        rng = torch.Generator().manual_seed(5)
        state = standing(n).map(lambda name, view: torch.randn(1 if alike else n, view.shape[1], generator=rng))
        state = state.map(lambda name, view: view.expand(n, -1).clone())
        state.base_quat = torch.nn.functional.normalize(state.base_quat, dim=-1)
        return state

    return build


def test_without_errors_measured_views_are_exact_and_others_absent(model: Build, walking: Build) -> None:
    state, sensors = walking(5, alike=False), model(5)
    sensors.reset(torch.arange(5), state, torch.ones(5, sensors.biases))
    seen = sensors.measure(state, numbers(sensors, 5))
    for name in UNSEEN:
        assert getattr(seen, name) is ABSENT, name
    assert set(seen.views) == set(state.views) - set(UNSEEN)
    for name, view in seen.views.items():
        assert torch.allclose(view, state.views[name], atol=1e-6), name
    assert "base_position" in state.views, "the true state is not changed"


NOISES = {
    "joint_noise": ("joint_position", 0.004),
    "velocity_noise": ("joint_velocity", 0.3),
    "gyro_noise": ("base_angular_velocity", 0.05),
    "tilt_noise": ("base_quat", 0.01),
}


@pytest.mark.parametrize("name", list(NOISES))
def test_noise_has_its_size_in_its_own_view(model: Build, walking: Build, name: str) -> None:
    view, size = NOISES[name]
    scale = np.where(np.arange(MANY) < MANY // 2, size, 3 * size)
    found = errors(model(MANY, **{name: scale}), walking(MANY))
    error = found.pop(view).double()
    for half, spread in ((error[: MANY // 2], size), (error[MANY // 2 :], 3 * size)):
        assert half.std(0).tolist() == pytest.approx([spread] * error.shape[1], rel=0.1)
        assert half.mean(0).abs().max() < 5 * spread / (MANY / 2) ** 0.5
    assert torch.corrcoef(error.T).fill_diagonal_(0).abs().max() < 0.1, "components are independent"
    assert all(other.abs().max() < 2e-3 if n == "base_quat" else not other.any() for n, other in found.items())


@pytest.mark.parametrize(
    ("name", "view", "where", "size"),
    [
        ("encoder_offset", "joint_position", slice(0, 12), 0.02),
        ("gyro_bias", "base_angular_velocity", GYRO, 0.05),
        ("tilt_bias", "base_quat", TILT, 0.03),
    ],
)
def test_bias_is_its_size_times_the_direction(
    model: Build, walking: Build, name: str, view: str, where: slice, size: float
) -> None:
    sensors, state = model(3, **{name: [size, 0.0, size]}), walking(3, alike=False)
    direction = 2 * torch.rand(3, sensors.biases, generator=torch.Generator().manual_seed(1)) - 1
    found = errors(sensors, state, direction)
    expected = torch.tensor([[size], [0.0], [size]]) * direction[:, where]
    assert torch.allclose(found[view], expected, atol=2e-4 if view == "base_quat" else 1e-6)
    assert torch.allclose(errors(sensors, state, direction, seed=9)[view], found[view], atol=1e-5), "constant over time"
    others = torch.cat([e for n, e in found.items() if n not in (view, "base_quat")], 1)
    assert not others.any()


def test_sign_of_the_tilt_bias(model: Build, standing: Build) -> None:
    """After a negative roll about the forward axis, the left side is lower."""
    sensors, direction = model(1, tilt_bias=0.1), torch.zeros(1, 21)
    direction[0, TILT] = torch.tensor([-1.0, 0.0, 0.0])
    sensors.reset(torch.arange(1), standing(1), direction)
    seen = down(sensors.measure(standing(1), numbers(sensors, 1)).base_quat)
    assert seen[0].tolist() == pytest.approx([0.0, 0.1, -1.0], abs=0.006)


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
def test_state_delay(model: Build, standing: Build, delay: float) -> None:
    """Linear interpolation is exact at constant speed; command and last action are not delayed."""
    sensors = model(1, state_delay=delay)
    speed = {"joint_position": 3.0, "joint_velocity": -20.0, "base_angular_velocity": 9.0}

    def at(k: int) -> Any:
        state = standing(1)
        for name, change in speed.items():
            getattr(state, name)[:] += change * PERIOD * k
        angle = torch.tensor(0.5 * PERIOD * k)
        state.base_quat = torch.stack([(angle / 2).cos(), (angle / 2).sin(), *torch.zeros(2)])[None]
        return state

    sensors.reset(torch.arange(1), at(0), torch.zeros(1, sensors.biases))
    for k in range(5):
        seen, start = sensors.measure(at(k), numbers(sensors, 1)), at(0)
        when = max(0.0, PERIOD * k - delay)
        for name, change in speed.items():
            assert torch.allclose(getattr(seen, name), getattr(start, name) + change * when, atol=1e-5), (name, k)
        assert float(seen.base_quat.norm()) == pytest.approx(1, abs=1e-6)
        assert 2 * float(seen.base_quat[0, 1]) == pytest.approx(0.5 * when, abs=1e-5), k
        assert torch.equal(seen.command, start.command)


def test_measuring_some_robots_advances_only_their_delays(model: Build, walking: Build) -> None:
    values = dict(joint_noise=[0.01, 0.0, 0.02], state_delay=[0.0, 0.01, 0.02], gyro_bias=[0.1, 0.2, 0.3])
    together, parts = model(3, **values), model(3, **values)
    start, then = walking(3, alike=False), walking(3)
    direction = torch.rand(3, together.biases, generator=torch.Generator().manual_seed(2))
    for sensors in (together, parts):
        sensors.reset(torch.arange(3), start, direction)
    noise = numbers(together, 3)
    whole = together.measure(then, noise)
    for ids in ([2], [0, 1]):
        rows = torch.tensor(ids)
        some = parts.measure(then.select(rows), noise[rows], rows)
        for name, view in some.views.items():
            assert torch.equal(view, whole.views[name][rows]), name
    again, separately = (sensors.measure(start, noise) for sensors in (together, parts))
    assert all(torch.equal(again.views[k], v) for k, v in separately.views.items())


@pytest.mark.parametrize("name", [p for p in PARAMETERS if p.endswith("_delay")])
def test_delay_beyond_a_control_period_raises(model: Build, name: str) -> None:
    with pytest.raises(ValueError, match=r"at most one control period \(0.02 s\), not 0.021"):
        model(1, **{name.removeprefix("sensor."): 0.021})


def test_can_randomize_lists_parameters_with_an_effect(go2: Any, panda: Any) -> None:
    of_objects = {p for p in PARAMETERS if ".object_" in p}
    assert can_randomize(go2, 0) == set(PARAMETERS) - of_objects and can_randomize(go2, 1) == set(PARAMETERS)
    of_arm = {"sensor.joint_noise", "sensor.encoder_offset", "sensor.state_delay"}
    assert can_randomize(panda, 0) == of_arm and can_randomize(panda, 1) == of_arm | of_objects
