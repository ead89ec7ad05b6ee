"""Pushes against the limits: no action drives an arm into the table, into itself or out of its workspace."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.collision import TOUCH
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import JointShield
from robot_rl.interface.state import RobotState
from robot_rl.interface.stopping import Stopping
from sim.engines.spheres import Contacts
from sim.step.action_chain import ActionChain
from sim.tasks import tasks

TASKS = ("fr3-lift", "fr3-reach", "panda-turn", "ur5e-reach")
LAG = 0.03
"""Time constant with which joints follow their commands, s."""
DRIFT = 0.005
"""Distance by which a lagging tool may be farther out of its workspace than the slack, m."""


def parts(name: str) -> tuple[Pipeline, Stopping, int]:
    """Return a task's pipeline, its shield's check and the number of commands in a period."""
    pipeline = Pipeline(tasks.get(name).interface)
    assert isinstance(pipeline.shield, JointShield) and pipeline.shield.stopping
    return pipeline, pipeline.shield.stopping, round(1 / pipeline.interface.controller.rate / pipeline.tick)


def push(name: str, actions: Tensor, lag: float) -> Tensor:
    """Return the joint positions (N, J), rad, of arms that start at home and follow actions (K, n, A)."""
    pipeline, _, ticks = parts(name)
    count, home = actions.shape[1], torch.tensor(pipeline.robot.home)
    chain = ActionChain(pipeline, count, pipeline.tick, ticks)
    chain.reset(torch.arange(count))
    chain.hold(torch.arange(count), home.expand(count, -1))
    share, joints, seen = 1 - math.exp(-pipeline.tick / lag) if lag else 1.0, home.repeat(count, 1), []
    for action in actions:
        state = RobotState(joints, torch.zeros_like(joints), chain.last_action)
        for command in chain.decide(chain.refer(state), action).transpose(0, 1):
            joints = joints + share * (command - joints)
            seen.append(joints)
    return torch.cat(seen)


def check(name: str, joints: Tensor, drift: float) -> None:
    """Assert that postures (N, J), rad, are clear, and the tool is within its workspace, slack and `drift`, m."""
    pipeline, stopping, _ = parts(name)
    assert stopping.clearance
    position, _, origins, axes = stopping.kinematics.chain(joints)
    apart = stopping.clearance(origins, axes)
    assert apart.min() > 0
    low, high = (end[:, None] for end in stopping.box)
    assert ((position > low - drift) & (position < high + drift)).all()
    contacts = Contacts(pipeline.robot)
    for posture in joints[apart.argsort()[:20]].double().numpy():
        assert contacts.pairs(posture).isdisjoint(pipeline.robot.collision_pairs)
        assert all(depth < TOUCH and body in contacts.fingers for body, depth in contacts.in_table().items())


@pytest.mark.parametrize("lag", [0.0, LAG])
@pytest.mark.parametrize("name", TASKS)
def test_no_steady_push_leads_into_the_table(name: str, lag: float) -> None:
    directions = [way for way in itertools.product((-1.0, 0.0, 1.0), repeat=3) if any(way)]
    actions = torch.zeros(30, 26, parts(name)[0].actions.size)
    actions[..., :3] = torch.tensor(directions)
    check(name, push(name, actions, lag), DRIFT)


@pytest.mark.parametrize("name", TASKS)
@settings(deadline=None, derandomize=True, max_examples=8)
@given(seed=st.integers(0, 2**31), hold=st.integers(1, 12), lag=st.sampled_from([0.0, LAG]))
def test_no_random_push_leads_into_the_table(name: str, seed: int, hold: int, lag: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    pushes = torch.randn(1 + 30 // hold, 16, parts(name)[0].actions.size, generator=rng).sign()
    check(name, push(name, pushes.repeat_interleave(hold, 0), lag), DRIFT)
