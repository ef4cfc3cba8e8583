"""A server's log: one JSON object a line, so that nothing a client sends can forge a line."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """Writes events to a stream, by default stderr; `quiet` leaves out requests that went well."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet

    def event(self, event: str, *, routine: bool = False, **values: Any) -> None:
        """Write one line: the time, the event, its values."""
        if routine and self._quiet:
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **values}, default=str)
        with contextlib.suppress(OSError, ValueError):  # a log that can't be written must not stop a robot
            print(line, file=self._stream or sys.stderr, flush=True)

    def error(self, kind: str, error: BaseException, *, trace: bool, **values: Any) -> str:
        """Write an error with an id, which is returned; `trace` adds where it came from."""
        error_id = secrets.token_hex(4)
        where: dict[str, Any] = {"trace": "".join(traceback.format_exception(error))} if trace else {}
        text = f"{type(error).__name__}: {error}"
        self.event("error", id=error_id, kind=kind, error=text, **values, **where)
        return error_id

    def of_library(self) -> logging.Logger:
        """Return a logger for the websocket library whose warnings become events here, without their traces."""
        logger = logging.Logger("edgewright.serve", logging.WARNING)
        logger.addHandler(_Handler(self))
        return logger


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        why: dict[str, Any] = {} if cause is None else {"error": f"{type(cause).__name__}: {cause}"}
        self._log.event("websocket", message=record.getMessage(), **why)
