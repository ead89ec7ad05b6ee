"""Learner process of a robot: read the robot's dataset, update the agent, publish the weights.

Robot and learner share only a run folder; each process can be killed and restarted::

    <run>/dataset/              the robot appends finished episodes (LeRobot v3.0), the learner reads them
    <run>/weights.safetensors   the learner replaces the file, the robot reads it between episodes
    <run>/learner/              metrics and checkpoint of the learner

In simulation, `practise` runs this loop in one process with a scripted operator, and `aggregate` runs HG-DAgger.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from policies.execution import ChunkExecutor
from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import episodes_of
from robot_rl.data.replay import Replay
from robot_rl.data.sources import sample_batches
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import PRIVILEGED
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.training.metrics import EpisodeMetrics, Progress, check_finite, counts, report
from robot_rl.training.off_policy import add_episode
from robot_rl.training.run import Run
from robot_rl.training.supervised import clone
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt
from robot_rl.util.seeds import training_seed

WEIGHTS = "weights.safetensors"
Relabel = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Function that returns a recorded episode with new rewards."""


@dataclass(frozen=True)
class HumanInTheLoopConfig:
    """Hyperparameters of the human-in-the-loop learner."""

    batch: PositiveInt = 256
    """Transitions per update."""
    demo_share: Fraction = 0.5
    """Share of every batch from demonstrations and corrections."""
    updates_per_step: NonNegativeFloat = 2.0
    """Maximum number of critic updates per robot step."""
    critic_only: NonNegativeInt = 200
    """Number of robot steps before the actor learns."""
    publish_every: PositiveInt = 100
    """Updates between two publications of weights."""
    checkpoint_every: PositiveInt = 2_000
    """Updates between two checkpoints."""
    capacity: PositiveInt = 100_000
    """Capacity of each replay, rows."""
    correct_demos: bool = True
    """Whether to add corrections to the demonstrations as well (HIL-SERL: True, RLIF: False)."""
    steps: PositiveInt = 6_000
    """Environment steps of training in simulation; on a robot, the session's duration limits training."""


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


def publish(folder: Path, agent: ActorCritic, episodes: int = 0) -> None:
    """Publish the averaged actor; the version of the weights is the number of critic updates. `episodes`: number of the
    robot's episodes of which nothing is left to learn.

    Newer published weights are kept until a learner that restarted from an older checkpoint has caught up.
    """
    version = agent.updates.critic
    if (folder / WEIGHTS).exists():
        before = load_state(folder / WEIGHTS)
        if (before["version"], before.get("episodes", 0)) >= (version, episodes):
            return
    save_state({"version": version, "episodes": episodes} | acting_weights(agent), folder / WEIGHTS)


def episodes_learned(folder: Path) -> int:
    """Return the number of the robot's episodes of which the learner has nothing left to learn; -1 if it has not
    started."""
    return int(load_state(folder / WEIGHTS).get("episodes", 0)) if (folder / WEIGHTS).exists() else -1


def acting_weights(agent: ActorCritic) -> dict[str, Any]:
    """Return the weights for acting: the averaged actor, and the encoder, which is trained by the critics' loss."""
    return {"actor": agent.average.state_dict(), "encoder": agent.policy.encoder.state_dict()}


def load_acting_weights(policy: ActorPolicy, weights: Mapping[str, Any]) -> None:
    """Load the weights of `acting_weights` into a policy."""
    policy.actor.load_state_dict(weights["actor"])
    policy.encoder.load_state_dict(weights["encoder"])


def fetch(folder: Path, policy: ActorPolicy, version: int) -> int:
    """Load published weights if they are finite and newer than `version`; return the version in use."""
    if not (folder / WEIGHTS).exists():
        return version
    published = load_state(folder / WEIGHTS)
    if published["version"] <= version:
        return version
    if not all(v.isfinite().all() for part in ("actor", "encoder") for v in published[part].values()):
        return version
    load_acting_weights(policy, published)
    return int(published["version"])


class Learner:
    """Learner from demonstrations and from new episodes in the robot's dataset."""

    def __init__(
        self, agent: ActorCritic, info: EnvInfo, demos: Replay, config: HumanInTheLoopConfig, folder: Path, seed: int,
        relabel: Relabel = lambda episode: episode,
    ):  # fmt: skip
        """`relabel` sets the rewards of new episodes; the rewards of `demos` are not changed."""
        self.agent, self.info, self.demos, self.config, self.folder = agent, info, demos, config, folder
        self.relabel = relabel
        self.online = Replay(config.capacity, 1, agent.columns, agent.device)
        self.rng = torch.Generator().manual_seed(seed)
        self.dataset: Dataset | None = None
        self.seen = 0  # number of the robot's episodes read so far
        self.corrected = 0  # number of corrected steps read so far
        self.metrics: dict[str, Tensor] = {}

    def absorb(self) -> int:
        """Read and take the robot's new episodes; return their number."""
        root = self.folder / "dataset"
        if self.dataset is None:
            if not (root / "meta" / "info.json").exists():
                return 0
            self.dataset = Dataset(root)
        else:
            self.dataset.refresh()
        new = self.dataset.num_episodes - self.seen
        if not new:
            return 0
        for episode in episodes_of(self.dataset, self.info, self.seen, successes=False):
            self.take(episode)
        self.seen += new
        return new

    def take(self, episode: dict[str, Tensor]) -> None:
        """Add an episode to the online replay; add its corrections to the demonstrations if `correct_demos`."""
        episode = self.relabel(episode)
        add_episode(self.online, self.agent, episode, self.rng)
        for part in corrections(episode) if self.config.correct_demos else []:
            add_episode(self.demos, self.agent, part, self.rng)
        self.corrected += int(episode["intervention"].sum())

    def update(self) -> bool:
        """Update the agent once if `updates_per_step` allows an update; return whether there was an update."""
        c = self.config
        if self.online.size < 64 or self.agent.updates.critic >= c.updates_per_step * self.online.transitions:
            return False
        half = int(c.batch * c.demo_share)
        sources = [(self.online, c.batch - half), (self.demos, half)]
        batch = sample_batches(sources, 1, self.agent.sampling, self.rng)[0]
        phase = LearningPhase.LEARN if self.online.transitions >= c.critic_only else LearningPhase.WARMUP
        self.metrics |= self.agent.update(batch, phase)
        return True

    def run(self, run: Run, stop: Callable[[], bool], wait: Callable[[float], Any]) -> None:
        """Read episodes, update and publish until `stop()`; resume from the run's checkpoint.

        `wait` is called with a time in s while no update is allowed. `Diverged` is raised before weights that are not
        finite are published or saved.
        """
        saved = run.load()
        if saved is not None:
            self.agent.load_state_dict(saved["agent"])
        publish(self.folder, self.agent)
        done = 0
        while not stop():
            self.absorb()
            if not self.update():
                if done < self.seen:
                    self._finite(run)
                    publish(self.folder, self.agent, self.seen)
                    done = self.seen
                wait(0.05)
                continue
            count = self.agent.updates.critic
            if count % self.config.publish_every == 0:
                values = self._finite(run)
                publish(self.folder, self.agent, done)
                steps, corrected = self.online.transitions, self.corrected
                values |= {"robot/steps": steps, "robot/corrected": corrected}
                run.log(count, values | {"robot/corrected_share": corrected / steps})
            if count % self.config.checkpoint_every == 0:
                self._finite(run)
                run.save(count, {"agent": self.agent.state_dict()})
        self._finite(run)
        self.absorb()
        publish(self.folder, self.agent, done)
        run.save(self.agent.updates.critic, {"agent": self.agent.state_dict()})

    def _finite(self, run: Run) -> dict[str, float]:
        """Return the newest metrics; raise `Diverged` if a metric is not finite."""
        values = {k: float(v) for k, v in self.metrics.items()}
        remedy = "look for outliers in the dataset or lower --agent.critic-lr, and restart with a new --out"
        check_finite(run, self.agent.updates.critic, values, remedy)
        return values


def corrections(episode: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the consecutive corrected steps of an episode as separate episodes with their rewards."""
    flags, last = episode["intervention"].tolist(), len(episode["action"])
    columns = {k: v for k, v in episode.items() if not k.startswith("final.")}
    parts, start = [], None
    for t, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = t
        elif not flag and start is not None:
            part = {k: v[start:t] for k, v in columns.items()}
            if t < last:  # final observation: the one after the correction
                part |= {f"final.{k}": v[t : t + 1] for k, v in columns.items() if k.startswith("observation.")}
            else:
                part |= {k: v for k, v in episode.items() if k.startswith("final.")}
            parts.append(part)
            start = None
    return parts


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


def practise(env: Any, learner: Learner, run: Run, seed: int, progress: Progress) -> None:
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
