"""Motion of a Franka arm: within the robot's limits for any goals, smooth and close for a policy's."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from real.franka.losses import LostCycles
from real.franka.motion import PERIOD, Motion, Stream, joint_limits
from robot_rl.interface.driver import FrankaControl
from robot_rl.robots.fr3 import FR3

HOME = np.array(FR3.home)
LIMITS = joint_limits(FR3, FrankaControl())
LOW, HIGH = (np.array([getattr(limit, end) for limit in LIMITS]) for end in ("low", "high"))


def taper(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the FR3's limits of downward and upward speed, as libfranka's rate_limiting.h states them."""
    rows = np.array([
        [2.62, 0.30, 12.0, -2.7501, 2.7501], [2.62, 0.20, 5.17, -1.7918, 1.7918], [2.62, 0.20, 7.0, -2.9065, 2.9065],
        [2.62, 0.30, 8.0, -3.0481, -0.1458], [5.26, 0.35, 34.0, -2.8101, 2.8101], [4.18, 0.35, 11.0, 0.54092, 4.5205],
        [5.26, 0.35, 34.0, -3.0196, 3.0196],
    ])  # fmt: skip
    top, offset, slope, low, high = rows.T
    up, down = (np.sqrt(np.maximum(0, slope * room)) - offset for room in (high - q, q - low))
    return np.minimum(top, np.maximum(0, down)), np.minimum(top, np.maximum(0, up))


def check_limits(path: np.ndarray) -> None:
    """Check positions of successive cycles, (T, 7) rad, by differences, against the robot's own limits."""
    velocity = np.diff(path, axis=0) / PERIOD
    acceleration, jerk = (np.diff(velocity, k, axis=0) / PERIOD**k for k in (1, 2))
    assert (path >= [j.low for j in FR3.joints]).all() and (path <= [j.high for j in FR3.joints]).all()
    down, up = taper(path[:-1])
    assert (velocity <= up + 1e-9).all() and (velocity >= -down - 1e-9).all()
    assert np.abs(acceleration).max() <= 10 * 0.56 and np.abs(jerk).max() <= 5000 * 0.11


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1), rate=st.sampled_from([10, 30, 200, 1000]), step=st.sampled_from([0.003, 0.1, 6.0]),
    jitter=st.sampled_from([0.0, 0.002, 0.02]),
)  # fmt: skip
def test_no_goals_exceed_a_limit(seed: int, rate: float, step: float, jitter: float) -> None:
    rng = np.random.default_rng(seed)
    motion, stream, goal, due, path = Motion(LIMITS, HOME), Stream(HOME, rate), HOME, 0.0, [HOME] * 3
    for k in range(1500):
        now = k * PERIOD
        while due <= now:
            goal = goal + rng.uniform(-step, step, 7) if step < 1 else rng.uniform(LOW - 1, HIGH + 1)
            stream.add(goal, now)
            due += 1 / rate + rng.uniform(0, jitter)
        braking = 700 < k < 900
        path.append(motion.brake() if braking else motion.follow(*stream.at(now)))
    check_limits(np.array(path))


def policy_path(t: float) -> float:
    """Return a joint's offset, rad, at `t` s: 0.3 rad and back at 0.8 rad/s and 5 rad/s^2, with rests."""
    def once(u: float) -> float:
        up, cruise = 0.16, 0.215
        u = min(max(u, 0.0), 2 * up + cruise)
        ramp = min(u, up)
        brake = max(0.0, u - up - cruise)
        return 2.5 * ramp**2 + 0.8 * max(0.0, u - up) - 2.5 * brake**2
    return once(t - 0.2) - once(t - 1.2)


@pytest.mark.parametrize(("rate", "lag"), [(20, 0.055), (200, 0.01)])
def test_goals_of_a_policy_are_followed_smoothly(rate: float, lag: float) -> None:
    """The arm lags by a period of the goals and little more, although they arrive with jitter."""
    rng = np.random.default_rng(0)
    axis, motion, stream = np.array([1.0, 0.3, 0.0, -0.5, 0.2, 0.3, 0.9]), Motion(LIMITS, HOME), Stream(HOME, rate)
    arrivals = [(k / rate + abs(rng.normal(0, 0.001)), policy_path(k / rate)) for k in range(2 * rate)]
    path, jerks = [HOME] * 3, []
    for k in range(2000):
        now, before = k * PERIOD, motion.a
        while arrivals and arrivals[0][0] <= now:
            stream.add(HOME + axis * arrivals.pop(0)[1], now)
        path.append(motion.follow(*stream.at(now)))
        jerks.append(np.abs(np.subtract(motion.a, before)).max() / PERIOD)
    moved = (np.array(path)[3:] - HOME)[:, 0]
    wanted = np.array([policy_path(k * PERIOD - lag) for k in range(2000)])
    check_limits(np.array(path))
    assert np.abs(moved - wanted).max() < 0.015 and abs(moved[-1]) < 1e-4
    assert np.sqrt(np.mean(np.square(jerks))) < 600, "no chatter"


def test_braking_ends_at_rest() -> None:
    motion, stream = Motion(LIMITS, HOME), Stream(HOME, 200)
    path = [HOME] * 3
    for k in range(400):
        stream.add(HOME + 0.002 * k, k * PERIOD)
        path.append(motion.follow(*stream.at(k * PERIOD)))
    assert not motion.resting
    for _ in range(500):
        path.append(motion.brake())
    assert motion.resting
    check_limits(np.array(path))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lost_cycles_leave_no_jump(seed: int) -> None:
    """The robot bridges lost cycles at constant acceleration; the motion goes on from there."""
    rng, axis = np.random.default_rng(seed), np.array([1.0, 0.3, 0.0, -0.5, 0.2, 0.3, 0.9])
    motion, stream, path = Motion(LIMITS, HOME), Stream(HOME, 200), [HOME] * 4
    for k in range(3000):
        now = k * PERIOD
        if k % 5 == 0:
            stream.add(HOME + 0.1 * axis * (1 - np.cos(8 * now)), now)
        path.append(np.array(motion.follow(*stream.at(now))))
        if rng.random() < 0.01:
            late, missed = [(True, 0), (False, 2), (True, 5)][rng.integers(3)]
            lost = late + missed
            path = path[:-1] if late else path
            for _ in range(lost):
                path.append(3 * path[-1] - 3 * path[-2] + path[-3])
            motion.bridge(late, missed)
    check_limits(np.array(path))


def test_lost_commands_are_found_by_the_success_rate() -> None:
    rng, found, true, record, between = np.random.default_rng(0), LostCycles(), [], [], []
    for _ in range(2000):
        late, missed = bool(rng.random() < 0.05), int(rng.choice([0, 1, 4], p=[0.96, 0.03, 0.01]))
        record += [not late, *[False] * missed]
        true.append((late, missed))
        between.append(found.add(1 + missed, np.float32(np.mean(record[-100:]))))
    assert between == true
    assert found.in_row == max(len(list(row)) for lost, row in groupby(record, lambda x: not x) if lost)
    silent = LostCycles()
    assert [silent.add(cycles, 1.0) for cycles in (1, 1, 3, 1)] == [(False, 0)] * 4, "a simulator that does not count"


@pytest.mark.parametrize("cycles", [1, 3])
def test_late_commands_in_a_row_add_up(cycles: int) -> None:
    """A command in time ends the row; states may come every cycle or not."""
    found, record, lost = LostCycles(), [True] * 120, 0
    found.add(120, 1.0)
    for k in range(60):
        in_time = not 20 <= k < 30 and k != 40
        record += [in_time] * cycles
        late, missed = found.add(cycles, float(np.mean(record[-100:])))
        lost += late + missed
    assert (lost, found.in_row) == (11 * cycles, 10 * cycles)
    found.add(2, float(np.mean([*record, False, False][-100:])))
    found.end(40)
    assert found.in_row == 42, "then the robot ends the motion"
