"""Reward terms on states written by hand and on random states; foot contacts."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.interface.state import is_commanded
from sim import rewards as r
from sim.rewards import Reward, Transition, total
from sim.step.feet import CONTACT_FORCE, FootTracker

Build = Callable[..., Any]
PERIOD = 0.02
COMMAND = torch.tensor([[0.5, 0.0, 0.0]])
OTHERS = ("Transition", "Reward", "total", "gait_metrics", "rough_metrics", "speed_along_command")
TERMS = {name: f for name, f in vars(r).items() if getattr(f, "__module__", "") == r.__name__ and name not in OTHERS}
"""All shared reward terms; a task's own terms have tests beside the task."""


@pytest.fixture
def step(go2: Any, standing: Build) -> Callable[..., Transition]:
    """Builder of a control period of standing robots; keywords with the prefix `before_` set the state at its start."""

    def build(n: int = 1, feet: dict[str, Any] | None = None, **views: Any) -> Transition:
        tracker = FootTracker(n, 4, go2.base.foot_radius, PERIOD)
        tracker.reset(torch.arange(n))
        for name, value in (feet or {}).items():
            getattr(tracker, name)[:] = torch.tensor(value)
        start = {k.removeprefix("before_"): v for k, v in views.items() if k.startswith("before_")}
        end = {k: v for k, v in views.items() if not k.startswith("before_")}
        return Transition(go2, torch.tensor(go2.home), standing(n, **start), standing(n, **end), tracker, PERIOD)

    return build


def first(size: int, *values: float) -> Tensor:
    """Return a row that begins with `values`; the rest is 0."""
    row = torch.zeros(1, size)
    row[0, : len(values)] = torch.tensor(values)
    return row


@pytest.mark.parametrize("name", list(TERMS))
def test_standing_robot_at_zero_command_has_the_best_value(step: Build, name: str) -> None:
    assert TERMS[name](step(3)).tolist() == [1.0 if name.startswith("track_") or name == "alive" else 0.0] * 3


def test_errors_are_relative_to_the_command_at_the_start(step: Build) -> None:
    motion = {"base_velocity": [[0.3, -0.4, 9.0]], "base_angular_velocity": [[9.0, 9.0, 0.5]]}
    commands = {"before_command": [[0.0, 0.0, -0.3]], "command": [[5.0, 5.0, 5.0]]}
    m = step(**{name: torch.tensor(rows) for name, rows in (motion | commands).items()})
    assert r.velocity_error(m).item() == pytest.approx(0.5)
    assert r.yaw_error(m).item() == pytest.approx(0.8)
    assert r.gait_metrics(m)["velocity_error"].item() == pytest.approx(0.5)


@pytest.mark.parametrize(("name", "error"), [("track_lin_vel_xy", "velocity_error"), ("track_ang_vel_z", "yaw_error")])
def test_tracking_is_a_gaussian_of_the_error(step: Build, name: str, error: str) -> None:
    n = 40
    sizes = torch.linspace(0, 2, n)
    for sign in (1.0, -1.0):
        speed = torch.zeros(n, 3)
        speed[:, 1 if name == "track_lin_vel_xy" else 2] = sign * sizes
        view = "base_velocity" if name == "track_lin_vel_xy" else "base_angular_velocity"
        m = step(n, **{view: speed})
        value = TERMS[name](m)
        assert torch.allclose(TERMS[error](m), sizes) and value[0] == 1
        assert (value.diff() < 0).all() and (value > 0).all()
        # Gaussian: the logarithm is proportional to the squared error.
        assert torch.allclose(value.log() / value[1:2].log(), (sizes / sizes[1]).square(), rtol=2e-3, atol=1e-4)


def test_trunk_motion_terms(step: Build, go2: Any) -> None:
    assert r.lin_vel_z(step(base_velocity=torch.tensor([[1.0, 1.0, -0.3]]))).item() == pytest.approx(0.09)
    assert r.ang_vel_xy(step(base_angular_velocity=torch.tensor([[0.3, -0.4, 5.0]]))).item() == pytest.approx(0.25)
    for x, y in ((1.0, 0.0), (0.0, -1.0), (0.6, 0.8)):
        half = math.radians(30) / 2
        quat = torch.tensor([[math.cos(half), math.sin(half) * x, math.sin(half) * y, 0.0]])
        assert r.flat_orientation(step(base_quat=quat)).item() == pytest.approx(0.25, abs=1e-6)
    for offset in (0.1, -0.1):
        height = torch.tensor([[0.0, 0.0, go2.base.height + offset]])
        assert r.base_height(step(base_position=height)).item() == pytest.approx(1.0, rel=1e-4)


def test_motor_effort_terms(step: Build) -> None:
    assert r.joint_torque(step(joint_torque=first(12, 3.0, -4.0))).item() == pytest.approx(25.0)
    m = step(joint_torque=first(12, 3.0, -4.0, 5.0), joint_velocity=first(12, -2.0, -1.0))
    assert r.joint_power(m).item() == pytest.approx(10.0), "absolute values are added"
    m = step(joint_velocity=first(12, 0.3, 0.0, 0.4), before_joint_velocity=first(12, 0.1, 0.0, 0.4))
    assert r.joint_acc(m).item() == pytest.approx((0.2 / PERIOD) ** 2, rel=1e-4)
    m = step(last_action=first(12, 0.5, 0.2), before_last_action=first(12, 0.2, -0.2))
    assert r.action_rate(m).item() == pytest.approx(0.25, rel=1e-5)


def test_posture_is_larger_at_zero_command(step: Build, go2: Any) -> None:
    off = torch.tensor([go2.home]) + 0.2 * torch.eye(12)[4]
    walking = r.posture(step(joint_position=off, before_command=COMMAND)).item()
    assert walking == pytest.approx(0.04, rel=1e-4)
    assert r.posture(step(joint_position=off)).item() > walking


def test_small_command_counts_as_zero(standing: Build) -> None:
    commands = torch.tensor([[0.0, 0, 0], [0.0, 0.02, 0], [0.3, 0, 0], [0, 0, -0.3], [0, -0.3, 0]])
    assert is_commanded(standing(5, command=commands)).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(("phase", "pair"), [(0.1, [0, 3]), (0.4, [0, 3]), (0.6, [1, 2]), (0.9, [1, 2])])
def test_trot_gait_is_the_share_of_feet_that_fit(step: Build, phase: float, pair: list[int]) -> None:
    def share(down: list[int], command: Tensor = COMMAND) -> float:
        feet = {"touching": [[k in down for k in range(4)]]}
        return float(r.trot_gait(step(feet=feet, before_command=command, before_phase=torch.tensor([[phase]]))).item())

    others = [k for k in range(4) if k not in pair]
    assert share(pair) == 1 and share(others) == 0 and share([0, 1, 2, 3]) == 0.5 == share([])
    assert share(pair[:1]) == 0.75
    assert share(pair, torch.zeros(1, 3)) == 0, "no trot at a zero command"


def test_feet_clearance_grows_with_speed_and_height_error(step: Build, go2: Any) -> None:
    def cost(height: float, *speed: float) -> float:
        place = torch.zeros(1, 12)
        place[:, 2::3] = go2.base.foot_radius + height
        return float(r.feet_clearance(step(foot_position=place, foot_velocity=first(12, *speed))).item())

    assert cost(0.0, 0.3, 0.4, 9.0) == pytest.approx(0.5), "one foot slides at 0.5 m/s"
    assert cost(0.0, 0.3, 0.4, 0.0, 0.0, 0.5) == pytest.approx(1.0)
    assert cost(0.0) == 0 and cost(0.0, 1.0) > cost(0.02, 1.0) > cost(0.04, 1.0)
    assert cost(5.0, 1.0) == cost(6.0, 1.0), "the cost is bounded"


def test_feet_slip_in_contact_and_feet_in_the_air_at_zero_command(step: Build) -> None:
    speed = first(12, 0.3, 0.4, 9.0, 7.0, 7.0, 7.0)
    contact = [[True, False, True, True]]
    assert r.feet_slip(step(foot_velocity=speed, feet={"touching": contact})).item() == pytest.approx(0.25, rel=1e-5)
    assert r.feet_slip(step(foot_velocity=speed, feet={"touching": [[False] * 4]})).item() == 0
    feet = {"contact": [[False, True, False, True]]}
    assert r.feet_air_standing(step(feet=feet)).item() == 2
    assert r.feet_air_standing(step(feet=feet, before_command=COMMAND)).item() == 0


def test_gait_metrics_are_nan_where_undefined(step: Build) -> None:
    still = r.gait_metrics(step())
    assert {name for name, value in still.items() if value.isnan().any()} == {"swing_height", "air_time"}
    flying = r.gait_metrics(step(feet={"contact": [[False] * 4], "touching": [[False] * 4]}))
    assert flying["foot_slip"].isnan()
    feet = {"landed": [[True, True, False, False]], "air_time": [[0.1, 0.3, 0.9, 0.9]],
            "swing_height": [[0.02, 0.06, 0.9, 0.9]]}  # fmt: skip
    landing = r.gait_metrics(step(feet=feet, foot_velocity=first(12, 0.3, 0.4)))
    assert landing["air_time"].item() == pytest.approx(0.2) and landing["swing_height"].item() == pytest.approx(0.04)
    assert landing["foot_slip"].item() == pytest.approx(0.5 / 4), "m/s, mean over feet in contact"


@pytest.mark.parametrize("name", list(TERMS))
def test_terms_are_finite_on_random_states(step: Build, name: str) -> None:
    rng, n = torch.Generator().manual_seed(0), 64

    def noise(_: str, view: Tensor) -> Tensor:
        return 5 * torch.randn(view.shape, generator=rng)

    m = step(n)
    m = replace(m, before=m.before.map(noise), now=m.now.map(noise))
    assert m.feet is not None
    for k in FootTracker.ROWS:
        view = getattr(m.feet, k)
        drawn = torch.rand(view.shape, generator=rng)
        setattr(m.feet, k, drawn < 0.5 if view.dtype == torch.bool else drawn)
    value = TERMS[name](m)
    assert value.shape == (n,) and value.isfinite().all() and (value >= 0).all()


def test_total_is_weighted_and_per_second(step: Build) -> None:
    rewards = (Reward("up", 2.0, r.lin_vel_z), Reward("ask", -0.5, lambda m: torch.ones(len(m.now.base_velocity))))
    m = step(2, base_velocity=torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]))
    for period in (PERIOD, 2 * PERIOD):
        reward, parts = total(rewards, replace(m, period=period))
        assert parts["up"].tolist() == pytest.approx([2 * period, 8 * period])
        assert parts["ask"].tolist() == pytest.approx([-0.5 * period] * 2)
        assert torch.allclose(reward, parts["up"] + parts["ask"])


# ---- foot contacts -------------------------------------------------------------------------------------------------
PERIOD, RADIUS = 0.02, 0.02


@pytest.fixture
def play(standing: Build) -> Callable[..., dict[str, Tensor]]:
    """Update a tracker with contacts "x" or "-" and sole heights of one foot; return its values (T,) by name."""

    def run(contacts: str, heights: list[float] | None = None) -> dict[str, Tensor]:
        tracker = FootTracker(1, 4, RADIUS, PERIOD)
        tracker.reset(torch.tensor([0]))
        rows: dict[str, list[Tensor]] = {name: [] for name in FootTracker.ROWS}
        for k, mark in enumerate(contacts):
            state = standing(1)
            state.foot_force[:] = 37.0
            state.foot_force[0, 2] = 37.0 if mark == "x" else 0.0
            state.foot_position[0, 8] = RADIUS + (heights[k] if heights else 0.0)
            tracker.update(state)
            for name in rows:
                view = getattr(tracker, name)
                rows[name].append(view[0, 2])
                assert (view[0, [0, 1, 3]] == (name in ("touching", "contact"))).all(), "the other feet stand"
        return {name: torch.stack(views) for name, views in rows.items()}

    return run


def test_air_time_and_height_at_landing(play: Callable[..., dict[str, Tensor]]) -> None:
    seen = play("xx----xxx", [0, 0, 0.01, 0.03, 0.05, 0.02, 0, 0, 0])
    assert seen["landed"].nonzero().flatten().tolist() == [6]
    # The foot left the ground in the third period and landed in the seventh.
    assert float(seen["air_time"][6]) == pytest.approx(4 * PERIOD, abs=1e-6)
    assert float(seen["swing_height"][6]) == pytest.approx(0.05, abs=1e-6)
    for name in ("air_time", "swing_height"):
        assert not seen[name][[0, 1, 7, 8]].any(), f"{name} of a foot on the ground"
    assert seen["air_time"].diff()[3:5].tolist() == pytest.approx([PERIOD, PERIOD]), "the air time grows with time"


def test_air_time_is_unbiased(play: Callable[..., dict[str, Tensor]]) -> None:
    """A swing of 0.23 s that begins at any time within a control period."""
    swing, seen = 0.23, []
    for share in torch.linspace(0.025, 0.975, 20).tolist():
        start = (1 + share) * PERIOD
        marks = "".join("-" if start < k * PERIOD <= start + swing else "x" for k in range(20))
        seen.append(float(play(marks)["air_time"].max()))
    assert sum(seen) / len(seen) == pytest.approx(swing, abs=0.1 * PERIOD)
    assert max(abs(s - swing) for s in seen) < PERIOD


def test_swing_height_is_reset_between_swings(play: Callable[..., dict[str, Tensor]]) -> None:
    heights = [0.0, 0.02, 0.08, 0.07, 0, 0, 0, 0.02, 0.03, 0.03, 0]
    seen = play("x---xxx---x", heights)
    assert seen["landed"].nonzero().flatten().tolist() == [4, 10]
    assert seen["swing_height"][[4, 10]].tolist() == pytest.approx([0.08, 0.03], abs=1e-6)


@pytest.mark.parametrize("contacts", ["xx-xx-xx", "xxxxxxxx", "x-x-x-x-"])
def test_flickering_contact_is_one_contact(play: Callable[..., dict[str, Tensor]], contacts: str) -> None:
    seen = play(contacts)
    assert seen["contact"].all() and not seen["landed"].any() and not seen["air_time"].any()
    assert seen["touching"].tolist() == [mark == "x" for mark in contacts]


def test_contact_force_threshold(standing: Build) -> None:
    tracker = FootTracker(1, 4, RADIUS, PERIOD)
    for force, touching in ((0.9 * CONTACT_FORCE, False), (1.1 * CONTACT_FORCE, True)):
        tracker.update(standing(1, foot_force=torch.full((1, 4), force)))
        assert (tracker.touching == touching).all()


def test_reset_sets_selected_robots_to_standing(standing: Build) -> None:
    tracker = FootTracker(3, 4, RADIUS, PERIOD)
    for _ in range(5):
        tracker.update(standing(3, foot_force=torch.zeros(3, 4), foot_position=torch.ones(3, 12)))
    air = tracker.air_time.clone()
    assert (air > 0).all() and (tracker.swing_height == 1 - RADIUS).all()
    tracker.reset(torch.tensor([0, 2]))
    assert torch.equal(tracker.air_time[1], air[1]) and not tracker.air_time[[0, 2]].any()
    assert tracker.contact.all(1).tolist() == [True, False, True]
    tracker.update(standing(3))
    assert tracker.landed.any(1).tolist() == [False, True, False], "a robot placed on the ground has not landed"


def test_progress_is_the_speed_along_the_command(step: Build) -> None:
    m = step(3, before_command=torch.tensor([[0.3, 0.4, 1.0], [-1.0, 0, 0], [0, 0, 1.0]]),
             base_velocity=torch.tensor([[0.3, 0.4, 0.0], [0.5, 2.0, 0.0], [1.0, 0.0, 0.0]]))  # fmt: skip
    metrics = r.rough_metrics(m)
    assert metrics["command_speed"].tolist() == pytest.approx([0.5, 1.0, 0.0])
    assert metrics["speed_along_command"].tolist() == pytest.approx([0.5, -0.5, 0.0])


def test_heights_are_those_above_uneven_ground(step: Build, go2: Any) -> None:
    ground = torch.tensor([[0.7], [-0.4]])
    feet = ground.expand(-1, 4) + 0.01
    level = step(2, foot_velocity=torch.ones(2, 12))
    place = level.now.foot_position.clone()
    place[:, 2::3] += feet
    base = level.now.base_position + torch.nn.functional.pad(ground, (2, 0))
    moved = {"base_position": base, "ground_height": ground, "foot_position": place, "foot_ground_height": feet}
    m = step(2, foot_velocity=torch.ones(2, 12), **moved)
    for term in (r.base_height, r.feet_clearance):
        assert torch.allclose(term(m), term(level), atol=1e-5)
    assert torch.allclose(r.gait_metrics(m)["base_height"], torch.tensor(go2.base.height), atol=1e-6)


def test_long_swings_pay_when_they_end(step: Build) -> None:
    ended = {"air_time": [[0.05, 0.15, 0.2, 0.5]], "landed": [[True, True, True, False]]}
    paid = r.feet_air_time(step(feet=ended, before_command=COMMAND)).item()
    assert paid == pytest.approx((0.0 + 0.05 + 0.1) / PERIOD, rel=1e-4)
    longest = {"air_time": [[2.0] * 4], "landed": [[True] * 4]}
    assert r.feet_air_time(step(feet=longest, before_command=COMMAND)).item() == pytest.approx(4 * 0.2 / PERIOD)
    assert r.feet_air_time(step(feet=longest)).item() == 0  # nothing is commanded
