"""Gaussian policy on latent actions: Hausdörfer et al. 2024, "Latent Action Priors for Locomotion with Deep
Reinforcement Learning" (arXiv 2410.03246).

    u      = (z, a)                               outputs of the actor, trained like any other
    action = (1 - full) (centre + z D) + full a   D: the directions in which the demonstrated actions move

Deviation: D is linear, the principal directions of one gait cycle, and not a trained autoencoder. It has a closed form,
is exact for a cycle of few harmonics, and keeps the left-right symmetry.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import Observation, Size
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.interface.symmetry import Reflection, joined
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, PositiveInt


@dataclass(frozen=True)
class LatentActionConfig(FeedforwardConfig):
    """Gaussian actor on latent actions."""

    latent: PositiveInt = 6
    """Number of latent actions."""
    full: Fraction = 0.1
    """Weight of the actor's action in all dimensions, which can leave the latent directions; 1: no latent actions."""


class LatentActionPolicy(FeedforwardPolicy):
    """Feed-forward policy whose first outputs move along directions that were learned from a few actions."""

    class_name, config_class = "latent", LatentActionConfig
    config: LatentActionConfig
    centre: Tensor
    """(A,) mean of the demonstrated actions."""
    directions: Tensor
    """(latent, A) change of the action per unit of each latent; the demonstrated latents are in [-1, 1]."""

    def __init__(self, size: Size, config: LatentActionConfig | None = None):
        config = config or LatentActionConfig()
        if config.latent > size.action:
            raise ConfigError(f"policy.latent is {config.latent}, and an action has only {size.action} numbers")
        super().__init__(size, config)
        self.register_buffer("centre", torch.zeros(size.action))
        self.register_buffer("directions", torch.zeros(config.latent, size.action))

    @property
    def outputs(self) -> int:
        return self.config.latent + self.size.action

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        latent, full = u[..., : self.config.latent], u[..., self.config.latent :]
        return torch.lerp(self.centre + latent @ self.directions, full, self.config.full).clamp(-1, 1)

    @torch.no_grad()
    def fit_latents(self, actions: Tensor, mirror: Reflection | None = None) -> Reflection:
        """Take the directions from demonstrated actions (T, A) in [-1, 1], such as one gait cycle.

        If the robot has a symmetry, `mirror` reflects its actions; each direction is then its own mirror image, or the
        negative of it. Returns the reflection of u, without `mirror` the identity. Raises ConfigError if the actions
        move in fewer directions than there are latents.
        """
        reflect = mirror or Reflection(range(actions.shape[1]), [1.0] * actions.shape[1])
        centre = (actions + reflect(actions)).mean(0) / 2
        moves = actions - centre
        found = []
        for sign in (1.0, -1.0):  # symmetric moves, and those in which left and right do the opposite
            part = (moves + sign * reflect(moves)).double() / 2
            _, strengths, directions = torch.linalg.svd(part, full_matrices=False)
            found += [(float(s), sign, d) for s, d in zip(strengths, directions, strict=False)]
        found = sorted((each for each in found if each[0] > 1e-5), key=lambda each: -each[0])
        if len(found) < self.config.latent:
            raise ConfigError(
                f"the demonstrated actions move in {len(found)} directions, and --policy.latent is {self.config.latent}"
            )
        found = found[: self.config.latent]
        rows = torch.stack([d for *_, d in found])
        farthest = (moves.double() @ rows.T).abs().amax(0)
        self.centre.copy_(centre)
        self.directions.copy_(rows * farthest[:, None])
        return joined(Reflection(range(len(found)), [sign for _, sign, _ in found]), reflect)
