"""The client, against servers that misbehave and against openpi's order of messages."""

from __future__ import annotations

import inspect
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from serve_cases import PATIENCE_S, Arithmetic, Gate, actions_of, observation, settings, until
from websockets.sync.server import ServerConnection, serve

from edgewright.errors import UsageError
from edgewright.serve import Limits, MessageError, PolicyClient, ServeError, Settings, serving
from edgewright.serve.wire import encode


@contextmanager
def other_server(talk: Callable[[ServerConnection], None]) -> Iterator[int]:
    """A server of another make; `talk` serves one connection."""
    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join(PATIENCE_S)


def answering(*answers: Any) -> Callable[[ServerConnection], None]:
    """Greet, then give the answers in order, one for each message."""

    def talk(connection: ServerConnection) -> None:
        connection.send(encode({}))
        for answer in answers:
            connection.recv()
            connection.send(answer)

    return talk


def test_an_answer_of_openpi_is_read() -> None:
    """Its actions are float64, and its times have other names than ours."""
    actions = np.random.default_rng(3).standard_normal((5, 7))
    answer = encode({"actions": actions, "policy_timing": {"infer_ms": 3.5}, "server_timing": {"infer_ms": 4.0}})
    with other_server(answering(answer)) as port, PolicyClient("localhost", port) as client:
        found = client.infer({"state": np.zeros(2)})
        assert client.metadata == {}
        assert found.actions.dtype == np.float32
        assert np.array_equal(found.actions, actions.astype(np.float32))
        assert found.timings == {"infer_ms": 3.5}
        assert found.server_timings == {"infer_ms": 4.0}


@pytest.mark.parametrize(
    "answer", [{}, {"actions": [[1.0]]}, {"actions": np.zeros(3)}, {"actions": np.zeros((1, 1), int)}, [], 7], ids=repr
)
def test_an_answer_without_actions_is_refused(answer: Any) -> None:
    with (
        other_server(answering(encode(answer))) as port,
        PolicyClient(port=port) as client,
        pytest.raises(MessageError, match="no table of actions"),
    ):
        client.infer({})


def test_a_hostile_answer_is_refused() -> None:
    hostile = encode({"actions": np.zeros(1)}).replace(b"<f8", b"|O8")
    with (
        other_server(answering(hostile)) as port,
        PolicyClient(port=port) as client,
        pytest.raises(MessageError, match="dtype"),
    ):
        client.infer({})


def test_an_answer_over_the_limit_is_refused() -> None:
    with (
        other_server(answering(bytes(5000))) as port,
        PolicyClient(port=port, limits=Limits(message_bytes=1000)) as client,
        pytest.raises(ServeError, match="broke"),
    ):
        client.infer({})


@pytest.mark.parametrize("greeting", ["hello", encode([1]), b"\xc1"], ids=repr)
def test_what_does_not_greet_with_metadata_is_no_policy_server(greeting: Any) -> None:
    gone = threading.Event()

    def talk(connection: ServerConnection) -> None:
        connection.send(greeting)
        for _ in connection:
            pass
        gone.set()  # the client leaves nothing open

    with other_server(talk) as port:
        with pytest.raises(ServeError, match="is no policy server"):
            PolicyClient(port=port, timeout_s=PATIENCE_S)
        assert gone.wait(PATIENCE_S)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets this port
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=rf"ws://127\.0\.0\.1:{port}"):
            PolicyClient(port=port)


def test_a_server_that_is_no_websocket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(ServeError, match="no policy server"):
            PolicyClient(port=listener.getsockname()[1])
        thread.join(PATIENCE_S)


def test_a_late_answer_is_never_taken_for_the_next_one() -> None:
    gate = Gate()
    with serving(gate, settings()) as server, PolicyClient(port=server.port) as client:
        client._timeout_s = 0.2
        with pytest.raises(ServeError, match=r"did not answer within 0\.2 s"):
            client.infer({"state": np.array([1.0])})
        client._timeout_s = PATIENCE_S
        gate.go.release()
        gate.go.release()
        assert client.infer({"state": np.array([2.0])}).actions[0, 0] == 2
        until(lambda: gate.seen == [1, 2])


@pytest.fixture
def interrupting() -> Iterator[Callable[[Callable[[], object]], None]]:
    """What makes a call be interrupted a little after its begin, as Ctrl-C does it."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)

    def run(call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        call()

    yield run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_answer_is_never_taken_for_the_next_one(
    interrupting: Callable[[Callable[[], object]], None],
) -> None:
    gate = Gate()
    with serving(gate, settings()) as server, PolicyClient(port=server.port) as client:
        for _ in range(4):
            gate.go.release()
        assert client.infer({"state": np.array([1.0])}).actions[0, 0] == 1
        for _ in range(3):
            gate.go.acquire()
        with pytest.raises(KeyboardInterrupt):
            interrupting(lambda: client.infer({"state": np.array([2.0])}))
        gate.go.release(3)
        for value in (3.0, 4.0):
            assert client.infer({"state": np.array([value])}).actions[0, 0] == value


def test_an_interrupted_greeting_is_never_taken_for_an_answer(
    interrupting: Callable[[Callable[[], object]], None],
) -> None:
    answer = encode({"actions": np.ones((2, 2))})
    waits, left = threading.Event(), []

    def talk(connection: ServerConnection) -> None:
        left.append(1)
        if len(left) == 2:
            waits.wait(PATIENCE_S)  # the client is interrupted before the greeting
            return
        answering(answer)(connection)

    with other_server(talk) as port, PolicyClient(port=port) as client:
        client.infer({})
        client.close()
        with pytest.raises(KeyboardInterrupt):
            interrupting(lambda: client.infer({}))
        waits.set()
        assert client._socket is None
        assert client.infer({}).actions.tolist() == [[1, 1], [1, 1]]


def test_the_client_waits_longer_than_a_server_lets_a_policy_take() -> None:
    most_s = inspect.signature(PolicyClient).parameters["timeout_s"].default
    assert 1000 * most_s > Settings().deadline_ms + 5000


def test_a_server_that_starts_again_is_found_again() -> None:
    with serving(Arithmetic()) as server:
        client = PolicyClient(port=server.port)
        client.infer(observation(0))
    with pytest.raises(ServeError):
        client.infer(observation(1))
    with serving(Arithmetic(), settings(port=server.port)):
        assert np.array_equal(client.infer(observation(2)).actions, actions_of(observation(2)))
        client.close()


def test_what_cannot_be_sent_leaves_the_connection_alone() -> None:
    with serving(Arithmetic()) as server, PolicyClient(port=server.port) as client:
        with pytest.raises(MessageError, match="dtype object"):
            client.infer({"state": np.array([None])})
        assert np.array_equal(client.infer(observation(0)).actions, actions_of(observation(0)))


@pytest.mark.parametrize("token", ["schlüssel-aus-messing", "two\nlines"])
def test_a_token_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(UsageError, match="ASCII"):
        PolicyClient(token=token)


def test_addresses() -> None:
    for host, uri in (("::1", "ws://[::1]:8000"), ("wss://robot/x", "wss://robot/x"), ("robot", "ws://robot:8000")):
        client = PolicyClient.__new__(PolicyClient)
        client._connected = lambda: None  # type: ignore[assignment,return-value,method-assign]
        client.__init__(host)  # type: ignore[misc]
        assert client.uri == uri
