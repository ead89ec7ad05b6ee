"""Soft actor-critic of outside forces, with a given temperature: an adversary of bounded rationality.

    y      = -r / scale + discount * (min_i Qbar_i(s', f') - T log pi(f'|s', T)),   f' ~ pi(s', T)
    critic:  mean_i (Q_i(s, f) - y)^2
    actor:   T log pi(f|s, T) - min_i Q_i(s, f)

Both networks read the temperature T, which differs between episodes: a hot adversary pushes at random, a cold one where
it hurts most. Reddi et al. 2024, "Robust Adversarial Reinforcement Learning via Bounded Rationality Curricula" (arXiv
2311.01642); Haarnoja et al. 2018 (arXiv 1812.05905). Deviation: the reward is divided by its standard deviation, so
temperatures do not depend on the task's units.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from policies.base import RunningNormalizer
from policies.networks.ensemble import ActionValues
from policies.networks.gaussian import GaussianActor, GaussianConfig
from robot_rl.data.replay import NEXT, Column, Replay, Sampling
from robot_rl.learning.parts.objectives import gradient_step

HIDDEN = (64, 64)
BATCH, CAPACITY = 256, 200_000
LR, TAU = 1e-3, 0.01
SAMPLING = Sampling(n_step=1, discount=0.99)


class Adversary:
    """Agent that chooses outside forces (n, F) in [-1, 1] to lower another agent's reward."""

    def __init__(self, state: int, forces: int, lanes: int, seed: int, device: torch.device):
        """`state`: size of the observed state; `lanes`: number of parallel environments."""
        self.device = device
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.normalizer, self.reward = RunningNormalizer(state).to(device), RunningNormalizer(1).to(device)
            config = GaussianConfig(hidden=HIDDEN, initial_std=1.0, layer_norm=False)
            self.actor = GaussianActor(state + 1, forces, config).to(device)
            self.critic = ActionValues(state + 1, forces, 2, HIDDEN, layer_norm=True).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.optimizers = [torch.optim.Adam(net.parameters(), LR, fused=True) for net in (self.critic, self.actor)]
        columns = {"state": Column((state,), observed=True), "temperature": Column(), "action": Column((forces,))}
        self.replay = Replay(CAPACITY, lanes, columns, device)
        self.rng = torch.Generator().manual_seed(seed)

    def _features(self, state: Tensor, temperature: Tensor) -> Tensor:
        return torch.cat([self.normalizer(state), temperature.log()[:, None]], 1)

    @torch.no_grad()
    def act(self, state: Tensor, temperature: Tensor, mean: bool = False) -> Tensor:
        """Return forces (n, F) in states (n, S) at temperatures (n,): random ones, or with `mean` the most likely."""
        features = self._features(state, temperature)
        return self.actor.mean(features) if mean else self.actor.sample(features, self.rng)[0]

    def add(self, step: dict[str, Tensor], final: Tensor | None) -> None:
        """Keep one step of all environments: state, temperature, action, the other agent's reward, terminated and last.
        `final`: states (n, S) after the step, needed if any episode ended."""
        self.normalizer.update(step["state"])
        self.reward.update(step["reward"][:, None], 1e-6)
        self.replay.add(step, None if final is None else {"state": final})

    def learn(self) -> dict[str, float]:
        """Take one gradient step of critics and actor, as soon as there are enough rows; return metrics."""
        if self.replay.size < 4 * BATCH:
            return {}
        batch = self.replay.sample(BATCH, SAMPLING, self.rng)
        t = batch["temperature"]
        scale = self.reward.std
        here, there = self._features(batch["state"], t), self._features(batch[NEXT + "state"], t)
        with torch.no_grad():
            force, log_prob = self.actor.sample(there, self.rng)
            ahead = self.target(there, force).amin(0)[:, 0] - t * log_prob
            wanted = -batch["reward"] / scale + batch["discount"] * ahead
        values = self.critic(here, batch["action"])[..., 0]
        critic_loss = (values - wanted).square().mean()
        gradient_step(critic_loss, self.optimizers[0])
        force, log_prob = self.actor.sample(here, self.rng)
        gradient_step((t * log_prob - self.critic(here, force).amin(0)[:, 0]).mean(), self.optimizers[1])
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                old.lerp_(new, TAU)
        return {"adversary/entropy": -float(log_prob.detach().mean())}

    def state_dict(self) -> dict[str, Any]:
        nets = [net.state_dict() for net in (self.normalizer, self.reward, self.actor, self.critic, self.target)]
        steps = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"nets": nets, "steps": steps, "replay": self.replay.state_dict(), "rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        nets = (self.normalizer, self.reward, self.actor, self.critic, self.target)
        for net, saved in zip(nets, state["nets"], strict=True):
            net.load_state_dict(saved)
        for optimizer, saved in zip(self.optimizers, state["steps"], strict=True):
            optimizer.load_state_dict(saved)
        self.replay.load_state_dict(state["replay"])
        self.rng.set_state(state["rng"])
