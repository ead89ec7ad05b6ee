"""Supervised loop: sample chunks of demonstrations, update the policy."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.base import Policy
from robot_rl.data.recording import DemoSelection
from robot_rl.data.replay import Batch
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.metrics import Progress, check_update, report
from robot_rl.training.run import Run
from robot_rl.util import ranks
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class SupervisedConfig:
    """Hyperparameters of the supervised loop."""

    updates: PositiveInt = 2000
    """Gradient steps."""
    batch: PositiveInt = 256
    """Chunks per gradient step."""
    demos: DemoSelection = "successes"
    """Episodes of the dataset that are cloned; best: the quarter with the largest return of the task's reward."""
    checkpoint_every: PositiveInt = 1000
    """Gradient steps between two checkpoints."""
    log_every: PositiveInt = 100
    """Gradient steps between two rows of metrics."""


class SupervisedAgent(Protocol):
    """A learner that needs samples of recorded rows and no environment."""

    @property
    def policy(self) -> Policy:
        """Return the trained policy."""

    def weights(self, columns: dict[str, Tensor]) -> Tensor | None:
        """Return sampling weights (N,) of the rows of `columns`, not normalized; None: uniform sampling."""

    def update(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Learn from a batch; return the metrics of the update."""

    def finish(self) -> None:
        """Set `policy` to the weights to deploy."""

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizers and counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""


def train_supervised(
    agent: SupervisedAgent, data: Demonstrations, config: SupervisedConfig, run: Run, seed: int, progress: Progress
) -> None:
    """Fit the agent's policy to demonstrations, with averaged weights at the end; a resumed run continues.

    Ranks that learn together draw the same batches, and each takes its own rows.
    """
    ranks.share(config.batch, "--training.batch")
    rng = ranks.generator(seed)
    agent.policy.fit(data.columns)
    rows, weights, step = data.rows(agent.policy.horizon), agent.weights(data.columns), 0
    if saved := run.load():
        step = saved["step"]
        agent.load_state_dict(saved["agent"])
        rng.set_state(saved["rng"])
    agent.policy.train()
    while step < config.updates:
        batch = ranks.own_rows(data.sample(config.batch, rows, rng, weights))
        step += 1
        metrics = check_update(run, step, ranks.averaged(agent.update(batch, rng)), batch)
        if step % config.log_every == 0 or step == config.updates:
            report(run, step, {name: float(value) for name, value in metrics.items()}, progress)
        stop = ranks.largest(run.stop_signal)
        if step % config.checkpoint_every == 0 or step == config.updates or stop:
            run.save(step, {"step": step, "agent": agent.state_dict(), "rng": rng.get_state()})
            run.end_if_stopped(step, stop)
    agent.finish()


def clone(agent: Cloning, episodes: list[dict[str, Tensor]], updates: int, batch: int, run: Run, seed: int) -> float:
    """Fit an agent's policy and its normalizers to episodes as one stage of a longer run; return the last loss."""
    data = Demonstrations.of(episodes, agent.device)
    agent.policy.fit(data.columns)
    return learn(agent, data, updates, batch, run, seed)


def learn(agent: Cloning, data: Demonstrations, updates: int, batch: int, run: Run, seed: int) -> float:
    """Fit an agent's policy to data as one stage of a longer run; return the last loss.

    The stage has no checkpoints: if the run is resumed within the stage, the stage starts again.
    """
    rng = torch.Generator().manual_seed(seed)
    agent.policy.train()
    rows, weights, loss = data.rows(agent.policy.horizon), agent.weights(data.columns), 0.0
    for k in range(updates):
        drawn = data.sample(batch, rows, rng, weights)
        loss = float(check_update(run, k, agent.update(drawn, rng), drawn)["bc/loss"])
    agent.finish()
    return loss
