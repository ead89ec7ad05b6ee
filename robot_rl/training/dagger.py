"""HG-DAgger: play episodes with an operator, add the corrections to the data, clone again.

Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human Experts" (arXiv 1810.02890), without the
measure of doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.execution import ChunkExecutor
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.human_in_the_loop import EpisodeRecord, corrections, play_episode
from robot_rl.training.metrics import EpisodeMetrics, Progress, counts, report
from robot_rl.training.run import Run
from robot_rl.training.supervised import clone
from robot_rl.util.limits import PositiveInt
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class DaggerConfig:
    """Hyperparameters of the loop."""

    steps: PositiveInt = 6_000
    """Environment steps."""
    every: PositiveInt = 1_500
    """Environment steps between two clonings."""
    updates: PositiveInt = 2_000
    """Gradient steps per cloning, from fresh weights."""
    batch: PositiveInt = 256
    """Chunks per gradient step."""


def aggregate(
    env: Any, fresh: Callable[[], Cloning], demos: list[dict[str, Tensor]], config: DaggerConfig, run: Run, seed: int,
    progress: Progress,
) -> Cloning:  # fmt: skip
    """Return the agent cloned from demonstrations and the operator's corrections in `env` (`InterventionWrapper`).

    Resume from the run's checkpoint, with new episodes.
    """
    env.info.require_end()
    step, taken = 0, []
    if saved := run.load():
        step, taken = saved["step"], saved["taken"]
    rng, counted, changed, loss = torch.Generator().manual_seed(seed + step), EpisodeMetrics(1), True, 0.0
    observation = env.reset(seed=training_seed(seed) + step)[0]
    while True:
        if changed:
            agent = fresh()
            loss = clone(agent, demos + taken, config.updates, config.batch, run, seed)
            agent.policy.to(env.device)  # it only acts in this round
        if step >= config.steps:
            return agent
        executor, until, before = ChunkExecutor(agent.policy, 1), min(step + config.every, config.steps), len(taken)
        while step < until:
            record = EpisodeRecord(counted)
            observation = play_episode(env, executor, observation, rng, record.add)
            episode = record.episode()
            step += len(episode["action"])
            taken.extend(corrections(episode))
        changed = len(taken) > before
        corrected = sum(len(part["action"]) for part in taken)
        row = {"bc/loss": loss, "train/corrected_share": corrected / step} | counted.summary() | counts(env, step)
        report(run, step, row, progress)
        run.save(step, {"step": step, "taken": taken})
        run.end_if_stopped(step)
