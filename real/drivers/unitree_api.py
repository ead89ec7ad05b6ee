"""Unitree's requests and responses over DDS topics: a client of one of the robot's services.

A service `sport` takes unitree_api/Request on `api/sport/request` and answers on `api/sport/response`, with the
request's identity, an error code and JSON. All clients receive all responses. Does not import torch.
"""

import json
import random
from collections.abc import Mapping
from typing import Any

from real import clock
from real.bus import Node, Stamped, make, qos
from robot_rl.util.errors import UserError

REQUEST, RESPONSE = "unitree_api/msg/Request", "unitree_api/msg/Response"
REQUESTS = qos.QoS(depth=10, blocking=0.0)
"""Quality of service of requests: a dead service never delays the robot."""
ANSWER = 5.0
"""Longest wait for a response, s."""


class ApiClient:
    """Client of one of the robot's services."""

    def __init__(self, node: Node, service: str):
        self.node, self.service = node, service
        self._last = random.SystemRandom().getrandbits(62)  # other clients count too
        self._awaited: set[int] = set()
        self._answers: dict[int, tuple[int, str]] = {}
        """Error code and data of awaited responses by identity."""
        self.requests = node.publisher(REQUEST, f"api/{service}/request", REQUESTS)
        self.responses = node.subscribe(RESPONSE, f"api/{service}/response", qos.DEFAULT, self._on_response)

    @property
    def served(self) -> bool:
        """Return whether the service is there."""
        return self.requests.matched > 0 and self.responses.matched > 0

    def send(self, api: int, parameter: Mapping[str, Any], reply: bool = True) -> int:
        """Send a request without waiting; return its identity. `reply`: the service is to answer."""
        self._last += 1
        if reply:
            self._awaited.add(self._last)
        header = {"identity": {"id": self._last, "api_id": api}, "policy": {"priority": 0, "noreply": not reply}}
        self.requests.publish(make(REQUEST, header=header, parameter=json.dumps(parameter)))
        return self._last

    def call(self, api: int, parameter: Mapping[str, Any], timeout: float = ANSWER) -> Any:
        """Return the data of the response to a request; raise UserError for none, an error code or no JSON."""
        identity, what = self.send(api, parameter), f"service {self.service!r} of the robot, request {api}"
        answered = clock.wait(lambda: identity in self._answers, timeout)
        self._awaited.discard(identity)
        if not answered:
            raise UserError(f"{what}: no answer within {timeout:g} s; is the robot still starting?")
        code, data = self._answers.pop(identity)
        if code:
            raise UserError(f"{what}: error {code}; look at the robot's state in Unitree's app")
        try:
            return json.loads(data) if data else {}
        except ValueError:
            raise UserError(f"{what}: the answer is no JSON: {data!r}; is its firmware supported?") from None

    def close(self) -> None:
        self.requests.close()
        self.responses.close()

    def _on_response(self, sample: Stamped) -> None:
        header = sample.msg.header
        if header.identity.id in self._awaited:
            self._awaited.discard(header.identity.id)
            self.answered(header.identity.id, header.status.code, sample.msg.data)

    def answered(self, identity: int, code: int, data: str) -> None:
        """Keep a response that arrived; called by the reader's thread."""
        self._answers[identity] = code, data
