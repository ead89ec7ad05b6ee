"""Session of one client on a server: a policy with its own state, which answers the client's messages."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch

from policies.base import Policy
from policies.bundle import Bundle
from policies.execution import Execution, warm_up
from policies.remote.contract import spec_of
from policies.remote.packing import PackingError, pack, unpack
from policies.remote.request import read_request
from robot_rl.interface.spec import NOTHING
from robot_rl.util.errors import ConfigError


class PolicySession:
    """Answers one client's requests in order."""

    def __init__(self, bundle: Bundle, device: torch.device):
        self.policy, self.device = own(bundle.policy), device
        self.spec = spec_of(bundle)
        specs = bundle.specs
        self.actions = specs.actions if specs else NOTHING
        self.rng = torch.Generator().manual_seed(0)
        """Generator for requests without seed or generator state."""

    def warm_up(self) -> None:
        """Infer once, so that the first client need not wait."""
        warm_up(self.policy, self.spec.zeros(1, self.device), Execution())

    @torch.no_grad()
    def answer(self, message: bytes | str, previous: float | None = None) -> bytes:
        """Return the answer to a message, including the duration of the `previous` one, s; ConfigError if invalid."""
        if isinstance(message, str):
            raise ConfigError("a request is msgpack in a binary message, not a text")
        try:
            request = read_request(unpack(message), self.spec, self.policy)
        except PackingError as error:
            raise ConfigError(f"the request is no message: {error}") from None
        begun = time.monotonic()
        if request.reset is not False:
            self.policy.reset(None if request.reset is True else request.reset)
        observation = {key: value.to(self.device) for key, value in request.observation.items()}
        prefix, rng = request.prefix, request.rng or self.rng
        if prefix is not None:
            prefix = type(prefix)(prefix.actions.to(self.device), prefix.weights.to(self.device), prefix.guidance)
        chunk = self.policy.infer(observation, rng, prefix)
        unit = chunk.actions.cpu()
        physical = self.actions.to_physical(unit) if self.actions.fields else unit
        timing = {"infer_ms": 1e3 * (time.monotonic() - begun)}
        timing |= {} if previous is None else {"prev_total_ms": 1e3 * previous}
        one = request.robots is None
        answer: dict[str, Any] = {"actions": (physical[0] if one else physical).numpy(), "server_timing": timing}
        if not one:
            answer |= {"unit_actions": unit.numpy(), "start": chunk.start, "period": chunk.period}
            answer["rng"] = rng.get_state().numpy()
        return pack(answer)


def own(policy: Policy) -> Policy:
    """Return a copy of the policy with its own state, such as the history, and shared weights."""
    shared = [*policy.parameters(), *policy.buffers(), *filter(None, (getattr(policy, "session", None),))]
    return copy.deepcopy(policy, {id(part): part for part in shared})
