"""Record demonstrations by a task's scripted expert."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import DatasetWriter, EpisodeData
from robot_rl.data.recording import features, frames_per_second
from robot_rl.data.rows import EpisodeRows
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file
from robot_rl.util.seeds import training_seed
from robot_rl.util.settings import as_json, check_same
from sim.env import TaskEnv


@dataclass
class Collected:
    """Counts of a collection."""

    episodes: int
    """Count in the dataset."""
    frames: int
    """Count in the dataset."""
    new_episodes: int
    """Episodes recorded in this call."""
    attempts: int
    """Attempts of this call."""
    successes: int
    """Successful attempts."""


SETTINGS = "meta/collect.json"
"""File beside LeRobot's with the settings of the recording, so that a resume does not mix two kinds."""


class PrivilegedExpert:
    """A demonstrator that sees other terms of the measured state than the policy of its environment."""

    def __init__(self, env: TaskEnv, skill: str, seed: int):
        pipeline = Pipeline(env.task.expert_interface, env.robot, env.device)
        self.env, self.observer = env, pipeline.observer
        self.expert = env.task.make_expert(pipeline, env.num_envs, skill, seed)
        self.reset = self.expert.reset

    def act(self, _: dict[str, Any]) -> Any:
        """Return actions (n, A) in the environment's present state."""
        return self.expert.act({"observation.state": self.observer(self.env.state).cpu()})


def make_expert(env: TaskEnv, skill: str, seed: int) -> Any:
    """Return the expert of an environment's task; `skill` names a constant of its module, for example "CLUMSY"."""
    if env.task.expert_observations:
        return PrivilegedExpert(env, skill, seed)
    return env.task.make_expert(env.pipeline, env.num_envs, skill, seed)


def collect(
    env: TaskEnv,
    out: Path,
    episodes: int,
    *,
    seed: int,
    skill: str = "CLUMSY",
    image_size: int = 96,
    keep_failures: bool = False,
    resume: bool = False,
    progress: Callable[[int, int], None] = lambda episodes, attempts: None,
) -> Collected:
    """Write `episodes` demonstrations to a dataset.

    Cameras that the policy sees are recorded at its pictures' size, the others at `image_size`; 0: not at all.

    Episodes are on disk as soon as they end. After a kill, `resume` continues after the last one, with fresh seeds.
    Each environment records an equal share: keeping the first to end would prefer easy, near objects.
    """
    if not env.task.expert:
        raise UserError(f"task {env.task.name!r} has no scripted demonstrator; learn it with train --recipe ppo")
    seen = {p.camera: p for p in env.task.interface.pictures}
    cameras = [c.name for c in env.task.scene.cameras if c.name not in seen] if image_size else []
    for camera in cameras:  # without a renderer, fail before anything is on disk
        env.engine.render(0, camera, image_size, image_size)
    make_expert(env, skill, seed)  # refused before anything is on disk
    if resume and (out / "meta" / "info.json").exists():
        writer = DatasetWriter.append(out)
    else:
        sizes = dict.fromkeys(cameras, (image_size, image_size)) | {c: (p.height, p.width) for c, p in seen.items()}
        info = EnvInfo.of(env.pipeline)
        columns = features(info, sizes)
        fps = frames_per_second(info)
        writer = DatasetWriter.create(out, fps=fps, features=columns, robot_type=env.robot.name)
    with writer:
        done_before = writer.num_episodes
        go_on(writer, as_json(_settings(env, seed, skill, image_size, keep_failures)))
        start = training_seed(seed, done_before)
        expert = make_expert(env, skill, start)
        observation, _ = _on_host(env.reset(seed=start))
        rows = EpisodeRows(env.pipeline.actions, env.num_envs)
        written, attempts, successes = done_before, 0, 0
        todo = max(0, episodes - written)
        owed = [todo * (i + 1) // env.num_envs - todo * i // env.num_envs for i in range(env.num_envs)]
        progress(written, attempts)
        while any(owed):
            action = expert.act(observation)
            due = np.flatnonzero(owed)  # environments whose share is complete record no more
            pictures: dict[str, Any] = {}
            for camera in cameras:
                frames = dict(zip(due, env.engine.render_batch(due, camera, image_size, image_size), strict=True))
                pictures[camera] = [frames.get(i) for i in range(env.num_envs)]
            records = [env.episode_record(i) for i in range(env.num_envs)]
            following, reward, terminated, truncated, infos = _on_host(env.step(action))
            done = terminated | truncated
            pictures |= {p.camera: observation[p.key].numpy() for p in seen.values()}
            rows.add(
                observation["observation.state"], action, action, reward, infos["success"], done, pictures=pictures
            )
            finished: list[EpisodeData] = []
            for i in done.nonzero().squeeze(-1).tolist():
                attempts += owed[i] > 0
                success = bool(infos["success"][i])
                successes += success and owed[i] > 0
                if (success or keep_failures) and owed[i]:
                    owed[i] -= 1
                    finished.append(EpisodeData(rows.take(i), env.task.interface.instruction, records[i]))
                rows.drop(i)
            if finished:
                writer.add_episodes(finished)
                written += len(finished)
            if done.any():
                expert.reset(done.nonzero().squeeze(-1))
                progress(written, attempts)
            observation = following
        total = writer.num_frames
    return Collected(written, total, written - done_before, attempts, successes)


def _on_host(tree: Any) -> Any:
    """Return nested dicts and tuples with all tensors on the CPU, for demonstrators and datasets."""
    if isinstance(tree, dict):
        return {key: _on_host(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_on_host, tree))
    return tree.cpu()


def _settings(env: TaskEnv, seed: int, skill: str, image_size: int, keep_failures: bool) -> dict[str, Any]:
    """Return the settings that determine the episodes, by the names of the command's options."""
    options = {"skill": skill, "image_size": image_size, "keep_failures": keep_failures}
    where = {"num_envs": env.num_envs, "mjcf": env.mjcf} | env.simulation
    return {"task": env.task.name, "seed": seed} | options | where


def go_on(writer: DatasetWriter, now: dict[str, Any]) -> None:
    """Store the settings of a new dataset; raise ConfigError if an existing one has others."""
    if writer.num_episodes:
        require_same(writer.root, now)
    else:
        replace_file(writer.root / SETTINGS, json.dumps(now, indent=2).encode())


def require_same(root: Path, now: dict[str, Any]) -> None:
    """Raise ConfigError if a dataset with episodes was recorded with other settings."""
    try:
        before = json.loads((root / SETTINGS).read_bytes())
    except (OSError, ValueError):
        raise UserError(
            f"{root} does not say with which settings it was recorded ({SETTINGS} is missing or damaged); "
            "collect into another --out"
        ) from None
    check_same(root, before, now)
