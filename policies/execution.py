"""Schedule chunk actions over control periods while inference takes time, in simulation and on a robot.

Chunks are stamped with the control period of their observation. In this example chunks A and B have 8 actions, A0 to A7
and B0 to B7, of which 4 are executed. Inference takes 2 periods. In periods marked "." the robot holds its position::

    period         0  1  2  3  4  5  6  7  8  9
    receding       .  .  A0 A1 A2 A3 .  .  B0 B1     stop and wait for inference; without a delay the robot never holds
    asynchronous   .  .  A2 A3 A4 A5 B2 B3 B4 B5     A observed period 0 and B period 4; late actions are dropped

`ensemble` infers continuously and averages the actions of all chunks for the period (Zhao et al. 2023, ACT).
`realtime` is asynchronous, and each chunk continues the previous chunk (Black et al. 2025, real-time chunking).
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from policies.base import Chunk, Observation, Prefix, RunnablePolicy
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, PositiveFloat, validate

logger = logging.getLogger(__name__)
T = TypeVar("T")
Mode = Literal["receding", "ensemble", "asynchronous", "realtime"]


@dataclass(frozen=True)
class Execution:
    """Settings of chunk execution."""

    mode: Mode = "receding"
    delay: NonNegativeInt = 0
    """Duration of an inference, control periods; in simulation it is simulated, on a robot it is the first estimate."""
    background: bool = False
    """Infer in a thread, for which the caller waits at most `patience`."""
    patience: NonNegativeFloat = 0.0
    """Longest time that the caller waits for a new inference in the background, s."""
    limit: PositiveFloat = 2.0
    """Duration of an inference in the background after which `InferenceHung` is raised, s."""
    guidance: NonNegativeFloat = 5.0
    """Largest guidance weight towards the previous chunk with `realtime`, beta of Black et al. 2025; 0: no guidance."""
    decay: NonNegativeFloat = 0.01
    """With `ensemble`, the i-th oldest chunk has weight exp(-decay * i), as in ACT."""
    period: NonNegativeFloat = 0.0
    """Control period, s, that a chunk's period must equal; 0: not checked."""

    def __post_init__(self) -> None:
        validate(self, "execution.")

    @property
    def delayed(self) -> bool:
        """Return whether inference takes time or runs in the background."""
        return self.mode != "receding" or self.delay > 0 or self.background


class InferenceHung(UserError):  # noqa: N818 - it reads as a sentence
    """An inference in the background took longer than `Execution.limit`."""


class ChunkExecutor:
    """Execute chunks: return an action per control period and environment, and infer the next chunk in time.
    Environments are independent: each has its own chunk and clock, and at most one inference in flight."""

    def __init__(
        self,
        policy: RunnablePolicy,
        num_envs: int,
        execution: Execution | None = None,
        hold_action: Callable[[], Tensor] | None = None,
        execute: int | None = None,
    ):
        """`hold_action` returns actions (num_envs, A) that hold the robot; receding execution without delay needs none.

        Raises:
            ConfigError: inference takes as long as a chunk, or `realtime` needs a policy that can continue a chunk.
            ValueError: `execute` is larger than the horizon.
        """
        execution = execution or Execution()
        if set_base := getattr(policy, "set_base_execution", None):  # residuals act every step; only the base is slow
            set_base(execution, hold_action)
            execution = Execution()
        self.policy, self.execution = policy, execution
        self.execute, self.horizon = execute or policy.execute, policy.horizon
        if not 1 <= self.execute <= self.horizon:
            raise ValueError(f"execute is {self.execute}; a chunk holds {self.horizon} actions")
        mode, delay = execution.mode, execution.delay
        if mode != "receding" and (late := max(delay, int(execution.background))) >= self.horizon:
            raise ConfigError(
                f"inference takes {late} control periods and a chunk holds {self.horizon}: every action would come too "
                f"late for {mode} execution; use receding, or a policy with longer chunks"
            )
        if mode == "realtime" and not getattr(policy, "inpaints", False):
            raise ConfigError(
                "realtime execution needs a policy that samples chunks (diffusion, flow); use asynchronous"
            )
        if hold_action is None and execution.delayed:
            raise ValueError(f"{mode} execution with inference that takes time needs `hold_action`")
        self.hold_action = hold_action
        self.chunks: Tensor | None = None
        """(n, horizon, A) chunks in execution"""
        self.used = torch.full((num_envs,), self.horizon)
        """(n,) index in `chunks` of this period's action; an index of at least the horizon means no action"""
        self.next: Chunk | None = None
        """Chunks being inferred, (n, horizon, A)"""
        self.age = torch.full((num_envs,), -1)
        """(n,) control periods since the observation of `next`; -1: no inference in flight"""
        self.idle = torch.zeros(num_envs, dtype=torch.bool)
        """(n,) bool: the robot held in the last control period because there was no action"""
        self.on_chunk: Callable[[Tensor], None] | None = None
        """Called with the actions (H, A) of environment 0's chunk that are to be executed, whenever a new one begins"""
        self._past: list[tuple[Tensor, Tensor]] = []  # with `ensemble`: chunks, oldest first, and their `used`
        self._durations: deque[int] = deque(maxlen=10)
        self._future: Future[Chunk] | None = None
        self._started, self._rows = 0.0, torch.zeros(num_envs, dtype=torch.bool)
        self._resets: list[Tensor | None] = []
        self._lock = threading.Lock()

    @property
    def expected_delay(self) -> int:
        """Return the expected duration of the next inference, control periods: the longest of the last ten; at first
        `delay`."""
        return self.longest_inference if self._durations else self.execution.delay

    @property
    def longest_inference(self) -> int:
        """Return the duration of the longest of the last ten background inferences, control periods; 0 at first."""
        return max(self._durations, default=0)

    def reset(self, ids: Tensor | None = None) -> None:
        """Drop chunks and inferences in flight of environments `ids`; None: all."""
        rows = slice(None) if ids is None else ids.cpu()
        self.used[rows], self.age[rows] = self.horizon, -1
        for _, used in self._past:
            used[rows] = self.horizon
        if self.execution.background:
            self._resets.append(ids)  # the thread may be using the policy
            if not (self._rows & (self.age >= 0)).any():
                self._future = None
        else:
            self.policy.reset(ids)

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """Return the actions (n, A) of this control period; call `act` once per period."""
        receding = self.execution.mode == "receding"
        self._receive(receding)
        due = (self.age < 0) & (self.used >= self._interval())
        if due.any() and self._future is None:
            self._infer(observation, due, rng)
            self._receive(receding)
        idle = self.used >= (self.execute if receding else self.horizon)
        if self._past:
            action = self._average()
        elif self.chunks is not None:
            action = self.chunks[torch.arange(len(idle)), self.used.clamp_max(self.horizon - 1)]
        if idle.any():
            assert self.hold_action is not None
            held = self.hold_action()
            action = held if self.chunks is None else torch.where(idle[:, None].to(held.device), held, action)
        self.idle = idle
        self.used, self.age = self.used + 1, torch.where(self.age < 0, -1, self.age + 1)
        self._past = [(chunks, used + 1) for chunks, used in self._past if (used + 1 < self.horizon).any()]
        return action

    @property
    def reads_next(self) -> Tensor | None:
        """Return the environments (n,) bool that infer from the next observation; None: any may."""
        return None if self.execution.delayed else self.used >= self.execute

    def _interval(self) -> int:
        """Return the number of control periods between the observations of consecutive chunks."""
        if self.execution.mode == "ensemble":
            return 1
        if self.execution.mode == "receding":
            return self.execute
        return max(1, min(self.execute, self.horizon - self.expected_delay))  # before the chunk runs out

    def _infer(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> None:
        selected = {k: v[rows] for k, v in observation.items()}
        prefix = self._prefix(rows) if self.execution.mode == "realtime" and self.chunks is not None else None
        self.age = torch.where(rows, 0, self.age)
        if not self.execution.background:
            self._keep(self.policy.infer(selected, rng, prefix), rows)
            return
        # The thread needs its own generator, because the caller continues to sample from `rng`.
        own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
        resets, self._resets = self._resets, []

        @torch.no_grad()
        def infer() -> Chunk:
            with self._lock:  # an inference that started before a reset may still be running
                for ids in resets:
                    self.policy.reset(ids)
                return self.policy.infer(selected, own, prefix)

        self._future, self._started, self._rows = in_thread(infer), time.monotonic(), rows
        wait([self._future], self.execution.patience)

    def _keep(self, chunk: Chunk, rows: Tensor) -> None:
        """Check and store the chunk inferred for `rows`."""
        shape, period = chunk.actions.shape, self.execution.period
        if shape[:2] != (int(rows.sum()), self.horizon):
            raise ValueError(f"chunks have shape {tuple(shape)}, not ({int(rows.sum())}, {self.horizon}, A)")
        if chunk.start > 0:
            raise ValueError(f"a chunk begins {chunk.start} control periods after its observation; at most 0 is right")
        if chunk.period and period and abs(chunk.period / period - 1) > 0.01:
            raise ConfigError(f"the policy's actions last {chunk.period:g} s, a control period here {period:g} s")
        if self.next is None:
            self.next = Chunk(chunk.actions.new_zeros(len(rows), *shape[1:]), chunk.start)
        self.next.actions[rows], self.next.start = chunk.actions, chunk.start

    def _receive(self, receding: bool) -> None:
        """Switch to the chunks whose inference has ended."""
        arrived = self.age >= (0 if self.execution.background else self.execution.delay)
        if self.execution.background:
            if self._future is None:
                return
            if not self._future.done():
                if (age := time.monotonic() - self._started) > self.execution.limit:
                    raise InferenceHung(f"the policy has not answered for {age:.1f} s; see whether its process runs")
                return
            future, self._future = self._future, None
            self._keep(future.result(), self._rows)
            arrived &= self._rows
            self._durations.extend(self.age[arrived].tolist())
        if not arrived.any():
            return
        assert self.next is not None
        if self.chunks is None:
            self.chunks = torch.zeros_like(self.next.actions)
        self.chunks[arrived] = self.next.actions[arrived]
        used = (torch.zeros_like(self.age) if receding else self.age) - self.next.start
        if (used[arrived] >= self.horizon).any():
            logger.warning("inference took %d control periods: no action of the chunk was in time", self.age.max())
        self.used = torch.where(arrived, used, self.used)
        if self.execution.mode == "ensemble":
            self._past.append((self.next.actions.clone(), torch.where(arrived, used, self.horizon)))
        self.age = torch.where(arrived, -1, self.age)
        if self.on_chunk is not None and arrived[0]:
            self.on_chunk(self.chunks[0, int(self.used[0]) : self.execute if receding else self.horizon])

    def _average(self) -> Tensor:
        """Return the weighted mean (n, A) of all chunks' actions for this period (`ensemble`)."""
        used = torch.stack([used for _, used in self._past])
        valid = used < self.horizon
        weight = torch.exp(-self.execution.decay * (valid.cumsum(0) - 1)) * valid
        rows, index = torch.arange(used.shape[1]), used.clamp_max(self.horizon - 1)
        actions = torch.stack([chunks[rows, k] for (chunks, _), k in zip(self._past, index, strict=True)])
        weight = (weight / weight.sum(0).clamp_min(1e-9)).to(actions.device)
        return (weight[..., None] * actions).sum(0)

    def _prefix(self, rows: Tensor) -> Prefix | None:
        """Return the chunks' remaining actions with the weights of Black et al. 2025, equation 5; None if all are 0."""
        assert self.chunks is not None
        used, k = self.used[rows, None], torch.arange(self.horizon)
        left, chunks = (self.horizon - used).clamp_min(0), self.chunks[rows]
        index = (used + k).clamp_max(self.horizon - 1)[..., None].expand_as(chunks).to(chunks.device)
        frozen = (k < self.expected_delay) & (k < left)
        share = ((left - k) / (left - self.expected_delay + 1).clamp_min(1)).clamp(0, 1)
        weights = torch.where(frozen, 1.0, share * share.expm1() / (math.e - 1) * bool(self.execution.guidance))
        if not weights.any():
            return None
        return Prefix(chunks.gather(1, index), weights.to(chunks.device), self.execution.guidance)

    @torch.no_grad()
    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Return the result of `act` for environments `rows` (n,) bool without advancing the executor; the other rows
        are 0. Requires receding execution without a delay, and a policy with `peek`."""
        assert self.chunks is not None
        policy: Any = self.policy
        action, rows = torch.zeros_like(self.chunks[:, 0]), rows.cpu()
        continued, due = rows & (self.used < self.execute), rows & (self.used >= self.execute)
        action[continued] = self.chunks[continued, self.used[continued]]
        if due.any():
            action[due] = policy.peek(observation, due, rng)[:, 0]
        return action

    def state_dict(self) -> dict[str, Any]:
        """Return the chunks in execution; inferences in flight are not included, and are repeated after a resume."""
        return {"chunks": self.chunks, "used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.chunks, self.used = state["chunks"], state["used"].cpu()
        self.age = torch.full_like(self.used, -1)


@torch.no_grad()
def warm_up(policy: RunnablePolicy, observation: Observation, execution: Execution) -> None:
    """Infer once and drop the result, because the first inference takes seconds to load libraries."""
    policy = getattr(policy, "base", policy) if hasattr(policy, "set_base_execution") else policy
    rng = torch.Generator()
    runner = ChunkExecutor(policy, len(next(iter(observation.values()))))
    runner.act(observation, rng)
    chunk = runner.chunks
    if chunk is not None and execution.mode == "realtime" and getattr(policy, "inpaints", False):
        policy.infer(observation, rng, Prefix(chunk, torch.ones(chunk.shape[:2]), execution.guidance))
    policy.reset()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread, so that a hanging model does not keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="inference", daemon=True).start()
    return future
