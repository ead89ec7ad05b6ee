"""Human-in-the-loop learning in simulation: `finetune` in one process, with a scripted operator.

play an episode with corrections  ->  Learner.take  ->  updates in proportion to its steps  ->  act with averaged actor
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from policies.execution import ChunkExecutor
from robot_rl.interface.observation_spec import PRIVILEGED
from robot_rl.training.human_in_the_loop import Learner, acting_weights, load_acting_weights, play_episode
from robot_rl.training.metrics import EpisodeMetrics, Progress, check_finite, counts, report
from robot_rl.training.run import Run
from robot_rl.util.seeds import training_seed


class EpisodeRecord:
    """Collect the steps of one episode for `Learner.take`, and add them to the metrics `episodes`."""

    def __init__(self, episodes: EpisodeMetrics | None = None):
        self.episodes = episodes or EpisodeMetrics(1)
        self.rows: list[dict[str, Tensor]] = []
        self.final: Observation = {}

    def add(self, observation: Observation, action: Tensor, infos: dict[str, Any], terminated: bool) -> None:
        """Append a step of one environment; infos["executed"] is the recorded action."""
        row = {name: value.clone() for name, value in observation.items() if name != PRIVILEGED}
        row |= {"action": infos["executed"].clone(), "reward": infos["success"].float()}
        row |= {"intervention": infos["intervention"], "terminated": torch.tensor([terminated])}
        self.rows.append(row)
        self.episodes.add(row["reward"], torch.tensor(["final_obs" in infos]), infos)
        if "final_obs" in infos:
            self.final = {f"final.{name}": value for name, value in infos["final_obs"].items()}

    def episode(self) -> dict[str, Tensor]:
        """Return the columns of the episode, see `off_policy.add_episode`."""
        return {name: torch.cat([row[name] for row in self.rows]) for name in self.rows[0]} | self.final


def practise(env: Any, learner: Learner, run: Run, seed: int, progress: Progress) -> None:
    """Run human-in-the-loop learning in one simulated environment with an operator (`InterventionWrapper`).

    Resume from the run's checkpoint with new episodes: the operator's state is not saved.
    """
    env.info.require_end()
    agent, config, step = learner.agent, learner.config, 0
    rng, episodes = torch.Generator().manual_seed(seed), EpisodeMetrics(1)
    if saved := run.load():
        step, learner.corrected = saved["step"], saved["corrected"]
        agent.load_state_dict(saved["agent"])
        learner.online.load_state_dict(saved["online"])
        learner.demos.load_state_dict(saved["demos"])
        rng.set_state(saved["rng"])
        learner.rng.set_state(saved["learner_rng"])
    actor: Any = type(agent.policy).build(agent.policy.describe())
    actor.load_state_dict(agent.policy.state_dict())
    actor.to(env.device).explore = True  # acts on the device of the physics; the learner may be on a GPU
    executor = ChunkExecutor(actor, 1)
    observation = env.reset(seed=training_seed(seed) + step)[0]
    logged = checkpointed = step
    while step < config.steps:
        load_acting_weights(actor, acting_weights(agent))
        record = EpisodeRecord(episodes)
        observation = play_episode(env, executor, observation, rng, record.add)
        episode = record.episode()
        step += len(episode["action"])
        learner.take(episode)
        while learner.update():
            pass
        over = step >= config.steps
        row = {name: float(value) for name, value in learner.metrics.items()} | episodes.summary()
        row |= {"train/corrected_share": learner.corrected / step} | counts(env, step)
        if over or step - logged >= 500:
            logged = step
            report(run, step, row, progress)
        if over or run.stop_signal or step - checkpointed >= config.checkpoint_every:
            checkpointed = step
            check_finite(run, step, row)
            state = {"step": step, "corrected": learner.corrected, "agent": agent.state_dict()}
            state |= {"online": learner.online.state_dict(), "demos": learner.demos.state_dict()}
            run.save(step, state | {"rng": rng.get_state(), "learner_rng": learner.rng.get_state()})
            run.end_if_stopped(step)
    agent.finish()
