"""Prompts of a `hilp` policy in closed form, without a gradient step: a reward, or imagined states.

Rewards, as in Park et al. 2024 (HILP, arXiv 2402.15567): regress the rewards r of recorded steps from s to s' on x,

    r ~ <x, z> + c,   z = Cov(x)^-1 Cov(x, r),   skill = z / |z|

"motions": x = phi(s') - phi(s), as in the paper. "places": x = phi(s'), a choice in the authors' code, for rewards of
states. Both prompt the same policies, because the policy of a skill z maximizes

    sum_t d^t <phi(s_t+1) - phi(s_t), z> = (1 - d) sum_t d^t <phi(s_t+1), z> - <phi(s_0), z>,   d the discount

The paper has no intercept c; here a constant reward prefers no skill.

Imagined states, after Sikchi et al. 2025 (RL Zero, arXiv 2412.05718): replace each imagined state by the nearest
recorded one, then take z = E[B(s)] over them, with B of a forward-backward model. Here the embedding replaces B:

    m = E[phi(s)] over the set,   skill = (m - phi(s)) / |m - phi(s)|

This policy goes towards m and stays near it, so the mean embedding of the states that it visits comes near that of the
set. Of all points, m has the least mean square distance to the set, in
steps. For one state this is the goal prompt. A constant skill cannot stay: it goes on until a wall stops it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from policies.hilbert import HilbertPolicy
from robot_rl.util.errors import ConfigError

Features = Literal["places", "motions"]
"""What a reward is regressed on: the embedding of the state after a step, or its change in the step."""
RIDGE = 0.01
"""Variance added in every direction of the features, as a fraction of the largest variance in a direction. An embedding
of a plane hardly varies in most directions, which would otherwise get nearly all of the skill."""


@dataclass(frozen=True)
class Direction:
    """Skill that follows from a reward, and how well it explains the reward."""

    skill: Tensor
    """Unit vector (embedding,)."""
    explained: float
    """Share of the reward's variance that the features explain, at most 1."""


def regress(features: Tensor, reward: Tensor) -> Direction:
    """Regress rewards (N,) on features (N, embedding), with an intercept. ConfigError if no direction follows."""
    if not float(reward.std()) > 1e-6 * float(reward.abs().amax()):
        raise ConfigError(
            f"the reward is {float(reward[0]):g} in all {len(reward)} steps, so no direction is better than another: "
            "take a reward that differs between them (for motions, before the last step of an episode), or a dataset "
            "that visits more"
        )
    x, r = features.double() - features.double().mean(0), reward.double() - reward.double().mean()
    covariance = x.T @ x / len(x)
    ridge = RIDGE * torch.linalg.eigvalsh(covariance)[-1] * torch.eye(len(covariance), dtype=x.dtype, device=x.device)
    together = x.T @ r / len(x)
    if not float(together.norm()) > 0:
        raise ConfigError("the embedding is the same in all steps: take a dataset that visits more")
    weights = torch.linalg.solve(covariance + ridge, together)
    explained = 1 - float((r - x @ weights).square().sum() / r.square().sum())
    return Direction(normalize(weights, dim=0).float(), explained)


@torch.no_grad()
def of_reward(
    policy: HilbertPolicy, states: list[Tensor], rewards: list[Tensor], features: Features = "places"
) -> Direction:
    """Return the skill for the rewards (T,) of recorded steps that begin in `states` (T, D), by episode.

    The state after an episode's last step is not recorded. "motions" leaves that step out. "places" takes the state
    before it, because a reward of success comes in the last step.
    """
    embedded = [policy.embed(policy.achieved(rows)) for rows in states]
    if features == "motions":
        changes = torch.cat([rows[1:] - rows[:-1] for rows in embedded])
        return regress(changes, torch.cat([reward[:-1] for reward in rewards]))
    return regress(torch.cat([torch.cat([rows[1:], rows[-1:]]) for rows in embedded]), torch.cat(rewards))


@torch.no_grad()
def of_sequence(policy: HilbertPolicy, imagined: Tensor, states: Tensor) -> Tensor:
    """Return the embeddings (K, embedding) of the recorded states (N, D) nearest to imagined states (K, D), in order.

    Nearest in standardized achieved goals, since the embedding of a state far from the data means nothing.
    """
    recorded, wanted = policy.achieved(states), policy.scaled(policy.achieved(imagined))
    scaled = policy.scaled(recorded)
    return policy.embed(recorded[torch.stack([(scaled - each).square().sum(1).argmin() for each in wanted])])


def of_set(policy: HilbertPolicy, imagined: Tensor, states: Tensor) -> Tensor:
    """Return the mean embedding (1, embedding) of the recorded states (N, D) nearest to imagined states (K, D)."""
    return of_sequence(policy, imagined, states).mean(0, keepdim=True)
