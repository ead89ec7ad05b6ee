"""Interfaces, pipelines, and the import of registered names."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.interface.control import JointOffsetConfig, ToolDeltaConfig
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.shield import ShieldConfig
from robot_rl.interface.spec import Field
from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import Registry

positive = st.floats(1e-3, 10)
fraction = st.floats(1e-3, 1)
starts = st.just((0.0, 0.5))
controllers = st.one_of(
    st.builds(ToolDeltaConfig, rate=positive, step=fraction, damping=positive, posture_gain=fraction, lead=fraction),
    st.builds(JointOffsetConfig, rate=positive, reach=positive, swing=st.just((0.1, 0.2)), swing_from=starts),
)
commands = st.sampled_from([(), (Field("turn", ("yaw",), "rad/s", (-1.0,), (0.5,), "trunk"),)])
interfaces = st.builds(
    Interface, task=st.text(min_size=1), robot=st.just("panda"), instruction=st.text(),
    observations=st.lists(st.sampled_from(["joint_position", "object_position:cube"]), max_size=3).map(tuple),
    success=st.sampled_from(["lifted:cube:0.12", ""]), success_hold=st.integers(1, 9), horizon=st.integers(1, 999),
    cameras=st.lists(st.text(), max_size=2).map(tuple), gait=positive,
    failure=st.sampled_from(["fallen:60:0.15", ""]), command=commands, controller=controllers,
    shield=st.builds(ShieldConfig, fraction, fraction, positive, st.floats(0, 0.1)),
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=50)
@given(interfaces)
def test_json_round_trip(interface: Interface) -> None:
    again = Interface.from_json(json.loads(json.dumps(interface.to_json())))
    assert again == interface
    assert hash(again) == hash(interface)


def test_interfaces_of_older_bundles_are_read_and_unknown_keys_refused(task: Any) -> None:
    data = task().interface.to_json()
    del data["cameras"], data["command"], data["failure"], data["gait"], data["controller"]["kind"]
    assert Interface.from_json(data) == replace(task().interface, cameras=())
    data = task().interface.to_json()
    for broken in (data | {"horzon": 5}, data | {"controller": data["controller"] | {"stp": 1.0}}):
        with pytest.raises(TypeError, match="horzon|stp"):
            Interface.from_json(broken)


@pytest.mark.parametrize(("change", "message"), [
    ({"horizon": 0}, "horizon is 0; it must be "),
    ({"horizon": 60.5}, "horizon is 60.5; it must be "),
    ({"success_hold": "x"}, "success_hold is 'x'; it must be "),
    ({"failure": 5}, "failure is 5; it must be "),
    ({"observations": "joint_position"}, "observations is 'joint_position'; it must be "),
    ({"observations": ("joint_position", 3)}, "observations is 3; it must be "),
])  # fmt: skip
def test_invalid_interface_is_refused(task: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(task().interface, **change)


@pytest.mark.parametrize(("change", "message"), [
    ({"rate": 0}, "controller.rate is 0; it must be "),
    ({"rate": "fifty"}, "controller.rate is 'fifty'; it must be "),
    ({"reach": math.nan}, "controller.reach is nan; it must be "),
    ({"swing": (math.nan,) * 12}, "controller.swing is nan; it must be "),
    ({"swing_from": (0.0, 1.5)}, "controller.swing_from is 1.5; it must be "),
    ({"stride": ((0.0, 4.0),)}, "controller.stride is 4; it must be "),
])  # fmt: skip
def test_invalid_controller_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        JointOffsetConfig(**change)


def test_stride_for_another_command_is_refused(walk: Any) -> None:
    shipped = walk().interface
    with pytest.raises(ValueError, match=r"controller\.stride has 3 numbers a joint for the 1 of the command"):
        replace(shipped, command=shipped.command[1:])


@pytest.mark.parametrize(
    ("command_rate", "rate", "proposed"), [(500.0, 60.0, "62.5"), (200.0, 30.0, "28.5714"), (500.0, 1000.0, "500")]
)
def test_a_period_holds_whole_commands(walk: Any, go2: Any, command_rate: float, rate: float, proposed: str) -> None:
    robot, shipped = replace(go2, command_rate=command_rate), walk().interface
    with pytest.raises(ConfigError, match=f"a control period at {rate:g} Hz .*; a rate of {proposed} Hz would do"):
        Pipeline(replace(shipped, controller=replace(shipped.controller, rate=rate)), robot)


def test_pipeline_builds_the_parts_of_the_interface(task: Any) -> None:
    controller, shield = ToolDeltaConfig(rate=10.0, step=0.01), ShieldConfig(velocity=0.1)
    interface = replace(task().interface, controller=controller, shield=shield)
    pipeline = Pipeline(interface)
    assert pipeline.robot.name == "panda"
    assert pipeline.tick == pytest.approx(0.005)
    assert pipeline.actions.high[0] == pytest.approx(0.01)
    assert pipeline.observer.names == interface.observations
    assert pipeline.shield.config.velocity == 0.1


def test_pipeline_of_a_legged_robot_has_a_gait_clock(walk: Any, go2: Any) -> None:
    pipeline = Pipeline(walk(failure="fallen:60:0.15").interface)
    assert pipeline.kinematics is None and pipeline.success is None and pipeline.failure is not None
    assert pipeline.actions.size == 12 and pipeline.command.size == 3
    assert pipeline.tick == pytest.approx(1 / go2.command_rate)
    assert pipeline.observer.spec.size == 3 + 3 + 3 + 2 + 3 * 12
    assert Pipeline(walk(failure="").interface).failure is None
    pipeline = Pipeline(walk(gait=2.5, controller=JointOffsetConfig(rate=50.0)).interface)
    phase = pipeline.phase(torch.arange(41))
    assert phase.shape == (41, 1) and ((phase >= 0) & (phase < 1)).all()
    assert phase[[0, 5, 10, 25]].flatten().tolist() == pytest.approx([0, 0.25, 0.5, 0.25], abs=1e-5)
    assert torch.allclose(phase[[1, 21]], phase[[1]].expand(2, 1), atol=1e-5), "a cycle has 20 periods"
    still = walk(gait=0.0, controller=JointOffsetConfig(), observations=("joint_position",))
    assert not Pipeline(still.interface).phase(torch.arange(9)).any()


@pytest.mark.parametrize(("content", "message"), [
    ("from robot_rl.robots import robots\nX = robots.get('pnada')", "unknown robot 'pnada'; did you mean panda"),
    ("from robot_rl.interface.pipeline import Interface\nX = Interface(horzon=3)", "horzon"),
    ("X = undefined", "name 'undefined' is not defined"),
    ("XX = 1", "it has no 'X'; did you mean XX"),
])  # fmt: skip
def test_errors_in_a_registered_file_name_it(tmp_path: Path, monkeypatch: Any, content: str, message: str) -> None:
    (tmp_path / "written_by_hand.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "written_by_hand", raising=False)
    with pytest.raises(ConfigError, match=rf"task 'mine' in .*written_by_hand\.py: .*{message}"):
        Registry("task", {"mine": ("written_by_hand:X", "")}).get("mine")
