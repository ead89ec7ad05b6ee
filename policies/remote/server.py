"""Serve one policy to any number of robots in openpi's websocket protocol.

Inferences run one at a time, in the order of the requests. An invalid request is answered with an error as text, and
only its own connection is closed.
"""

import asyncio
import copy
import http
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from policies.base import Policy
from policies.bundle import Bundle
from policies.execution import Execution, in_thread, warm_up
from policies.remote import LARGEST
from policies.remote.contract import describe, spec_of
from policies.remote.packing import PackingError, pack, unpack
from policies.remote.request import read_request
from robot_rl.interface.spec import NOTHING
from robot_rl.util.errors import ConfigError, UserError

logger = logging.getLogger(__name__)


class PolicySession:
    """Session of one client, whose requests are answered in order."""

    def __init__(self, bundle: Bundle, device: torch.device):
        self.policy, self.device = with_own_state(bundle.policy), device
        self.spec = spec_of(bundle)
        specs = bundle.specs
        self.actions = specs.actions if specs else NOTHING
        self.rng = torch.Generator().manual_seed(0)
        """Generator for requests that have neither seed nor generator state."""

    def warm_up(self) -> None:
        """Infer once, so that the first client need not wait."""
        warm_up(self.policy, self.spec.zeros(1, self.device), Execution())

    @torch.no_grad()
    def answer(self, message: bytes | str, previous: float | None = None) -> bytes:
        """Return the answer to a message; raise ConfigError for an invalid message.

        `previous`: duration of the preceding answer, s, which the answer reports."""
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


def with_own_state(policy: Policy) -> Policy:
    """Return a copy of the policy that has its own state, such as the history, but shares the weights."""
    shared = [*policy.parameters(), *policy.buffers(), *filter(None, (getattr(policy, "session", None),))]
    return copy.deepcopy(policy, {id(part): part for part in shared})


class PolicyServer:
    """Server of a bundle's policy that runs until SIGINT or SIGTERM."""

    def __init__(self, bundle: Bundle, version: str, device: str = "cpu"):
        """Load the policy and infer once.

        Raises:
            BundleError: the policy does not fit its interface or robot.
        """
        self.bundle, self.device = bundle, torch.device(device)
        bundle.policy.to(self.device)
        self.metadata = pack(describe(bundle, version))
        self.counts: Counter[str] = Counter(clients=0, requests=0, refused=0)
        PolicySession(bundle, self.device).warm_up()

    def run(self, host: str, port: int, ready: Callable[[str], None]) -> None:
        """Serve until SIGINT or SIGTERM; `ready` gets the address. UserError if the port is not available."""
        asyncio.run(self._run(host, port, ready))

    async def _run(self, host: str, port: int, ready: Callable[[str], None]) -> None:
        self._turn, end, loop = asyncio.Lock(), asyncio.Event(), asyncio.get_running_loop()
        # Browsers send the Origin of a page: requests of web pages are refused.
        options: dict[str, Any] = dict(compression=None, max_size=LARGEST, origins=[None], process_request=_healthy)
        try:
            server = await serve(self._client, host, port, **options)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot serve at {host}:{port} ({reason}); choose another --host or --port") from None

        def stop() -> None:
            end.set()
            for number in handled:  # a second signal terminates the process immediately
                loop.remove_signal_handler(number)

        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, stop)
        async with server:
            host, port = next(iter(server.sockets)).getsockname()[:2]
            ready(f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}")
            await end.wait()

    async def _client(self, connection: ServerConnection) -> None:
        self.counts["clients"] += 1
        session, previous = PolicySession(self.bundle, self.device), None
        try:
            await connection.send(self.metadata)
            async for message in connection:
                begun = time.monotonic()
                try:
                    async with self._turn:
                        answer = await asyncio.wrap_future(in_thread(partial(session.answer, message, previous)))
                except Exception as error:
                    await self._refuse(connection, error)
                    return
                await connection.send(answer)
                self.counts["requests"] += 1
                previous = time.monotonic() - begun
        except ConnectionClosed:  # the client left without a closing handshake
            self.counts["vanished"] += 1

    async def _refuse(self, connection: ServerConnection, error: Exception) -> None:
        """Send an error as text and close the connection."""
        self.counts["refused"] += 1
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        logger.warning("a request of %s is refused: %s", (connection.remote_address or ["?"])[0], text)
        await connection.send(text)
        await connection.close(CloseCode.INTERNAL_ERROR, "the error is in the message before")


def _healthy(connection: ServerConnection, request: Request) -> Response | None:
    """Answer GET /healthz, the health check of load balancers."""
    return connection.respond(http.HTTPStatus.OK, "OK\n") if request.path == "/healthz" else None
