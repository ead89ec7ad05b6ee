"""Policies on a server, for an executor: ours answers as the local policy would, a foreign one in its own units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.base import Chunk, Observation, Policy, Prefix, Size
from policies.remote.connection import Connection
from policies.remote.contract import Terms
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE, STATE, ObservationSpec
from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError, nearest


class RemotePolicy(Policy):
    """A policy behind a connection."""

    def __init__(self, connection: Connection, size: Size, horizon: int, execute: int):
        super().__init__()
        self.connection, self.size, self.horizon, self.execute = connection, size, horizon, execute

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.infer(observation, rng).actions

    def seen(self, observation: Observation) -> Observation:
        """Return what the policy reads: a simulation's observation also has what only critics and experts may see."""
        return {key: observation[key] for key in (STATE, *self.size.extra_inputs)}

    def numbers(self, answer: Mapping[str, Any], key: str, shape: tuple[int | None, ...]) -> Tensor:
        """Return finite float32 numbers of an answer; RemoteFailure unless they have the shape (None: any size)."""
        said = answer.get(key)
        if not isinstance(said, np.ndarray) or said.dtype.kind not in "fiu":
            kind = f"{key!r} is {type(said).__name__}" if key in answer else f"there is no {key!r}"
            raise self.connection.fail("nonsense", f"answers nonsense: {kind}, not an array of numbers")
        if said.ndim != len(shape) or any(b not in (None, a) for a, b in zip(said.shape, shape, strict=True)):
            wanted = "(" + ", ".join("n" if size is None else str(size) for size in shape) + ")"
            raise self.connection.fail("shape", f"answers with {key!r} of shape {said.shape}, not {wanted}")
        actions = torch.from_numpy(said).float()
        if not actions.isfinite().all():
            raise self.connection.fail("nonfinite", f"answers with {key!r} that are NaN or infinite")
        return actions

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class ServedPolicy(RemotePolicy):
    """A policy that `robot-rl serve` holds. It gets whole batches, and the state of the random generator, so that it
    acts as the local policy does, to the bit where both compute alike."""

    def __init__(self, connection: Connection, terms: Terms):
        super().__init__(connection, terms.size, terms.horizon, terms.execute)
        self.inpaints = terms.inpaints  # type: ignore[misc]
        self._forget: set[int] | None = None
        """Environments to reset with the next request; None: all."""

    def reset(self, ids: Tensor | None = None) -> None:
        if ids is None:
            self._forget = None
        elif self._forget is not None:
            self._forget |= set(ids.tolist())

    @torch.no_grad()
    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        state = observation[STATE]
        request: dict[str, Any] = {k: v.cpu().numpy() for k, v in self.seen(observation).items()}
        request |= {"robots": len(state), "rng": rng.get_state().numpy()}
        request["reset"] = True if self._forget is None else sorted(self._forget)
        if prefix is not None:
            request["prefix"] = {
                "actions": prefix.actions.cpu().numpy(), "weights": prefix.weights.cpu().numpy(),
                "guidance": float(prefix.guidance),
            }  # fmt: skip
        answer = self.connection.ask(request)
        self._forget = set()
        actions = self.numbers(answer, "unit_actions", (len(state), self.horizon, self.size.action))
        try:
            rng.set_state(torch.from_numpy(answer["rng"]))
            start, period = int(answer["start"]), float(answer["period"])
            if start > 0 or not 0 <= period < math.inf:
                raise ValueError(f"start {start}, period {period}")
            return Chunk(actions.to(state.device), start, period)
        except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise self.connection.fail("nonsense", f"answers nonsense: {error!r}") from None


class ForeignPolicy(RemotePolicy):
    """A policy on any server that speaks openpi's protocol: one request for each robot, without memory.

    Its actions are physical, in the order of the interface's, and are clipped to the limits of these.
    """

    def __init__(
        self, connection: Connection, size: Size, actions: VectorSpec, keys: Mapping[str, str], execute: int = 0
    ):
        """Ask once, with zeros, how many actions a chunk holds; `execute` 0 executes all of them.

        Args:
            keys: the server's name of each of our keys, for what it does not call as we do.
        """
        super().__init__(connection, size, 1, 1)
        self.actions, self.names = actions, dict(keys)
        nothing = torch.zeros(size.observation)
        zeros = {STATE: nothing} | {key: field[0] for key, field in size.extra_inputs.zeros(1).items()}
        self.horizon = len(self._ask(zeros, None))
        if not 1 <= (execute or self.horizon) <= self.horizon:
            raise ConfigError(
                f"--execute is {execute}, and the chunks of {connection.address} hold {self.horizon} actions"
            )
        self.execute = execute or self.horizon

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        state, seen = observation[STATE], self.seen(observation)
        rows = [{key: value[row] for key, value in seen.items()} for row in range(len(state))]
        return Chunk(torch.stack([self._ask(row, self.horizon) for row in rows]).to(state.device))

    def _ask(self, observation: Observation, horizon: int | None) -> Tensor:
        """Return the chunk (horizon, A) in [-1, 1] for one robot's observation."""
        request: dict[str, Any] = {}
        for key, value in observation.items():
            said = decode(value[None])[0] if key == LANGUAGE else value.cpu().numpy()
            request[self.names.get(key, "prompt" if key == LANGUAGE else key)] = said
        answer = self.connection.ask(request)
        physical = self.numbers(answer, "actions", (horizon, self.actions.size))
        if not len(physical):
            raise self.connection.fail("shape", "answers with a chunk of no actions")
        return self.actions.to_unit(physical)


def translation(pairs: tuple[str, ...], spec: ObservationSpec) -> dict[str, str]:
    """Return the names of a foreign server by our keys, from `OURS=THEIRS`; ConfigError for one that is not ours."""
    names: dict[str, str] = {}
    for pair in pairs:
        ours, separator, theirs = pair.partition("=")
        if not separator or not theirs:
            raise ConfigError(f"--keys {pair}: write OURS=THEIRS, such as {STATE}=observation/state")
        if ours not in spec:
            raise ConfigError(f"--keys {pair}: the task has no observation {ours!r}; {nearest(ours, list(spec))}")
        if ours in names or theirs in names.values():
            raise ConfigError(f"--keys {pair}: a name is given twice")
        names[ours] = theirs
    return names
