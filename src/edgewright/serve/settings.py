"""Where a server listens, who may talk to it, and how much it takes on."""

from __future__ import annotations

import ipaddress
import string
from dataclasses import dataclass
from pathlib import Path

from edgewright.errors import UsageError
from edgewright.serve.wire import LIMITS, Limits

DEFAULT_PORT = 8000
#: A shorter token could be guessed.
MIN_TOKEN_CHARS = 16
_TOKEN_CHARS = frozenset(string.ascii_letters + string.digits + "-._~+/=")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A server's settings; raises UsageError for values out of range and for a server open to everybody.

    `port` 0 takes a free one. `token` is what clients must send; without one `host` must be this machine itself, or
    `allow_open` set. `deadline_ms` counts from the observation's arrival to the answer, waiting included.
    `queue` observations wait while one is run; `connections` clients at most are connected.
    On shutdown, requests under way have `grace_s` to end. An inference that takes longer than `stuck_s` makes the
    server unhealthy.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    allow_open: bool = False
    deadline_ms: float = 30_000.0
    queue: int = 4
    connections: int = 8
    grace_s: float = 10.0
    stuck_s: float = 60.0
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"{self.port} is not a port: give one from 1 to 65535, or 0 for a free one.")
        if not (0 < self.deadline_ms < float("inf") and self.grace_s >= 0 and self.stuck_s > 0):
            raise UsageError("A deadline, a grace time and a stuck time are finite numbers above 0.")
        if self.queue < 0 or self.connections < 1 or self.limits.message_bytes < 1:
            raise UsageError("A server needs room for one connection and one message at least.")
        if self.token is not None:
            _check_token(self.token)
        elif not self.allow_open and not is_local(self.host):
            raise UsageError(
                f"{self.host or 'every address'!r} can be reached from other machines, and there is no token: "
                f"give --token-file FILE, or --no-token to let everybody on the network drive the robot."
            )


def is_local(host: str) -> bool:
    """Tell whether only this machine can reach an address; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str | Path) -> str:
    """Return the token in a file, without the white space around it; raises UsageError."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UsageError(f"The token file {path} is not a text.") from None
    except OSError as error:
        raise UsageError(f"The token file {path} can't be read ({error.strerror or error}).") from None
    _check_token(text)
    return text


def _check_token(token: str) -> None:
    """A token travels in an HTTP header as it is."""
    if len(token) < MIN_TOKEN_CHARS or not set(token) <= _TOKEN_CHARS:
        raise UsageError(
            f"The token is not at least {MIN_TOKEN_CHARS} letters, digits or -._~+/= without spaces: make one, "
            f'for example with python3 -c "import secrets; print(secrets.token_urlsafe(32))".'
        )
