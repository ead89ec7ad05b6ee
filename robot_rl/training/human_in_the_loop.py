"""Learning with a person who takes over: episodes with corrections, and in simulation, with a scripted operator,
off-policy learning (`practise`) and HG-DAgger (`aggregate`). On a robot a process of its own learns (`learner`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from policies.execution import ChunkExecutor
from robot_rl.interface.observation_spec import PRIVILEGED
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.learner import OffPolicyLearner, corrections
from robot_rl.training.metrics import EpisodeMetrics, Progress, check_finite, counts, report
from robot_rl.training.published import acting_weights, load_acting_weights
from robot_rl.training.run import Run
from robot_rl.training.supervised import clone
from robot_rl.util.limits import PositiveInt
from robot_rl.util.seeds import training_seed


def play_episode(
    env: Any, executor: ChunkExecutor, observation: Observation, rng: torch.Generator,
    on_step: Callable[[Observation, Tensor, dict[str, Any], bool], None] | None = None,
) -> Observation:  # fmt: skip
    """Act in an environment with an operator until an episode ends; return the next episode's first observation.

    `on_step` is called with the observation before the step, the policy's action, the infos, and terminated.
    """
    executor.reset()
    while True:
        action = executor.act(observation, rng)
        following, _, terminated, truncated, infos = env.step(action)
        if on_step is not None:
            on_step(observation, action, infos, bool(terminated))
        observation = following
        if bool(infos["handed_back"]):
            executor.reset()  # drop the chunk from before the correction
        if bool(terminated | truncated):
            return observation


class EpisodeRecord:
    """Collect the steps of one episode for `Learner.take`, and add them to the metrics `episodes`."""

    def __init__(self, episodes: EpisodeMetrics | None = None):
        self.episodes = episodes or EpisodeMetrics(1)
        self.rows: list[dict[str, Tensor]] = []
        self.final: Observation = {}

    def add(self, observation: Observation, action: Tensor, infos: dict[str, Any], terminated: bool) -> None:
        """Append a step of one environment. infos["executed"] is recorded as the action, not the policy's `action`."""
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


def practise(env: Any, learner: OffPolicyLearner, run: Run, seed: int, progress: Progress) -> None:
    """Run human-in-the-loop learning in one simulated environment with an operator (`InterventionWrapper`).

    A resume from the run's checkpoint begins new episodes, since the operator's state is not saved.
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


@dataclass(frozen=True)
class DaggerConfig:
    """Hyperparameters of HG-DAgger."""

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

    Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human Experts" (arXiv 1810.02890), without the
    paper's measure of doubt. A resume from the run's checkpoint begins new episodes.
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
