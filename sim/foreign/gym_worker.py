"""Copies of a Gymnasium environment, in this process or, through its standard streams, in another Python process.

This file imports only gymnasium and numpy, so any virtual environment can run it: `PYTHON gym_worker.py ID COUNT STEPS
[filmed]`. STEPS is the length of an episode, 0 for the environment's own limit; `filmed` enables frames. A message is a
length (4 bytes), a JSON header of that length, and the arrays that the header lists.

A picture in an observation is uint8 from 0 to 255 of shape (height, width), or with 1 or 3 channels on the first or
last axis. All other parts are numbers, in the order of the space.

Optional attributes of an environment or its wrapper:

- `skills`, a tuple of names, and `demonstrator(skill)`: scripted demonstrators. A demonstrator has
  `begin(observation, info)`, called once per episode, and `act(observation, info)`, which returns an action.
- `success_terminates`: success ends an episode. `max_episode_steps`: episode length of an environment without a
  `TimeLimit`.
- `pictures`, the (height, width) of additional pictures by name, and `picture(name)`, which draws the current state,
  (height, width, 3) uint8; only requested pictures are drawn.
- `instructions`, a tuple of texts; `reset(options={"instruction": index})` selects an instruction.
"""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import struct
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium as gym
import numpy as np
from gymnasium import spaces

if not __package__:  # a script: other modules of this folder must not hide packages of the same name
    sys.path = [folder for folder in sys.path if folder != str(Path(__file__).resolve().parent)]

SUITES = {
    "ogbench": "pip install ogbench",
    "fetch": "pip install gymnasium-robotics 'mujoco<3.9' in a virtual environment of its own, and name its Python "
    "with --env-python",
    "metaworld": "pip install metaworld packaging in a virtual environment of its own, and name its Python with "
    "--env-python",
}
"""Suites whose environments are made by a module in sim/suites, and how to install each suite."""


EXACT, LARGEST = 2**24, float(np.finfo(np.float32).max)
"""Largest integer up to which float32 holds every integer, and largest number of float32."""


class Unsuitable(Exception):  # noqa: N818 - only its text is sent between processes
    """The environment is not supported."""


class Reader:
    """Reads observations of nested Dict and Tuple spaces: one vector of all numbers, and pictures by name."""

    def __init__(self, space: Any):
        self.numbers: list[tuple[Any, Any]] = []
        self.views: dict[str, Any] = {}
        self.sizes: dict[str, list[int]] = {}  # height and width of every picture
        for keys, part in _parts(space):
            name = ".".join(map(str, keys))
            what = f"observation {name!r}" if name else "the observation"
            if size := _picture_size(part):
                self.views[name.replace(".", "_") or "pixels"] = keys
                self.sizes[name.replace(".", "_") or "pixels"] = size
            elif not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
                raise Unsuitable(
                    f"{what} is {part}; Box, Discrete, MultiBinary and MultiDiscrete, and Dict and Tuple of them, can "
                    "be read"
                )
            elif len(part.shape or ()) > 2:
                raise Unsuitable(
                    f"{what} is {part}, which is no vector and no picture, (height, width, 3) uint8 from 0 to 255; "
                    "convert it with gymnasium.wrappers.TransformObservation"
                )
            else:
                self.numbers.append((keys, part))
        whole = [isinstance(part, spaces.Box) and part.dtype.kind in "iu" for _, part in self.numbers]
        sizes = [spaces.flatdim(part) for _, part in self.numbers]
        names = ["_".join(map(str, keys)) or "state" for keys, _ in self.numbers]
        self.fields = [[name, size] for name, size in zip(names, sizes, strict=True) if size]
        """Name and size of each part of the vector."""
        self.largest = [EXACT if w else LARGEST for w, size in zip(whole, sizes, strict=True) for _ in range(size)]
        """For each number of an observation, the largest magnitude at which float32 is exact."""

    def numbers_of(self, observation: Any) -> np.ndarray:
        """Return the numbers (D,) float64; a value of a Discrete space of n values is one-hot, thus n numbers."""
        parts = [np.zeros(0)]
        for keys, space in self.numbers:
            part = reduce(operator.getitem, keys, observation)
            part = part if isinstance(space, spaces.Box) else spaces.flatten(space, part)
            parts.append(np.asarray(part, np.float64).ravel())
        return np.concatenate(parts)

    def pictures_of(self, observation: Any) -> dict[str, np.ndarray]:
        """Return the pictures (height, width, 3) uint8; grey pictures have three equal channels."""
        pictures = {}
        for name, keys in self.views.items():
            pixels = np.atleast_3d(reduce(operator.getitem, keys, observation))
            pixels = pixels if pixels.shape[2] in (1, 3) else np.moveaxis(pixels, 0, 2)
            pictures[name] = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        return pictures


def _parts(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of nested spaces with their keys."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield keys, space
        return
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from _parts(part, (*keys, key))


def _picture_size(space: Any) -> list[int] | None:
    """Return the height and width of a space of pictures; None for other spaces."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    if (space.low > 0).any() or (space.high < 255).any():
        return None
    shape = space.shape
    if len(shape) == 2 or shape[2] in (1, 3):
        return list(shape[:2])
    return list(shape[1:]) if shape[0] in (1, 3) else None


class Batch:
    """`count` copies of an environment with flat observations, actions in [-1, 1] and same-step autoreset."""

    def __init__(self, name: str, count: int, steps: int = 0, filmed: bool = False):
        """`steps`: length of an episode; 0: the environment's own limit. `filmed` enables the method `frame`."""
        options: dict[str, Any] = {"render_mode": "rgb_array"} if filmed else {}
        try:
            self.envs: list[Any] = [_make(name, steps, **options) for _ in range(count)]
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            remedy = SUITES.get(name.partition(":")[0])
            raise Unsuitable(
                f"environment {name!r} needs a package that is not installed ({error})" + f"; {remedy}" * bool(remedy)
            ) from None
        except TypeError as error:
            if not filmed:
                raise
            raise Unsuitable(f"{name!r} cannot be filmed: {error}") from None
        except gym.error.Error as error:
            hint = "" if ":" in name else "; an environment of another package is gym:MODULE:ID"
            raise Unsuitable(f"no environment {name!r}: {error}{hint}") from None
        action = self.envs[0].action_space
        try:
            self.reader = Reader(self.envs[0].observation_space)
        except Unsuitable as error:
            raise Unsuitable(f"{name!r}: {error}") from None
        if not isinstance(action, gym.spaces.Box):
            raise Unsuitable(f"actions of {name!r} are {action}; only Box actions can be learned")
        self.low, self.high = action.low.astype(np.float64), action.high.astype(np.float64)
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise Unsuitable(
                f"actions of {name!r} have no limits ({action}); give it a finite Box, for example with "
                "gymnasium.wrappers.TransformAction"
            )
        if not (self.low < self.high).all():
            raise Unsuitable(f"actions of {name!r} are {action}, where a lower limit is not below the upper one")
        self.facts = {
            "largest": self.reader.largest,
            "fields": self.reader.fields,
            "horizon": self._horizon(),
            "low": self.low.ravel().tolist(),
            "high": self.high.ravel().tolist(),
            "rate": self._rate(),
            "success": self._success_key(),
            "success_terminates": self._offers("success_terminates", False),
            "skills": list(self._offers("skills", ())),
            "pictures": {name: list(size) for name, size in self._offers("pictures", {}).items()}
            | self.reader.sizes,
            "instructions": list(self._offers("instructions", ())),
        }
        if filmed:
            self._follow()
            self._check_frame(name)
        self.instruction_ids = list(range(len(self.facts["instructions"])))
        """Indices of the instructions that episodes draw from."""
        self.turn, self.instruction = [0] * count, [0] * count
        """Position of every running episode in the sequence of instructions, and its instruction index."""
        self.seen: list[Any] = [None] * count  # last observation and info of every environment
        self.experts: list[Any] = []
        self.random: list[Any] = []  # state of numpy's global random number generator of every demonstrator
        self.begins = [True] * count

    def _offers(self, name: str, default: Any) -> Any:
        """Return an attribute of the environment or of one of its wrappers; `default` if none has the attribute."""
        return self.envs[0].get_wrapper_attr(name) if self.envs[0].has_wrapper_attr(name) else default

    def _horizon(self) -> int:
        """Return the length of an episode; 0: no limit."""
        spec = self.envs[0].spec
        known = [spec.max_episode_steps if spec else None, self._offers("max_episode_steps", None)]
        return min((int(steps) for steps in known if steps and steps > 0), default=0)

    def _rate(self) -> int:
        """Return the steps per second from the environment's `dt` or metadata; default: 30."""
        dt = getattr(self.envs[0].unwrapped, "dt", None)
        rate = 1 / dt if isinstance(dt, float) and dt > 0 else self.envs[0].metadata.get("render_fps") or 30
        return max(1, round(rate))

    def _success_key(self) -> str:
        """Return the key of success in the infos of a step; empty if the infos have no such key."""
        self.envs[0].reset(seed=0)
        info = self.envs[0].step(((self.low + self.high) / 2).astype(self.envs[0].action_space.dtype))[4]
        return next((key for key in ("is_success", "success") if key in info), "")

    def _follow(self) -> None:
        """Use the tracking camera of a MuJoCo robot: HalfCheetah leaves the view of Gymnasium's free camera."""
        robot: Any = self.envs[0].unwrapped
        if not hasattr(robot, "mujoco_renderer") or robot.mujoco_renderer.camera_id != -1:
            return
        names = [robot.model.camera(i).name for i in range(robot.model.ncam)]
        if "track" in names:
            robot.mujoco_renderer.camera_id = names.index("track")

    def _check_frame(self, name: str) -> None:
        """Raise Unsuitable if the environment does not render frames."""
        try:
            drawn = self.envs[0].render()
            why = "" if isinstance(drawn, np.ndarray) and drawn.ndim == 3 else "it has no frames in mode rgb_array"
        except Exception as error:  # the GL stack and rendering packages may raise any error
            why = str(error) or repr(error)
        if why:
            raise Unsuitable(f"{name!r} cannot be filmed: {why}")

    def frame(self) -> dict[str, np.ndarray]:
        """Return a frame (height, width, 3) uint8 of the first environment."""
        return {"frame": np.ascontiguousarray(self.envs[0].render(), np.uint8)}

    def ask(self, *indices: int) -> dict[str, np.ndarray]:
        """Restrict the next episodes to the instructions at these indices."""
        self.instruction_ids = list(indices)
        return {}

    def reset(self, seeds: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Start an episode in every environment, with `seeds` (n,) if they are given."""
        given = [None] * len(self.envs) if seeds is None else [int(seed) for seed in seeds]
        first = {"observation": np.stack([self._begin(i, seed) for i, seed in enumerate(given)])}
        return first | self._pictures("begun", [self._look(i) for i in range(len(self.envs))]) | self._instructions()

    def _begin(self, i: int, seed: int | None = None) -> np.ndarray:
        """Reset environment i; return its flat observation. Instructions are a sequence of random permutations: in
        consecutive seeds and in consecutive episodes, every instruction is equally frequent."""
        options = None
        if self.instruction_ids:
            self.turn[i] = self.turn[i] + 1 if seed is None else seed
            number, place = divmod(self.turn[i], len(self.instruction_ids))
            order = np.random.RandomState(number).permutation(len(self.instruction_ids))
            self.instruction[i] = self.instruction_ids[order[place]]
            options = {"instruction": self.instruction[i]}
        self.seen[i], self.begins[i] = self.envs[i].reset(seed=seed, options=options), True
        return self.reader.numbers_of(self.seen[i][0])

    def _instructions(self) -> dict[str, np.ndarray]:
        """Return the instruction index of every running episode."""
        return {"instruction": np.array(self.instruction)} if self.instruction_ids else {}

    def _look(self, i: int) -> dict[str, np.ndarray]:
        """Return the pictures of environment i: parts of its observation, and pictures drawn by its `picture`."""
        seen = self.reader.pictures_of(self.seen[i][0])
        return {name: seen[name] if name in seen else self.envs[i].get_wrapper_attr("picture")(name)
                for name in self.facts["pictures"]}  # fmt: skip

    def _pictures(self, when: str, looks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Stack the pictures of k environments to (k, height, width, 3); keys are `when` and the picture's name."""
        return {
            f"{when} {name}": np.array([look[name] for look in looks], np.uint8).reshape(-1, *size, 3)
            for name, size in self.facts["pictures"].items()
        }

    def step(self, actions: np.ndarray, looks: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Step every environment and reset those whose episode ended; `final` has the observations before the reset.
        Pictures named "seen" show environments `looks` (n,) bool (None: all) before the reset; pictures named "begun"
        show new episodes."""
        rows, seen, begun = [], [], []
        share = (np.clip(actions.astype(np.float64), -1, 1) + 1) / 2
        for i, (env, unit) in enumerate(zip(self.envs, share, strict=True)):
            action = self.low + unit.reshape(self.low.shape) * (self.high - self.low)
            kind = env.action_space.dtype
            action = (np.rint(action) if kind.kind in "iu" else action).astype(kind)
            observation, reward, terminated, truncated, info = env.step(action)
            self.seen[i] = observation, info
            final = following = self.reader.numbers_of(observation)
            if looks is None or looks[i]:
                seen.append(self._look(i))
            if terminated or truncated:
                following = self._begin(i)
                begun.append(self._look(i))
            success = bool(info.get(self.facts["success"], False)) if self.facts["success"] else False
            rows.append((following, final, float(reward), bool(terminated), bool(truncated), success))
        names = ("observation", "final", "reward", "terminated", "truncated", "success")
        result = {name: np.stack(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        return result | self._pictures("seen", seen) | self._pictures("begun", begun) | self._instructions()

    def demonstrate(self, seed: int, skill: str) -> dict[str, np.ndarray]:
        """Start demonstrators of this skill in the current states; `act` returns their actions."""
        self.experts = [env.get_wrapper_attr("demonstrator")(skill) for env in self.envs]
        seeds = np.random.SeedSequence(seed).generate_state(len(self.envs))
        self.random = [np.random.RandomState(s).get_state() for s in seeds]
        self.begins = [True] * len(self.envs)
        return {}

    def act(self) -> dict[str, np.ndarray]:
        """Return the demonstrators' actions for the current observations, (n, A) in [-1, 1]."""
        own, rows = np.random.get_state(), []
        for i, expert in enumerate(self.experts):
            np.random.set_state(self.random[i])  # scripts use numpy's global generator
            if self.begins[i]:
                expert.begin(*self.seen[i])
                self.begins[i] = False
            share = (np.asarray(expert.act(*self.seen[i]), np.float64) - self.low) / (self.high - self.low)
            rows.append(np.clip(2 * share.ravel() - 1, -1, 1).astype(np.float32))
            self.random[i] = np.random.get_state()
        np.random.set_state(own)
        return {"actions": np.stack(rows)}

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _make(name: str, steps: int, **options: Any) -> Any:
    """Make an environment of a suite, or of a Gymnasium id. Episodes end after `steps`; 0: at the environment's own
    limit. `options` are those of `gymnasium.make`."""
    suite, _, rest = name.partition(":")
    if suite not in SUITES:
        return gym.make(name, **options, max_episode_steps=steps or None)
    if ":" in rest:  # a task of a trusted suite must not import another module
        raise gym.error.NameNotFound(f"{rest!r} is no id of {suite}")
    path = Path(__file__).resolve().parents[1] / "suites" / f"{suite}.py"
    spec = importlib.util.spec_from_file_location(f"robot_rl_suite_{suite}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules.get(spec.name)
    if module is None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[spec.name] = module
    made = module.make(rest, **options)
    return gym.wrappers.TimeLimit(made, steps) if steps else made


def send(stream: BinaryIO, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a message; the docstring of the module describes its format."""
    listed = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    head = json.dumps(header | {"arrays": listed}).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    stream.write(struct.pack("<I", len(head)) + head + body)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a message; raises EOFError at the end of the stream."""
    header = json.loads(_exactly(stream, struct.unpack("<I", _exactly(stream, 4))[0]))
    arrays = {}
    for name, kind, shape in header.pop("arrays"):
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        arrays[name] = np.frombuffer(_exactly(stream, size), kind).reshape(shape)
    return header, arrays


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def serve(name: str, count: int, steps: int = 0, filmed: bool = False) -> None:
    """Answer requests from the standard input until it is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the environment must not mix with the answers
    requests = sys.stdin.buffer
    try:
        batch = Batch(name, count, steps, filmed)
    except Exception as error:
        send(answers, {"error": str(error) if isinstance(error, Unsuitable) else repr(error)}, {})
        return
    send(answers, {"facts": batch.facts}, {})
    while True:
        try:
            header, arrays = receive(requests)
        except EOFError:
            break
        call, words = header["call"], header["words"]
        send(answers, {}, getattr(batch, call)(*words, *arrays.values()))
    batch.close()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "filmed" in sys.argv[4:])
