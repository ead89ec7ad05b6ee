"""Goals in the state, and hindsight relabelling: an achieved state becomes the goal.

Andrychowicz et al. 2017, "Hindsight Experience Replay" (arXiv 1707.01495); for cloning: Ghosh et al. 2021, "Learning to
Reach Goals via Iterated Supervised Learning" (arXiv 1912.06088).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.hilbert import GoalIndices
from robot_rl.interface.observation_spec import STATE
from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError, UnknownName
from robot_rl.util.limits import PositiveFloat

Episode = dict[str, Tensor]


@dataclass(frozen=True)
class GoalConfig:
    """Names of the fields of observation.state with the achieved state and with the goal, both in m."""

    achieved: str = "tip_position"
    """Field with the achieved state."""
    wanted: str = "target_position"
    """Field with the goal."""
    difference: str = "target_to_tip"
    """Field with the goal minus the achieved state; empty: the state has no such field."""
    tolerance: PositiveFloat = 0.02
    """Distance below which a goal is achieved, m."""


class Goals:
    """Read and replace the goals in states (..., D)."""

    def __init__(self, config: GoalConfig, spec: VectorSpec):
        """Raises ConfigError if the state lacks a field of `config`, or if the sizes of the fields differ."""
        names = [field.name for field in spec.fields]
        for option in ("achieved", "wanted", "difference"):
            name = getattr(config, option)
            if name not in names and (name or option != "difference"):
                raise UnknownName(f"field of observation.state for the option goal.{option}:", name, names)
        self.config = config
        self._achieved, self._wanted = spec.slice(config.achieved), spec.slice(config.wanted)
        self._difference = spec.slice(config.difference) if config.difference else slice(0, 0)
        sizes = {s.stop - s.start for s in (self._achieved, self._wanted)}
        sizes |= {self._difference.stop - self._difference.start} if config.difference else set()
        if len(sizes) > 1:
            raise ConfigError(f"--goal: {config.achieved}, {config.wanted} and {config.difference} differ in size")

    @property
    def indices(self) -> GoalIndices:
        """Return the goal fields as indices into the state, for a policy."""
        parts = (self._achieved, self._wanted, self._difference)
        return GoalIndices(*(tuple(range(part.start, part.stop)) for part in parts))

    def achieved(self, state: Tensor) -> Tensor:
        """Return the achieved state (..., G) of states (..., D)."""
        return state[..., self._achieved]

    def wanted(self, state: Tensor) -> Tensor:
        """Return the goal (..., G) of states (..., D)."""
        return state[..., self._wanted]

    def aim(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return states (..., D) whose goal is replaced by `goal` (..., G)."""
        aimed = state.clone()
        aimed[..., self._wanted] = goal
        if self.config.difference:
            aimed[..., self._difference] = goal - self.achieved(state)
        return aimed

    def reached(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return whether goals (..., G) are achieved in states (..., D): (...) bool."""
        return (self.achieved(state) - goal).norm(dim=-1) < self.config.tolerance


def in_hindsight(episode: Episode, goals: Goals, within: int, rng: torch.Generator) -> Episode:
    """Return states (T, D) and actions (T, A) with goals that the episode achieved 1 to `within` steps later.

    A judge's verdicts are not used. If the episode lacks the state after the last step (`final.observation.state`), the
    last action is left out.
    """
    states = torch.cat([episode[STATE], episode.get(f"final.{STATE}", episode[STATE][:0])])
    last = len(states) - 1
    now = torch.arange(last)
    ahead = 1 + (torch.rand(last, generator=rng) * torch.minimum(last - now, torch.tensor(within))).long()
    goal = goals.achieved(states)[torch.minimum(now + ahead, torch.tensor(last))]
    return {STATE: goals.aim(states[:last], goal), "action": episode["action"][:last]}


def achieved_later(episode: Episode, goals: Goals, rng: torch.Generator) -> Episode | None:
    """Return a copy of an episode whose goal is what it achieved at a random later step, where the copy ends.

    Format of `Replay.newest`: observed columns have T + 1 rows, others T. The copy pays 1 at its end, like success. The
    goal is one for all steps, so returns of n steps stay consistent. None if the first state achieves the goal too.
    """
    states = episode[STATE]
    goal = goals.achieved(states[int(torch.randint(1, len(states), (), generator=rng))])
    reached = goals.reached(states, goal)
    end = int(reached.long().argmax())
    if not end:
        return None
    steps = len(episode["action"])
    copy = {name: values[: end + (len(values) - steps)] for name, values in episode.items()}
    last = torch.arange(end) == end - 1
    return copy | {STATE: goals.aim(copy[STATE], goal), "reward": last.float(), "terminated": last}


def regions(wanted: Tensor, count: int) -> Tensor:
    """Return the region (M,) of every goal (M, G), by k-means with `count` distant goals as initial centres."""
    centres = wanted[:1]
    for _ in range(1, count):
        far = torch.cdist(wanted, centres).amin(1).argmax()
        centres = torch.cat([centres, wanted[far : far + 1]])
    for _ in range(20):
        of = torch.cdist(wanted, centres).argmin(1)
        centres = torch.stack([wanted[of == k].mean(0) if (of == k).any() else centres[k] for k in range(count)])
    return torch.cdist(wanted, centres).argmin(1)
