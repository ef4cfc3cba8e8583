"""A policy server on a thread, for a program that holds the policy and talks to it as a robot would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from edgewright.errors import HostError
from edgewright.serve.log import Log
from edgewright.serve.protocol import Infers
from edgewright.serve.server import PolicyServer
from edgewright.serve.settings import Settings

_PATIENCE_S = 30.0


@contextmanager
def serving(policy: Infers, settings: Settings | None = None, *, log: Log | None = None) -> Iterator[PolicyServer]:
    """Serve `policy` inside the block, by default at a free port of this machine; the server's `port` is known.

    Raises HostError when it can't listen. The end of the block stops the server as a signal does.
    """
    server = PolicyServer(policy, settings or Settings(port=0), log=log or Log(quiet=True))
    listening, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            server.run(listening.set)
        except BaseException as error:
            failed.append(error)
        finally:
            listening.set()

    thread = threading.Thread(target=run, name="policy server", daemon=True)
    thread.start()
    listening.wait()
    if failed:
        raise failed[0]
    try:
        yield server
    finally:
        server.stop()
        thread.join(server.settings.grace_s + _PATIENCE_S)
    if thread.is_alive():
        raise HostError("The policy server did not stop: a request in it never ends.")
    if failed:
        raise failed[0]
