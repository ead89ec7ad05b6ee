"""Record demonstrations with a task's scripted expert or with a policy."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.bundle import bundle_folder, load_bundle
from robot_rl.data import Dataset, DatasetWriter, EpisodeData, Feature
from robot_rl.data.episode import EpisodeRows
from robot_rl.data.recording import SHIELD, STATE_AGE, TRUNCATED, features, frames_per_second
from robot_rl.interface.environment import on_device
from robot_rl.interface.observation_spec import IMAGES
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import description_sha256, replace_file
from robot_rl.util.seeds import training_seed
from robot_rl.util.settings import as_json, check_same
from sim.demonstrators import demonstrator
from sim.env import TaskEnv


@dataclass
class Collected:
    """Counts: `episodes` and `frames` are totals of the dataset, all other fields count this call of `collect`."""

    episodes: int
    frames: int
    new_episodes: int
    attempts: int
    successes: int
    """Number of attempts that succeeded."""


PERMANENT_FAILURE = 500
"""Number of consecutive failures after which a collection ends: with 95 % confidence, fewer than 1 in 160 attempts
succeed."""
SETTINGS = "meta/collect.json"
"""File for the settings of the recording, beside LeRobot's files. A resume must have the same settings."""


def collect(
    env: Any, out: Path, episodes: int, *, seed: int, skill: str = "CLUMSY", policy: Path | None = None,
    image_size: int = 96, keep_failures: bool = False, resume: bool = False,
    progress: Callable[[int, int], None] = lambda episodes, attempts: None,
) -> Collected:  # fmt: skip
    """Write a dataset of `episodes` demonstrations, which a vector environment's expert or a policy performs.

    If the environment does not report success, every episode is kept. Cameras that the policy sees are recorded at the
    size of its pictures, all other cameras at `image_size` pixels; `image_size` 0: other cameras are not recorded. An
    episode is written when it ends. After a kill, `resume` continues after the last written episode, with new seeds.
    Every environment records an equal share of the episodes, because otherwise the dataset would hold too many short
    episodes, those with easy, near objects.
    """
    info, ours, has_instruction = env.info, isinstance(env, TaskEnv), hasattr(env, "instruction")
    hosted = on_device(env, "cpu")  # for demonstrators and datasets
    info.require_end()
    if not info.observation:
        raise ConfigError(
            f"{info.task} observes pictures alone, and a dataset holds numbers too: add one to its observation, "
            "for example the time"
        )
    keep_failures = keep_failures or not info.reports_success
    seen = {key.removeprefix(IMAGES): shape[:2] for key, shape in info.extra_inputs.pictures.items()}
    cameras = [c.name for c in env.task.scene.cameras if c.name not in seen] if image_size and ours else []
    for camera in cameras:  # without a renderer, this raises before anything is written
        env.engine.render(0, camera, image_size, image_size)
    bundle = load_bundle(policy) if policy else None
    demonstrator(env, skill, seed, bundle)  # raises before anything is written
    columns, fps = features(info, dict.fromkeys(cameras, (image_size, image_size)) | seen), frames_per_second(info)
    columns |= {TRUNCATED: Feature("bool", (1,))} if keep_failures else {}
    settings = as_json(_settings(env, seed, skill, policy, image_size, keep_failures))
    if resume and (out / "meta" / "info.json").exists():
        _check_resume(Dataset(out), columns, fps, settings)  # before the writer changes the dataset
        writer = DatasetWriter.append(out)
    else:
        robot = env.robot.name if ours else None
        writer = DatasetWriter.create(out, fps=fps, features=columns, robot_type=robot)
    with writer:
        done_before = writer.num_episodes
        store_settings(writer, settings)
        start = training_seed(seed, done_before)
        expert = demonstrator(env, skill, start, bundle)
        observation, _ = hosted.reset(seed=start)
        rows = EpisodeRows(info.actions, writer.features, env.num_envs)
        written, attempts, successes, failed = done_before, 0, 0, 0
        todo = max(0, episodes - written)
        remaining = [todo * (i + 1) // env.num_envs - todo * i // env.num_envs for i in range(env.num_envs)]
        progress(written, attempts)
        while any(remaining):
            action = expert.act(observation)
            due = np.flatnonzero(remaining)  # environments with a complete share record no more frames
            pictures: dict[str, Any] = {}
            for camera in cameras:
                frames = dict(zip(due, env.engine.render_batch(due, camera, image_size, image_size), strict=True))
                pictures[camera] = [frames.get(i) for i in range(env.num_envs)]
            records = [env.episode_record(i) for i in range(env.num_envs)] if ours else [{}] * env.num_envs
            instructions = [env.instruction(i) if has_instruction else info.task for i in range(env.num_envs)]
            age = env.state_age if ours else None
            following, reward, terminated, truncated, infos = hosted.step(action)
            done = terminated | truncated
            pictures |= {camera: observation[f"{IMAGES}{camera}"].numpy() for camera in seen}
            success = infos.get("success", torch.zeros_like(done))
            rows.add(
                observation["observation.state"], action, action, reward, success, done, pictures=pictures,
                instructions=instructions, truncated=truncated, shield=env.shield_changes if ours else None,
                state_age=age,
            )  # fmt: skip
            finished: list[EpisodeData] = []
            for i in done.nonzero().squeeze(-1).tolist():
                attempts += remaining[i] > 0
                successes += bool(success[i]) and remaining[i] > 0
                failed = 0 if success[i] else failed + 1
                if (success[i] or keep_failures) and remaining[i]:
                    remaining[i] -= 1
                    finished.append(rows.take(records[i], info.task, i))
                rows.drop(i)
            if finished:
                writer.add_episodes(finished)
                written += len(finished)
            if failed >= PERMANENT_FAILURE and not keep_failures:
                raise UserError(
                    f"{failed} attempts in a row did not succeed; {written} episodes are in {out}. Take another "
                    "--policy or --skill, or keep what fails with --keep-failures"
                )
            if done.any():
                expert.reset(done.nonzero().squeeze(-1))
                progress(written, attempts)
            observation = following
        total = writer.num_frames
    return Collected(written, total, written - done_before, attempts, successes)


def _settings(
    env: Any, seed: int, skill: str, policy: Path | None, image_size: int, keep_failures: bool
) -> dict[str, Any]:
    """Return the settings that determine the episodes; keys are the names of the command's options."""
    options = {"skill": skill, "image_size": image_size, "keep_failures": keep_failures, "num_envs": env.num_envs}
    if policy:
        options |= {"policy": str(policy.resolve())}
        options |= {"policy_sha256": description_sha256(bundle_folder(policy) / "policy.json")}
    simulation = getattr(env, "simulation", {})
    if isinstance(env, TaskEnv):
        simulation = {"mjcf": env.mjcf} | simulation
    else:
        simulation = {k: v for k, v in simulation.items() if k in ("instruction_set", "episode_steps")}
    return {"task": env.info.task, "seed": seed} | options | simulation


def store_settings(writer: DatasetWriter, now: dict[str, Any]) -> None:
    """Store the settings of a new dataset; raise ConfigError if an existing dataset has other settings."""
    if writer.num_episodes:
        check_settings(writer.root, now)
    else:
        replace_file(writer.root / SETTINGS, json.dumps(now, indent=2).encode())


def check_settings(root: Path, now: dict[str, Any]) -> None:
    """Raise ConfigError if the episodes of a dataset were recorded with settings other than `now`."""
    try:
        before = json.loads((root / SETTINGS).read_bytes())
        if not isinstance(before, dict):
            raise ValueError("no table")
    except (OSError, ValueError, RecursionError):
        raise UserError(
            f"{root} does not say with which settings it was recorded ({SETTINGS} is missing or damaged); "
            "collect into another --out"
        ) from None
    check_same(root, before, now)


def _check_resume(dataset: Dataset, columns: Mapping[str, Feature], fps: int, now: dict[str, Any]) -> None:
    """Raise if a dataset's columns or fps differ, or if its episodes were recorded with settings other than `now`."""
    if dataset.num_episodes:
        check_settings(dataset.root, now)
    for key, feature in columns.items():
        found = dataset.features.get(key)
        if found is None and key in (SHIELD, STATE_AGE):  # of an earlier version
            continue
        if found is None or (found.dtype, found.shape) != (feature.dtype, feature.shape) or dataset.fps != fps:
            raise UserError(
                f"{dataset.root} has other columns or frames per second, see {key!r}; collect into another --out"
            )
