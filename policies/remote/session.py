"""One client's side of a server: a policy with a state of its own, and an answer for each of its messages."""

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
    """Answers requests in the order in which they come."""

    def __init__(self, bundle: Bundle, device: torch.device):
        self.policy, self.device = own(bundle.policy), device
        self.spec = spec_of(bundle)
        specs = bundle.specs
        self.actions = specs.actions if specs else NOTHING
        self.rng = torch.Generator().manual_seed(0)
        """For requests without a generator of their own."""

    def warm_up(self) -> None:
        """Infer once, so that the first client does not wait for it."""
        warm_up(self.policy, self.spec.zeros(1, self.device), Execution())

    @torch.no_grad()
    def answer(self, message: bytes | str, previous: float | None = None) -> bytes:
        """Return the answer to a message, with the time of the `previous` one, s; ConfigError for a wrong request."""
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
        said: dict[str, Any] = {"actions": (physical[0] if one else physical).numpy(), "server_timing": timing}
        if not one:
            said |= {"unit_actions": unit.numpy(), "start": chunk.start, "period": chunk.period}
            said["rng"] = rng.get_state().numpy()
        return pack(said)


def own(policy: Policy) -> Policy:
    """Return the policy with a state of its own and the same weights: one client's history is not another's."""
    shared = [*policy.parameters(), *policy.buffers(), *filter(None, (getattr(policy, "session", None),))]
    return copy.deepcopy(policy, {id(part): part for part in shared})
