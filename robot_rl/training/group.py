"""Group loop: play every seed several times, compare the episodes of a group, update.

round:   group 0: [episode, episode, ...]   group 1: [...]      a group shares its seed: instruction, layout, noise
         `- compare the episodes            -> update
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.data.sources import Trajectories
from robot_rl.interface.environment import on_device
from robot_rl.training.metrics import Progress, counts, diverged, report
from robot_rl.training.run import Run
from robot_rl.util.limits import PositiveInt
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class GroupConfig:
    """Hyperparameters of the group loop."""

    rounds: PositiveInt = 20
    """Rounds of playing and updating."""
    num_envs: PositiveInt = 64
    """Episodes per round, one per environment."""
    group: PositiveInt = 8
    """Episodes per group."""
    checkpoint_every: PositiveInt = 5
    """Rounds between checkpoints."""

    def __post_init__(self) -> None:
        if self.group < 2 or self.num_envs % self.group:
            raise ValueError(f"num_envs {self.num_envs} are not whole groups of {self.group}, which is at least 2")


class GroupAgent(Protocol):
    """An agent that learns from groups of episodes."""

    device: torch.device

    def act(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return exploring actions (n, A), which environments decided (n,) bool, and columns of the decisions."""

    @property
    def reads_next(self) -> Tensor:
        """Return (n,) bool, which environments decide at the next observation."""

    def reset(self) -> None:
        """Begin new episodes in all environments."""

    def update(self, played: Trajectories) -> dict[str, float]:
        """Learn from the episodes of a round; return metrics."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def play(env: Any, agent: GroupAgent, group: int, seed: int, rng: torch.Generator) -> Trajectories:
    """Play one episode in every environment and return the decisions; `group` consecutive environments share a seed."""
    observation, _ = env.reset(seed=seed, options={"group": group})
    agent.reset()
    n, request_images = env.num_envs, getattr(env, "request_images", None)
    still_open, success = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    steps, parts, owners = torch.zeros(n, dtype=torch.long), [], []
    while still_open.any():
        action, decided, columns = agent.act(observation, rng)
        if request_images is not None:
            request_images(agent.reads_next & still_open)
        if columns:
            counted = still_open[decided]
            parts.append({name: values[counted.to(values.device)] for name, values in columns.items()})
            owners.append(decided.nonzero()[:, 0][counted])
        observation, _, terminated, truncated, infos = env.step(action)
        success |= infos["success"].cpu() & still_open
        steps += still_open
        still_open &= ~(terminated | truncated).cpu()
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if request_images is not None:
        request_images(None)
    return Trajectories(columns, torch.cat(owners), success, steps, torch.arange(n) // group)


def train_groups(env: Any, agent: GroupAgent, config: GroupConfig, run: Run, seed: int, progress: Progress) -> None:
    """Train the agent in `env`; a run resumed from its checkpoint gives the same result as an uninterrupted run."""
    env.info.require_end()
    env, rng, done, steps = on_device(env, agent.device), torch.Generator(agent.device).manual_seed(seed), 0, 0
    if saved := run.load():
        done, steps = saved["round"], saved["steps"]
        agent.load_state_dict(saved["agent"])
        rng.set_state(saved["rng"])
    while done < config.rounds:
        played = play(env, agent, config.group, training_seed(seed, done * config.num_envs), rng)
        done, steps = done + 1, steps + int(played.steps.sum())
        try:
            measured = agent.update(played)
        except FloatingPointError as error:
            raise diverged(run, done, str(error)) from None
        rates = played.success.view(-1, config.group).float().mean(1)
        measured |= {
            "train/success": float(played.success.float().mean()),
            "train/length": float(played.steps.float().mean()),
            "train/mixed_groups": float(((rates > 0) & (rates < 1)).float().mean()),
        }
        report(run, done, measured | counts(env, steps), progress)
        if done % config.checkpoint_every == 0 or done == config.rounds or run.stop_signal:
            run.save(done, {"round": done, "steps": steps, "agent": agent.state_dict(), "rng": rng.get_state()})
            run.end_if_stopped(done)
