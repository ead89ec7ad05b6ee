"""On-policy loop: act in a vector environment for a rollout, update, drop the rollout.

             |<------------- rollout of T steps ------------->|  update  |<--- rollout ...
environment  s_0 a_0 r_0  s_1 a_1 r_1 ...  s_last | s_0' ...
                                             |      `- next episode, same step (autoreset)
                                             `- infos["final_obs"]: bootstrap of a truncated step
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import on_device
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.rewards import RewardSource, TermsName
from robot_rl.training.metrics import EpisodeMetrics, Progress, counts, diverged, report
from robot_rl.training.run import Run
from robot_rl.util import ranks
from robot_rl.util.limits import PositiveInt
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class OnPolicyConfig:
    """Hyperparameters of the on-policy loop."""

    steps: PositiveInt = 5_000_000
    """Total number of environment steps."""
    num_envs: PositiveInt = 512
    """Number of parallel environments."""
    rollout: PositiveInt = 24
    """Steps per environment between two updates."""
    reward: TermsName = "task"
    """Reward source: the task's own reward, its terms with one critic each, or success (1 at success, else 0)."""
    checkpoint_every: PositiveInt = 500_000
    """Environment steps between two checkpoints."""

    def __post_init__(self) -> None:
        if self.num_envs * self.rollout == 1:
            raise ValueError(
                "num_envs and rollout are both 1, but learning compares the steps of a rollout; one of the two must be "
                "at least 2"
            )


def train_on_policy(
    env: Any, agent: PPO, reward: RewardSource, config: OnPolicyConfig, run: Run, seed: int, progress: Progress
) -> None:
    """Train the agent in `env`; a resumed run continues from its checkpoint.

    Of ranks that learn together, each acts in environments of its own and learns from the rows of all. Their
    environments are not saved: a resumed run begins new episodes.

    Logged metrics: returns, lengths and success of the last episodes, the update's metrics, and means over the rollout
    of `infos["metrics"]` (`env/<name>`) and of `infos["rewards"]` (`reward/<name>`).
    """
    env, step, alone = on_device(env, agent.device), 0, ranks.count() == 1
    first = training_seed(seed) + ranks.rank() * env.num_envs
    observation, _ = env.reset(seed=first, options={"stagger": True})
    agent.reset()
    rng = ranks.generator(seed, agent.device)
    episodes = EpisodeMetrics(env.num_envs, agent.device)
    if saved := run.load():
        step = saved["step"]
        agent.load_state_dict(saved["agent"])
        rng.set_state(saved["rng"])
        if alone and "episodes" in saved:
            episodes.load_state_dict(saved["episodes"])
        if alone and "env" in saved:
            agent.load_memory(saved["memory"])
            observation = env.load_state_dict(saved["env"])
        else:  # the environment cannot be restored
            episodes.restart()
    each = config.rollout * env.num_envs * ranks.count()
    while step < config.steps:
        begun = time.monotonic()
        batch, observation, measured = collect(env, agent, reward, observation, config.rollout, rng, episodes)
        acted = time.monotonic()
        step += each
        try:
            measured |= agent.update(ranks.all_rows(batch, config.rollout))
        except FloatingPointError as error:
            raise diverged(run, step, str(error)) from None
        speed = each / (time.monotonic() - begun)
        measured |= {"train/steps_per_second": speed, "train/update_seconds": time.monotonic() - acted}
        row = ranks.mean_over_ranks(episodes.summary() | measured) | counts(env, step)
        report(run, step, row, progress)
        stop = ranks.largest(run.stop_signal)
        if step % config.checkpoint_every < each or step >= config.steps or stop:
            state = {"step": step, "agent": agent.state_dict(), "rng": rng.get_state(), "memory": agent.memory()}
            if alone:
                state |= {"episodes": episodes.state_dict()}
                state |= {"env": env.state_dict()} if hasattr(env, "state_dict") else {}
            run.save(step, state)
            run.end_if_stopped(step, stop)
    agent.finish()


def collect(
    env: Any, agent: PPO, reward: RewardSource, observation: Observation, steps: int, rng: torch.Generator,
    episodes: EpisodeMetrics,
) -> tuple[dict[str, Tensor], Observation, dict[str, float]]:  # fmt: skip
    """Act in N environments for T = `steps` steps; return T * N rows for an update, next observation and metrics."""
    rows: list[dict[str, Tensor]] = []
    finals: list[Tensor] = []
    request_images = getattr(env, "request_images", None)
    sums: dict[str, Tensor] = {}
    for step in range(steps):
        action, row = agent.act(observation, rng)
        if request_images is not None:
            request_images(None if agent.reads_last and step == steps - 1 else agent.reads_next)
        observation, task_reward, terminated, truncated, infos = env.step(action)
        rewards, done = reward(task_reward, infos), terminated | truncated
        rows.append(row | {"reward": rewards, "terminated": terminated, "done": done})
        ended = done.cpu()
        if ended.any():
            finals.append(agent.state(infos["final_obs"])[ended])
            agent.reset(ended.nonzero().squeeze(-1))
        episodes.add(rewards if rewards.ndim == 1 else rewards.sum(1), done, infos)
        for group, names in (("env", infos.get("metrics", {})), ("reward", infos.get("rewards", {}))):
            for name, value in names.items():
                now = torch.stack([value.nansum(), (~value.isnan()).sum()])
                key = f"{group}/{name}"
                sums[key] = sums[key] + now if key in sums else now
    rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    metrics = {name: float(total / count) for name, (total, count) in sums.items() if count}
    return agent.assess(rollout, observation, finals), observation, metrics
