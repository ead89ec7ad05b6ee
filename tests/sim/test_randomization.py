"""Randomization: quantiles, validation of ranges, counter-based random numbers, velocity commands."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.util.errors import ConfigError
from sim.commands import CommandSchedule
from sim.env import TaskEnv
from sim.randomization import DISTRIBUTIONS, Randomize, episode_uniforms
from sim.randomization.noise import _STRIDE, _mixed, episode_keys, normals, uniforms

U = np.array([0.0, 0.25, 0.5, 0.75, 1 - 2**-53])


def test_quantiles_of_every_distribution() -> None:
    assert Randomize("cube.x", -1.0, 3.0).quantile(U) == pytest.approx([-1, 0, 1, 2, 3])
    masses = Randomize("cube.mass", 0.01, 100.0, "log_uniform").quantile(U)
    assert masses == pytest.approx([0.01, 0.1, 1, 10, 100])
    drawn = Randomize("cube.yaw", -2.0, 6.0, "normal")
    quantile = {"2.5 %": 0.02275, "16 %": 0.158655, "50 %": 0.5, "84 %": 0.841345}
    assert drawn.quantile(np.array(list(quantile.values()))) == pytest.approx([-2, 0, 2, 4], abs=1e-3)
    assert np.isfinite(drawn.quantile(U)).all(), "samples at 0 and 1 are finite"


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
    drawn = Randomize("cube.mass", low, low * ratio, distribution).quantile(np.sort(u))
    assert (np.diff(drawn) >= -1e-12).all()
    if distribution != "normal":
        assert (drawn >= low * (1 - 1e-9)).all() and (drawn <= low * ratio * (1 + 1e-9)).all()
    assert (drawn >= 0).all(), f"a mass of {drawn.min():.4f} kg"


@pytest.mark.parametrize(("arguments", "message"), [
    (("cube.x", 1.0, 0.0), "cube.x: low 1.0 is above high 0.0"),
    (("cube.x", 0.0, 1.0, "gauss"), "cube.x: unknown distribution 'gauss'; known: .*uniform"),
    (("cube.mass", 0.0, 1.0, "log_uniform"), "cube.mass: log_uniform needs a positive low"),
    (("cube.mass", -0.1, 1.0), "cube.mass: cannot be negative, low is -0.1 kg"),
    (("robot.action_delay", -0.1, 1.0), "robot.action_delay: cannot be negative"),
    (("base.mass_scale", 0.0, 1.0), "base.mass_scale: a scale of 0 leaves nothing"),
    (("cube.x", math.nan, 1.0), "cube.x"),
    (("cube.x", 0.0, math.inf), "cube.x"),
])  # fmt: skip
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
SPEED, INTERVAL = Randomize("push.speed", 0.0, 0.5), Randomize("push.interval", 5.0, 10.0)


@pytest.mark.parametrize(("drawn", "message"), [
    ([Randomize("robot.action_delay", 0.0, 0.3)], r"robot.action_delay may come to 0.3 s.*at most 0.08 s"),
    ([Randomize("robot.action_delay", 0.0, 0.075, "normal")], r"robot.action_delay may come to 0.095"),
    ([Randomize("sensor.state_delay", 0.0, 0.3)], r"sensor.state_delay may come to 0.3 s.*at most 0.25 s"),
    ([SPEED], "push.interval is not, so nothing would push"),
    ([SPEED, Randomize("push.interval", -1.0, 5.0)], r"push.interval may come to -1 s.*\(0.02 s\)"),
    ([SPEED, Randomize("push.interval", 0.0, 5.0)], r"push.interval may come to 0 s"),
    ([SPEED, INTERVAL, SPEED], "push.speed is randomized 2 times"),
])  # fmt: skip
def test_randomization_without_effect_raises(walk: Callable[..., Any], drawn: list[Randomize], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskEnv(walk(drawn), 1, mjcf="nowhere.xml")  # raises before the model file is read


def test_without_push_interval_but_with_push_speed_raises(walk: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="go without both"):
        TaskEnv(walk(), 1, without=["push.interval"], mjcf="nowhere.xml")
    TaskEnv(walk([SPEED, INTERVAL]), 1, threads=1, without=["push.speed", "push.interval"]).close()


def test_longest_delays_are_allowed(walk: Callable[..., Any]) -> None:
    longest = [Randomize("robot.action_delay", 0.0, 0.08), Randomize("sensor.state_delay", 0.0, 0.25)]
    env = TaskEnv(walk(longest), 2, threads=1)
    env.reset(seed=0)
    assert (env.sampled[:, 0] <= 0.08).all()


# ---- counter-based random numbers ----------------------------------------------------------------------------------
Draw = Callable[[Tensor, Tensor, int], Tensor]
both = pytest.mark.parametrize("draw", [uniforms, normals])


def table(draw: Draw, purpose: int = 0, episodes: int = 50, steps: int = 40, width: int = 9) -> Tensor:
    """Return random numbers (episodes, steps, width) as in an experiment."""
    keys = episode_keys(range(7, 7 + episodes), 0, purpose).repeat_interleave(steps)
    counters = torch.arange(steps).repeat(episodes)
    return draw(keys, counters, width).view(episodes, steps, width)


def test_uniforms_are_uniform() -> None:
    u = table(uniforms).double().flatten()
    n = len(u)
    assert ((u >= 0) & (u < 1)).all()
    counts = torch.histc(u, 20, 0, 1)
    assert (counts - n / 20).abs().max() < 5 * (n / 20) ** 0.5
    assert float(u.mean()) == pytest.approx(0.5, abs=5 * (1 / 12 / n) ** 0.5)
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.03)


def test_normals_have_normal_moments_and_tails() -> None:
    x = table(normals).double().flatten()
    n = len(x)
    assert x.isfinite().all()
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert float((x**power).mean()) == pytest.approx(moment, abs=5 * (spread / n) ** 0.5), power
    for bound, share in ((0.6745, 0.5), (1.96, 0.05), (2.576, 0.01)):
        assert float((x.abs() > bound).double().mean()) == pytest.approx(share, abs=5 * (share / n) ** 0.5), bound
    assert (x > 0).double().mean() == pytest.approx(0.5, abs=5 * (0.25 / n) ** 0.5)


@both
def test_columns_steps_and_episodes_are_uncorrelated(draw: Draw) -> None:
    x = table(draw).double()
    for flat in (x.flatten(0, 1).T, x.transpose(0, 1).flatten(1), x.flatten(1)):
        c = torch.corrcoef(flat)
        c.fill_diagonal_(0)
        assert c.abs().max() < 6 / flat.shape[1] ** 0.5
    shifted = torch.corrcoef(torch.stack([x[:, :-1].flatten(), x[:, 1:].flatten()]))[0, 1]
    assert abs(float(shifted)) < 5 / x[:, 1:].numel() ** 0.5, "the same column at the next step"


@both
@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40)), min_size=1, max_size=70),
    width=st.integers(1, 40),
)
def test_numbers_do_not_depend_on_other_rows(draw: Draw, rows: list[tuple[int, int]], width: int) -> None:
    keys, counters = torch.tensor(rows, dtype=torch.long).T
    together = draw(keys, counters, width)
    assert together.shape == (len(rows), width) and together.dtype == torch.float32
    for i in {0, len(rows) // 2, len(rows) - 1}:
        assert torch.equal(draw(keys[i : i + 1], counters[i : i + 1], width)[0], together[i])
    assert torch.equal(draw(keys.flip(0), counters.flip(0), width).flip(0), together)


@both
def test_purposes_episodes_seeds_and_counters_differ(draw: Draw) -> None:
    keys = [int(key) for p in range(3) for e in range(6) for key in episode_keys(range(6), e, p)]
    rows = [(key, counter) for key in keys for counter in range(6)]
    x = draw(*torch.tensor(rows).T, 2)
    assert len({tuple(row) for row in x.tolist()}) == len(rows)
    first, second = (table(draw, purpose).flatten() for purpose in (0, 1))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / len(first) ** 0.5


def test_mixer_is_splitmix64() -> None:
    """First numbers of Sebastiano Vigna's reference implementation at seed 1234567."""
    steps = torch.arange(1, 4) * _STRIDE + 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [x % 2**64 for x in _mixed(steps).tolist()] == expected


# ---- velocity commands ---------------------------------------------------------------------------------------------
VELOCITY = Field("velocity", ("x", "y"), "m/s", (-1.0, -0.2), (2.0, 0.4))
SPEC = VectorSpec((VELOCITY, Field("turn", ("yaw",), "rad/s", (-3.0,), (1.0,))))
RATE = 50.0


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return episode_keys(range(seed, seed + count), 0, 1)


def settled(count: int) -> torch.Tensor:
    """Return steps (count,) at which the first command is reached."""
    return torch.full((count,), round(COMMAND_RAMP * RATE))


def test_commands_are_uniform_and_uncorrelated() -> None:
    drawn = CommandSchedule(standing=0.0)(SPEC, keys(4000), settled(4000), RATE)
    share = (drawn - SPEC.low) / (SPEC.high - SPEC.low)
    assert ((share >= 0) & (share < 1)).all()
    assert share.mean(0).tolist() == pytest.approx([0.5] * 3, abs=0.02)
    assert share.std(0).tolist() == pytest.approx([12**-0.5] * 3, abs=0.01)
    assert torch.corrcoef(share.T).fill_diagonal_(0).abs().max() < 0.08


@pytest.mark.parametrize(("standing", "low", "high"), [(0.0, 0, 0), (0.25, 0.22, 0.28), (1.0, 1, 1)])
def test_share_of_zero_commands(standing: float, low: float, high: float) -> None:
    drawn = CommandSchedule(standing=standing)(SPEC, keys(4000), settled(4000), RATE)
    still = (drawn == 0).all(1)
    assert torch.equal(still, (drawn == 0).any(1)), "all components are zero, or none"
    assert low <= float(still.float().mean()) <= high


def test_command_ramps_linearly_from_the_previous_one_then_holds() -> None:
    schedule, steps, ramp = CommandSchedule(hold=2.0, standing=0.0), torch.arange(400), round(COMMAND_RAMP * RATE)
    path = schedule(SPEC, keys(1).repeat(400), steps, RATE)
    assert not path[0].any(), "an episode begins with a zero command"
    changes = (path.diff(dim=0) != 0).any(1).nonzero().flatten() + 1
    assert changes.tolist() == [start + k for start in (0, 100, 200, 300) for k in range(1, ramp + 1)]
    held = path[[50, 150, 250, 350]]
    assert len({tuple(row) for row in held.tolist()}) == 4
    middle = 100 + 12
    share = 12 / (COMMAND_RAMP * RATE)
    assert torch.allclose(path[middle], held[0] + share * (held[1] - held[0]), atol=1e-6)


def test_command_depends_only_on_episode_and_time() -> None:
    schedule = CommandSchedule(hold=1.0)
    steps = torch.tensor([0, 7, 7, 900, 3])
    together = schedule(SPEC, keys(5), steps, RATE)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(schedule(SPEC, keys(5)[order], steps[order], RATE), together[order])
    for i in range(5):
        assert torch.equal(schedule(SPEC, keys(5)[i : i + 1], steps[i : i + 1], RATE)[0], together[i])
