"""The on-policy loop: act in a vector environment for a rollout, update, forget it.

             |<------------- rollout of T steps ------------->|  update  |<--- rollout ...
environment  s_0 a_0 r_0  s_1 a_1 r_1 ...  s_last | s_0' ...
                                             |      `- begins in the same step (autoreset)
                                             `- infos["final_obs"]: what a truncated step is worth
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.learning.gae import advantages
from robot_rl.learning.ppo import PPO
from robot_rl.training.metrics import Episodes, Progress, counts, diverged, report
from robot_rl.training.run import Run
from robot_rl.util.limits import Count
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class OnPolicyConfig:
    """Numbers of the loop."""

    steps: Count = 5_000_000
    """Environment steps in all."""
    num_envs: Count = 512
    """Environments stepped side by side."""
    rollout: Count = 24
    """Steps of every environment between updates."""
    checkpoint_every: Count = 500_000
    """Environment steps between checkpoints."""

    def __post_init__(self) -> None:
        if self.num_envs * self.rollout == 1:
            raise ValueError(
                "num_envs and rollout are both 1, and what is learned is how the steps of a rollout compare; "
                "one of the two must be at least 2"
            )


def train_on_policy(env: Any, agent: PPO, config: OnPolicyConfig, run: Run, seed: int, progress: Progress) -> None:
    """Improve the agent's policy in `env`; resumes from the run's checkpoint.

    Logged are returns, lengths and, where infos have it, success of the last episodes, the update's metrics, and the
    means over the rollout of the tensors in `infos["metrics"]` as `env/<name>`, and in `infos["rewards"]` as
    `reward/<name>`.
    """
    policy, step = agent.policy, 0
    observation, _ = env.reset(seed=training_seed(seed), options={"stagger": True})
    policy.reset()
    rng = torch.Generator(agent.device).manual_seed(seed)
    episodes = Episodes(env.num_envs, agent.device)
    saved = run.load()
    if saved is not None:
        step = saved["step"]
        agent.load_state_dict(saved["agent"])
        rng.set_state(saved["rng"])
        policy.history.load_state_dict(saved["history"], agent.device)
        episodes.load_state_dict(saved["episodes"])
        observation = env.load_state_dict(saved["env"])
    each = config.rollout * env.num_envs
    while step < config.steps:
        begun = time.monotonic()
        batch, observation, measured = collect(env, agent, observation, config.rollout, rng, episodes)
        acted = time.monotonic()
        step += each
        try:
            measured |= agent.update(batch)
        except FloatingPointError as error:
            raise diverged(run, step, str(error)) from None
        speed = each / (time.monotonic() - begun)
        measured |= {"train/steps_per_second": speed, "train/update_seconds": time.monotonic() - acted}
        report(run, step, episodes.summary() | measured | counts(env, step), progress)
        if step % config.checkpoint_every < each or step >= config.steps or run.asked:
            run.save(
                step,
                {
                    "step": step,
                    "agent": agent.state_dict(),
                    "rng": rng.get_state(),
                    "history": policy.history.state_dict(),
                    "episodes": episodes.state_dict(),
                    "env": env.state_dict(),
                },
            )
            run.end_if_asked(step)


@torch.no_grad()
def collect(
    env: Any, agent: PPO, observation: dict[str, Tensor], steps: int, rng: torch.Generator, episodes: Episodes
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    """Act for `steps` steps; return the T * N rows that the agent learns from, the next observation, and metrics."""
    policy = agent.policy
    rows: list[dict[str, Tensor]] = []
    finals: list[Tensor] = []
    sums: dict[str, Tensor] = {}
    for _ in range(steps):
        frames, state = policy.remember(observation), agent.state(observation)
        mean = policy.mean(frames)
        action = policy.sample(mean, rng)
        observation, reward, terminated, truncated, infos = env.step(action.clamp(-1, 1))
        done = terminated | truncated
        rows.append({"frames": frames, "state": state, "action": action, "mean": mean, "reward": reward})
        rows[-1] |= {"terminated": terminated, "done": done}
        if done.any():
            finals.append(agent.state(infos["final_obs"])[done])
            policy.reset(done.nonzero().squeeze(-1))
        episodes.add(reward, done, infos.get("success"))
        for group, names in (("env", infos.get("metrics", {})), ("reward", infos.get("rewards", {}))):
            for name, value in names.items():
                now = torch.stack([value.nansum(), (~value.isnan()).sum()])
                sums[f"{group}/{name}"] = sums.get(f"{group}/{name}", torch.zeros(2)) + now
    rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    batch = {name: rollout[name] for name in ("frames", "state", "action", "mean")}
    batch |= _judge(agent, rollout, agent.state(observation), finals)
    metrics = {name: float(total / count) for name, (total, count) in sums.items() if count}
    return {name: x.flatten(0, 1) for name, x in batch.items()}, observation, metrics


def _judge(agent: PPO, rollout: dict[str, Tensor], last: Tensor, finals: list[Tensor]) -> dict[str, Tensor]:
    """Values, advantages and targets (T, N) of a rollout that left the environments in states `last` (N, C).

    `finals` are the states in which episodes ended, in the order of the done steps. Nothing was ever done in them, so
    the critic extrapolates, and by bootstrapping learns what it extrapolated: without a bound, 10 becomes 29 in 160
    updates where episodes drift for 5 steps of reward 1 at discount 0.9. So their values are held within those of the
    rollout. A simulation that diverged has no such state: there the value of the state before stands in.
    """
    value = agent.critic(rollout["state"])
    following = torch.cat([value[1:], agent.critic(last)[None]])
    if finals:
        done = rollout["done"]
        ended = agent.critic(torch.cat(finals))
        following[done] = torch.where(ended.isfinite(), ended.clamp(value.min(), value.max()), value[done])
    advantage, target = advantages(
        rollout["reward"], value, following, rollout["terminated"], rollout["done"],
        agent.config.discount, agent.config.gae_lambda,
    )  # fmt: skip
    return {"value": value, "advantage": advantage, "target": target}
