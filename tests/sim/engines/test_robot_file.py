"""Model files that contradict themselves or the spec are refused with the file's name, before an engine is built."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.util.errors import ConfigError
from sim.engines.model import compile_model, robot_model_spec
from sim.scenes import Scene, robot_model

MINIMAL = """<mujoco><compiler angle="{angle}"/><worldbody>
<body name="arm">{inertia}<joint name="turn" range="{range}"/><geom name="g" size="0.1" {geom}/>{inside}</body>
</worldbody><actuator>{actuators}</actuator></mujoco>"""
SITE = '<site name="s"/>'
SERVO = '<position joint="turn" kp="5"/>'
CALF = r'(name="FL_calf_joint"\s+type=")'
INERTIA = '<inertial mass="1" pos="0 0 0" diaginertia="1 1 1"/>'


def refusal(robot: Any, path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as error:
        robot_model_spec(robot, Scene(), str(path))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("old", "new", "message"), [
    ('value="6.921"', 'value="-3"', "body 'base' has a mass of -3 kg"),
    ('ixx="', 'ixx="-', "body 'base' has an inertia with a negative principal moment"),
    ('value="6.921"', 'value="nan"', "body 'base' has a mass of nan kg"),
    ('value="6.921"', 'value="0"', "body 'base' moves and has no mass"),
    ('value="1.152"', 'value="-1.152"', "'FL_thigh' has a mass of -1.152 kg"),
    ('value="1.152"', 'value="0"', "'FL_thigh' moves and has no mass"),
    (r'lower="-1.0472"\s+upper="1.0472"', 'lower="1" upper="-1"', "'FL_hip_joint' has its lower limit 1 above"),
    (r'upper="1.0472"', 'upper="0.5"', "'FL_hip_joint' reaches from -1.0472 to 0.5000 rad.*-1.0472 to 1.0472"),
    ('value="6.921"', 'value="inf"', "body 'base' has a mass of inf kg"),
    ('xyz="0.021112 0 -0.005366"', 'xyz="nan 0 0"', "the centre of mass of body 'base' is nan 0 0; give it finite"),
    (f"{CALF}revolute", r"\1prismatic", "'FL_calf_joint' does not turn, but .* gives it angles; make it rev"),
    (f"{CALF}revolute", r"\1fixed", r"lacks the joints \['FL_calf_joint'\]"),
    ('"FR_hip_joint"', '"FL_hip_joint"', "joint 'FL_hip_joint' is there 2 times"),
    ('name="FL_foot"', 'name="FL_fot"', r"lacks the bodies \['FL_foot'\] of robot 'go2'; did you mean FL_fot"),
])  # fmt: skip
def test_an_impossible_urdf_is_refused(go2: Any, tmp_path: Path, old: str, new: str, message: str) -> None:
    text, count = re.subn(old, new, robot_model(go2).read_text(), count=1)
    text = text.replace('link="FL_foot"', f'link="{"FL_fot" if "fot" in new else "FL_foot"}"')
    assert count == 1
    assert re.search(message, refusal(go2, tmp_path / "mine.urdf", text))


def test_compile_errors_have_a_remedy(go2: Any, tmp_path: Path) -> None:
    text, count = re.subn('size="[0-9. ]+"', 'size="0 1 1"', robot_model(go2).read_text(), count=1)
    assert count == 1
    (tmp_path / "mine.urdf").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.urdf does not compile: .*; correct the file$"):
        compile_model(go2, Scene(), str(tmp_path / "mine.urdf"))


@pytest.fixture
def arm(panda: Any) -> Any:
    """Robot with one joint of +-10 degrees."""
    turn = replace(panda.joints[0], name="turn", low=-0.1745, high=0.1745)
    without = {"tool": None, "gripper": None, "collision_bodies": (), "spheres": (), "collision_pairs": ()}
    return replace(panda, joints=(turn,), home=(0.0,), **without)


def written(**changes: str) -> str:
    parts = {"angle": "degree", "inertia": INERTIA, "range": "-10 10", "geom": "", "inside": SITE, "actuators": SERVO}
    return MINIMAL.format(**parts | changes)


@pytest.mark.parametrize(("changes", "message"), [
    ({"inertia": "", "geom": 'mass="-1"'}, "'arm' has a mass of -1 kg"),
    ({"inertia": "", "geom": 'mass="0"'}, "'arm' moves and has no mass"),
    ({"range": "10 -10"}, "'turn' has its lower limit 10 above the upper -10"),
    ({"range": "-9 10"}, "'turn' reaches from -0.1571 to 0.1745 rad"),
    ({"actuators": ""}, "no position actuator for the joints ['turn'] of robot 'panda'; add <position>s"),
    ({"actuators": '<motor joint="turn"/>'}, "no position actuator for the joints ['turn']"),
    ({"actuators": '<velocity joint="turn" kv="3"/>'}, "no position actuator for the joints ['turn']"),
    ({"actuators": '<position joint="turn" kp="5" gear="3"/>'}, "of robot 'panda' have a gear"),
    ({"actuators": f'{SERVO}<motor joint="turn"/>'}, "several actuators for the joints ['turn']"),
    ({"actuators": f'{SERVO}<motor name="grip" site="s"/>'}, "the actuators ['grip'] are nothing of robot 'panda'"),
])  # fmt: skip
def test_an_impossible_mjcf_is_refused(arm: Any, tmp_path: Path, changes: dict[str, str], message: str) -> None:
    assert message in refusal(arm, tmp_path / "arm.xml", written(**changes))


@pytest.mark.parametrize("changes", [
    {},
    {"inertia": ""},  # mass of its geoms
    {"inertia": "", "geom": 'mass="0"', "inside": f'<body name="inside">{INERTIA}</body>'},
    {"range": "0 0"},  # no limits
    {"range": "-20 20"},
])  # fmt: skip
def test_sufficient_masses_and_ranges_are_accepted(arm: Any, tmp_path: Path, changes: dict[str, str]) -> None:
    (tmp_path / "arm.xml").write_text(written(**changes))
    assert robot_model_spec(arm, Scene(), str(tmp_path / "arm.xml")).compile().nbody >= 2


def test_a_gripper_needs_an_actuator(panda: Any, tmp_path: Path) -> None:
    text, count = re.subn(r'<general[^>]*name="actuator8"[^>]*/>', "", robot_model(panda).read_text())
    assert count == 1
    message = refusal(panda, tmp_path / "mine.xml", text)
    assert "no actuator for the gripper of robot 'panda', ['finger_joint1', 'finger_joint2']; add one" in message
