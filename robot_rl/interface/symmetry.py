"""Left-right symmetry of robots and tasks (Mittal et al. 2024, arXiv 2403.04359)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Reflection:
    """Reflection of a vector, `image[i] = sign[i] * x[index[i]]`. The image of an image is the original vector."""

    def __init__(self, index: Sequence[int] | Tensor, sign: Sequence[float] | Tensor):
        self.index = torch.as_tensor(index, dtype=torch.long)
        self.sign = torch.as_tensor(sign, dtype=torch.float32)
        size = len(self.index)
        if self.sign.shape != (size,):
            raise ValueError(f"a reflection has {size} indices and {len(self.sign)} signs")
        if ((self.index < 0) | (self.index >= size)).any():
            raise ValueError(f"a reflection of {size} numbers has indices outside 0 to {size - 1}")
        twice = (self.index[self.index] != torch.arange(size)) | (self.sign * self.sign[self.index] != 1)
        if twice.any():
            rows = twice.nonzero().squeeze(-1).tolist()
            raise ValueError(f"a reflection done twice must give the vector back; at {rows} it does not")

    def __len__(self) -> int:
        return len(self.index)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mirror images of vectors (..., size)."""
        return x[..., self.index.to(x.device)] * self.sign.to(x)

    def only(self, kept: Sequence[int]) -> Reflection:
        """Return the reflection of vectors that have only the components `kept`, in the order of `kept`."""
        place = {old: new for new, old in enumerate(kept)}
        images = self.index[list(kept)].tolist()
        if not place.keys() >= set(images):
            raise ValueError(f"the mirror images of {sorted(set(images) - place.keys())} are not kept")
        return Reflection([place[image] for image in images], self.sign[list(kept)])

    def repeated(self, times: int) -> Reflection:
        """Return the reflection of `times` concatenated vectors of this kind."""
        return joined(*[self] * times)


def joined(*parts: Reflection) -> Reflection:
    """Return the reflection of the concatenation of vectors, one per reflection in `parts`."""
    starts = torch.tensor([0, *[len(p) for p in parts]]).cumsum(0)
    index = torch.cat([p.index + start for p, start in zip(parts, starts[:-1], strict=True)])
    return Reflection(index, torch.cat([p.sign for p in parts]))


@dataclass(frozen=True)
class Mirror:
    """Reflections of observations and actions."""

    observation: Reflection
    """Reflection of observation.state."""
    privileged: Reflection
    """Reflection of observation.environment_state; of size 0 if the task has none."""
    action: Reflection
