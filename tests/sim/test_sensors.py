"""Sensor model of an arm with objects and of a legged robot: noise, bias and delay match their parameters."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.observations import down
from robot_rl.interface.rotation import quat_to_matrix, rotation_error
from robot_rl.interface.state import ABSENT
from sim.step.sampling import EpisodeSampler
from sim.step.sensors import PARAMETERS, SensorModel, can_randomize

Build = Callable[..., Any]
PERIOD = 0.05


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normals(state: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(len(state.joint_position), 7 + 3 * len(state.objects), generator=generator)


def directions(objects: torch.Tensor) -> torch.Tensor:
    """Return bias directions (n, biases) for objects (n, 3); those of encoders and IMU are 0."""
    return torch.cat([torch.zeros(len(objects), 13), objects], 1)


def configured(robot: Any, objects: tuple[str, ...], period: float, n: int, **values: Any) -> SensorModel:
    """Return the sensors of n robots with parameters `values`, scalars or (n,)."""
    sensors = SensorModel(robot, objects, n, period)
    for name, value in values.items():
        sensors.set([f"sensor.{name}"], torch.arange(n), [np.broadcast_to(np.asarray(value, float), n).copy()])
    return sensors


@pytest.fixture
def model(panda: Any) -> Callable[..., SensorModel]:
    return partial(configured, panda, ("cube",), PERIOD)


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
    shown = [sensors.measure(state, normals(state, generator)).objects["cube"] for _ in range(2)]
    errors = [seen - state.objects["cube"] for seen in shown]
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


# ---- legged robot --------------------------------------------------------------------------------------------------
STEP, MANY = 0.02, 3000
UNSEEN = ("base_position", "base_velocity", "foot_position", "foot_velocity", "joint_torque")
GYRO, TILT = slice(12, 15), slice(15, 18)
"""Columns of the IMU in the bias directions, after those of the encoders."""


@pytest.fixture
def legged(go2: Any) -> Callable[..., SensorModel]:
    return partial(configured, go2, (), STEP)


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


def test_without_errors_measured_views_are_exact_and_others_absent(legged: Build, walking: Build) -> None:
    state, sensors = walking(5, alike=False), legged(5)
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
def test_noise_has_its_size_in_its_own_view(legged: Build, walking: Build, name: str) -> None:
    view, size = NOISES[name]
    scale = np.where(np.arange(MANY) < MANY // 2, size, 3 * size)
    found = errors(legged(MANY, **{name: scale}), walking(MANY))
    error = found.pop(view).double()
    for half, spread in ((error[: MANY // 2], size), (error[MANY // 2 :], 3 * size)):
        assert half.std(0).tolist() == pytest.approx([spread] * error.shape[1], rel=0.1)
        assert half.mean(0).abs().max() < 5 * spread / (MANY / 2) ** 0.5
    assert torch.corrcoef(error.T).fill_diagonal_(0).abs().max() < 0.1, "components are independent"
    assert all(other.abs().max() < 2e-3 if n == "base_quat" else not other.any() for n, other in found.items())


@pytest.mark.parametrize(("name", "view", "where", "size"), [
    ("encoder_offset", "joint_position", slice(0, 12), 0.02),
    ("gyro_bias", "base_angular_velocity", GYRO, 0.05),
    ("tilt_bias", "base_quat", TILT, 0.03),
])  # fmt: skip
def test_bias_is_its_size_times_the_direction(
    legged: Build, walking: Build, name: str, view: str, where: slice, size: float
) -> None:
    sensors, state = legged(3, **{name: [size, 0.0, size]}), walking(3, alike=False)
    direction = 2 * torch.rand(3, sensors.biases, generator=torch.Generator().manual_seed(1)) - 1
    found = errors(sensors, state, direction)
    expected = torch.tensor([[size], [0.0], [size]]) * direction[:, where]
    assert torch.allclose(found[view], expected, atol=2e-4 if view == "base_quat" else 1e-6)
    assert torch.allclose(errors(sensors, state, direction, seed=9)[view], found[view], atol=1e-5), "constant over time"
    others = torch.cat([e for n, e in found.items() if n not in (view, "base_quat")], 1)
    assert not others.any()


def test_sign_of_the_tilt_bias(legged: Build, standing: Build) -> None:
    """After a negative roll about the forward axis, the left side is lower."""
    sensors, direction = legged(1, tilt_bias=0.1), torch.zeros(1, 21)
    direction[0, TILT] = torch.tensor([-1.0, 0.0, 0.0])
    sensors.reset(torch.arange(1), standing(1), direction)
    seen = down(sensors.measure(standing(1), numbers(sensors, 1)).base_quat)
    assert seen[0].tolist() == pytest.approx([0.0, 0.1, -1.0], abs=0.006)


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
def test_state_delay(legged: Build, standing: Build, delay: float) -> None:
    """Linear interpolation is exact at constant speed; command and last action are not delayed."""
    sensors = legged(1, state_delay=delay)
    speed = {"joint_position": 3.0, "joint_velocity": -20.0, "base_angular_velocity": 9.0}

    def at(k: int) -> Any:
        state = standing(1)
        for name, change in speed.items():
            getattr(state, name)[:] += change * STEP * k
        angle = torch.tensor(0.5 * STEP * k)
        state.base_quat = torch.stack([(angle / 2).cos(), (angle / 2).sin(), *torch.zeros(2)])[None]
        return state

    sensors.reset(torch.arange(1), at(0), torch.zeros(1, sensors.biases))
    for k in range(5):
        seen, start = sensors.measure(at(k), numbers(sensors, 1)), at(0)
        when = max(0.0, STEP * k - delay)
        for name, change in speed.items():
            assert torch.allclose(getattr(seen, name), getattr(start, name) + change * when, atol=1e-5), (name, k)
        assert float(seen.base_quat.norm()) == pytest.approx(1, abs=1e-6)
        assert 2 * float(seen.base_quat[0, 1]) == pytest.approx(0.5 * when, abs=1e-5), k
        assert torch.equal(seen.command, start.command)


def test_measuring_some_robots_advances_only_their_delays(legged: Build, walking: Build) -> None:
    values = dict(joint_noise=[0.01, 0.0, 0.02], state_delay=[0.0, 0.01, 0.02], gyro_bias=[0.1, 0.2, 0.3])
    together, parts = legged(3, **values), legged(3, **values)
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
def test_delay_beyond_a_control_period_raises(legged: Build, name: str) -> None:
    with pytest.raises(ValueError, match=r"at most one control period \(0.02 s\), not 0.021"):
        legged(1, **{name.removeprefix("sensor."): 0.021})


def test_can_randomize_lists_parameters_with_an_effect(go2: Any, panda: Any) -> None:
    of_objects = {p for p in PARAMETERS if ".object_" in p}
    of_ground = {"sensor.scan_noise"}
    every = set(PARAMETERS) - of_ground
    assert can_randomize(go2, 0) == every - of_objects and can_randomize(go2, 1) == every
    assert can_randomize(go2, 0, ground=True) == every - of_objects | of_ground
    of_arm = {"sensor.joint_noise", "sensor.encoder_offset", "sensor.state_delay"}
    assert can_randomize(panda, 0) == of_arm and can_randomize(panda, 1) == of_arm | of_objects
