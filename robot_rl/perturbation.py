"""Policies under test with a changed state: noise, the worst of several perturbations, smoothing with a certificate.

Sizes are in standard deviations of the state's components over development episodes of the policy.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from policies.base import Chunk, Observation, Prefix, RunnablePolicy
from robot_rl.evaluation import evaluate
from robot_rl.interface.observation_spec import STATE
from robot_rl.util.errors import ConfigError
from robot_rl.util.seeds import DEVELOPMENT

EPISODES = 20
"""Development episodes that measure the scale of the state."""


class PerturbedPolicy:
    """A policy that reads a perturbed observation.state; all else is the policy's."""

    def __init__(self, policy: RunnablePolicy, scale: Tensor, size: float = 0.0, tries: int = 1, smooth: float = 0.0):
        """
        Args:
            scale: standard deviation (D,) of the state's components.
            size: largest change of a component, in units of `scale`.
            tries: number of uniform random perturbations at each decision, of which the one that moves the first action
                furthest is taken; 1: random noise. The attacker sees actions, not the policy (black box).
            smooth: standard deviation of Gaussian noise added afterwards, in units of `scale`.
        """
        if tries > 1 and not hasattr(policy, "peek"):
            raise ConfigError("--perturb-tries above 1 asks a policy several times per step, which a server cannot do")
        self.policy, self.scale, self.size, self.tries, self.smooth = policy, scale, size, tries, smooth

    def __getattr__(self, name: str) -> Any:
        if name == "policy":  # not set yet while the policy is being copied
            raise AttributeError(name)
        return getattr(self.policy, name)

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return the policy's chunks (B, horizon, A) for the perturbed observation."""
        state = observation[STATE]
        if self.size:
            state = self._perturbed(observation, rng)
        if self.smooth:
            state = state + self.smooth * self.scale * torch.randn(state.shape, generator=rng)
        return self.policy.infer(observation | {STATE: state}, rng, prefix)

    def _perturbed(self, observation: Observation, rng: torch.Generator) -> Tensor:
        state = observation[STATE]
        offered = state + self.size * self.scale * (2 * torch.rand(self.tries, *state.shape, generator=rng) - 1)
        if self.tries == 1:
            return offered[0]
        every, start = torch.ones(len(state), dtype=torch.bool), rng.get_state()

        def first_action(seen: Tensor) -> Tensor:
            rng.set_state(start)  # a sampling policy draws the same numbers each time
            action: Tensor = self.policy.peek(observation | {STATE: seen}, every, rng)[:, 0]  # type: ignore[attr-defined]
            return action

        clean = first_action(state)
        moved = torch.stack([(first_action(seen) - clean).norm(dim=1) for seen in offered])
        return offered[moved.argmax(0), torch.arange(len(state))]


def state_scale(
    policy: RunnablePolicy, env: Any, on_step: Callable[[int, dict[str, Any]], None] | None = None
) -> Tensor:
    """Return the standard deviation (D,) of observation.state over `EPISODES` development episodes of the policy."""
    seen: list[Tensor] = []

    class Watched(PerturbedPolicy):
        def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
            seen.append(observation[STATE].cpu())
            return self.policy.infer(observation, rng, prefix)

    evaluate(Watched(policy, torch.ones(())), env, EPISODES, DEVELOPMENT, on_step)
    return torch.cat(seen).std(0)


def certified_success(successes: int, episodes: int, smooth: float) -> dict[str, float]:
    """Return lower bounds (95 %) of the success rate of a smoothed policy, by the norm of an attack.

    Whoever changes the states of an episode by at most B in all, as the l2 norm over all steps and components, cannot
    push the expected success below Phi(Phi^-1(p) - B / smooth), with p the rate without an attack: Kumar et al. 2022,
    "Policy Smoothing for Provably Robust Reinforcement Learning" (arXiv 2106.11420), theorem 1. Bounds are for B of
    0.5, 1 and 2 times `smooth`; names are B.
    """
    from scipy import special  # scipy.stats takes a second to import

    low = float(special.betaincinv(successes, episodes - successes + 1, 0.05)) if successes else 0.0  # Clopper-Pearson
    normal = NormalDist()
    safe = normal.inv_cdf(low) if low > 0 else -math.inf
    return {f"{share * smooth:g}": round(normal.cdf(safe - share), 4) for share in (0.5, 1.0, 2.0)}
