"""The controller of all curricula: numbers that move on while the policy performs well, and back when it does not.

    start                 value                        limit
      |-- back if poor <----|----> on if good ------------|
"""

import torch
from torch import Tensor


class Curriculum:
    """K numbers, each with a start, a limit and a buffer of outcomes. A full buffer moves its number and is emptied."""

    def __init__(
        self, start: Tensor, limit: Tensor, step: float, size: int, low: float, high: float, back: float = 1.0
    ):
        """`start` and `limit`: (K,) float64, which a number never leaves. `step`: share of the way between them that a
        number moves at a time. `size`: outcomes in a full buffer; it moves its number on if their mean is at least
        `high`, and back, `back` times as far, if it is at most `low`."""
        self.start, self.limit, self.size, self.low, self.high = start, limit, size, low, high
        self.way, self.back = (limit - start) * step, back
        self.value = start.clone()
        self.total, self.count = torch.zeros_like(start), torch.zeros_like(start)
        """Sum and number (K,) of the outcomes in each buffer."""

    def report(self, index: Tensor, outcome: Tensor) -> bool:
        """Add outcomes (m,) to the buffers of the numbers `index` (m,); return whether any number moved."""
        self.total.index_add_(0, index, outcome.to(self.total))
        self.count.index_add_(0, index, torch.ones_like(outcome, dtype=self.count.dtype))
        full = self.count >= self.size
        mean = self.total / self.count.clamp_min(1)
        before = self.value
        self._move((full & (mean >= self.high)).double() - self.back * (full & (mean <= self.low)).double())
        self.total, self.count = self.total * ~full, self.count * ~full
        return not torch.equal(before, self.value)

    def _move(self, steps: Tensor) -> None:
        value = self.value + steps * self.way
        first, last = torch.minimum(self.start, self.limit), torch.maximum(self.start, self.limit)
        self.value = torch.minimum(torch.maximum(value, first), last)

    @property
    def progress(self) -> Tensor:
        """Return how far (K,) each number is on its way, 0 to 1."""
        return (self.value - self.start) / (self.limit - self.start)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("value", "total", "count")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone())
