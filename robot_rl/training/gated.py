"""Offline RL on denoising steps: RL-100 (Lei et al. 2025, arXiv 2510.14830) with the gate of Uni-O4 (Lei et al. 2024,
arXiv 2311.03351), without a dynamics model: a rollout of one chunk needs no dynamics model.

    values   learn Q and V by IQL on recorded chunks, once
    round    sample denoising chains at recorded states; advantage A = Q(s, chunk) - V(s); update by DPPO
    gate     J = mean Q(s, policy(s)) at fixed states and noise; a round that does not raise J is rolled back
"""

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
    """Config of the IQL agent that learns the values Q and V; its actor does not learn."""
    value_updates: PositiveInt = 2_000
    """Gradient steps of the values Q and V."""
    batch: PositiveInt = 256
    """Chunks per gradient step of the values."""
    rounds: NonNegativeInt = 30
    """Rounds of policy improvement; 0: no offline RL."""
    rows: PositiveInt = 2_000
    """Number of recorded states per round and for the gate."""
    gate: bool = True
    """Whether to roll back rounds that do not raise the offline estimate J."""


class Gate:
    """Keep the policy with the largest estimate J so far, with the policy's optimizer moments and learning rate.

    A rejected round does not reset DPPO's value network, which learned from chains of the kept policy.
    """

    def __init__(self, agent: DPPO, estimate: float):
        self.agent, self.best = agent, estimate
        self.kept = self._weights()

    def _weights(self) -> dict[str, Any]:
        agent = self.agent
        return copy.deepcopy({"policy": agent.policy.state_dict(), "optimizer": agent.optimizer.state_dict()})

    def judge(self, estimate: float) -> bool:
        """Accept the agent's policy if its estimate exceeds the best estimate; else restore the kept policy."""
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
    """Return new Q and V networks for the chunks that a policy executes, with the policy's normalizer."""
    size = Size(policy.size.observation, policy.size.action)
    judged = GaussianPolicy(size, GaussianConfig(horizon=policy.execute)).to(policy.normalizer.mean.device)
    judged.normalizer.load_state_dict(policy.normalizer.state_dict())
    return IQL(judged, config, seed, limits)


def value_of(values: IQL, observation: Observation, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q (B,) of chunks (B, execute or more, A) at observations, and V (B,) of the observations."""
    action = chunk[:, : values.policy.execute].clamp(-1, 1).flatten(1)
    with torch.no_grad():
        features = values.policy.features(observation)
        return values.target.value(features, action).amin(0), values.state_value(features)


def estimate(policy: ChunkPolicy, values: IQL, observation: Observation, noise: Tensor) -> float:
    """Return J, the mean Q of the chunks that the policy denoises from `noise` at observations."""
    return float(value_of(values, observation, policy.base(observation, noise))[0].mean())


def improve_offline(
    agent: DPPO, episodes: list[dict[str, Tensor]], reward: RewardSource, config: OfflineConfig, run: Run, seed: int
) -> None:
    """Learn values from episodes of any quality with rewards of `reward`, then improve the agent's policy in rounds.

    The run's offline.json has the estimate J before and after the rounds, and the number of accepted rounds.
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
        agent.update(sample_chains(agent, values, recorded(), rng))
        if config.gate:
            accepted += gate.judge(estimate(policy, values, fixed, noise))
    metrics |= {"after": estimate(policy, values, fixed, noise), "accepted": accepted}
    run.write("offline.json", metrics)  # a file of its own: metrics before the first checkpoint are dropped at a resume


@torch.no_grad()
def sample_chains(agent: DPPO, values: IQL, seen: Observation, rng: torch.Generator) -> dict[str, Tensor]:
    """Return a batch for DPPO's update: denoising chains that the policy samples at observations (B, ...)."""
    state = agent.state(seen)
    chain = agent.chain.sample(seen, agent.policy.noise(len(state), rng), rng)
    q, v = value_of(values, seen, chain[:, -1])
    return {"state": state, "chain": chain.flatten(1), "value": agent.critic(state), "advantage": q - v, "target": q}
