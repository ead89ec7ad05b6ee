"""What episodes are drawn from: ranges of the randomized parameters and chances of the instructions."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from robot_rl.util.errors import UnknownName
from sim.randomization import Randomize, quantiles

_VERSIONS = itertools.count(1)


class EpisodeDistribution:
    """State of the draw of episodes, which curricula change at run time. It is saved with the environment, and every
    change has a new `version`, by which prefetched episodes of an earlier one are recognized."""

    def __init__(self, randomization: Sequence[Randomize]):
        self.randomization = tuple(randomization)
        """Present ranges of the randomized parameters."""
        self.instruction_weights: np.ndarray | None = None
        """Probability (K,) of each instruction of the instruction set; None: all equal."""
        self.pins: tuple[tuple[str, int], ...] = ()
        """Bounds to which episodes may be pinned: a parameter, and 0 for its low or 1 for its high bound."""
        self.pin_chance = 0.0
        """Share of the episodes that are."""
        self.version = 0
        """Number of the present state; no two states in a process share one."""

    def draw(self, u: np.ndarray, spare: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (k, P) of all parameters at points u (k, P) of the unit cube, and the index (k,) into
        `pins` of the bound to which each episode is pinned, -1 for none, by further random numbers (k, 2)."""
        pinned = np.full(len(u), -1)
        if self.pins:
            rows = spare[:, 0] < self.pin_chance
            pinned[rows] = (spare[rows, 1] * len(self.pins)).astype(np.int64)
            names = [r.parameter for r in self.randomization]
            column, side = np.array([(names.index(name), side) for name, side in self.pins]).T
            u = u.copy()
            u[rows, column[pinned[rows]]] = side[pinned[rows]]
        return quantiles(self.randomization, u), pinned

    def pin(self, bounds: Sequence[tuple[str, int]], chance: float) -> None:
        """Pin one parameter to one of `bounds`, see `pins`, in a share `chance` of the next episodes."""
        self.pins, self.pin_chance, self.version = tuple(bounds), chance, next(_VERSIONS)

    def set_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Change low and high of parameters, from the next episodes on. Raise UnknownName for a parameter that is not
        randomized, and ValueError for a range that `Randomize` refuses."""
        names = [r.parameter for r in self.randomization]
        for name in ranges:
            if name not in names:
                raise UnknownName("randomized parameter", name, names)
        bounds = {r.parameter: ranges.get(r.parameter, (r.low, r.high)) for r in self.randomization}
        self.randomization = tuple(
            replace(r, low=float(bounds[r.parameter][0]), high=float(bounds[r.parameter][1]))
            for r in self.randomization
        )
        self.version = next(_VERSIONS)

    def set_instruction_weights(self, weights: np.ndarray | None) -> None:
        """Change the weights (K,) of the instructions, from the next episodes on; None: all equal."""
        self.instruction_weights = None if weights is None else weights / weights.sum()
        self.version = next(_VERSIONS)

    def state_dict(self) -> dict[str, Any]:
        """Return the present ranges (P, 2) and weights."""
        bounds = torch.tensor([(r.low, r.high) for r in self.randomization], dtype=torch.double).view(-1, 2)
        weights = self.instruction_weights
        return {"bounds": bounds} | ({} if weights is None else {"instruction_weights": torch.tensor(weights)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names, weights = [r.parameter for r in self.randomization], state.get("instruction_weights")
        self.set_ranges(dict(zip(names, state["bounds"].tolist(), strict=True)))
        self.instruction_weights = None if weights is None else weights.numpy().copy()
