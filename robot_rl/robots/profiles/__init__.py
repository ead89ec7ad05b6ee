"""Profiles: the driver that a robot's owner runs, as data. A profile replaces the driver config of a spec for one run.

A YAML file has the names of its `robots`, the name of its `driver`, and fields of that driver's config. What is not
given has the config's default; cameras, objects and names of the base frame are then those of the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from robot_rl.interface.driver import (
    DriverConfig,
    ForwardPosition,
    ForwardVelocity,
    JointTopics,
    JointTrajectory,
    SafetyConfig,
    ServoTwist,
    TargetPose,
)
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError, UnknownName, nearest

FOLDER = Path(__file__).parent
DRIVERS: dict[str, type[JointTopics]] = {
    kind.driver: kind for kind in (ForwardPosition, ForwardVelocity, JointTrajectory, TargetPose, ServoTwist)
}
"""Configs by the name of their driver."""
KEPT = ("image", "object_pose", "object_joints", "base_frames")
"""Fields that a profile takes from the spec unless it gives them."""
PERIODS = 3.0
"""Default of `safety.state_timeout` in periods of the joint states, if that is longer than `SafetyConfig`'s."""


def names() -> list[str]:
    """Return the names of the profiles that come with robot-rl."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def with_profile(robot: RobotSpec, profile: str) -> RobotSpec:
    """Return the robot with the driver of a profile, a name or a YAML file; empty: the robot unchanged."""
    if not profile:
        return robot
    file = _find(profile)
    what = f"profile {file}" if file.parent != FOLDER else f"profile {profile!r}"
    data = _read(file, what)
    for_robots = data.pop("robots", None)
    if not isinstance(for_robots, list) or not for_robots:
        raise ConfigError(f"{what}: `robots` is {for_robots!r}; give a list of names, such as [ur5e]")
    if not {robot.name, robot.kind} & set(for_robots):
        raise ConfigError(
            f"{what} is for {', '.join(map(str, for_robots))}, not for robot {robot.name!r}; take another profile, or "
            "add the name to `robots` of your own copy"
        )
    name = data.pop("driver", None)
    if not isinstance(name, str) or name not in DRIVERS:
        raise ConfigError(f"{what}: unknown driver {name!r}; {nearest(str(name), DRIVERS)}")
    try:
        return replace(robot, driver=_config(DRIVERS[name], data, robot.driver))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}: {error}") from None


def _find(profile: str) -> Path:
    if profile.endswith((".yaml", ".yml")) or "/" in profile:
        if (file := Path(profile)).is_file():
            return file
        raise ConfigError(f"no profile {profile}: name a file, or one of {', '.join(names())}")
    if profile not in names():
        raise UnknownName("profile", profile, names())
    return FOLDER / f"{profile}.yaml"


def _read(file: Path, what: str) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{what} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{what} is no mapping; it has lines such as `driver: forward_position`")
    return data


def _config(kind: type[JointTopics], data: Mapping[str, Any], spec: DriverConfig) -> JointTopics:
    """Return a driver's config from a profile's fields. ValueError for an unknown field, or a value out of range."""
    given = _known(kind, data, "")
    kept = {name: getattr(spec, name) for name in KEPT if name not in given}
    safety = given.pop("safety", {})
    if not isinstance(safety, dict):
        raise ValueError(f"safety is {safety!r}; give its fields, such as state_timeout: 0.1")
    safety = _known(SafetyConfig, safety, "safety.")
    rate = given.get("state_rate")
    if isinstance(rate, int | float) and rate > 0 and "state_timeout" not in safety:
        safety["state_timeout"] = max(SafetyConfig.state_timeout, PERIODS / rate)
    if isinstance(given.get("joint_names"), dict):
        given["joint_names"] = tuple(given["joint_names"].items())
    return kind(**kept, **given, safety=SafetyConfig(**safety))


def _known(kind: type[Any], data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the fields with lists as tuples; ValueError for one that the dataclass lacks."""
    known = {field.name for field in fields(kind)}
    for name in data:
        if name not in known:
            owner = f"driver {kind.driver!r}" if issubclass(kind, DriverConfig) else "the safety config"
            raise ValueError(f"{owner} has no field {prefix}{name}; {nearest(str(name), known)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
