"""Offline RL on denoising steps: RL-100 (Lei et al. 2025, arXiv 2510.14830), its gate as in Uni-O4 (Lei et al. 2024,
arXiv 2311.03351), here without a model of the dynamics: a rollout of one chunk needs none.

    values     Q, V by IQL on recorded chunks, once
    a round    chains at recorded states by the policy; their A = Q(s, chunk) - V(s); DPPO's update
    the gate   J = mean Q(s, policy(s)) at fixed states and noise; a round that does not raise J is rolled back
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Observation, Size
from policies.networks.chunks import ChunkPolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import Limits
from robot_rl.learning.algorithms.dppo import DPPO
from robot_rl.learning.algorithms.iql import IQL, IQLConfig
from robot_rl.rewards import RewardSource
from robot_rl.training.metrics import check_update
from robot_rl.training.off_policy import batches, demo_replay
from robot_rl.training.run import Run
from robot_rl.util.limits import NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class OfflineConfig:
    """Hyperparameters of offline RL on denoising steps."""

    values: IQLConfig = field(
        default_factory=lambda: IQLConfig(expectile=0.7, tau=0.005, discount=0.99, n_step=1, l2=0.0, actor_delay=10**9)
    )
    """Of the values; no actor is learned with them."""
    value_updates: PositiveInt = 2_000
    """Updates of the values."""
    batch: PositiveInt = 256
    """Chunks per update of the values."""
    rounds: NonNegativeInt = 30
    """Rounds of the policy; 0: no offline RL."""
    rows: PositiveInt = 2_000
    """Recorded states from which chains are sampled in a round, and at which the gate looks."""
    gate: bool = True
    """Take back rounds that the offline estimate does not find better."""


class Gate:
    """Keeps the policy of the largest estimate so far, with its moments and learning rate.

    The value network learns from chains of the kept policy, so what it learned in a rejected round stays.
    """

    def __init__(self, agent: DPPO, estimate: float):
        self.agent, self.best = agent, estimate
        self.kept = self._weights()

    def _weights(self) -> dict[str, Any]:
        agent = self.agent
        return copy.deepcopy({"policy": agent.policy.state_dict(), "optimizer": agent.optimizer.state_dict()})

    def judge(self, estimate: float) -> bool:
        """Accept the agent's policy if its estimate is above the best; else take it back."""
        if estimate > self.best:
            self.best, self.kept = estimate, self._weights()
            return True
        now, kept = self._weights()["optimizer"], copy.deepcopy(self.kept)
        actor, critic = kept["optimizer"]["param_groups"][0], now["param_groups"][1]
        state = {k: kept["optimizer"]["state"][k] for k in actor["params"] if k in kept["optimizer"]["state"]}
        state |= {k: now["state"][k] for k in critic["params"]}
        self.agent.policy.load_state_dict(kept["policy"])
        self.agent.optimizer.load_state_dict({"state": state, "param_groups": [actor, critic]})
        return False


def values_for(policy: ChunkPolicy, config: IQLConfig, seed: int, limits: Limits) -> IQL:
    """Return fresh values of the chunks that a policy executes, with its normalizer."""
    size = Size(policy.size.observation, policy.size.action)
    judged = GaussianPolicy(size, GaussianConfig(horizon=policy.execute)).to(policy.normalizer.mean.device)
    judged.normalizer.load_state_dict(policy.normalizer.state_dict())
    return IQL(judged, config, seed, limits)


def value_of(values: IQL, observation: Observation, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q and V (B,) of chunks (B, execute or more, A) at observations."""
    action = chunk[:, : values.policy.execute].clamp(-1, 1).flatten(1)
    with torch.no_grad():
        features = values.policy.features(observation)
        return values.target.value(features, action).amin(0), values.state_value(features)


def estimate(policy: ChunkPolicy, values: IQL, observation: Observation, noise: Tensor) -> float:
    """Return J, the mean value of the chunks that the policy makes of `noise`."""
    return float(value_of(values, observation, policy.base(observation, noise))[0].mean())


def improve_offline(
    agent: DPPO, episodes: list[dict[str, Tensor]], reward: RewardSource, config: OfflineConfig, run: Run, seed: int
) -> None:
    """Learn values from episodes of any quality, rewarded by `reward`, then improve the agent's policy in rounds.

    The run's offline.json holds the estimates before and after, and how many rounds the gate accepted.
    """
    policy, rng = agent.policy, torch.Generator().manual_seed(seed)
    values = values_for(policy, config.values, seed, reward.limits(config.values.discount))
    replay = demo_replay(values, episodes, rng)
    for k, batch in enumerate(batches([(replay, config.batch)], config.value_updates, values, rng)):
        check_update(run, k, values.update(batch), batch)

    def recorded() -> Observation:
        return {"observation.state": replay.sample(config.rows, values.sampling, rng)["observation.state"]}

    fixed, noise, accepted = recorded(), policy.noise(config.rows, rng), 0
    gate = Gate(agent, estimate(policy, values, fixed, noise))
    metrics = {"before": gate.best}
    for _ in range(config.rounds):
        agent.update(imagined(agent, values, recorded(), rng))
        if config.gate:
            accepted += gate.judge(estimate(policy, values, fixed, noise))
    metrics |= {"after": estimate(policy, values, fixed, noise), "accepted": accepted}
    run.write("offline.json", metrics)  # metrics from before the first checkpoint would be dropped


@torch.no_grad()
def imagined(agent: DPPO, values: IQL, seen: Observation, rng: torch.Generator) -> dict[str, Tensor]:
    """Return what DPPO's update reads, for chains that the policy samples at recorded observations (B, ...)."""
    state = agent.state(seen)
    chain = agent.chain.sample(seen, agent.policy.noise(len(state), rng), rng)
    q, v = value_of(values, seen, chain[:, -1])
    return {"state": state, "chain": chain.flatten(1), "value": agent.critic(state), "advantage": q - v, "target": q}
