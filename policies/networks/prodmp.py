"""Movement primitives whose trajectories are linear in their weights: Li et al. 2023, "ProDMP: A Unified Perspective on
Dynamic and Probabilistic Movement Primitives" (arXiv 2210.01531).

A trajectory y(s) over s in [0, 1] is that of a critically damped spring from its start towards a goal g, bent by a
force::

    y'' = a (a / 4 (g - y) - y') + f(s),     f = x sum_i w_i phi_i(x) / sum_i phi_i(x),     x = exp(-decay s)

The spring answers an impulse of force with h(s) = s exp(-a s / 2), so that with A = a / 2::

    y(s) = (1 + A s) exp(-A s) y(0) + h(s) y'(0) + (1 - (1 + A s) exp(-A s)) g + sum_i w_i (h * f_i)(s)
"""

import torch
from torch import Tensor, nn

FINE = 20
"""Points of the convolution's integral per step."""
DECAY = 3.0
"""Decay of the phase x over a trajectory."""


class ProDMP(nn.Module):
    """Trajectories over `steps` steps of time 1 / steps. Weights w (..., basis + 1) are those of the forces, then the
    goal, each in units in which its part of a trajectory, from rest at 0, is at most 1 / steps per step fast."""

    positions: Tensor
    """(steps + 1, basis + 1) position per unit of each weight."""
    starts: Tensor
    """(steps + 1, 2) position per unit of the initial position, and of the initial velocity per trajectory."""

    def __init__(self, steps: int, basis: int, stiffness: float):
        super().__init__()
        a, s = stiffness / 2, torch.linspace(0, 1, FINE * steps + 1, dtype=torch.float64)
        shrink = (-a * s).exp()
        force = _forces(s, basis)
        # h(s - s') = exp(-a s) (s exp(a s') - s' exp(a s')): two integrals from 0 to s
        grown = force * (a * s).exp()[:, None]
        bent = shrink[:, None] * (s[:, None] * _integral(grown, s) - _integral(s[:, None] * grown, s))
        rest = (1 + a * s) * shrink
        positions = torch.cat([bent, (1 - rest)[:, None]], 1)[::FINE]
        fastest = steps * positions.diff(dim=0).abs().amax(0)
        starts = torch.stack([rest, s * shrink], 1)[::FINE]
        self.register_buffer("positions", (positions / fastest).float(), persistent=False)
        self.register_buffer("starts", starts.float(), persistent=False)

    def forward(self, weights: Tensor, position: Tensor | None = None, velocity: Tensor | None = None) -> Tensor:
        """Return positions (..., steps + 1) for weights (..., basis + 1); initial position and velocity (...) are 0 by
        default. The first position is the initial one."""
        y = weights @ self.positions.T
        for k, initial in enumerate((position, velocity)):
            if initial is not None:
                y = y + initial[..., None] * self.starts[:, k]
        return y


def _forces(s: Tensor, basis: int) -> Tensor:
    """Return the forces (S, basis) at times s (S,): normalized bells, evenly spread over time, that decay."""
    phase = (-DECAY * s).exp()
    centres = (-DECAY * torch.linspace(0, 1, basis + 1, dtype=s.dtype)).exp()
    bells = (-((phase[:, None] - centres[:-1]) / centres.diff()).square()).exp()
    return phase[:, None] * bells / bells.sum(1, keepdim=True)


def _integral(values: Tensor, s: Tensor) -> Tensor:
    """Return integrals (S, ...) of values (S, ...) from the first time to each time s (S,), by trapezoids."""
    whole = torch.cumulative_trapezoid(values, s, dim=0)
    return torch.cat([torch.zeros_like(values[:1]), whole])
