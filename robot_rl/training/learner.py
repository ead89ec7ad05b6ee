"""Learner process of a robot: read the robot's dataset, update the agent, publish the weights.

Robot and learner share only a run folder; each process can be killed and restarted::

    <run>/dataset/              the robot appends finished episodes (LeRobot v3.0), the learner reads them
    <run>/weights.safetensors   the learner replaces the file, the robot reads it between episodes
    <run>/learner/              metrics and checkpoint of the learner
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import episodes_of
from robot_rl.data.replay import Replay
from robot_rl.data.sources import Demonstrations, sample_batches
from robot_rl.interface.environment import EnvInfo
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.metrics import check_finite
from robot_rl.training.off_policy import add_episode
from robot_rl.training.published import publish
from robot_rl.training.run import Run
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Relabel = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Function that returns a recorded episode with new rewards."""


@dataclass(frozen=True)
class SessionConfig:
    """Hyperparameters of a learner beside a robot."""

    batch: PositiveInt = 256
    """Transitions per update."""
    demo_share: Fraction = 0.5
    """Share of every batch from demonstrations and corrections."""
    updates_per_step: NonNegativeFloat = 2.0
    """Maximum number of updates per robot step."""
    publish_every: PositiveInt = 100
    """Updates between two publications of weights."""
    checkpoint_every: PositiveInt = 2_000
    """Updates between two checkpoints."""


class Learner(ABC):
    """Learner from demonstrations and from new episodes in the robot's dataset."""

    agent: ActorCritic | Cloning
    remedy = ""
    """What to change after metrics that are not finite."""

    def __init__(self, info: EnvInfo, config: SessionConfig, folder: Path, seed: int):
        self.info, self.config, self.folder = info, config, folder
        self.rng = torch.Generator().manual_seed(seed)
        self.dataset: Dataset | None = None
        self.seen = 0  # number of the robot's episodes read so far
        self.corrected = 0  # number of corrected steps read so far
        self.metrics: dict[str, Tensor] = {}

    @property
    @abstractmethod
    def version(self) -> int:
        """Return the number of updates so far."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Return the number of the robot's steps read so far."""

    @abstractmethod
    def take(self, episode: dict[str, Tensor]) -> None:
        """Add an episode, in the format of `off_policy.add_episode`."""

    @abstractmethod
    def update(self) -> bool:
        """Update the agent once if `updates_per_step` allows an update; return whether there was an update."""

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

    def run(self, run: Run, stop: Callable[[], bool], wait: Callable[[float], Any]) -> None:
        """Read episodes, update and publish until `stop()`; resume from the run's checkpoint.

        `wait` is called with a time in s while no update is allowed. `Diverged` is raised before weights that are not
        finite are published or saved.
        """
        saved = run.load()
        if saved is not None:
            self.agent.load_state_dict(saved["agent"])
        publish(self.folder, self.agent, self.version)
        done = 0
        while not stop():
            self.absorb()
            if not self.update():
                if done < self.seen:
                    self._finite(run)
                    publish(self.folder, self.agent, self.version, self.seen)
                    done = self.seen
                wait(0.05)
                continue
            count = self.version
            if count % self.config.publish_every == 0:
                values = self._finite(run)
                publish(self.folder, self.agent, self.version, done)
                steps, corrected = self.steps, self.corrected
                values |= {"robot/steps": steps, "robot/corrected": corrected}
                run.log(count, values | {"robot/corrected_share": corrected / steps})
            if count % self.config.checkpoint_every == 0:
                self._finite(run)
                run.save(count, {"agent": self.agent.state_dict()})
        self._finite(run)
        self.absorb()
        publish(self.folder, self.agent, self.version, done)
        run.save(self.version, {"agent": self.agent.state_dict()})

    def _finite(self, run: Run) -> dict[str, float]:
        """Return the newest metrics; raise `Diverged` if a metric is not finite."""
        values = {k: float(v) for k, v in self.metrics.items()}
        check_finite(run, self.version, values, self.remedy)
        return values


@dataclass(frozen=True)
class HumanInTheLoopConfig(SessionConfig):
    """Hyperparameters of an off-policy learner with a person who corrects."""

    critic_only: NonNegativeInt = 200
    """Number of robot steps before the actor learns."""
    capacity: PositiveInt = 100_000
    """Capacity of each replay, rows."""
    correct_demos: bool = True
    """Whether to add corrections to the demonstrations as well (HIL-SERL: True, RLIF: False)."""
    steps: PositiveInt = 6_000
    """Environment steps of training in simulation; on a robot, the session's duration limits training."""


class OffPolicyLearner(Learner):
    """Actor-critic that learns from a replay of the robot's steps and one of demonstrations and corrections."""

    agent: ActorCritic
    config: HumanInTheLoopConfig
    remedy = "look for outliers in the dataset or lower --agent.critic-lr, and restart with a new --out"

    def __init__(
        self, agent: ActorCritic, info: EnvInfo, demos: Replay, config: HumanInTheLoopConfig, folder: Path, seed: int,
        relabel: Relabel = lambda episode: episode,
    ):  # fmt: skip
        """`relabel` sets the rewards of new episodes; the rewards of `demos` are not changed."""
        super().__init__(info, config, folder, seed)
        self.agent, self.demos, self.relabel = agent, demos, relabel
        self.online = Replay(config.capacity, 1, agent.columns, agent.device)

    @property
    def version(self) -> int:
        return self.agent.updates.critic

    @property
    def steps(self) -> int:
        return self.online.transitions

    def take(self, episode: dict[str, Tensor]) -> None:
        """Add an episode to the online replay; add its corrections to the demonstrations if `correct_demos`."""
        episode = self.relabel(episode)
        add_episode(self.online, self.agent, episode, self.rng)
        for part in corrections(episode) if self.config.correct_demos else []:
            add_episode(self.demos, self.agent, part, self.rng)
        self.corrected += int(episode["intervention"].sum())

    def update(self) -> bool:
        c = self.config
        if self.online.size < 64 or self.version >= c.updates_per_step * self.steps:
            return False
        half = int(c.batch * c.demo_share)
        sources = [(self.online, c.batch - half), (self.demos, half)]
        batch = sample_batches(sources, 1, self.agent.sampling, self.rng)[0]
        phase = LearningPhase.LEARN if self.steps >= c.critic_only else LearningPhase.WARMUP
        self.metrics |= self.agent.update(batch, phase)
        return True


@dataclass(frozen=True)
class CloningSessionConfig(SessionConfig):
    """Hyperparameters of cloning beside a robot."""

    batch: PositiveInt = 64
    """Chunks per update."""
    updates_per_step: NonNegativeFloat = 0.25
    """Maximum number of updates per robot step."""
    lr: PositiveFloat = 3e-4
    """Learning rate, constant after the agent's warm-up."""


class CloningLearner(Learner):
    """Cloning of demonstrations and of the person's corrections, from the policy's own weights on."""

    agent: Cloning
    remedy = "look for outliers in the dataset or lower --session.lr, and restart with a new --out"

    def __init__(
        self, agent: Cloning, info: EnvInfo, demos: list[dict[str, Tensor]], config: SessionConfig, folder: Path,
        seed: int,
    ):  # fmt: skip
        super().__init__(info, config, folder, seed)
        self.agent, self.demos = agent, Demonstrations.of(demos, agent.device)
        self.demo_rows = self.demos.rows(agent.policy.horizon)
        self.taken: list[dict[str, Tensor]] = []
        self.corrections: tuple[Demonstrations, Tensor] | None = None
        """Corrections and the rows of their chunks."""
        self._steps = 0

    @property
    def version(self) -> int:
        return self.agent.updates

    @property
    def steps(self) -> int:
        return self._steps

    def take(self, episode: dict[str, Tensor]) -> None:
        """Add an episode's corrections; the policy's own steps are not cloned."""
        self._steps += len(episode["action"])
        self.corrected += int(episode["intervention"].sum())
        if parts := corrections(episode):
            self.taken += parts
            data = Demonstrations.of(self.taken, self.agent.device)
            self.corrections = data, data.rows(self.agent.policy.horizon)

    def update(self) -> bool:
        c = self.config
        if self.corrections is None or self.version >= c.updates_per_step * self._steps:
            return False
        half = int(c.batch * c.demo_share)
        drawn = [
            data.sample(count, rows, self.rng)
            for (data, rows), count in ((self.corrections, c.batch - half), ((self.demos, self.demo_rows), half))
            if count
        ]
        self.agent.policy.train()
        batch = {name: torch.cat([each[name] for each in drawn]) for name in drawn[0]}
        self.metrics |= self.agent.update(batch, self.rng)
        return True


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
