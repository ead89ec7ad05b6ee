"""Logs for identification: run folders with motion.npz, LeRobot datasets, rosbag2 folders and CSV files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.motion import NAME, Motion, read_motion
from robot_rl.diagnosis.replay import Sampled, sample
from robot_rl.identification.bag import METADATA, read_bag
from robot_rl.interface.robot import RobotSpec
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError

SHORTEST = 10.0
"""Length of a log below which nothing is identified, s."""
SLOWEST = 20.0
"""Lowest rate of a bag's joint states, Hz."""
BEYOND = 0.5
"""Distance of a bag's positions from the joints' limits, and of its commands from the positions, that is a mistake,
rad."""
STILL = 0.01
"""Range of a set-point, rad, below which a joint is at rest."""


@dataclass
class Log:
    """Pieces of a robot's run, each on a grid of command periods."""

    robot: RobotSpec
    pieces: list[Sampled]
    gripper: list[np.ndarray]
    """Finger distance that was sent, (T,) m, of each piece."""
    quat: list[np.ndarray | None]
    """Orientation of a legged robot's trunk, (T, 4) w x y z, of each piece."""
    hung: bool = False
    """Whether a legged robot hung in the air."""
    objects: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Arrival (N,) s and position (N, 3) m, base frame, of each tracked object, in a log of one piece."""

    @property
    def seconds(self) -> float:
        """Return the length of all pieces."""
        return sum(float(piece.time[-1]) for piece in self.pieces)


def read_log(path: Path, robot: str = "", states: str = "", commands: str = "") -> Log:
    """Read a run folder, a dataset, a rosbag2 folder or a CSV file. `robot`: name for a log that does not say it, else
    the log must be of it. `states` and `commands`: topics of a bag, see `read_bag`."""
    if path.suffix == ".csv":
        motions = [_of_csv(path, robot)]
    elif (path / METADATA).is_file() or path.suffix in (".mcap", ".db3"):
        motions = [_of_bag(path, robot, states, commands)]
    else:
        motions = _of_dataset(path, robot) if (path / "meta" / "info.json").is_file() else [_of_run(path)]
    spec = robots.get(motions[0].facts["robot"])
    if robot and robots.get(robot).kind != spec.kind:
        raise ConfigError(f"{path} is a log of robot {spec.name!r}, not of {robot!r}; leave out --robot")
    if (kind := motions[0].facts["command"]) != "JointPositions":
        raise ConfigError(f"{path} has commands of the kind {kind}; only logs of joint positions are identified")
    pieces = [sample(motion, np.inf) for motion in motions]
    pairs = list(zip(motions, pieces, strict=True))
    log = Log(spec, pieces, [_newest(m, p, "gripper") for m, p in pairs], [_newest(m, p, "quat") for m, p in pairs])
    log.hung = all(motion.facts.get("hung", False) for motion in motions)
    if len(motions) == 1:
        log.objects = motions[0].objects
    if log.seconds < SHORTEST:
        raise UserError(f"{path} has {log.seconds:.1f} s of motion; record at least {SHORTEST:g} s, better 60")
    moved = max(float(np.ptp(piece.setpoint, 0).max()) for piece in pieces)
    if moved < STILL:
        raise UserError(f"{path}: no joint is commanded to move, so nothing can be seen; record `robot-rl excite`")
    return log


def _newest(motion: Motion, piece: Sampled, name: str) -> Any:
    """Return a column of the log on the grid of a piece."""
    column = getattr(motion, name)
    if column is None:
        return None
    return column[np.searchsorted(motion.time, piece.time + 1e-4, side="right") - 1]


def _of_run(path: Path) -> Motion:
    if path.is_dir() and not (path / NAME).is_file():
        raise UserError(f"{path} has neither {NAME} nor meta/info.json: name a run of `robot-rl excite` or `robot-rl "
                        "deploy`, a LeRobot dataset, a rosbag2 folder, or a .csv file")  # fmt: skip
    return read_motion(path)


def _of_csv(path: Path, name: str) -> Motion:
    """Return the log of a file with the columns time, s, and position.<joint> and command.<joint>, rad, of each joint,
    in rising order of time; other columns are ignored."""
    spec = _named(path, name)
    try:
        with path.open(newline="") as file:
            head = [word.strip() for word in next(csv.reader(file), [])]
            wanted = ["time", *(f"{kind}.{joint}" for kind in ("position", "command") for joint in spec.joint_names)]
            if missing := [column for column in wanted if column not in head]:
                raise ConfigError(f"{path} lacks the columns {', '.join(missing)}")
            table = np.loadtxt(file, delimiter=",", usecols=[head.index(column) for column in wanted], ndmin=2)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} has a row that is not numbers: {error}") from None
    time, rest = table[:, 0] - table[:1, 0].sum(), table[:, 1:]
    if len(table) < 2 or not (np.isfinite(table).all() and (np.diff(time) > 0).all()):
        raise ConfigError(f"{path}: time must rise from row to row, and all numbers must be finite")
    place, goal = np.split(rest, 2, 1)
    return _regular(spec, time, place, goal)


def _of_bag(path: Path, name: str, states: str, commands: str) -> Motion:
    """Return the log of a rosbag2 folder; a command holds until the next one."""
    spec = _named(path, name)
    bag = read_bag(path, [spec.joint_names, spec.driver_names()[: len(spec.joints)]], states, commands)
    (seen, place), (sent, goal) = bag.states, bag.commands
    rate = 1 / max(float(np.median(np.diff(seen))), 1e-6) if len(seen) > 1 else 0.0
    if rate < SLOWEST:
        raise ConfigError(f"{path} has {len(seen)} joint states at {rate:.3g} Hz; {SLOWEST:g} Hz or more are needed")
    start, end = max(seen[0], sent[0]), min(seen[-1], sent[-1])
    if end <= start:
        raise ConfigError(
            f"{path}: states were recorded from 0 to {seen[-1] - seen[0]:.1f} s, commands from "
            f"{sent[0] - seen[0]:.1f} to {sent[-1] - seen[0]:.1f} s; both are needed at the same time"
        )
    grid = np.arange(start, end, 1 / spec.command_rate)
    held, newest = goal[np.searchsorted(sent, grid, side="right") - 1], np.searchsorted(seen, grid, side="right") - 1
    _check_positions(path, spec, place[newest], held)
    motion = _motion(spec, grid - start, place[newest], held, rate)
    return replace(motion, received=seen[newest] - start)  # where states are missing, positions are unknown


def _check_positions(path: Path, spec: RobotSpec, position: np.ndarray, goal: np.ndarray) -> None:
    """Raise ConfigError for positions and commands (T, J) that cannot be those of the joints, in rad."""
    low, high = (spec.limit(name).numpy() for name in ("low", "high"))
    for what, values in (("states", position), ("commands", goal)):
        if (np.maximum(low - values, values - high) > BEYOND).any():
            raise ConfigError(f"{path}: {what} are beyond the joints' limits; positions must be in rad")
    if float(np.median(np.abs(position - goal).max(1))) > BEYOND:
        raise ConfigError(f"{path}: commands are far from where the joints are; are they velocities or efforts?")


def _named(path: Path, name: str) -> RobotSpec:
    if not name:
        raise ConfigError(f"{path} does not say which robot it is of: name it with --robot")
    return robots.get(name)


def _between(grid: np.ndarray, time: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values (T, J) at the times `grid` (T,), linearly between those (N, J) at `time` (N,)."""
    return np.stack([np.interp(grid, time, joint) for joint in values.T], 1)


def _regular(spec: RobotSpec, time: np.ndarray, place: np.ndarray, goal: np.ndarray, late: float = 0.0) -> Motion:
    """Return the log of joint positions and commands (T, J) at times (T,), s; a command was sent `late` s after."""
    grid = np.arange(0, time[-1] + 1e-9, 1 / spec.command_rate)
    rate = 1 / float(np.median(np.diff(time)))
    return _motion(spec, grid, _between(grid, time, place), _between(grid, time + late, goal), rate)


def _motion(spec: RobotSpec, grid: np.ndarray, position: np.ndarray, goal: np.ndarray, rate: float) -> Motion:
    """Return the log of joint positions and commands (T, J) on a grid (T,) of command periods, s, of states that came
    at a rate, Hz."""
    facts = {"robot": spec.name, "task": "", "command": "JointPositions", "command_rate": spec.command_rate,
             "state_rate": rate, "period": 1 / rate, "lockstep": False, "whole": True}  # fmt: skip
    width = np.full(len(grid), spec.gripper.width if spec.gripper else 0.0)
    return Motion(facts, grid, grid, position, np.zeros_like(position), goal, width, np.ones(len(grid), bool))


def _of_dataset(path: Path, name: str) -> list[Motion]:
    """Return one log per episode of a dataset with joint positions as state and as action."""
    from robot_rl.data.dataset import Dataset

    data = Dataset(path)
    spec = _named(path, name or data.robot_type or "")
    state, action = (_columns(data, key, spec) for key in ("observation.state", "action"))
    if short := [key for key, columns in (("observation.state", state), ("action", action)) if columns is None]:
        raise UserError(f"{path}: {' and '.join(short)} lack the joints {', '.join(spec.joint_names)}; name the folder "
                        f"of the run instead, whose {NAME} has joint commands")  # fmt: skip
    motions = []
    columns = data.columns(["observation.state", "action"])
    for episode in data.episodes:
        rows = slice(episode.start, episode.start + episode.length)
        q, goal = columns["observation.state"][rows, state].numpy(), columns["action"][rows, action].numpy()
        motions.append(_regular(spec, np.arange(len(q)) / data.fps, q, goal, late=1 / data.fps))
    return motions


def _columns(data: Any, key: str, robot: RobotSpec) -> list[int] | None:
    """Return the columns of the robot's joint positions; None if some are missing."""
    names: Sequence[str] = data.features[key].names if key in data.features else ()
    found = []
    for joint in robot.joint_names:
        like = [k for k, name in enumerate(names) if name in (joint, f"{joint}.pos", f"joint_position.{joint}")]
        if not like:
            return None
        found.append(like[0])
    return found
