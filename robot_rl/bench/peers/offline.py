"""Offline learners of d3rlpy (Seno and Imai 2022, JMLR 23) as recipes.

Settings that are not named here have the defaults of d3rlpy. It does not learn from the last step of an episode that a
time limit ended.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from d3rlpy.algos import CalQLConfig, IQLConfig, TD3PlusBCConfig
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.preprocessing import StandardObservationScaler
from torch import Tensor

from policies.base import Size
from robot_rl.bench.peers.recipe import PeerConfig, PeerPolicy, PeerRecipe, require_state
from robot_rl.interface.observation_spec import STATE
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need
from robot_rl.rewards import RewardName
from robot_rl.training.metrics import report
from robot_rl.util.errors import Interrupted
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt

KINDS: dict[str, Any] = {"iql": IQLConfig, "td3-bc": TD3PlusBCConfig, "cal-ql": CalQLConfig}


def create(algorithm: str, hidden: tuple[int, ...], device: str = "cpu", **options: Any) -> Any:
    """Return an algorithm of d3rlpy whose networks are not built yet."""
    encoder = VectorEncoderFactory(list(hidden))
    parts = {f"{part}_encoder_factory": encoder for part in ("actor", "critic")}
    parts |= {"value_encoder_factory": encoder} if algorithm == "iql" else {}
    return KINDS[algorithm](observation_scaler=StandardObservationScaler(), **parts, **options).create(device)


class D3Policy(PeerPolicy):
    """Policy of d3rlpy with standardized observations."""

    class_name = "robot_rl.bench.peers.offline:D3Policy"
    center: Tensor
    """Mean (D,) and standard deviation `scale` (D,) of the dataset's observations."""
    scale: Tensor

    def __init__(self, size: Size, config: PeerConfig):
        super().__init__()
        self.size, self.config = size, config
        with torch.device("cpu"):
            algorithm = create(config.algorithm, config.hidden)
            algorithm.create_impl((size.observation,), size.action)
        self.net = algorithm.impl.policy
        self.register_buffer("center", torch.zeros(size.observation))
        self.register_buffer("scale", torch.ones(size.observation))

    def mean(self, state: Tensor) -> Tensor:
        actions: Tensor = self.net((state - self.center) / self.scale).squashed_mu
        return actions


@dataclass(frozen=True)
class D3Training:
    """Length of the training, and the dataset's rewards."""

    offline_updates: PositiveInt = 20_000
    batch: PositiveInt = 256
    """Transitions per update."""
    reward: RewardName = "success"
    """Reward source: success (1 when the episode succeeds, else 0), or the task's own reward, as recorded."""
    log_every: PositiveInt = 1_000
    """Updates between two rows of metrics."""


@dataclass(frozen=True)
class D3Recipe(PeerRecipe):
    """Learner of d3rlpy, which learns from all episodes of a dataset."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor, critics and value."""
    training: D3Training = D3Training()  # type: ignore[assignment]
    algorithm: ClassVar[str]

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("demonstrations",)

    def options(self) -> dict[str, Any]:
        """Return arguments of the algorithm besides its networks and batch."""
        return {}

    def build(self, job: Job, env: Any = None) -> Any:
        torch.manual_seed(job.seed)
        np.random.seed(job.seed)  # d3rlpy draws batches with it
        algorithm = create(self.algorithm, self.hidden, job.device, batch_size=self.training.batch, **self.options())
        algorithm.create_impl((job.size.observation,), job.size.action)
        return algorithm

    def learn(self, job: Job) -> PeerPolicy:
        require_state(job.info)
        run, training = job.opened, self.training
        run.load()
        data, algorithm = dataset(job, training.reward), self.build(job)
        progress = job.counting("updates", training.offline_updates)
        rounds = algorithm.fitter(
            data, training.offline_updates, training.log_every, logger_adapter=NoopAdapterFactory(),
            show_progress=False,
        )  # fmt: skip
        for epoch, losses in rounds:
            report(run, epoch * training.log_every, {f"peer/{name}": float(loss) for name, loss in losses.items()},
                   progress)  # fmt: skip
            if run.stop_signal:
                raise Interrupted("stopped; a learner of d3rlpy starts again", run.stop_signal)
        return self.policy_of(job.size, algorithm)

    def policy_of(self, size: Size, algorithm: Any) -> D3Policy:
        """Return the algorithm's policy, with the statistics of the dataset."""
        policy, scaler = D3Policy(size, PeerConfig(self.algorithm, self.hidden)), algorithm.observation_scaler
        policy.net.load_state_dict(algorithm.impl.policy.state_dict())
        policy.center.copy_(torch.from_numpy(scaler.mean))
        policy.scale.copy_(torch.from_numpy(scaler.std + scaler.eps))
        return policy.eval()


def dataset(job: Job, reward: RewardName) -> MDPDataset:
    """Return all episodes of the job's dataset."""
    episodes = job.demonstrations(reward, "all")
    columns = {name: torch.cat([e[name] for e in episodes]).numpy() for name in (STATE, "action", "reward")}
    ends = [torch.zeros(len(e["action"])) for e in episodes]
    fell = [end.clone() for end in ends]
    for end, fall, episode in zip(ends, fell, episodes, strict=True):
        fall[-1] = bool(episode.get("terminated", episode["reward"] > 0)[-1])
        end[-1] = 1 - fall[-1]
    timeouts, terminals = (torch.cat(parts).numpy() for parts in (ends, fell))
    return MDPDataset(columns[STATE], columns["action"], columns["reward"], terminals, timeouts)


@dataclass(frozen=True)
class D3IQL(D3Recipe):
    """Implicit Q-learning of d3rlpy."""

    expectile: Fraction = 0.7
    temperature: PositiveFloat = 3.0
    """Weight of the advantage in the exponent of the cloning weights."""
    algorithm = "iql"

    def options(self) -> dict[str, Any]:
        return {"expectile": self.expectile, "weight_temp": self.temperature}


@dataclass(frozen=True)
class D3TD3PlusBC(D3Recipe):
    """TD3+BC of d3rlpy."""

    alpha: NonNegativeFloat = 2.5
    """Weight of the value beside the cloning."""
    algorithm = "td3-bc"

    def options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


@dataclass(frozen=True)
class D3CalQL(D3Recipe):
    """Calibrated Q-learning of d3rlpy."""

    conservative: NonNegativeFloat = 5.0
    """Weight of the conservative term."""
    algorithm = "cal-ql"

    def options(self) -> dict[str, Any]:
        return {"conservative_weight": self.conservative}
