"""Joint states and commands of a rosbag2 folder, of any recorder: MCAP or SQLite, with or without ROS 2 installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.util.errors import ConfigError, UserError, require

METADATA = "metadata.yaml"
STATE = "sensor_msgs/msg/JointState"
COMMANDS = ("std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory", STATE)
"""Types of the messages that are read as joint states and as commands."""


@dataclass
class Bag:
    """Joint states and commands of one robot; times are those at which the recorder received the messages."""

    states: tuple[np.ndarray, np.ndarray]
    """Time (N,), s, and joint positions (N, J), rad, in the order of the asked joints."""
    commands: tuple[np.ndarray, np.ndarray]
    """Time (M,), s, and commanded positions (M, J), rad."""


def read_bag(path: Path, names: Sequence[Sequence[str]], states: str = "", commands: str = "") -> Bag:
    """Read joint states and commands of joints, which have one of several lists of `names`, or a common prefix before
    them. `states` and `commands` name topics; empty: the only topic in the bag that fits. A trajectory counts as a
    command if it has one point. Raises UserError for a bag that cannot be read, ConfigError if topics are missing or
    not the only ones, or a number is not finite."""
    if states and states == commands:
        raise ConfigError(f"--states and --commands are both {states}; name two topics")
    require("rosbags", use="a rosbag2 folder", extra="real")
    from rosbags.highlevel import AnyReader
    from rosbags.typesys import Stores, get_typestore

    columns: dict[str, tuple[list[float], list[np.ndarray]]] = {}
    kinds: dict[str, str] = {}
    seen: set[str] = set()
    try:
        with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as reader:
            wanted = [each for each in reader.connections if each.msgtype in COMMANDS]
            for connection, nanoseconds, raw in reader.messages(wanted):
                message = reader.deserialize(raw, connection.msgtype)
                seen |= set(getattr(message, "name", ()))
                values = next((v for joints in names if (v := positions(message, joints)) is not None), None)
                if values is not None:
                    if not np.isfinite(values).all():
                        raise ConfigError(f"{path}: {connection.topic} has a position that is not finite")
                    times, rows = columns.setdefault(connection.topic, ([], []))
                    times.append(nanoseconds * 1e-9)
                    rows.append(values)
                    kinds[connection.topic] = connection.msgtype
    except ConfigError:
        raise
    except Exception as error:  # of a damaged file the readers raise whatever they stumble over
        remedy = "repair it with `mcap recover` or `ros2 bag reindex`, or record it again"
        raise UserError(f"{path} cannot be read as a rosbag2 folder ({error}): {remedy}") from error
    fitting = [topic for topic in columns if kinds[topic] == STATE and topic != commands]
    if not fitting and seen:
        listed = ", ".join(sorted(seen))
        raise ConfigError(f"{path} has no states of the joints {', '.join(names[0])}; its joints are {listed}")
    state = _only(path, "states", states, fitting)
    command = _only(path, "commands", commands, [topic for topic in columns if topic != state])
    found = [(np.array(times), np.stack(rows)) for times, rows in (columns[state], columns[command])]
    return Bag(*found)


def positions(message: Any, joints: Sequence[str]) -> np.ndarray | None:
    """Return the positions (J,) of joints that a message holds, in the order of `joints`; None if it holds others."""
    kind = message.__msgtype__
    if kind.endswith("Float64MultiArray"):
        return message.data.astype(float) if len(message.data) == len(joints) else None
    if kind.endswith("JointTrajectory"):
        names, values = message.joint_names, message.points[0].positions if len(message.points) == 1 else ()
    else:
        names, values = message.name, message.position
    if len(values) != len(names):
        return None
    at = {name: k for k, name in enumerate(names)}
    prefixes = [name.removesuffix(joints[0]) for name in names if name.endswith(joints[0])]
    whole = sorted((prefix for prefix in prefixes if all(prefix + joint in at for joint in joints)), key=len)
    if not whole or (len(whole) > 1 and whole[0]):  # of several robots none is meant, but for exact names
        return None
    return np.array([values[at[whole[0] + joint]] for joint in joints], float)


def _only(path: Path, what: str, asked: str, topics: list[str]) -> str:
    """Return the topic that was asked for, or the only one that fits."""
    if asked:
        if asked not in topics:
            raise ConfigError(f"{path} has no {what} of the joints on {asked}; topics that fit: {_listed(topics)}")
        return asked
    if len(topics) != 1:
        raise ConfigError(
            f"{path} has {len(topics)} topics that may be the {what} of the joints: {_listed(topics)}"
            + (f"; name one with --{what}" if topics else "")
        )
    return topics[0]


def _listed(topics: list[str]) -> str:
    return ", ".join(sorted(topics)) or "none"
