"""Projection of Gaussians into a trust region: Otto et al. 2021, "Differentiable Trust Region Layers for Deep
Reinforcement Learning" (arXiv 2101.09207), the KL projection.

KL(new, old) is the sum of a part of the mean and one of the covariance, each with its own bound::

    mean        1/2 (mean - old)^T Sigma_old^-1 (mean - old)
    covariance  1/2 (trace(Sigma_old^-1 Sigma) - W + log det Sigma_old - log det Sigma)

The mean moves back on the line to the old mean. The precision, the inverse of the covariance, moves back on the line to
the old precision; the way back is the root of a function of one number.
"""

import torch
from torch import Tensor

HALVINGS = 60
"""Halvings of the interval that holds the root."""


def mean_divergence(mean: Tensor, old: Tensor, factor: Tensor) -> Tensor:
    """Return the mean's part (B,) of the divergence, nats, for means (B, W) and the Cholesky factor (W, W) of the old
    covariance."""
    apart = torch.linalg.solve_triangular(factor, (mean - old).T, upper=False)
    return 0.5 * apart.square().sum(0)


def project_mean(mean: Tensor, old: Tensor, factor: Tensor, bound: float) -> Tensor:
    """Return means (B, W) whose part of the divergence is at most `bound`, nats; differentiable."""
    divergence = mean_divergence(mean, old, factor)
    beyond = divergence > bound
    back = (bound / torch.where(beyond, divergence, bound)).sqrt()  # no division by 0, nor its gradient
    return torch.where(beyond[:, None], old + back[:, None] * (mean - old), mean)


def covariance_divergence(factor: Tensor, old: Tensor) -> Tensor:
    """Return the covariance's part of the divergence, nats, for Cholesky factors (W, W)."""
    ratio = torch.linalg.solve_triangular(old, factor, upper=False)
    growth = factor.diagonal().log().sum() - old.diagonal().log().sum()
    return 0.5 * (ratio.square().sum() - len(factor)) - growth


@torch.no_grad()
def project_covariance(factor: Tensor, old: Tensor, bound: float) -> Tensor:
    """Return the Cholesky factor (W, W) of the covariance whose part of the divergence is at most `bound`, nats, for
    Cholesky factors (W, W) of the new and the old covariance."""
    if covariance_divergence(factor, old) <= bound:
        return factor
    new, before = factor.double(), old.double()
    # In coordinates in which the old precision is 1, the new one has eigenvalues p, which move towards 1.
    inverse = torch.linalg.solve_triangular(new, before, upper=False)
    p, directions = torch.linalg.eigh(inverse.T @ inverse)
    low, high = p.new_zeros(()), p.new_ones(())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        there = p.lerp(torch.ones_like(p), middle)
        far = 0.5 * (1 / there - 1 + there.log()).sum() > bound
        low, high = torch.where(far, middle, low), torch.where(far, high, middle)
    there = p.lerp(torch.ones_like(p), high)
    root = before @ (directions / there.sqrt())
    return torch.linalg.cholesky(root @ root.T).to(factor)
