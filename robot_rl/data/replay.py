"""Replay buffer for simulation, robot and demonstrations, with declared columns; stores every observation once."""

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
"""Column that marks rows of demonstrations, for agents that treat demonstrations differently."""


@dataclass(frozen=True)
class Column:
    """Shape and type of a column's values."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    observed: bool = False
    """Whether the column is observed: it has T + 1 rows in an episode of T steps, and `next.*` in samples."""


@dataclass(frozen=True)
class Sampling:
    """Form of an agent's samples."""

    n_step: int = 1
    """Number of rewards in the return before the bootstrap (n-step return). The return stops early at the end of the
    episode, and at a takeover or hand-back, since later actions of another actor do not evaluate the sampled action."""
    discount: float = 0.99
    """Discount per step."""
    chunk: int = 1
    """Actions per sample. Above 1, samples have actions (B, chunk, A), `intervention` (B, chunk), and `valid` (B,
    chunk), which is True up to the end of the episode, and returns continue at takeovers."""
    sequence: bool = False
    """Whether samples have all columns and `terminated` as (B, chunk, ...), observed columns as (B, chunk + 1, ...)."""

    @property
    def span(self) -> int:
        """Number of consecutive steps, from the sampled row on, that a sample reads."""
        return max(self.n_step, self.chunk)


class Replay:
    """Preallocated ring buffer of `lanes` parallel streams of episodes.

    An episode of T steps takes T + 1 rows. The last row holds the final observation and starts no transition. So no
    observation is stored twice, and final observations stay separate from the next episode::

        row      0   1   2   3*  4   5 ...      * final observation of a three-step episode
        step     s0  s1  s2  -   s0  s1

    Columns are on `device`. The flags that decide sampling stay on the CPU, so drawing rows never waits for a GPU.
    """

    def __init__(self, rows: int, lanes: int, columns: Mapping[str, Column], device: torch.device | str = "cpu"):
        self.length, self.lanes, self.device = max(8, rows // lanes), lanes, torch.device(device)
        self.spec = {"reward": Column()} | dict(columns)
        size = (lanes, self.length)
        try:
            self.columns = {k: torch.zeros(*size, *c.shape, dtype=c.dtype, device=device) for k, c in self.spec.items()}
        except RuntimeError:  # out of memory, on the CPU or a GPU
            row = sum(math.prod(c.shape) * c.dtype.itemsize for c in self.spec.values())
            raise ConfigError(
                f"a replay of {rows} rows of {row / 1e3:.0f} KB takes {rows * row / 1e9:.0f} GB, more than "
                f"{self.device} has; lower --training.capacity"
            ) from None
        names = ("starts", "decides", "switches", "last", "terminated")
        self.flags = {name: torch.zeros(size, dtype=torch.bool) for name in names}
        """Flags of each row. `starts`: starts a transition; `decides`: samples may begin here (not inside a chunk that
        the agent evaluates as a whole); `switches`: a takeover or hand-back follows the step; `last`: last step of its
        episode; `terminated`: last step of an episode that was not truncated."""
        self.head = torch.zeros(lanes, dtype=torch.long)
        self.filled = torch.zeros(lanes, dtype=torch.long)
        self.transitions = 0
        """Number of transitions ever added."""
        self.size = 0
        """Number of stored transitions."""
        self._every = torch.arange(lanes)

    # ---- writing -----------------------------------------------------------------------------------------------
    def _write(self, lane: Tensor, row: Tensor, values: Mapping[str, Tensor], starts: bool) -> None:
        """Write one row for each (lane, row) pair; columns missing in `values` become 0."""
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
        """Add one step of every lane. `step` has the columns, reward, terminated and last, and optionally decides.

        `final`: observed columns (lanes, ...) after the step, needed if `last` is True in any lane.
        """
        self._write(self._every, self.head, step, starts=True)
        self._advance(self._every, 1)
        self.transitions += self.lanes
        if final is not None and step["last"].any():
            ended = step["last"].cpu().nonzero().squeeze(-1)
            self._write(ended, self.head[ended], {k: v[ended.to(v.device)] for k, v in final.items()}, starts=False)
            self._advance(ended, 1)

    def cut(self, final: Mapping[str, Tensor]) -> None:
        """Truncate every running episode: for environments whose state cannot be restored when a run is resumed.

        `final`: observed columns (lanes, ...) after the last step.
        """
        before = (self.head - 1) % self.length
        running = self.flags["starts"][self._every, before] & ~self.flags["last"][self._every, before]
        lane = running.nonzero().squeeze(-1)
        self.flags["last"][lane, before[lane]] = True
        self._write(lane, self.head[lane], {k: v[lane.to(v.device)] for k, v in final.items()}, starts=False)
        self._advance(lane, 1)

    def add_episode(self, episode: Mapping[str, Tensor], lane: int = 0) -> None:
        """Add an episode of T steps to one lane; observed columns have T + 1 rows, other columns T.

        An episode longer than the buffer loses its first steps.
        """
        steps = len(episode["action"])
        last, switches = torch.zeros(2, steps, dtype=torch.bool)
        last[-1] = True
        if "intervention" in episode:
            switches[:-1] = episode["intervention"].bool().diff().cpu()
        rows = (self.head[lane] + torch.arange(steps + 1)) % self.length
        kept = slice(max(0, steps + 1 - self.length), steps)
        lanes = torch.full((steps,), lane)
        values = {k: v[:steps][kept] for k, v in {**episode, "last": last, "switches": switches}.items()}
        self._write(lanes[kept], rows[:-1][kept], values, starts=True)
        final = {k: episode[k][steps:] for k, c in self.spec.items() if c.observed and k in episode}
        self._write(torch.tensor([lane]), rows[-1:], final, starts=False)
        self._advance(torch.tensor([lane]), steps + 1)
        self.transitions += steps

    def newest(self, lane: int) -> dict[str, Tensor]:
        """Return the last finished episode of a lane in the format of `add_episode`; overwritten steps are left out."""
        rows = self._newest(lane)
        at, final = rows.to(self.device), (self.head[lane : lane + 1] - 1) % self.length
        observed = torch.cat([rows, final]).to(self.device)
        episode = {name: self.columns[name][lane, observed if c.observed else at] for name, c in self.spec.items()}
        return episode | {name: self.flags[name][lane, rows] for name in ("decides", "terminated")}

    def _newest(self, lane: int) -> Tensor:
        """Return the rows of the steps of a lane's last finished episode."""
        before = (self.head[lane] - 1 - torch.arange(1, int(self.filled[lane]))) % self.length
        count = int(self.flags["starts"][lane, before].long().cumprod(0).sum())
        return before[:count].flip(0)

    def relabel(self, lane: int, reward: Tensor) -> None:
        """Set the rewards (T,) of the steps of a lane's last finished episode, and let samples begin at all of them."""
        rows = self._newest(lane)
        self.columns["reward"][lane, rows.to(self.device)] = reward.to(self.device)
        self.flags["decides"][lane, rows] = True

    # ---- sampling ----------------------------------------------------------------------------------------------
    def sample(self, count: int, how: Sampling, rng: torch.Generator) -> Batch:
        """Draw `count` transitions of up to `how.n_step` steps; `Sampling` describes the form of the samples.

        Returns the columns, reward (discounted sum), discount (0 after termination) and `next.<observed column>`.
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
        batch = self._windows(lane, row, how) if how.chunk > 1 or how.sequence else {}
        lane, row, at = lane.to(self.device), row.to(self.device), at.to(self.device)
        reward = torch.zeros(count, device=self.device)
        for step, weight in path:
            reward += weight.to(self.device) * self.columns["reward"][lane, step.to(self.device)]
        for name, c in self.spec.items():
            if name not in batch:
                batch[name] = self.columns[name][lane, row]
            if c.observed and not how.sequence:
                batch[NEXT + name] = self.columns[name][lane, at]
        if not how.sequence:
            batch["reward"] = reward
        return batch | {"discount": factor.to(self.device)}

    def _windows(self, lane: Tensor, row: Tensor, how: Sampling) -> Batch:
        """Return windows of `how.chunk` steps from each row on, and `valid`.

        Windows have actions and interventions; if `how.sequence`, they have all columns and `terminated`.

        Past the end of an episode, windows repeat the episode's final row: same observation, action 0.
        """
        steps = torch.arange(how.chunk + 1).expand(len(row), -1)
        rows, lane = (row[:, None] + steps) % self.length, lane[:, None]
        ended = self.flags["last"][lane, rows].long().cumsum(1)[:, :-1] > 0
        valid = torch.cat([torch.ones(len(row), 1, dtype=torch.bool), ~ended], 1)
        first = torch.where(valid, how.chunk + 1, steps).amin(1, keepdim=True)  # first step past the end
        rows = (row[:, None] + torch.minimum(steps, first)) % self.length
        flags = {"valid": valid[:, : how.chunk]}
        flags |= {"terminated": self.flags["terminated"][lane, rows[:, : how.chunk]]} if how.sequence else {}
        lane, at = lane.to(self.device), rows.to(self.device)
        names = [name for name in self.spec if how.sequence or name in ("action", "intervention")]
        spans = {name: how.chunk + 1 if self.spec[name].observed else how.chunk for name in names}
        batch = {name: self.columns[name][lane, at[:, :span]] for name, span in spans.items()}
        return batch | {name: flag.to(self.device) for name, flag in flags.items()}

    def _draw(self, count: int, span: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw (lane, row), each (count,), uniformly from the rows whose transitions of `span` steps are complete."""
        if not self.size:
            raise ValueError("the replay holds no transition yet")
        lanes, rows, drawn = [], [], 0
        longest = int(self.filled.max())
        while drawn < count:
            k = 2 * (count - drawn) + 16
            lane = torch.randint(0, self.lanes, (k,), generator=rng)
            age = 1 + (torch.rand(k, generator=rng) * longest).long()  # rows behind the head, 1 = newest
            row, whole = self._whole(span, lane, age)
            lanes.append(lane[whole])
            rows.append(row[whole])
            drawn += len(lanes[-1])
            if not drawn and not self.ready(span):
                raise ValueError(f"no transition of the replay has {span} steps, or the end of its episode, behind it")
        return torch.cat(lanes)[:count], torch.cat(rows)[:count]

    def ready(self, span: int) -> bool:
        """Return whether any row can be sampled; the newest rows of a running episode lack their following steps."""
        ages = torch.arange(1, int(self.filled.max()) + 1)
        lane = torch.arange(self.lanes).repeat_interleave(len(ages))
        return bool(self._whole(span, lane, ages.repeat(self.lanes))[1].any())

    def _whole(self, span: int, lane: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that are `age` rows behind the heads of lanes, and whether a sample may begin at each row."""
        row = (self.head[lane] - age) % self.length
        written = age <= self.filled[lane]  # reject instead of scaling `age`: all rows of all lanes are equally likely
        known = age > span
        for k in range(min(span, self.length)):
            known = known | ((age > k + 1) & self.flags["last"][lane, (row + k) % self.length])
        return row, written & self.flags["decides"][lane, row] & known

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        filled = int(self.filled.max())
        return {
            "columns": {k: v[:, :filled].clone() for k, v in (self.columns | self.flags).items()},
            "head": self.head.clone(), "filled": self.filled.clone(), "transitions": self.transitions,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        stored = self.columns | self.flags
        for name, saved in state["columns"].items():
            stored[name][:, : saved.shape[1]] = saved.to(stored[name].device)
        self.head, self.filled = state["head"].clone(), state["filled"].clone()
        self.transitions, self.size = state["transitions"], int(self.flags["starts"].sum())
