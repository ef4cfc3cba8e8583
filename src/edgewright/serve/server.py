"""A policy over a websocket, as openpi's client talks to one.

The protocol: the server sends its metadata, then every message of the client is an observation and is answered by one
message, in order: bytes are the result, a text is an error. Unlike openpi's server this one shows no traceback, keeps
the connection after an error, and does not stop listening while the policy computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from edgewright.errors import HostError
from edgewright.serve import _http
from edgewright.serve._requests import Requests
from edgewright.serve.log import Log
from edgewright.serve.metrics import CONTENT_TYPE, Metrics
from edgewright.serve.protocol import COMMITTED, Continues, Inferred, Infers
from edgewright.serve.queue import InferenceQueue
from edgewright.serve.settings import Settings
from edgewright.serve.wire import encode

_WARM_UPS = 2
#: How long a client may take to confirm that the connection is closed.
_CLOSE_S = 2.0
#: Messages of one client that are read ahead of the one being answered.
_READ_AHEAD = 1


class PolicyServer:
    """Serves one policy. `run` blocks until SIGINT or SIGTERM; `stop` may be called from any thread.

    `log` is where events go, by default stderr. Raises MessageError when the policy's metadata can't be sent.
    """

    def __init__(self, policy: Infers, settings: Settings | None = None, *, log: Log | None = None) -> None:
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self.port = 0
        self._policy = policy
        self._log = log or Log()
        told = dict(policy.metadata)
        self._takes_committed = told.get("takes_committed") is True
        self._metadata = encode(told)
        self._clients: set[ServerConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops = 0

    def warm_up(self, observation: Mapping[str, Any]) -> None:
        """Run the policy a few times before the port is open: the first runs of an engine are slow."""
        start = time.perf_counter()
        for _ in range(_WARM_UPS):
            self._policy.infer(observation)
        self._log.event("warm", runs=_WARM_UPS, ms=round(1000 * (time.perf_counter() - start), 1))

    def run(self, listening: Callable[[], None] | None = None) -> None:
        """Serve until a signal or `stop`; `listening` is called when the port is open and known.

        The first signal lets the requests under way end, a second one doesn't. Raises HostError when the port is
        taken or the address isn't this machine's.
        """
        asyncio.run(self._run(listening))

    def stop(self) -> None:
        """Stop as the first signal does."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has stopped already
                loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        (self._stopping if self._stops == 1 else self._hurry).set()

    async def _run(self, listening: Callable[[], None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._stops, self._stopping, self._hurry = 0, asyncio.Event(), asyncio.Event()
        self._queue = InferenceQueue(self._infer, waiting=self.settings.queue)
        self._requests = Requests(
            self._queue, self.settings, self.metrics, self._log, takes_committed=self._takes_committed
        )
        try:
            with self._signals():
                server = await self._open()
                self.port = server.sockets[0].getsockname()[1]
                self._log.event("listening", host=self.settings.host, port=self.port)
                if listening is not None:
                    listening()
                await self._stopping.wait()
                await self._drain(server)
        finally:
            self._queue.close()
            self._loop = None

    def _infer(self, observation: Mapping[str, Any]) -> Inferred:
        """Ask the policy, with the committed actions where the observation has any."""
        if COMMITTED not in observation:
            return self._policy.infer(observation)
        rest = {name: value for name, value in observation.items() if name != COMMITTED}
        return cast(Continues, self._policy).infer(rest, committed=observation[COMMITTED])

    async def _open(self) -> Server:
        host, port = self.settings.host, self.settings.port
        try:
            return await serve(
                self._talk,
                host,
                port,
                compression=None,
                max_size=self.settings.limits.message_bytes,
                max_queue=_READ_AHEAD,
                close_timeout=_CLOSE_S,
                process_request=self._admit,
                server_header=None,
                logger=self._log.of_library(),
            )
        except OSError as error:
            raise HostError(
                f"Nothing can listen at {host or 'every address'} port {port} ({error.strerror or error}): "
                f"choose another --port or --host."
            ) from None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM; outside the main thread signals are the caller's business."""
        loop, handled = asyncio.get_running_loop(), []
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
                handled.append(number)
        except (ValueError, RuntimeError, NotImplementedError):
            pass
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def _drain(self, server: Server) -> None:
        """Take no more, let the requests under way end for a while, say goodbye."""
        self._log.event("stopping", requests=self._requests.under_way)
        self._requests.refuse_more()
        server.close(close_connections=False)
        ended = [asyncio.create_task(wait) for wait in (self._requests.idle.wait(), self._hurry.wait())]
        await asyncio.wait(ended, timeout=self.settings.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.cancel()
        dropped = self._requests.under_way
        goodbye = (client.close(CloseCode.GOING_AWAY, "the server stops") for client in list(self._clients))
        await asyncio.gather(*goodbye, return_exceptions=True)
        await server.wait_closed()
        self._log.event("stopped", dropped=dropped, requests=self.metrics.requests, answers=self.metrics.answers)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer plain HTTP requests, and refuse who may not come in; None lets the websocket begin."""
        path = _http.path_of(request)
        if path == _http.HEALTH:
            stuck = self._queue.running_s > self.settings.stuck_s
            status = HTTPStatus.SERVICE_UNAVAILABLE if stuck else HTTPStatus.OK
            return _http.text_response(connection, status, "stuck" if stuck else "OK")
        if not _http.authorised(request, self.settings.token):
            text = "This server needs a token: send the header Authorization: Api-Key TOKEN."
            return self._refuse(connection, "token", HTTPStatus.UNAUTHORIZED, text)
        if path == _http.METRICS:
            text = self.metrics.text(queue=self._queue.waiting, connections=len(self._clients))
            return _http.text_response(connection, HTTPStatus.OK, text, CONTENT_TYPE)
        if request.headers.get_all("Origin"):  # a page in a browser on this machine must not drive the robot
            text = "Pages of a browser are not served: use a client program."
            return self._refuse(connection, "origin", HTTPStatus.FORBIDDEN, text)
        if len(self._clients) >= self.settings.connections:
            text = f"{self.settings.connections} clients are connected, the most this server takes: try again later."
            return self._refuse(connection, "connections", HTTPStatus.SERVICE_UNAVAILABLE, text)
        return None

    def _refuse(self, connection: ServerConnection, reason: str, status: HTTPStatus, text: str) -> Response:
        self.metrics.refusals[reason] += 1
        self._log.event("refused", reason=reason, peer=peer_of(connection))
        return _http.text_response(connection, status, text)

    async def _talk(self, client: ServerConnection) -> None:
        """Serve one connected client until it leaves."""
        if len(self._clients) >= self.settings.connections:  # several came at the same moment
            self.metrics.refusals["connections"] += 1
            await client.close(CloseCode.TRY_AGAIN_LATER, "too many clients")
            return
        self._clients.add(client)
        peer, code = peer_of(client), None
        self._log.event("connected", routine=True, peer=peer)
        gone = asyncio.create_task(client.wait_closed())
        try:
            await client.send(self._metadata)
            previous_ms = None
            while True:
                start = time.perf_counter()
                message = await client.recv()
                await self._requests.serve(client, message, gone, peer, previous_ms)
                previous_ms = 1000 * (time.perf_counter() - start)
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else None
            if closed.sent is not None and closed.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self.metrics.refusals["size"] += 1
                self._log.event("refused", reason="size", peer=peer, limit=self.settings.limits.message_bytes)
        finally:
            gone.cancel()
            self._clients.discard(client)
            self._log.event("disconnected", routine=True, peer=peer, code=code)


def peer_of(connection: ServerConnection) -> str:
    """Return a client's address and port."""
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
