"""Optimizer between Adam (Kingma and Ba 2015) and RMSProp (Tieleman and Hinton 2012).

    m <- mixing b1 m + (1 - mixing b1) g          v <- b2 v + (1 - b2) g^2
    x <- x - lr / (1 - (mixing b1)^t)  m / (sqrt(v / (1 - mixing b2^t)) + eps)

mixing 1 is Adam; mixing 0 is RMSProp, which has neither momentum nor bias correction of v. ADPO (Jiang and Yang 2025,
arXiv 2505.08376) mixes the two optimizers by a factor; the rule for factors between 0 and 1 is our own.
"""

from typing import Any

import torch
from torch import Tensor


class MixedMoments(torch.optim.Optimizer):
    """Optimizer with adaptive moments and a mixing factor in [0, 1], which may differ by parameter group."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99), mixing: float = 1.0,
        eps: float = 1e-8,
    ):  # fmt: skip
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing is {mixing}; choose a number from 0 (RMSProp) to 1 (Adam)")
        super().__init__(params, {"lr": lr, "betas": betas, "mixing": mixing, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    _move(x, x.grad, self.state[x], group)


def _move(x: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        state |= {"step": 0, "mean": torch.zeros_like(x), "square": torch.zeros_like(x)}
    state["step"] += 1
    mixing, t, (_, decay) = group["mixing"], state["step"], group["betas"]
    momentum = mixing * group["betas"][0]
    mean = state["mean"].lerp_(gradient, 1 - momentum)
    square = state["square"].mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
    scale = (square / (1 - mixing * decay**t)).sqrt_().add_(group["eps"])
    x.addcdiv_(mean, scale, value=-group["lr"] / (1 - momentum**t))
