"""What goes wrong between a robot and its policy server; every text here may be shown to the other side."""

from __future__ import annotations

from edgewright.errors import EdgewrightError


class ServeError(EdgewrightError):
    """A policy server or its client can't go on."""


class MessageError(ServeError):
    """A message is no valid msgpack, or holds what is not taken: other types, other dtypes, too much of something."""


class CommittedError(ServeError):
    """A policy can't use the committed actions that came with an observation."""


class RefusedError(ServeError):
    """A server refuses a valid request; `reason` is one word for its metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RemoteError(ServeError):
    """A server answered with an error; the message is the server's sentence."""
