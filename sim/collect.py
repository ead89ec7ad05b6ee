"""Record demonstrations by a task's scripted expert."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import Dataset, DatasetWriter, EpisodeData, Feature
from robot_rl.data.recording import features, frames_per_second
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
    sizes = dict.fromkeys(cameras, (image_size, image_size)) | {c: (p.height, p.width) for c, p in seen.items()}
    columns, fps = features(env.pipeline, sizes), frames_per_second(env.task.interface)
    settings = as_json(_settings(env, seed, skill, image_size, keep_failures))
    if resume and (out / "meta" / "info.json").exists():
        _check_resume(Dataset(out), columns, fps, settings)  # before anything in it is moved
        writer = DatasetWriter.append(out)
    else:
        writer = DatasetWriter.create(out, fps=fps, features=columns, robot_type=env.robot.name)
    with writer:
        done_before = writer.num_episodes
        if not done_before:
            replace_file(out / SETTINGS, json.dumps(settings, indent=2).encode())
        start = training_seed(seed, done_before)
        expert = make_expert(env, skill, start)
        observation, _ = _on_host(env.reset(seed=start))
        rows: list[dict[str, list[Any]]] = [{} for _ in range(env.num_envs)]
        written, attempts, successes = done_before, 0, 0
        todo = max(0, episodes - written)
        owed = [todo * (i + 1) // env.num_envs - todo * i // env.num_envs for i in range(env.num_envs)]
        progress(written, attempts)
        while any(owed):
            action = expert.act(observation)
            physical = env.pipeline.actions.to_physical(action)
            due = np.flatnonzero(owed)  # environments whose share is complete record no more
            pictures: dict[str, list[Any]] = {}
            for camera in cameras:
                frames = dict(zip(due, env.engine.render_batch(due, camera, image_size, image_size), strict=True))
                pictures[camera] = [frames.get(i) for i in range(env.num_envs)]
            records = [env.episode_record(i) for i in range(env.num_envs)]
            following, reward, terminated, truncated, infos = _on_host(env.step(action))
            done = terminated | truncated
            step = {
                "observation.state": observation["observation.state"].numpy(),
                "action": physical.numpy(),
                "action.policy": physical.numpy(),
                "next.reward": reward.numpy()[:, None],
                "next.success": infos["success"].numpy()[:, None],
                "next.done": done.numpy()[:, None],
                "intervention": np.zeros((env.num_envs, 1), bool),
            } | {f"observation.images.{c}": p for c, p in pictures.items()}
            step |= {p.key: observation[p.key].numpy() for p in seen.values()}
            for i, buffer in enumerate(rows):
                for key, values in step.items():
                    buffer.setdefault(key, []).append(values[i])
            finished: list[EpisodeData] = []
            for i in done.nonzero().squeeze(-1).tolist():
                attempts += owed[i] > 0
                success = bool(infos["success"][i])
                successes += success and owed[i] > 0
                if (success or keep_failures) and owed[i]:
                    owed[i] -= 1
                    stacked = {k: np.stack(v) for k, v in rows[i].items()}
                    finished.append(EpisodeData(stacked, env.task.interface.instruction, records[i]))
                rows[i] = {}
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


def _check_resume(dataset: Dataset, columns: Mapping[str, Feature], fps: int, now: dict[str, Any]) -> None:
    """Raise if a dataset has other columns, or episodes that were recorded with other settings."""
    for key, feature in columns.items():
        found = dataset.features.get(key)
        if found is None or (found.dtype, found.shape) != (feature.dtype, feature.shape) or dataset.fps != fps:
            raise UserError(
                f"{dataset.root} has other columns or frames per second, see {key!r}; collect into another --out"
            )
    if not dataset.num_episodes:
        return
    try:
        before = json.loads((dataset.root / SETTINGS).read_bytes())
        if not isinstance(before, dict):
            raise ValueError("no table")
    except (OSError, ValueError, RecursionError):
        raise UserError(
            f"{dataset.root} does not say with which settings it was recorded ({SETTINGS} is missing or damaged); "
            "collect into another --out"
        ) from None
    check_same(dataset.root, before, now)
