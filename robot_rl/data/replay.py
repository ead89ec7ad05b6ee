"""Replay for simulation, robot and demonstrations: declared columns, every observation stored once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.util.errors import ConfigError

Batch = dict[str, Tensor]
NEXT = "next."
"""Prefix of a sample's columns for the observation after its last step, as in LeRobot."""

DEMONSTRATION = "demonstration"
"""Column of agents that treat demonstrations differently: whether the row is of one."""


@dataclass(frozen=True)
class Column:
    """Shape and type of one value per row."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    observed: bool = False
    """Part of the observation: an episode of T steps has T + 1 rows, and samples hold the later one as `next.*`."""


@dataclass(frozen=True)
class Sampling:
    """How transitions are sampled for an agent."""

    n_step: int = 1
    """Steps of reward before the bootstrap (n-step return); fewer where the episode ends, or a person takes over or
    hands back: what somebody else did next says nothing of the action that is judged."""
    discount: float = 0.99
    """Per step."""
    chunk: int = 1
    """Actions per sample; above 1 they come as (B, chunk, A), with `valid` (B, chunk) up to the end of the episode and
    `intervention` (B, chunk), and are judged as a whole, whoever acted."""
    sequence: bool = False
    """All columns come as (B, chunk, ...), also `terminated`, observed ones as (B, chunk + 1, ...)."""

    @property
    def span(self) -> int:
        """Return how many following steps must be known for a row."""
        return max(self.n_step, self.chunk)


class Replay:
    """Preallocated storage of `lanes` parallel streams of episodes.

    An episode of T steps takes T + 1 rows: the last one holds the final observation and starts no transition, so no
    observation is stored twice and the final one is never confused with the next episode's first::

        row      0   1   2   3*  4   5 ...      * final observation of a three-step episode
        step     s0  s1  s2  -   s0  s1

    Columns live on `device`; what sampling decides by (`starts`, `last`, `terminated`) stays on the CPU, so that
    drawing rows never waits for a GPU.
    """

    def __init__(self, rows: int, lanes: int, columns: Mapping[str, Column], device: torch.device | str = "cpu"):
        self.length, self.lanes, self.device = max(8, rows // lanes), lanes, torch.device(device)
        self.spec = {"reward": Column()} | dict(columns)
        shape = (lanes, self.length)
        try:
            self.columns = {
                name: torch.zeros(*shape, *c.shape, dtype=c.dtype, device=self.device) for name, c in self.spec.items()
            }
        except RuntimeError:  # of the CPU's allocator, and of a GPU's
            row = sum(math.prod(c.shape) * c.dtype.itemsize for c in self.spec.values())
            raise ConfigError(
                f"a replay of {rows} rows of {row / 1e3:.0f} KB takes {rows * row / 1e9:.0f} GB, more than "
                f"{self.device} has; lower --training.capacity"
            ) from None
        names = ("starts", "decides", "switches", "last", "terminated")
        self.flags = {name: torch.zeros(shape, dtype=torch.bool) for name in names}
        """`starts`: the row starts a transition; `decides`: samples may begin there (not where a chunk goes on that the
        agent judges as a whole); `switches`: a person takes over or hands back after the step; `last`: the step that
        ended its episode; `terminated`: not by time."""
        self.head = torch.zeros(lanes, dtype=torch.long)
        self.filled = torch.zeros(lanes, dtype=torch.long)
        self.transitions = 0
        """Transitions ever added."""
        self.size = 0
        """Transitions stored now."""
        self._every = torch.arange(lanes)

    # ---- writing -----------------------------------------------------------------------------------------------
    def _write(self, lane: Tensor, row: Tensor, values: Mapping[str, Tensor], starts: bool) -> None:
        """Write cells (lane, row), one each; columns that `values` lacks become 0."""
        self.size -= int(self.flags["starts"][lane, row].sum())
        self.size += len(row) if starts else 0
        at = lane.to(self.device), row.to(self.device)
        for name, column in self.columns.items():
            column[at] = values[name].to(self.device, column.dtype) if name in values else 0
        self.flags["starts"][lane, row] = starts
        self.flags["decides"][lane, row] = values["decides"].cpu() if starts and "decides" in values else starts
        for name in ("switches", "last", "terminated"):
            self.flags[name][lane, row] = values[name].cpu() if starts and name in values else False

    def _advance(self, lane: Tensor, rows: int) -> None:
        self.head[lane] = (self.head[lane] + rows) % self.length
        self.filled[lane] = (self.filled[lane] + rows).clamp(max=self.length)

    def add(self, step: Mapping[str, Tensor], final: Mapping[str, Tensor] | None = None) -> None:
        """Add one step of every lane: the columns, reward, terminated and last, and optionally decides.

        For lanes with `last`, `final` holds the observed columns after the step, with a row for every lane.
        """
        self._write(self._every, self.head, step, starts=True)
        self._advance(self._every, 1)
        self.transitions += self.lanes
        if final is not None and step["last"].any():
            ended = step["last"].cpu().nonzero().squeeze(-1)
            self._write(ended, self.head[ended], {k: v[ended.to(v.device)] for k, v in final.items()}, starts=False)
            self._advance(ended, 1)

    def cut(self, final: Mapping[str, Tensor]) -> None:
        """End every running episode without terminating it; `final` holds the observed columns after its last step.

        For environments whose state cannot be restored when a run is resumed.
        """
        before = (self.head - 1) % self.length
        running = self.flags["starts"][self._every, before] & ~self.flags["last"][self._every, before]
        lane = running.nonzero().squeeze(-1)
        self.flags["last"][lane, before[lane]] = True
        self._write(lane, self.head[lane], {k: v[lane.to(v.device)] for k, v in final.items()}, starts=False)
        self._advance(lane, 1)

    def add_episode(self, episode: Mapping[str, Tensor], lane: int = 0) -> None:
        """Add an episode to one lane; observed columns have T + 1 rows, the others T. A long one loses its start."""
        steps = len(episode["action"])
        last, switches = torch.zeros(2, steps, dtype=torch.bool)
        last[-1] = True
        if "intervention" in episode:
            switches[:-1] = episode["intervention"].bool().diff().cpu()
        rows = (self.head[lane] + torch.arange(steps + 1)) % self.length
        kept = slice(max(0, steps + 1 - self.length), steps)
        where = torch.full((steps,), lane)
        values = {k: v[:steps][kept] for k, v in {**episode, "last": last, "switches": switches}.items()}
        self._write(where[kept], rows[:-1][kept], values, starts=True)
        final = {k: episode[k][steps:] for k, c in self.spec.items() if c.observed and k in episode}
        self._write(torch.tensor([lane]), rows[-1:], final, starts=False)
        self._advance(torch.tensor([lane]), steps + 1)
        self.transitions += steps

    def newest(self, lane: int) -> dict[str, Tensor]:
        """Return the episode that has just ended in a lane, as `add_episode` takes it, but for an overwritten start."""
        final = int(self.head[lane]) - 1
        before = (final - torch.arange(1, int(self.filled[lane]))) % self.length
        count = int(self.flags["starts"][lane, before].long().cumprod(0).sum())
        rows = before[:count].flip(0)
        whole = torch.cat([rows, torch.tensor([final % self.length])])
        at, also = rows.to(self.device), whole.to(self.device)
        episode = {name: self.columns[name][lane, also if c.observed else at] for name, c in self.spec.items()}
        return episode | {name: self.flags[name][lane, rows] for name in ("decides", "terminated")}

    # ---- sampling ----------------------------------------------------------------------------------------------
    def sample(self, count: int, how: Sampling, rng: torch.Generator) -> Batch:
        """Draw `count` transitions over up to `how.n_step` steps, see `Sampling`.

        Returns the columns, reward (discounted sum), discount (0 after a termination) and `next.<observed column>`.
        """
        lane, row = self._draw(count, how.span, rng)
        ends, terminates = self.flags["last"], self.flags["terminated"]
        factor, running, at = torch.ones(count), torch.ones(count, dtype=torch.bool), row
        path = []
        for _ in range(how.n_step):
            path.append((at, torch.where(running, factor, 0.0)))
            factor = torch.where(running, factor * how.discount * ~terminates[lane, at], factor)
            over = ends[lane, at] if how.chunk > 1 else ends[lane, at] | self.flags["switches"][lane, at]
            at = torch.where(running, (at + 1) % self.length, at)
            running = running & ~over
        where = lane.to(self.device)
        reward = torch.zeros(count, device=self.device)
        for step, weight in path:
            reward += weight.to(self.device) * self.columns["reward"][where, step.to(self.device)]
        batch = self._windows(lane, row, how) if how.chunk > 1 or how.sequence else {}
        row, at = row.to(self.device), at.to(self.device)
        for name, c in self.spec.items():
            if name not in batch:
                batch[name] = self.columns[name][where, row]
            if c.observed and not how.sequence:
                batch[NEXT + name] = self.columns[name][where, at]
        if not how.sequence:
            batch["reward"] = reward
        return batch | {"discount": factor.to(self.device)}

    def _windows(self, lane: Tensor, row: Tensor, how: Sampling) -> Batch:
        """Return actions and interventions, or all columns, of `how.chunk` steps from each row on, and which of these
        belong to the episode."""
        rows = (row[:, None] + torch.arange(how.chunk + 1)) % self.length
        ended = self.flags["last"][lane[:, None], rows].long().cumsum(1)
        valid = torch.cat([torch.ones(len(row), 1, dtype=torch.bool), ended[:, :-1] == 0], 1)  # row k is of the episode
        final = torch.cat([torch.zeros(len(row), 1, dtype=torch.long), ended[:, :-1]], 1).clamp(max=1)
        # Beyond the end every row is the final one: its observation stays, its action is 0.
        steps = torch.arange(how.chunk + 1).expand_as(rows)
        first = torch.where(final.bool(), steps, how.chunk + 1).amin(1, keepdim=True)
        rows = (row[:, None] + torch.minimum(steps, first)) % self.length
        where, at = lane[:, None].to(self.device), rows.to(self.device)
        names = [name for name in self.spec if how.sequence or name in ("action", "intervention")]
        span = {name: how.chunk + 1 if self.spec[name].observed else how.chunk for name in names}
        flags = {"valid": valid[:, : how.chunk]}
        flags |= {"terminated": self.flags["terminated"][lane[:, None], rows[:, : how.chunk]]} if how.sequence else {}
        return {name: self.columns[name][where, at[:, :n]] for name, n in span.items()} | {
            name: flag.to(self.device) for name, flag in flags.items()
        }

    def _draw(self, count: int, span: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw uniformly from the rows that start a transition and whose next `span` steps are written."""
        if not self.size:
            raise ValueError("the replay holds no transition yet")
        lanes, rows, found = [], [], 0
        longest = int(self.filled.max())
        while found < count:
            k = 2 * (count - found) + 16
            lane = torch.randint(0, self.lanes, (k,), generator=rng)
            age = 1 + (torch.rand(k, generator=rng) * longest).long()  # rows behind the head, 1 = newest
            row, whole = self._whole(span, lane, age)
            lanes.append(lane[whole])
            rows.append(row[whole])
            found += len(lanes[-1])
            if not found and not self.ready(span):
                raise ValueError(f"no transition of the replay has {span} steps, or the end of its episode, behind it")
        return torch.cat(lanes)[:count], torch.cat(rows)[:count]

    def ready(self, span: int) -> bool:
        """Return whether there is anything to sample: what follows an episode's newest rows is not known yet."""
        ages = torch.arange(1, int(self.filled.max()) + 1)
        lane = torch.arange(self.lanes).repeat_interleave(len(ages))
        return bool(self._whole(span, lane, ages.repeat(self.lanes))[1].any())

    def _whole(self, span: int, lane: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows `age` behind the heads of lanes, and which start a transition of `span` known steps."""
        row = (self.head[lane] - age) % self.length
        written = age <= self.filled[lane]  # not scaled by it: all lanes' rows are equally likely
        known = age > span
        for k in range(min(span, self.length)):
            known = known | ((age > k + 1) & self.flags["last"][lane, (row + k) % self.length])
        return row, written & self.flags["decides"][lane, row] & known

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        filled = int(self.filled.max())
        return {
            "columns": {k: v[:, :filled].clone() for k, v in (self.columns | self.flags).items()},
            "head": self.head.clone(),
            "filled": self.filled.clone(),
            "transitions": self.transitions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        stored = self.columns | self.flags
        for name, saved in state["columns"].items():
            stored[name][:, : saved.shape[1]] = saved.to(stored[name].device)
        self.head, self.filled = state["head"].clone(), state["filled"].clone()
        self.transitions, self.size = state["transitions"], int(self.flags["starts"].sum())
