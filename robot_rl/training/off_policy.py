"""The off-policy loop: act in a vector environment, store, update; offline to online with demonstrations."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.residual import ResidualPolicy
from robot_rl.data.replay import Replay, sample_batches
from robot_rl.learning.actor_critic import ActorCritic
from robot_rl.training.metrics import Progress, check_finite, counts, report
from robot_rl.training.run import Run
from robot_rl.util.limits import Count, NonNegative, Positive, Share, Whole
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class OffPolicyConfig:
    """Numbers of the loop."""

    steps: Count = 40_000
    """Environment steps in all."""
    num_envs: Count = 32
    """Environments stepped side by side."""
    updates_per_step: NonNegative = 0.4
    """Critic updates per environment step."""
    batch: Count = 128
    """Transitions per update."""
    demo_share: Share = 0.5
    """Share of each batch that comes from demonstrations."""
    n_step: Count = 3
    """Steps of reward before the critic takes over."""
    warmup: Whole = 4_000
    """Environment steps with random corrections, during which only the critic learns."""
    warmup_noise: NonNegative = 0.4
    """Standard deviation of the random corrections, in units of the largest one."""
    noise_memory: Share = 0.9
    """Correlation of exploration from one step to the next (Ornstein-Uhlenbeck, as in Lillicrap et al. 2016): white
    noise averages out before it can carry an arm out of a place where its base policy stands still."""
    learning_starts: Whole = 1_000
    """Environment steps before the first update."""
    capacity: Count = 200_000
    """Rows of replay."""
    checkpoint_every: Count = 8_000
    """Environment steps between checkpoints."""
    log_every: Count = 1_600
    """Environment steps between rows of metrics."""
    stop_at: Positive = 1.1
    """Stop early when the success rate of the last 200 episodes, or as many as there are environments if these are
    more, reaches this; above 1 never stops."""

    def __post_init__(self) -> None:
        if self.capacity // self.num_envs <= self.n_step:
            raise ValueError(
                f"capacity {self.capacity} leaves each of num_envs {self.num_envs} environments "
                f"{self.capacity // self.num_envs} rows, too few for n_step {self.n_step}; raise the capacity"
            )


def demo_replay(
    policy: ResidualPolicy, episodes: list[dict[str, Tensor]], rng: torch.Generator, rows: int | None = None
) -> Replay:
    """Demonstrations as replay, with the base actions the policy's base would have proposed along the way.

    An episode holds state (T, D), action (T, A) in [-1, 1], reward (T,) and terminated (T,), without which a reward
    terminates; its last state stands for the one after.
    """
    total = sum(len(e["action"]) + 1 for e in episodes)
    replay = Replay(max(rows or 0, total + 8), 1, policy.size.observation, policy.size.action)
    for episode in episodes:
        add_episode(replay, policy, episode, rng)
    return replay


def add_episode(replay: Replay, policy: ResidualPolicy, episode: dict[str, Tensor], rng: torch.Generator) -> None:
    """Append one recorded episode, asking the base for its chunk at every `execute`-th state.

    `final` (1, D) is the state after the last step; without it the last one stands in.
    """
    state = torch.cat([episode["state"], episode.get("final", episode["state"][-1:])])
    asked = policy.base.act({"observation.state": state[:: policy.base.execute]}, rng)
    base = asked[:, : policy.base.execute].flatten(0, 1)[: len(state)]
    terminated = episode.get("terminated", episode["reward"] > 0)
    replay.add_episode(episode | {"state": state, "base": base, "terminated": terminated})


def train_off_policy(
    env: Any,
    agent: ActorCritic,
    demos: Replay,
    config: OffPolicyConfig,
    run: Run,
    seed: int,
    progress: Progress,
) -> None:
    """Improve the agent's policy in `env` and leave the averaged actor in it; resumes from the run's checkpoint."""
    policy = agent.policy
    replay = Replay(config.capacity, env.num_envs, policy.size.observation, policy.size.action)
    rng = torch.Generator().manual_seed(seed)
    recent: deque[float] = deque(maxlen=max(200, env.num_envs))
    ended = torch.zeros(env.num_envs, dtype=torch.bool)
    step, owed = 0, 0.0
    noise, fresh = torch.zeros(env.num_envs, policy.size.action), (1 - config.noise_memory**2) ** 0.5
    observation, _ = env.reset(seed=training_seed(seed))
    policy.reset()
    saved = run.load()
    if saved is not None:
        step, owed = saved["step"], saved["owed"]
        recent.extend(saved["recent"])
        ended = saved["ended"]
        agent.load_state_dict(saved["agent"])
        replay.load_state_dict(saved["replay"])
        rng.set_state(saved["rng"])
        policy.base_action(observation, torch.Generator())  # makes the runner whose state is restored next
        assert policy.runner is not None
        policy.runner.load_state_dict(saved["runner"])
        observation, noise = env.load_state_dict(saved["env"]), saved["noise"]
    metrics: dict[str, Tensor] = {}
    learns = False
    physics = ThreadPoolExecutor(1, "physics", torch.set_num_threads, (1,))

    def good_enough() -> bool:
        return len(recent) == recent.maxlen and sum(recent) / len(recent) >= config.stop_at

    def figures() -> dict[str, float]:
        success = {"train/success": sum(recent) / len(recent)} if ended.all() else {}
        return {name: float(value) for name, value in metrics.items()} | success

    while step < config.steps and not good_enough():
        noise = config.noise_memory * noise + fresh * torch.randn(noise.shape, generator=rng)
        warmup = step < config.warmup
        action = _explore(policy, observation, noise, rng, config.warmup_noise if warmup else None)
        base = policy.last_base
        # The learner works on what it has while the robots move; neither reads what the other writes.
        moving = physics.submit(env.step, action)
        if owed >= 1:
            due, owed = int(owed), owed % 1
            half = int(config.batch * config.demo_share)
            sources = [(replay, config.batch - half), (demos, half)]
            for batch in sample_batches(sources, due, config.n_step, agent.config.discount, rng):
                metrics |= agent.update(batch, learn_actor=step >= config.warmup)
        following, _, terminated, truncated, infos = moving.result()
        # Success alone pays, whatever a task's dense reward is: no robot can measure that, and demonstrations and
        # corrections go into the same critic.
        reward, done = infos["success"].float(), terminated | truncated
        row = {"state": observation["observation.state"], "base": base, "action": action, "reward": reward}
        final = None
        if done.any():
            state = infos["final_obs"]["observation.state"]
            assert policy.runner is not None
            final = {"state": state, "base": policy.runner.peek({"observation.state": state}, done, rng)}
            policy.reset(done.nonzero().squeeze(-1))
            # Successes end sooner than failures: until every first episode has ended, no second one counts.
            recent.extend(reward[done if ended.all() else done & ~ended].tolist())
            ended |= done
        replay.add(row | {"terminated": terminated, "last": done}, final)
        observation = following
        step += env.num_envs
        learns = learns or (step >= config.learning_starts and replay.ready(config.n_step))
        if learns:
            owed += config.updates_per_step * env.num_envs
        over = step >= config.steps or good_enough()
        if over or step % config.log_every < env.num_envs:
            report(run, step, figures() | counts(env, step), progress)
        if over or run.asked or step % config.checkpoint_every < env.num_envs:
            check_finite(run, step, figures())
            assert policy.runner is not None
            run.save(
                step,
                {
                    "step": step,
                    "owed": owed,
                    "recent": list(recent),
                    "ended": ended,
                    "agent": agent.state_dict(),
                    "replay": replay.state_dict(),
                    "rng": rng.get_state(),
                    "runner": policy.runner.state_dict(),
                    "env": env.state_dict(),
                    "noise": noise,
                },
            )
            run.end_if_asked(step)
    physics.shutdown()
    policy.actor.load_state_dict(agent.average.state_dict())


@torch.no_grad()
def _explore(
    policy: ResidualPolicy, observation: dict[str, Tensor], noise: Tensor, rng: torch.Generator, warmup: float | None
) -> Tensor:
    """Actions (n, A) drawn from the policy, or around its base's while the actor has learned nothing yet.

    `noise` (n, A) is normal; `warmup` is how much of it is a correction then, and None afterwards, when an actor of
    fixed standard deviation adds as much, and one that learns it draws its own.
    """
    policy.last_base = base = policy.base_action(observation, rng)
    features, std = policy.features(observation["observation.state"], base), policy.config.actor.std
    if warmup is not None:
        correction = warmup * noise
    elif std is None:
        correction, _ = policy.actor.sample(features, rng)
    else:
        correction = policy.actor.mean(features) + std * noise
    return policy.combine(base, correction.clamp(-1, 1))
