"""Draws are quantiles of reproducible uniform numbers, and impossible ranges are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.randomization import DISTRIBUTIONS, Randomize, episode_uniforms

U = np.array([0.0, 0.25, 0.5, 0.75, 1 - 2**-53])


def test_quantiles_of_the_uniform_distribution() -> None:
    assert Randomize("cube.x", -1.0, 3.0, "m").quantile(U) == pytest.approx([-1, 0, 1, 2, 3])


def test_quantiles_of_the_log_uniform_distribution() -> None:
    drawn = Randomize("cube.mass", 0.01, 100.0, "kg", "log_uniform").quantile(U)
    assert drawn == pytest.approx([0.01, 0.1, 1, 10, 100])


def test_quantiles_of_the_normal_distribution() -> None:
    drawn = Randomize("cube.yaw", -2.0, 6.0, "rad", "normal")
    quantile = {"2.5 %": 0.02275, "16 %": 0.158655, "50 %": 0.5, "84 %": 0.841345}
    assert drawn.quantile(np.array(list(quantile.values()))) == pytest.approx([-2, 0, 2, 4], abs=1e-3)
    assert np.isfinite(drawn.quantile(U)).all(), "samples at 0 and 1 are finite"


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("value", [1.0, 0.03])
def test_an_empty_range_is_its_value(distribution: str, value: float) -> None:
    drawn = Randomize("cube.mass", value, value, "kg", distribution).quantile(U)
    assert drawn == pytest.approx(np.full(5, value))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.sampled_from(sorted(DISTRIBUTIONS)),
    st.floats(0.001, 10),
    st.floats(1.0, 100),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=8),
)
@example("normal", 0.01, 10.0, [0.0, 0.999])
def test_draws_rise_with_u_and_never_become_impossible(
    distribution: str, low: float, ratio: float, u: list[float]
) -> None:
    """A mass that is accepted with a positive range is positive in every episode."""
    drawn = Randomize("cube.mass", low, low * ratio, "kg", distribution).quantile(np.sort(u))
    assert (np.diff(drawn) >= -1e-12).all()
    if distribution != "normal":
        assert (drawn >= low * (1 - 1e-9)).all() and (drawn <= low * ratio * (1 + 1e-9)).all()
    assert (drawn >= 0).all(), f"a mass of {drawn.min():.4f} kg"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cube.x", 1.0, 0.0, "m"), "cube.x: low 1.0 is above high 0.0"),
        (("cube.x", 0.0, 1.0, "m", "gauss"), "cube.x: unknown distribution 'gauss'; known: .*uniform"),
        (("cube.mass", 0.0, 1.0, "kg", "log_uniform"), "cube.mass: log_uniform needs a positive low"),
        (("cube.mass", -0.1, 1.0, "kg"), "cube.mass: cannot be negative, low is -0.1 kg"),
        (("robot.action_delay", -0.1, 1.0, "s"), "robot.action_delay: cannot be negative"),
        (("sensor.joint_noise", -0.1, 1.0, "rad"), "sensor.joint_noise: cannot be negative"),
        (("robot.stiffness_scale", -0.1, 1.0, "1"), "robot.stiffness_scale: cannot be negative"),
        (("robot.joint_friction", -0.1, 1.0, "N m"), "robot.joint_friction: cannot be negative"),
        (("cube.x", math.nan, 1.0, "m"), "cube.x"),
        (("cube.x", 0.0, math.inf, "m"), "cube.x"),
    ],
)
def test_impossible_ranges_name_the_parameter(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Randomize(*arguments)


def test_an_episode_is_a_point_of_the_unit_cube() -> None:
    point = episode_uniforms(7, 3, 1000)
    assert point.shape == (1000,) and ((point >= 0) & (point < 1)).all()
    assert abs(point.mean() - 0.5) < 0.04 and abs(point.std() - 12**-0.5) < 0.02


def test_the_point_depends_on_seed_and_episode_alone() -> None:
    reference = episode_uniforms(7, 3, 20)
    np.random.seed(0)
    episode_uniforms(8, 8, 5)
    assert np.array_equal(episode_uniforms(7, 3, 20), reference)
    assert np.array_equal(episode_uniforms(7, 3, 30)[:20], reference), "more parameters keep the draws of the others"
    points = {tuple(episode_uniforms(s, e, 4)) for s in range(20) for e in range(20)}
    assert len(points) == 400, "neighbouring seeds and episodes share no draw"


@pytest.mark.parametrize("seed", [-1, 0, 2**40, 2**63 - 1, 2**63, 2**64 - 2])
def test_any_integer_is_a_seed_of_its_own(seed: int) -> None:
    point = episode_uniforms(seed, 0, 3)
    assert np.isfinite(point).all()
    assert not np.array_equal(point, episode_uniforms(seed - 1, 0, 3))
    assert not np.array_equal(point, episode_uniforms(seed, 1, 3))
