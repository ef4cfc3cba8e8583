"""What a server answers before a connection becomes a websocket: health, metrics, and who may come in."""

from __future__ import annotations

import hmac
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

HEALTH, METRICS = "/healthz", "/metrics"
_SCHEME = "Api-Key"


def path_of(request: Request) -> str:
    """Return a request's path without its query."""
    return request.path.partition("?")[0]


def authorised(request: Request, token: str | None) -> bool:
    """Tell whether a request has the token, in a time that doesn't depend on how much of it is right."""
    if token is None:
        return True
    given = request.headers.get_all("Authorization")
    if len(given) != 1:
        return False
    scheme, _, credentials = given[0].partition(" ")
    same = hmac.compare_digest(credentials.strip().encode("utf-8", "surrogateescape"), token.encode())
    return same and scheme.lower() == _SCHEME.lower()


def authorisation(token: str) -> dict[str, str]:
    """Return the header that a client sends."""
    return {"Authorization": f"{_SCHEME} {token}"}


def text_response(
    connection: ServerConnection, status: HTTPStatus, text: str, content_type: str | None = None
) -> Response:
    """Return an HTTP answer of one text."""
    response = connection.respond(status, text if text.endswith("\n") else f"{text}\n")
    if content_type is not None:
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = content_type
    if status is HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = _SCHEME
    return response
