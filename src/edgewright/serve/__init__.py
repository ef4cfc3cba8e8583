"""A policy over the network: a websocket server that openpi's clients talk to, and a client.

Needs the extra `serve`. Runs where the policy runs: nothing of the host side is imported.
"""

from edgewright.serve.client import Answer, PolicyClient
from edgewright.serve.errors import MessageError, RefusedError, RemoteError, ServeError
from edgewright.serve.log import Log
from edgewright.serve.protocol import Inferred, Infers
from edgewright.serve.server import PolicyServer
from edgewright.serve.settings import Settings
from edgewright.serve.threaded import serving
from edgewright.serve.wire import Limits

__all__ = [
    "Answer",
    "Inferred",
    "Infers",
    "Limits",
    "Log",
    "MessageError",
    "PolicyClient",
    "PolicyServer",
    "RefusedError",
    "RemoteError",
    "ServeError",
    "Settings",
    "serving",
]
