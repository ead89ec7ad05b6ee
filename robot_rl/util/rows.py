"""Tensors with one row per environment."""

import copy
from typing import ClassVar, Self

from torch import Tensor


class Rows:
    """Mixin that copies, saves and restores the per-environment tensors named in ROWS."""

    ROWS: ClassVar[tuple[str, ...]] = ()

    def take_rows(self, ids: Tensor, other: Self) -> None:
        """Overwrite rows `ids` (k,) in place with the same rows of another object."""
        for name in self.ROWS:
            copy_rows(getattr(self, name), ids, getattr(other, name))

    def fork(self) -> Self:
        """Return a shallow copy with its own per-environment tensors."""
        other = copy.copy(self)
        other.load_state_dict(self.state_dict())
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the per-environment tensors, by name."""
        return {name: getattr(self, name).clone() for name in self.ROWS}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self.ROWS:
            setattr(self, name, state[name].to(getattr(self, name).device, copy=True))


def copy_rows(target: Tensor, ids: Tensor, source: Tensor) -> None:
    """Overwrite rows `ids` (k,) of `target` with the same rows of `source`."""
    target.index_copy_(0, ids, source.index_select(0, ids))
