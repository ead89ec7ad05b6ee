"""Randomize: quantiles of reproducible uniform numbers, and validation of ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.randomization import DISTRIBUTIONS, Randomize, episode_uniforms

U = np.array([0.0, 0.25, 0.5, 0.75, 1 - 2**-53])


def test_quantiles_of_every_distribution() -> None:
    assert Randomize("cube.x", -1.0, 3.0, "m").quantile(U) == pytest.approx([-1, 0, 1, 2, 3])
    masses = Randomize("cube.mass", 0.01, 100.0, "kg", "log_uniform").quantile(U)
    assert masses == pytest.approx([0.01, 0.1, 1, 10, 100])
    drawn = Randomize("cube.yaw", -2.0, 6.0, "rad", "normal")
    quantile = {"2.5 %": 0.02275, "16 %": 0.158655, "50 %": 0.5, "84 %": 0.841345}
    assert drawn.quantile(np.array(list(quantile.values()))) == pytest.approx([-2, 0, 2, 4], abs=1e-3)
    assert np.isfinite(drawn.quantile(U)).all(), "samples at 0 and 1 are finite"


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("value", [1.0, 0.03])
def test_range_of_one_value(distribution: str, value: float) -> None:
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
def test_quantiles_are_monotonic_and_in_range(distribution: str, low: float, ratio: float, u: list[float]) -> None:
    """A positive range has only positive samples."""
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
        (("base.mass_scale", 0.0, 1.0, "1"), "base.mass_scale: a scale of 0 leaves nothing"),
        (("cube.x", math.nan, 1.0, "m"), "cube.x"),
        (("cube.x", 0.0, math.inf, "m"), "cube.x"),
    ],
)
def test_invalid_range_raises(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Randomize(*arguments)


def test_uniforms_depend_only_on_seed_and_episode() -> None:
    reference = episode_uniforms(7, 3, 20)
    np.random.seed(0)
    episode_uniforms(8, 8, 5)
    assert np.array_equal(episode_uniforms(7, 3, 20), reference)
    assert np.array_equal(episode_uniforms(7, 3, 30)[:20], reference), "more parameters do not change the first samples"
    points = {tuple(episode_uniforms(s, e, 4)) for s in range(20) for e in range(20)}
    assert len(points) == 400, "all seeds and episodes differ"


@pytest.mark.parametrize("seed", [-1, 0, 2**40, 2**63 - 1, 2**63, 2**64 - 2])
def test_every_integer_is_a_valid_seed(seed: int) -> None:
    point = episode_uniforms(seed, 0, 3)
    assert np.isfinite(point).all()
    assert not np.array_equal(point, episode_uniforms(seed - 1, 0, 3))
    assert not np.array_equal(point, episode_uniforms(seed, 1, 3))


# ---- checks --------------------------------------------------------------------------------------------------------
SPEED, INTERVAL = Randomize("push.speed", 0.0, 0.5, "m/s"), Randomize("push.interval", 5.0, 10.0, "s")


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ([Randomize("robot.action_delay", 0.0, 0.3, "s")], r"robot.action_delay may come to 0.3 s.*0.08 s at most"),
        ([Randomize("robot.action_delay", 0.0, 0.075, "s", "normal")], r"robot.action_delay may come to 0.095"),
        ([Randomize("sensor.state_delay", 0.0, 0.03, "s")], r"sensor.state_delay may come to 0.03 s.* 0.02 s at most"),
        ([SPEED], "push.interval is not, so nothing would push"),
        ([SPEED, Randomize("push.interval", -1.0, 5.0, "s")], r"push.interval may come to -1 s.*\(0.02 s\)"),
        ([SPEED, Randomize("push.interval", 0.0, 5.0, "s")], r"push.interval may come to 0 s"),
        ([SPEED, INTERVAL, SPEED], "push.speed is randomized 2 times"),
    ],
)
def test_randomization_without_effect_raises(walk: Callable[..., Any], drawn: list[Randomize], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskEnv(walk(drawn), 1, mjcf="nowhere.xml")  # raises before the model file is read


def test_without_push_interval_but_with_push_speed_raises(walk: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="go without both"):
        TaskEnv(walk(), 1, without=["push.interval"], mjcf="nowhere.xml")
    TaskEnv(walk([SPEED, INTERVAL]), 1, threads=1, without=["push.speed", "push.interval"]).close()


def test_longest_delays_are_allowed(walk: Callable[..., Any]) -> None:
    longest = [Randomize("robot.action_delay", 0.0, 0.08, "s"), Randomize("sensor.state_delay", 0.0, 0.02, "s")]
    env = TaskEnv(walk(longest), 2, threads=1)
    env.reset(seed=0)
    assert (env.sampled[:, 0] <= 0.08).all()
