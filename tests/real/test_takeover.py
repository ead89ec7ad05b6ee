"""Takeover and hand-back with actions of 3, 4, 6 and 7 dimensions, in simulation and on a twin."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from real.bus import open_node, qos
from real.episode.env import RobotEnv
from real.episode.intervention import Arbiter
from real.teleop.commands import RELEASED, Operator
from real.twin.composed import composed_twin
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import rotation_error
from robot_rl.robots import robots
from sim.env import TaskEnv
from sim.tasks import tasks
from sim.tasks.base import Task

STILL = Operator(held=True)
MOVE = Operator(held=True, motion=(-0.4, 0.3, 0.2), rotation=(0.3, -0.4, 0.5), gripper=1.0)
HOLD_STEPS = 80  # 4 s at 20 Hz


def _task(name: str, turn: float) -> Task:
    """Return the task with the controller's angular limit `turn`, and without success before the script ends."""
    task = tasks.get(name)
    controller: Any = replace(task.interface.controller, turn=turn)
    never = f"reached:{task.scene.objects[0].name}:1e-6"
    return replace(task, interface=replace(task.interface, controller=controller, success=never, horizon=400))


CASES = [("ur5e-reach", 0.0, 3), ("panda-lift", 0.0, 4), ("ur5e-reach", 0.1, 6), ("panda-turn", 0.1, 7)]
"""Task, angular limit of the controller, action size."""


def _script(size: int, step: Callable[[Operator], tuple[bool, Tensor]]) -> None:
    """Run the policy, hold, move and hand back; `step` returns whether a takeover began, and the executed action."""
    moves, fingers = {3: (3, 0), 4: (3, 1), 6: (6, 0), 7: (6, 1)}[size]
    for _ in range(10):
        step(RELEASED)
    for k in range(HOLD_STEPS):
        takeover, executed = step(STILL)
        assert takeover == (k == 0)
        assert executed.shape == (1, size) and not executed[0, :moves].any(), "a hold has no motion"
    for _ in range(10):
        _, executed = step(MOVE)
        wanted = [*MOVE.motion, *MOVE.rotation][:moves] + [1.0] * fingers
        assert executed[0].tolist() == pytest.approx(wanted), "a takeover commands all dimensions"
    _, executed = step(RELEASED)
    assert not executed[0, :moves].any(), "handing back"
    for _ in range(5):
        step(RELEASED)


@pytest.mark.parametrize(("name", "turn", "size"), CASES)
def test_takeover_in_simulation_holds_and_does_not_jump(name: str, turn: float, size: int) -> None:
    """With randomized delay, gains, friction and noise."""
    env = TaskEnv(_task(name, turn), 1, threads=1)
    env.reset(seed=1)
    controller, shield = env.pipeline.controller, env.pipeline.shield
    hands = SimpleNamespace(now=RELEASED, devices=1, read=lambda: hands.now)
    arbiter: Any = Arbiter(hands, controller)  # type: ignore[arg-type]
    policy = 0.3 * torch.ones(1, size)
    positions, speeds = [], [env.episodes.chain.velocity.clone()]

    def step(operator: Operator) -> tuple[bool, Tensor]:
        hands.now = operator
        chain = env.episodes.chain
        decision = arbiter.decide(policy, controller.hold_action(chain.last_action, chain.gripper))
        env.step(decision.action)
        positions.append(env.true.joint_position.clone())
        speeds.append(env.episodes.chain.velocity.clone())
        return decision.takeover, env.episodes.chain.last_action

    _script(size, step)
    tool = Kinematics(env.robot)
    settled, after = positions[10 + 20], positions[10 + HOLD_STEPS - 1]
    (p, r), (q, s) = tool.forward(settled), tool.forward(after)
    assert (p - q).norm() < 0.005, "m, in 3 s"
    assert rotation_error(r, s).norm() < 0.01, "rad, in 3 s"
    speed = torch.cat(speeds)
    assert (speed.abs() <= shield.velocity + 1e-5).all()
    assert (speed.diff(dim=0).abs() <= shield.acceleration / env.rate + 1e-4).all(), "no jump"
    env.close()


@pytest.mark.parametrize(("name", "turn", "size"), [CASES[0], CASES[-1]])
def test_takeover_on_a_twin_holds_and_does_not_jump(name: str, turn: float, size: int, private_domain: int) -> None:
    """Over the robot's topics."""
    task, robot = _task(name, turn), name.split("-")[0]
    hands = SimpleNamespace(now=RELEASED, devices=1, read=lambda: hands.now)
    commands: list[np.ndarray] = []
    array, ros, every = "std_msgs/msg/Float64MultiArray", robots.get(robot).driver, replace(qos.COMMAND, depth=1000)
    with composed_twin(task, cameras=False), open_node("policy") as node:
        node.subscribe(array, ros.command, every, lambda s: commands.append(np.array(s.msg.data)))
        env = RobotEnv(node, task.interface, operator=hands)  # type: ignore[arg-type]
        env.activate()
        try:
            env.reset(seed=0)
            joints: list[Tensor] = []

            def step(operator: Operator) -> tuple[bool, Tensor]:
                hands.now = operator
                *_, infos = env.step(0.3 * torch.ones(1, size))
                joints.append(env.state.joint_position)
                return bool(infos["takeover"]), infos["executed"]

            _script(size, step)
        finally:
            env.close()
    tool = env.pipeline.kinematics
    poses = [tool.forward(torch.cat(part)) for part in (joints[25:35], joints[10 + HOLD_STEPS - 10 : 10 + HOLD_STEPS])]
    (p, r), (q, s) = [(position.mean(0), rotation[5]) for position, rotation in poses]
    assert (p - q).norm() < 0.01, "m, in 3 s"
    assert rotation_error(r, s).norm() < 0.02, "rad, in 3 s, with encoder noise"
    assert "nonfinite" not in env.loop.events.counts and "start mismatch" not in env.loop.events.counts
    sent = np.array(commands)
    steps = np.abs(np.diff(sent, axis=0)).max(0)
    assert (steps <= env.pipeline.shield.velocity.numpy() * env.pipeline.tick + 1e-6).all(), "no jump"
