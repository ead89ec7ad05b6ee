"""Clients of policy servers: `robot-rl serve`, equal to the local policy, or others, with physical actions."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.base import Chunk, Observation, Policy, Prefix, Size
from policies.remote.connection import Connection
from policies.remote.contract import ServedContract
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE, STATE, ObservationSpec
from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError, nearest


class RemotePolicy(Policy):
    """Policy on a server."""

    def __init__(self, connection: Connection, size: Size, horizon: int, execute: int):
        super().__init__()
        self.connection, self.size, self.horizon, self.execute = connection, size, horizon, execute

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.infer(observation, rng).actions

    def seen(self, observation: Observation) -> Observation:
        """Return the entries of an observation that the policy reads, without privileged entries."""
        return {key: observation[key] for key in (STATE, *self.size.extra_inputs)}

    def numbers(self, answer: Mapping[str, Any], key: str, shape: tuple[int | None, ...]) -> Tensor:
        """Return the array `key` of an answer as float32; RemoteFailure if not finite or of another shape (None: any
        size)."""
        array = answer.get(key)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
            kind = f"{key!r} is {type(array).__name__}" if key in answer else f"there is no {key!r}"
            raise self.connection.fail("nonsense", f"answers nonsense: {kind}, not an array of numbers")
        if array.ndim != len(shape) or any(b not in (None, a) for a, b in zip(array.shape, shape, strict=True)):
            wanted = "(" + ", ".join("n" if size is None else str(size) for size in shape) + ")"
            raise self.connection.fail("shape", f"answers with {key!r} of shape {array.shape}, not {wanted}")
        actions = torch.from_numpy(array).float()
        if not actions.isfinite().all():
            raise self.connection.fail("nonfinite", f"answers with {key!r} that are NaN or infinite")
        return actions

    def close(self) -> None:
        self.connection.close()


class ServedPolicy(RemotePolicy):
    """Policy on a `robot-rl serve` process. Requests contain whole batches and the random generator's state, so actions
    are bit-identical to the local policy's on equal hardware."""

    def __init__(self, connection: Connection, terms: ServedContract):
        super().__init__(connection, terms.size, terms.horizon, terms.execute)
        self.inpaints = terms.inpaints  # type: ignore[misc]
        self._resets: set[int] | None = None
        """Environments to reset with the next request; None: all."""

    def reset(self, ids: Tensor | None = None) -> None:
        if ids is None:
            self._resets = None
        elif self._resets is not None:
            self._resets |= set(ids.tolist())

    @torch.no_grad()
    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        state = observation[STATE]
        request: dict[str, Any] = {k: v.cpu().numpy() for k, v in self.seen(observation).items()}
        request |= {"robots": len(state), "rng": rng.get_state().numpy()}
        request["reset"] = True if self._resets is None else sorted(self._resets)
        if prefix is not None:
            request["prefix"] = {
                "actions": prefix.actions.cpu().numpy(), "weights": prefix.weights.cpu().numpy(),
                "guidance": float(prefix.guidance),
            }  # fmt: skip
        answer = self.connection.ask(request)
        self._resets = set()
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
    """Stateless policy on any server with openpi's protocol, which gets one request per robot. The server's actions are
    physical, in the interface's order; the client clips them to the interface's limits."""

    def __init__(
        self, connection: Connection, size: Size, actions: VectorSpec, keys: Mapping[str, str], execute: int = 0
    ):
        """Send zeros once to find the chunk length; with `execute` 0, whole chunks are executed.

        Args:
            keys: the server's names for our observation keys, where the names differ.
        """
        super().__init__(connection, size, 1, 1)
        self.actions, self.names = actions, dict(keys)
        zeros = {STATE: torch.zeros(size.observation)}
        zeros |= {key: field[0] for key, field in size.extra_inputs.zeros(1).items()}
        self.horizon = len(self._ask(zeros, None))
        if not 1 <= (execute or self.horizon) <= self.horizon:
            raise ConfigError(f"--execute is {execute}, and chunks of {connection.address} hold {self.horizon} actions")
        self.execute = execute or self.horizon

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        state, seen = observation[STATE], self.seen(observation)
        rows = [{key: value[row] for key, value in seen.items()} for row in range(len(state))]
        return Chunk(torch.stack([self._ask(row, self.horizon) for row in rows]).to(state.device))

    def _ask(self, observation: Observation, horizon: int | None) -> Tensor:
        """Return the chunk (horizon, A) in [-1, 1] for one robot's observation."""
        request: dict[str, Any] = {}
        for key, value in observation.items():
            plain = decode(value[None])[0] if key == LANGUAGE else value.cpu().numpy()
            request[self.names.get(key, "prompt" if key == LANGUAGE else key)] = plain
        answer = self.connection.ask(request)
        physical = self.numbers(answer, "actions", (horizon, self.actions.size))
        if not len(physical):
            raise self.connection.fail("shape", "answers with a chunk of no actions")
        return self.actions.to_unit(physical)


def translation(pairs: tuple[str, ...], spec: ObservationSpec) -> dict[str, str]:
    """Parse pairs `OURS=THEIRS` of our observation key and the server's name for it; ConfigError for an unknown key."""
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
