"""Replay memory for simulation, robot and demonstrations: one row per observation, images and states stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Replay:
    """Preallocated storage of `lanes` parallel streams of episodes.

    An episode of T steps takes T + 1 rows: the last one holds the final observation and starts no transition, so no
    observation is stored twice and the final one is never confused with the next episode's first::

        row      0   1   2   3*  4   5 ...      * final observation of a three-step episode
        step     s0  s1  s2  -   s0  s1

    `action` is the executed action, `base` what the base policy proposed, both in [-1, 1].
    """

    def __init__(self, rows: int, lanes: int, state: int, action: int):
        self.length = max(8, rows // lanes)
        self.lanes = lanes
        shape = (lanes, self.length)
        self.columns = {
            "state": torch.zeros(*shape, state),
            "base": torch.zeros(*shape, action),
            "action": torch.zeros(*shape, action),
            "reward": torch.zeros(shape),
            "terminated": torch.zeros(shape, dtype=torch.bool),
            "last": torch.zeros(shape, dtype=torch.bool),
            "starts": torch.zeros(shape, dtype=torch.bool),
            "intervention": torch.zeros(shape, dtype=torch.bool),
        }
        """`last`: the step that ended its episode; `starts`: the row starts a transition."""
        self.head = torch.zeros(lanes, dtype=torch.long)
        self.filled = torch.zeros(lanes, dtype=torch.long)
        self.transitions = 0
        """Transitions ever added."""

    def _write(self, lanes: Tensor, row: dict[str, Tensor]) -> None:
        at = (lanes, self.head[lanes])
        for name, column in self.columns.items():
            column[at] = row[name] if name in row else torch.zeros_like(column[at])
        self.head[lanes] = (self.head[lanes] + 1) % self.length
        self.filled[lanes] = (self.filled[lanes] + 1).clamp(max=self.length)

    def add(self, step: dict[str, Tensor], final: dict[str, Tensor] | None = None) -> None:
        """Add one step of every lane: state, base, action, reward, terminated, last.

        For lanes with `last`, `final` holds state and base at the observation after the step.
        """
        lanes = torch.arange(self.lanes)
        self._write(lanes, step | {"starts": torch.ones(self.lanes, dtype=torch.bool)})
        self.transitions += self.lanes
        if final is not None and step["last"].any():
            ended = step["last"].nonzero().squeeze(-1)
            self._write(ended, {k: v[ended] for k, v in final.items()})

    def add_episode(self, episode: dict[str, Tensor], lane: int = 0) -> None:
        """Add a whole episode to one lane; state and base have T + 1 rows, the others T."""
        steps = len(episode["action"])
        index = torch.tensor([lane])
        for t in range(steps):
            row = {k: episode[k][t : t + 1] for k in self.columns if k in episode}
            row |= {"starts": torch.ones(1, dtype=torch.bool), "last": torch.tensor([t == steps - 1])}
            self._write(index, row)
        self._write(index, {k: episode[k][steps : steps + 1] for k in ("state", "base")})
        self.transitions += steps

    @property
    def size(self) -> int:
        """Transitions that can be sampled now."""
        return int(self.columns["starts"].sum())

    def sample(self, count: int, n_step: int, discount: float, rng: torch.Generator) -> dict[str, Tensor]:
        """`count` transitions over up to `n_step` steps, cut at the end of the episode.

        Returns state, base, action, reward (discounted sum), discount (0 after a termination), next_state, next_base.
        """
        lane, row = self._draw(count, n_step, rng)
        c = self.columns
        reward = torch.zeros(count)
        factor = torch.ones(count)
        running = torch.ones(count, dtype=torch.bool)
        at = row
        for _ in range(n_step):
            reward += torch.where(running, factor * c["reward"][lane, at], 0.0)
            factor = torch.where(running, factor * discount * ~c["terminated"][lane, at], factor)
            at = torch.where(running, (at + 1) % self.length, at)
            # Stop on the final row: its predecessor ended the episode.
            running = running & ~c["last"][lane, (at - 1) % self.length]
        batch = {k: c[k][lane, row] for k in ("state", "base", "action", "intervention")}
        return batch | {
            "reward": reward,
            "discount": factor,
            "next_state": c["state"][lane, at],
            "next_base": c["base"][lane, at],
        }

    def _draw(self, count: int, n_step: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Uniform over rows that start a transition and whose n-step window is written."""
        if not self.size:
            raise ValueError("the replay holds no transition yet")
        lanes, rows, found = [], [], 0
        longest = int(self.filled.max())
        while found < count:
            k = 2 * (count - found) + 16
            lane = torch.randint(0, self.lanes, (k,), generator=rng)
            age = 1 + (torch.rand(k, generator=rng) * longest).long()  # rows behind the head, 1 = newest
            row, whole = self._whole(n_step, lane, age)
            lanes.append(lane[whole])
            rows.append(row[whole])
            found += len(lanes[-1])
            if not found and not self.ready(n_step):
                raise ValueError(
                    f"no transition of the replay has {n_step} steps, or the end of its episode, behind it"
                )
        return torch.cat(lanes)[:count], torch.cat(rows)[:count]

    def ready(self, n_step: int) -> bool:
        """Whether there is anything to sample: what follows the newest rows of an episode is not known yet."""
        ages = torch.arange(1, int(self.filled.max()) + 1)
        lane = torch.arange(self.lanes).repeat_interleave(len(ages))
        return bool(self._whole(n_step, lane, ages.repeat(self.lanes))[1].any())

    def _whole(self, n_step: int, lane: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
        """The rows `age` behind the heads of lanes, and which of them start a transition whose n steps are written."""
        row = (self.head[lane] - age) % self.length
        written = age <= self.filled[lane]  # not scaled by it: all lanes' rows are equally likely
        known = (age > n_step) | self._ends_within(n_step, lane, row, age)
        return row, written & self.columns["starts"][lane, row] & known

    def _ends_within(self, n_step: int, lane: Tensor, row: Tensor, age: Tensor) -> Tensor:
        ends = torch.zeros(len(lane), dtype=torch.bool)
        for k in range(min(n_step, self.length)):
            ends |= (age > k + 1) & self.columns["last"][lane, (row + k) % self.length]
        return ends

    def state_dict(self) -> dict[str, Any]:
        filled = int(self.filled.max())
        columns = {k: v[:, :filled].clone() for k, v in self.columns.items()}
        return {
            "columns": columns,
            "head": self.head.clone(),
            "filled": self.filled.clone(),
            "transitions": self.transitions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, saved in state["columns"].items():
            self.columns[name][:, : saved.shape[1]] = saved
        self.head, self.filled = state["head"].clone(), state["filled"].clone()
        self.transitions = state["transitions"]


def sample_mixed(
    sources: Sequence[tuple[Replay, int]], n_step: int, discount: float, rng: torch.Generator
) -> dict[str, Tensor]:
    """One batch of `count` transitions from each (replay, count)."""
    return sample_batches(sources, 1, n_step, discount, rng)[0]


def sample_batches(
    sources: Sequence[tuple[Replay, int]], batches: int, n_step: int, discount: float, rng: torch.Generator
) -> list[dict[str, Tensor]]:
    """Several batches at once, each with `count` transitions from each (replay, count): drawing costs per call."""
    parts = [
        {k: v.unflatten(0, (batches, count)) for k, v in replay.sample(batches * count, n_step, discount, rng).items()}
        for replay, count in sources
        if count
    ]
    mixed = {k: torch.cat([p[k] for p in parts], 1) for k in parts[0]}
    return [{k: v[i] for k, v in mixed.items()} for i in range(batches)]
