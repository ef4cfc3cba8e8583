"""A robot's side: connects to a policy server, sends observations, gets action chunks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from edgewright.errors import UsageError
from edgewright.serve._http import authorisation
from edgewright.serve.errors import MessageError, RemoteError, ServeError
from edgewright.serve.protocol import COMMITTED
from edgewright.serve.settings import DEFAULT_PORT
from edgewright.serve.wire import LIMITS, Limits, decode, encode

#: How long a server may take to confirm that the connection is closed.
_CLOSE_S = 1.0


@dataclass(frozen=True)
class Answer:
    """An action chunk from a server: actions float32 `[horizon, dim]`, the policy's and the server's times in ms."""

    actions: NDArray[np.float32]
    timings: Mapping[str, Any] = field(default_factory=dict)
    server_timings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class PolicyClient:
    """A connection to a policy server, Edgewright's or openpi's; use it from one thread.

    `host` is a name, an address, or a whole URI (`ws://...`, `wss://...`), for which `port` has no meaning.
    `timeout_s` bounds connecting and every answer: it is longer than a server's own deadline, whose sentence arrives
    then. Connects at once: raises ServeError when nobody listens,
    RemoteError when the server refuses.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        token: str | None = None,
        timeout_s: float = 40.0,
        limits: Limits = LIMITS,
    ) -> None:
        name = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self.uri = host if host.startswith(("ws://", "wss://")) else f"ws://{name}:{port}"
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UsageError("The token has characters that can't be sent: it is one line of ASCII letters and signs.")
        self._token = token
        self._timeout_s = timeout_s
        self._limits = limits
        self._socket: ClientConnection | None = None
        self._open = ExitStack()
        self.metadata: dict[str, Any] = {}
        self._connected()

    def infer(self, observation: Mapping[str, Any], /, *, committed: npt.ArrayLike | None = None) -> Answer:
        """Send an observation and return the server's answer.

        `committed` [n, dim] are the first n actions of the chunk where the robot is sent them before it arrives; only a
        server whose metadata says `takes_committed` takes them, and any other is not asked: ServeError is raised.
        Raises RemoteError with the server's sentence when it refuses, and the next call may succeed; MessageError for
        what can't be sent; ServeError when no answer comes in time or the connection breaks: the next call connects
        anew, so a late answer is never taken for that of another observation.
        """
        socket = self._connected()
        message = encode({**observation, **self._continued(committed)})
        try:
            socket.send(message)
            answer = self._receive(socket)
            found = None if isinstance(answer, str) else _answer(decode(answer, self._limits))
        except (ConnectionClosed, OSError) as error:
            raise self._broken(error) from None
        except BaseException:  # KeyboardInterrupt too: an answer left behind would be taken for that of the next one
            self.close()
            raise
        if found is None:
            raise RemoteError(str(answer))
        return found

    def _continued(self, committed: npt.ArrayLike | None) -> dict[str, Any]:
        """Return what an observation has besides where there are committed actions."""
        actions = np.asarray([] if committed is None else committed)
        if not actions.size:
            return {}
        if self.metadata.get("takes_committed") is not True:
            raise ServeError(
                f"The policy at {self.uri} takes no committed actions, as its metadata says: infer without them, and "
                "take another mode."
            )
        return {COMMITTED: actions}

    def close(self) -> None:
        """Close the connection; `infer` would open a new one."""
        self._socket = None
        self._open.close()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self) -> ClientConnection:
        if self._socket is not None:
            return self._socket
        try:
            socket = self._dialed()
            self.metadata = self._greeting(socket)
            self._socket = socket
        except BaseException:  # KeyboardInterrupt too, or the next answer would be the greeting
            self.close()
            raise
        return socket

    def _dialed(self) -> ClientConnection:
        try:
            return self._open.enter_context(
                connect(
                    self.uri,
                    compression=None,
                    max_size=self._limits.message_bytes,
                    open_timeout=self._timeout_s,
                    close_timeout=_CLOSE_S,
                    additional_headers=authorisation(self._token) if self._token is not None else None,
                    proxy=None,  # robots are on this machine or this network
                )
            )
        except InvalidStatus as error:
            raise RemoteError(error.response.body.decode("utf-8", "replace").strip() or str(error)) from None
        except (InvalidURI, InvalidHandshake, InvalidMessage) as error:
            raise ServeError(f"{self.uri} is no policy server ({error}): check the address.") from None
        except TimeoutError:
            raise ServeError(f"{self.uri} did not answer within {self._timeout_s:g} s.") from None
        except OSError as error:
            raise ServeError(f"No policy server can be reached at {self.uri} ({error}): start one there.") from None

    def _greeting(self, socket: ClientConnection) -> dict[str, Any]:
        greeting = self._receive(socket)
        try:
            metadata = decode(greeting, self._limits) if isinstance(greeting, bytes) else None
        except MessageError:
            metadata = None
        if not isinstance(metadata, dict):
            raise ServeError(f"{self.uri} is no policy server: it did not begin with its metadata.")
        return metadata

    def _receive(self, socket: ClientConnection) -> str | bytes:
        try:
            return socket.recv(timeout=self._timeout_s)
        except (ConnectionClosed, TimeoutError, OSError) as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> ServeError:
        self.close()
        if isinstance(error, TimeoutError):
            return ServeError(f"{self.uri} did not answer within {self._timeout_s:g} s, so the connection was closed.")
        return ServeError(f"The connection to {self.uri} broke ({error}).")


def _answer(result: Any) -> Answer:
    actions = result.get("actions") if isinstance(result, dict) else None
    if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.dtype.kind != "f":
        raise MessageError("The server's answer holds no table of actions: it is no policy server, or of another kind.")
    timings, server_timings = (result.get(name) for name in ("policy_timing", "server_timing"))
    notes = result.get("notes")
    return Answer(
        actions.astype(np.float32),
        timings if isinstance(timings, dict) else {},
        server_timings if isinstance(server_timings, dict) else {},
        tuple(map(str, notes)) if isinstance(notes, list) else (),
    )
