"""Policies with known weights: an arm's tool moves towards its target, a Go2 stands."""

from pathlib import Path

import torch

from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

TASKS = {"fr3": "fr3-reach", "ur5e": "ur5e-reach", "go2": "go2-velocity"}
GAIN = 6.0
"""Action per metre between target and tool: 0.8 m/s per unit of action."""


def save(robot: str, path: Path) -> Path:
    """Write a bundle of the policy for a robot."""
    interface = tasks.get(TASKS[robot]).interface
    pipeline = Pipeline(interface)
    actions = pipeline.actions.size
    policy = FeedforwardPolicy(Size(pipeline.observer.spec.size, actions), FeedforwardConfig(hidden=(6,)))
    first, last = policy.actor[0], policy.actor[-1]
    with torch.no_grad():
        for weight in policy.actor.parameters():
            weight.zero_()
        if robot == "go2":  # on straighter legs than at home, as the twin is heavy
            last.bias.copy_(torch.tensor([0.0, -0.1, 0.2] * 4) / 0.6)
        else:
            names = [f"{field.name}.{dim}" for field in pipeline.observer.spec.fields for dim in field.dims]
            for axis, dim in enumerate("xyz"):
                column = names.index(f"target_to_tool.{dim}")
                for unit, sign in ((axis, 1.0), (axis + 3, -1.0)):  # ELU of both signs: odd and steep at 0
                    first.weight[unit, column] = sign
                    last.weight[axis, unit] = sign * GAIN / 2
    save_bundle(Bundle(policy, interface, pipeline.robot.fingerprint()), path)
    return path
