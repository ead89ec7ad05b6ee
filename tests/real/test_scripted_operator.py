"""Scripted operator of an arm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from real.bus import open_node
from real.teleop import stream
from real.teleop.commands import RELEASED, OperatorInput
from real.teleop.scripted_arm import ArmOperator
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

LIFT = tasks.get("panda-lift")
Build = Callable[..., Any]


def test_stalled_policy_is_corrected_towards_the_object(topic_robot: Build, robot_env: Build) -> None:
    robot, end, pipeline = topic_robot(), threading.Event(), Pipeline(LIFT.interface)
    with open_node("operator") as node, open_node("listener") as listener:
        operator = ArmOperator(node, pipeline, LIFT.make_expert(pipeline, 1, "STEADY", 0))
        assert operator.read() == RELEASED, "no episode runs"
        streamed = node, operator, "panda", 30.0, lambda s: signal.SIGTERM * end.wait(s)
        thread = threading.Thread(target=stream, args=streamed)
        thread.start()
        try:
            env = robot_env(replace(LIFT.interface, horizon=200), OperatorInput(listener, "panda"))
            env.reset(seed=0)
            begin = robot.position.copy()
            interventions: list[bool] = []
            while sum(interventions) < 20:
                *_, infos = env.step(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
                interventions.append(bool(infos["intervention"]))
                assert len(interventions) < 150
            assert not any(interventions[:5]), "it observes first"
            offset = env.state.objects["cube"][0, :3] - env.state.tool_position[0]
            first = env.pipeline.kinematics.forward(torch.from_numpy(begin).float()[None])[0][0]
            assert offset.norm() < (env.state.objects["cube"][0, :3] - first).norm() - 0.05
        finally:
            end.set()
            thread.join()
            operator.close()
