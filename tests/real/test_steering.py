"""Velocity command of a legged robot: from the operator, then cmd_vel, then the schedule."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from real import clock
from real.bus import make, open_node, qos
from real.episode.steering import TOPIC, TYPES, Steering
from real.teleop.commands import RELEASED, Operator
from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.util.errors import UserError
from sim.env import TaskEnv
from sim.tasks import tasks

TASK = tasks.get("go2-velocity")
SPEC = VectorSpec(TASK.interface.command)
STAND = [[0.0, 0.0, 0.0]]
PERIOD = 0.02
LONG = 2 * round(COMMAND_RAMP / PERIOD)  # control periods in which a command reaches any other command


def settle(steering: Steering, hands: Operator | None = None, **more: Any) -> list[list[float]]:
    """Return the command after it has reached its target."""
    for k in range(LONG):
        steering(hands, 0, k + 1, **more)
    return steering(hands, 0, LONG + 1, **more).tolist()


@pytest.fixture
def steer(nodes: Callable[..., Any], eventually: Callable[..., Any]) -> Callable[..., Any]:
    """Build a Steering; `say` publishes a Twist, or with `frame` a TwistStamped, and waits for its arrival."""

    def build(schedule: Any = None) -> tuple[Steering, Callable[..., None]]:
        steering, planner = Steering(nodes("policy"), SPEC, PERIOD, schedule), nodes("planner")
        plain, stamped = (planner.publisher(kind, TOPIC, qos.DEFAULT) for kind in TYPES)
        assert planner.wait_for(lambda: plain.matched == stamped.matched == 1, 30)

        def say(x: float, y: float, yaw: float, frame: str | None = None) -> None:
            before = [sample.latest for sample in steering.twists]
            twist = {"linear": {"x": x, "y": y}, "angular": {"z": yaw}}
            if frame is None:
                plain.publish(make(TYPES[0], **twist))
            else:
                stamped.publish(make(TYPES[1], header={"frame_id": frame}, twist=twist))
            eventually(lambda: [sample.latest for sample in steering.twists] != before)

        return steering, say

    return build


def test_command_grows_as_in_training_and_starts_at_zero(steer: Callable[..., Any]) -> None:
    steering, _ = steer()
    full = Operator(held=True, motion=(1.0, -1.0, 0.0))
    path = torch.cat([steering(full, 0, k) for k in range(LONG)])
    assert path[0].tolist() == pytest.approx([2 / LONG, -1 / LONG, 0])
    assert torch.allclose(path.diff(dim=0)[: LONG // 2 - 1], path[0].expand(LONG // 2 - 1, 3), atol=1e-6)
    assert path[-1].tolist() == pytest.approx([1.0, -0.5, 0.0])
    assert settle(steering, full, rest=True) == STAND
    steering(full, 0, 1)
    assert steering(None, 0, 0).tolist() == STAND


def test_released_command_falls_as_in_training(steer: Callable[..., Any]) -> None:
    """The schedule's fastest stop is the one from the end of a range."""
    ramp = round(COMMAND_RAMP / PERIOD)
    steering, _ = steer()
    settle(steering, Operator(held=True, motion=(1.0, 1.0, 1.0)))
    released = torch.cat([steering(None, 0, k + 1) for k in range(ramp)])
    speeds, ends = torch.linspace(1, 0, ramp + 1)[1:, None], SPEC.high
    assert torch.allclose(released, speeds * ends, atol=1e-6)
    stop = torch.lerp(ends, torch.zeros(3), torch.arange(1, ramp + 1)[:, None] / ramp)
    assert torch.allclose(released, stop, atol=1e-6)


def test_twist_is_valid_for_half_a_second_and_clamped(steer: Callable[..., Any], monkeypatch: Any) -> None:
    steering, say = steer()
    say(0.4, -0.2, 0.3)
    assert settle(steering)[0] == pytest.approx([0.4, -0.2, 0.3])
    say(9.0, -9.0, 0.5)
    assert settle(steering)[0] == pytest.approx([1.0, -0.5, 0.5])
    say(float("nan"), 0.1, 0.1)
    assert settle(steering) == STAND
    say(0.4, 0.0, 0.0)
    later = steering.twists[0].latest.received + 0.51
    monkeypatch.setattr(clock, "now", lambda: later)
    assert settle(steering) == STAND


@pytest.mark.parametrize(
    ("frame", "obeyed"),
    [("", True), ("base_link", True), ("/base", True), ("base_footprint", True), ("odom", False), ("map", False)],
)
def test_stamped_twist_must_be_in_the_trunks_frame(steer: Any, frame: str, obeyed: bool, caplog: Any) -> None:
    steering, say = steer()
    say(0.9, 0.0, 0.0)
    say(0.4, -0.2, 0.3, frame)
    assert settle(steering)[0] == pytest.approx([0.4, -0.2, 0.3] if obeyed else [0.0, 0.0, 0.0])
    warnings = [r for r in caplog.records if frame in r.getMessage() and "base" in r.getMessage()]
    assert len(warnings) == (not obeyed)
    say(0.2, 0.0, 0.0)
    assert settle(steering)[0] == pytest.approx([0.2, 0.0, 0.0]), "the newest of both types"


def test_both_types_of_twist_match_and_a_third_does_not(steer: Callable[..., Any]) -> None:
    steer()
    with open_node("late") as late, open_node("robot") as robot:
        Steering(robot, SPEC, PERIOD)
        publishers = [late.publisher(kind, TOPIC) for kind in TYPES]
        assert late.wait_for(lambda: all(p.matched for p in publishers), 30) and not robot.incompatible()
        late.publisher("std_msgs/msg/String", TOPIC)
        assert robot.wait_for(lambda: any("String" in text for text in robot.incompatible()), 30)


def test_operator_has_priority_and_full_deflection_is_the_end_of_a_range(steer: Callable[..., Any]) -> None:
    steering, say = steer(lambda seed, step: torch.full((1, 3), 0.25))
    say(0.4, 0.0, 0.0)
    assert settle(steering, Operator(held=True, motion=(-1.0, 0.5, 1.0))) == [[-1.0, 0.25, 1.0]]
    assert settle(steering, Operator(held=True)) == STAND
    say(0.4, 0.0, 0.0)
    assert settle(steering, RELEASED)[0] == pytest.approx([0.4, 0.0, 0.0])
    assert settle(steering, Operator(lost=True)) == STAND


def test_schedule_of_an_episode_is_the_same_as_in_simulation(steer: Callable[..., Any]) -> None:
    steering, _ = steer(lambda seed, step: TASK.commands.of_episode(SPEC, seed, step, 50.0))
    simulation = TaskEnv(TASK, 2, threads=1, seed=7)
    for seed in (7, 8):
        simulation.reset(seed=7)
        for step in range(30):
            expected = simulation.state.command[seed - 7][None]
            assert torch.allclose(steering(None, seed, step), expected, atol=1e-6), step
            simulation.step(torch.zeros(2, 12))
    simulation.close()
    path = np.array([steering(None, 7, step)[0].tolist() for step in range(1, 2000)])
    assert len(np.unique(path[150::200].round(3), axis=0)) > 5


def test_other_command_fields_are_refused(steer: Callable[..., Any]) -> None:
    with open_node("policy") as node, pytest.raises(UserError, match="only x, y and yaw"):
        Steering(node, VectorSpec((box("height", "z", "m", 0.1, 0.4),)), PERIOD)
