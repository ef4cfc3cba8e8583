"""Who may come in: tokens, browsers, too many clients, addresses that others can reach."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from serve_cases import (
    PATIENCE_S,
    TOKEN,
    Arithmetic,
    Lines,
    actions_of,
    counted,
    get,
    observation,
    raw,
    settings,
    until,
)
from websockets.exceptions import InvalidStatus

from edgewright.errors import HostError, UsageError
from edgewright.serve import (
    Limits,
    MessageError,
    PolicyClient,
    PolicyServer,
    RemoteError,
    ServeError,
    Settings,
    serving,
)


def test_a_token_is_asked_for_everywhere_but_for_health() -> None:
    log = Lines()
    with serving(Arithmetic(), settings(token=TOKEN), log=log) as server:
        assert get(server.port, "/healthz") == (200, "OK\n")
        assert get(server.port, "/metrics")[0] == 401
        assert get(server.port, "/metrics", Authorization=f"Api-Key {TOKEN}")[0] == 200
        for wrong in (None, TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", " "):
            headers = {} if wrong is None else {"Authorization": f"Api-Key {wrong}"}
            with pytest.raises(InvalidStatus):
                raw(server.port, additional_headers=headers)
        for headers in ({"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}"}, {"X-Api-Key": TOKEN}):
            with pytest.raises(InvalidStatus) as caught:
                raw(server.port, additional_headers=headers)
            assert caught.value.response.status_code == 401
            assert TOKEN not in caught.value.response.body.decode()
        twice = [("Authorization", f"Api-Key {TOKEN}"), ("Authorization", "Api-Key x")]
        with pytest.raises(InvalidStatus):
            raw(server.port, additional_headers=twice)
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Api-Key \xff\xfe\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 401"
        with pytest.raises(RemoteError, match="needs a token"):
            PolicyClient(port=server.port)
        with PolicyClient(port=server.port, token=TOKEN) as client:
            assert np.array_equal(client.infer(observation(0)).actions, actions_of(observation(0)))
    assert TOKEN not in log.stream.getvalue()
    assert len(log.named("refused")) >= 10


def test_pages_of_a_browser_are_refused() -> None:
    with serving(Arithmetic()) as server:
        with pytest.raises(InvalidStatus) as caught:
            raw(server.port, origin="http://evil.example")
        assert caught.value.response.status_code == 403
        assert counted(server)['refusals_total{reason="origin"}'] == 1


def test_clients_over_the_limit_are_refused() -> None:
    with serving(Arithmetic(), settings(connections=2)) as server:
        one, two = PolicyClient(port=server.port), PolicyClient(port=server.port)
        with pytest.raises(RemoteError, match="2 clients are connected, the most"):
            PolicyClient(port=server.port)
        assert counted(server)["connections"] == 2
        one.close()
        until(lambda: counted(server)["connections"] == 1)
        with PolicyClient(port=server.port) as three:
            assert three.metadata["kind"] == "arithmetic"
        two.close()


def test_clients_that_come_at_once_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the door, where all of them found room, only as many as there is room for are talked to."""
    monkeypatch.setattr(PolicyServer, "_admit", lambda server, connection, request: None)
    with serving(Arithmetic(), settings(connections=2)) as server, ThreadPoolExecutor(8) as pool:
        start, held = threading.Barrier(8), list[PolicyClient]()

        def come(_: int) -> str:
            start.wait(PATIENCE_S)
            try:
                held.append(PolicyClient(port=server.port))
            except ServeError as error:
                return str(error)
            return "in"

        answers = list(pool.map(come, range(8)))
        assert answers.count("in") == len(held) == 2
        assert all("too many clients" in answer for answer in answers if answer != "in")
        assert server.metrics.refusals["connections"] == 6
        for client in held:
            client.close()


def test_metadata_that_cannot_be_sent_are_refused_at_once() -> None:
    policy = Arithmetic()
    policy.metadata = {"shape": object()}
    with pytest.raises(MessageError, match="can't be sent"):
        PolicyServer(policy, settings())


def test_a_port_that_is_taken() -> None:
    with (
        serving(Arithmetic()) as server,
        pytest.raises(HostError, match=rf"127\.0\.0\.1 port {server.port}"),
        serving(Arithmetic(), settings(port=server.port)),
    ):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "robot", "localhost.evil.example"])
def test_an_open_address_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="--token-file"):
        Settings(host=host)
    assert Settings(host=host, token=TOKEN).host == host
    assert Settings(host=host, allow_open=True).token is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_a_local_address_needs_none(host: str) -> None:
    assert Settings(host=host).token is None


@pytest.mark.parametrize(
    "values",
    [
        {"port": -1},
        {"port": 65536},
        {"deadline_ms": 0},
        {"deadline_ms": float("nan")},
        {"deadline_ms": float("inf")},
        {"queue": -1},
        {"connections": 0},
        {"token": "short"},
        {"token": "with a space in the middle"},
        {"token": "with-a-line\nend-in-it-and-more"},
        {"limits": Limits(message_bytes=0)},
    ],
    ids=repr,
)
def test_settings_out_of_range(values: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError):
        Settings(**values)
