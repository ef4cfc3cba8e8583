"""One inference at a time, deadlines, clients that vanish, a policy that hangs, a good end."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from serve_cases import (
    PATIENCE_S,
    Arithmetic,
    Gate,
    Lines,
    actions_of,
    counted,
    get,
    observation,
    raw,
    settings,
    until,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from edgewright.serve import (
    PolicyClient,
    PolicyServer,
    RemoteError,
    serving,
)
from edgewright.serve.wire import decode, encode


def test_one_inference_at_a_time_in_order_and_a_bounded_queue() -> None:
    gate = Gate()
    with serving(gate, settings(queue=2)) as server, ThreadPoolExecutor(4) as pool:
        clients = [PolicyClient(port=server.port, timeout_s=PATIENCE_S) for _ in range(4)]

        def send(number: int) -> Any:
            return pool.submit(clients[number].infer, {"state": np.array([float(number)])})

        answers = [send(0)]
        assert gate.begun.acquire(timeout=PATIENCE_S)
        for number in (1, 2):
            answers.append(send(number))
            until(lambda waiting=number: counted(server)["queue_length"] == waiting)
        with pytest.raises(RemoteError, match="The policy is busy and 2 observations wait already"):
            send(3).result()
        assert gate.seen == [0.0]
        for _ in range(3):
            gate.go.release()
        assert [answer.result().actions[0, 0] for answer in answers] == [0, 1, 2]
        assert gate.seen == [0, 1, 2]
        gate.go.release()
        assert send(3).result().actions[0, 1] == 3
        numbers = counted(server)
        assert numbers['refusals_total{reason="busy"}'] == 1
        assert (numbers["requests_total"], numbers["answers_total"], numbers["queue_length"]) == (5, 4, 0)
        for client in clients:
            client.close()


def test_without_a_queue_the_second_is_refused() -> None:
    gate = Gate()
    with (
        serving(gate, settings(queue=0)) as server,
        ThreadPoolExecutor(1) as pool,
        PolicyClient(port=server.port) as one,
        PolicyClient(port=server.port) as two,
    ):
        first = pool.submit(one.infer, {"state": np.ones(1)})
        assert gate.begun.acquire(timeout=PATIENCE_S)
        with pytest.raises(RemoteError, match="busy and 0 observations"):
            two.infer({"state": np.zeros(1)})
        gate.go.release()
        assert first.result().actions[0, 0] == 1


def test_the_deadline_counts_waiting_and_computing() -> None:
    """The running inference goes on to its end; the one that was given up in the queue is never begun."""
    gate, log = Gate(), Lines()
    with (
        serving(gate, settings(deadline_ms=200), log=log) as server,
        ThreadPoolExecutor(2) as pool,
        PolicyClient(port=server.port) as one,
        PolicyClient(port=server.port) as two,
    ):
        first = pool.submit(one.infer, {"state": np.ones(1)})
        assert gate.begun.acquire(timeout=PATIENCE_S)
        second = pool.submit(two.infer, {"state": np.full(1, 2.0)})
        for late in (first, second):
            with pytest.raises(RemoteError, match="not ready within 200 ms"):
                late.result()
        assert counted(server)['errors_total{kind="deadline"}'] == 2
        gate.go.release()
        gate.go.release()
        for _ in range(50):  # the policy may still be busy with the first
            try:
                answer = two.infer({"state": np.full(1, 3.0)})
                break
            except RemoteError:
                gate.go.release()
        assert answer.actions[0, 0] == 3
        assert 2.0 not in gate.seen


def vanish(connection: ClientConnection) -> None:
    """Cut a connection without a word."""
    connection.socket.shutdown(socket.SHUT_RDWR)


def test_a_client_that_vanishes_while_it_waits_is_forgotten() -> None:
    gate = Gate()
    with serving(gate, settings()) as server:
        running, waiting, last = (raw(server.port) for _ in range(3))
        for connection in (running, waiting, last):
            connection.recv(PATIENCE_S)
        running.send(encode({"state": np.array([1.0])}))
        assert gate.begun.acquire(timeout=PATIENCE_S)
        waiting.send(encode({"state": np.array([2.0])}))
        until(lambda: counted(server)["queue_length"] == 1)
        vanish(waiting)
        until(lambda: counted(server)["queue_length"] == 0)
        vanish(running)
        until(lambda: counted(server)["left_total"] == 2)
        last.send(encode({"state": np.array([3.0])}))
        until(lambda: counted(server)["queue_length"] == 1)  # behind the first, which can't be stopped
        gate.go.release()
        gate.go.release()
        assert decode(last.recv(PATIENCE_S))["actions"][0, 0] == 3
        assert gate.seen == [1, 3]
        last.close()
        until(lambda: counted(server)["connections"] == 0)


def test_a_client_that_vanishes_in_the_middle_of_a_message() -> None:
    with serving(Arithmetic()) as server:
        connection = raw(server.port)
        connection.recv(PATIENCE_S)
        connection.socket.sendall(b"\x82\xfe\x10\x00\x01\x02\x03\x04half")
        vanish(connection)
        until(lambda: counted(server)["connections"] == 0)
        assert counted(server)["requests_total"] == 0
        assert np.array_equal(PolicyClient(port=server.port).infer(observation(2)).actions, actions_of(observation(2)))


def test_bytes_that_are_no_http_are_survived_in_one_line() -> None:
    log = Lines()
    with serving(Arithmetic(), settings(), log=log) as server:
        for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"POST / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
                connection.sendall(junk)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        assert get(server.port, "/healthz") == (200, "OK\n")
    assert all(json.loads(line)["event"] for line in log.stream.getvalue().splitlines())


def test_a_hung_policy_makes_the_server_unhealthy() -> None:
    gate = Gate()
    with serving(gate, settings(stuck_s=0.01, grace_s=0.0)) as server:
        assert get(server.port, "/healthz") == (200, "OK\n")
        with raw(server.port) as connection:
            connection.recv(PATIENCE_S)
            connection.send(encode({"state": np.ones(1)}))
            until(lambda: get(server.port, "/healthz") == (503, "stuck\n"))
            gate.go.release()
            connection.recv(PATIENCE_S)
            assert get(server.port, "/healthz") == (200, "OK\n")


def test_stopping_lets_the_requests_under_way_end() -> None:
    gate, log = Gate(), Lines()
    server = PolicyServer(gate, settings(grace_s=PATIENCE_S), log=log)
    listening = threading.Event()
    thread = threading.Thread(target=server.run, args=(listening.set,))
    thread.start()
    assert listening.wait(PATIENCE_S)
    running, idle = raw(server.port), raw(server.port)
    for connection in (running, idle):
        connection.recv(PATIENCE_S)
    running.send(encode({"state": np.array([4.0])}))
    assert gate.begun.acquire(timeout=PATIENCE_S)
    server.stop()
    until(lambda: log.named("stopping"))
    idle.send(encode({"state": np.array([5.0])}))
    assert "is stopping" in str(idle.recv(PATIENCE_S))
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
    gate.go.release()
    assert decode(running.recv(PATIENCE_S))["actions"][0, 0] == 4
    for connection in (running, idle):
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(PATIENCE_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    (last,) = log.named("stopped")
    assert (last["dropped"], last["answers"]) == (0, 1)
    assert gate.seen == [4.0]


@pytest.mark.parametrize("second", [True, False], ids=["second signal", "no grace"])
def test_stopping_does_not_wait_for_ever(second: bool) -> None:
    gate, log = Gate(), Lines()
    with serving(gate, settings(grace_s=PATIENCE_S if second else 0.0), log=log) as server:
        connection = raw(server.port)
        connection.recv(PATIENCE_S)
        connection.send(encode({"state": np.ones(1)}))
        assert gate.begun.acquire(timeout=PATIENCE_S)
        server.stop()
        until(lambda: log.named("stopping"))
        if second:
            server.stop()
    assert log.named("stopped")[0]["dropped"] == 1
    gate.go.release()
    connection.close()
