"""The server: values through the socket, messages and observations it refuses, errors that tell nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from serve_cases import (
    PATIENCE_S,
    Arithmetic,
    Chunk,
    Gives,
    Lines,
    Raises,
    actions_of,
    asked,
    counted,
    get,
    observation,
    raw,
    samples,
    settings,
    until,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from edgewright.errors import EdgewrightError
from edgewright.serve import (
    Limits,
    PolicyClient,
    PolicyServer,
    RemoteError,
    ServeError,
    serving,
)
from edgewright.serve.wire import decode, encode


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_actions_are_those_of_the_policy(seed: int) -> None:
    with serving(Arithmetic()) as server, PolicyClient(port=server.port) as client:
        assert client.metadata["cameras"] == ["top", "wrist"]
        assert np.array_equal(client.metadata["reset_pose"], [0, 1, 2])
        for number in range(3):
            sent = observation(10 * seed + number)
            answer = client.infer({**sent, "notes": ["cut"] * number})
            assert answer.actions.dtype == np.float32
            assert np.array_equal(answer.actions, actions_of(sent))
            assert answer.timings == {"infer_ms": 7.25, "vision_ms": 1.5, "denoise_ms": [2.0, 3.0], "total_ms": 7.25}
            assert answer.notes == ("cut",) * number
            assert ("prev_total_ms" in answer.server_timings) == (number > 0)
            assert answer.server_timings["infer_ms"] >= 0


def test_the_wire_is_that_of_openpi() -> None:
    """Greeting, request and answer without any of our own code."""
    with serving(Arithmetic()) as server:
        sent = observation(4)
        answer = decode(asked(server.port, encode(sent)))
        assert sorted(answer) == ["actions", "policy_timing", "server_timing"]
        assert np.array_equal(answer["actions"], actions_of(sent))


BAD_MESSAGES = {
    "text": ("hello", "a text"),
    "empty": (b"", "not valid msgpack"),
    "object array": (
        encode({}).replace(b"\x80", b"\x81\xa1a\x84") + b"\xc4\x0b__ndarray__\xc3\xc4\x04data\xc4\x00"
        b"\xc4\x05dtype\xa2|O\xc4\x05shape\x90",
        "dtype '|O'",
    ),
    "too many images": (encode({"images": [np.zeros((2, 2, 3))] * 3}), "more than 2 images"),
    "too large an image": (encode({"image": np.zeros((3, 40, 40))}), "40 x 40 pixels"),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_bad_messages_are_answered_and_the_connection_lives(name: str) -> None:
    message, text = BAD_MESSAGES[name]
    policy, log = Arithmetic(), Lines()
    limits = Limits(images=2, image_pixels=1000)
    with serving(policy, settings(limits=limits), log=log) as server, raw(server.port) as connection:
        connection.recv(PATIENCE_S)
        connection.send(message)
        answer = connection.recv(PATIENCE_S)
        assert isinstance(answer, str)
        assert text in answer
        assert policy.calls == 0
        (line,) = log.named("error")
        assert answer.endswith(f"[error {line['id']}]")
        assert line["kind"] == "message"
        sent = observation(1)
        connection.send(encode(sent))
        assert np.array_equal(decode(connection.recv(PATIENCE_S))["actions"], actions_of(sent))
        assert counted(server)['errors_total{kind="message"}'] == 1


def test_an_observation_that_does_not_fit_is_told_why() -> None:
    log = Lines()
    with serving(Arithmetic(), settings(), log=log) as server, PolicyClient(port=server.port) as client:
        with pytest.raises(RemoteError, match=r"^The state has 2 numbers and the policy takes 7: .* \[error \w{8}\]$"):
            client.infer(observation(0, size=2))
        assert np.array_equal(client.infer(observation(0)).actions, actions_of(observation(0)))
        assert counted(server)['errors_total{kind="observation"}'] == 1


SECRET = "/srv/secret/bundle/stages/vision/model.onnx"
DEFECTS = {
    "file": FileNotFoundError(2, "No such file", SECRET),
    "our own": EdgewrightError(f"{SECRET} is damaged."),
    "key": KeyError(SECRET),
    "timeout": TimeoutError(SECRET),
    "stop iteration": StopIteration(SECRET),
    "exit": SystemExit(SECRET),
    "interrupt": KeyboardInterrupt(SECRET),
    "message": MemoryError(SECRET),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_tells_the_client_an_id_and_the_log_everything(name: str) -> None:
    log = Lines()
    with serving(Raises(DEFECTS[name]), settings(), log=log) as server, PolicyClient(port=server.port) as client:
        for number in range(2):  # the server and the connection go on
            with pytest.raises(RemoteError) as caught:
                client.infer({})
            line = log.named("error")[number]
            told = "The policy failed on this observation; the server's log tells why under the error's id."
            assert str(caught.value) == f"{told} [error {line['id']}]"
            assert SECRET in line["trace"]
            assert "Traceback" in line["trace"]
        assert counted(server)['errors_total{kind="internal"}'] == 2


@pytest.mark.parametrize(
    "actions",
    [
        np.array([[1.0, np.nan]]),
        np.array([[1.0], [np.inf]]),
        np.array([[1e39]]),
        np.zeros(7),
        np.zeros((0, 7)),
        np.zeros((1, 2, 3)),
        np.array([["a"]]),
        None,
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_what_is_no_table_of_finite_numbers_is_not_sent(actions: Any) -> None:
    with (
        serving(Gives(Chunk(actions))) as server,
        PolicyClient(port=server.port) as client,
        pytest.raises(RemoteError, match="The policy failed"),
    ):
        client.infer({})


def test_a_policy_that_returns_nothing() -> None:
    with (
        serving(Gives(None)) as server,
        PolicyClient(port=server.port) as client,
        pytest.raises(RemoteError, match="The policy failed"),
    ):
        client.infer({})


def exchanged(connection: ClientConnection, message: Any) -> str | bytes:
    """The answer to a message; a connection that the server closes may break in either half."""
    connection.send(message)
    return connection.recv(PATIENCE_S)


def test_messages_over_the_limit_close_the_connection() -> None:
    log = Lines()
    limits = Limits(message_bytes=2000)
    with serving(Arithmetic(), settings(limits=limits), log=log) as server:
        with raw(server.port) as connection:
            connection.recv(PATIENCE_S)
            with pytest.raises(ConnectionClosed) as caught:
                exchanged(connection, bytes(2001))
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009
        with raw(server.port) as connection:
            connection.recv(PATIENCE_S)
            with pytest.raises(ConnectionClosed):
                exchanged(connection, [bytes(1500), bytes(1500)])  # in two fragments
        until(lambda: counted(server)['refusals_total{reason="size"}'] == 2)
        assert np.array_equal(PolicyClient(port=server.port).infer(observation(0)).actions, actions_of(observation(0)))


def test_metrics_add_up() -> None:
    with serving(Arithmetic()) as server, PolicyClient(port=server.port) as client:
        for number in range(4):
            client.infer(observation(number))
        with pytest.raises(RemoteError):
            client.infer(observation(0, size=2))
        with pytest.raises(RemoteError):
            client.infer({"images": [np.zeros((1, 1, 3))] * 9})
        status, text = get(server.port, "/metrics?x=1")
        numbers = samples(text)
    assert status == 200
    assert (numbers["requests_total"], numbers["answers_total"], numbers["connections"]) == (6, 4, 1)
    assert sum(value for name, value in numbers.items() if name.startswith("errors_total")) == 2
    for name in ("latency", "inference"):
        buckets = [value for key, value in numbers.items() if key.startswith(f"{name}_seconds_bucket")]
        assert len(buckets) == 13
        assert buckets == sorted(buckets)
        assert buckets[-1] == numbers[f"{name}_seconds_count"] == 4
        assert numbers[f"{name}_seconds_sum"] > 0
    for name in {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}:
        assert f"# HELP {name} " in text


def test_the_policy_is_warm_before_the_port_opens() -> None:
    policy, log = Arithmetic(), Lines()
    server = PolicyServer(policy, settings(), log=log)
    server.warm_up(observation(0))
    assert policy.calls == 2
    assert not log.named("listening")
    with pytest.raises(KeyError):  # what a policy can't run at all is found now
        server.warm_up({})


def test_a_forged_log_line_stays_one_line() -> None:
    log = Lines()
    error = EdgewrightError('x\n{"event": "listening"}')
    with (
        serving(Raises(error), settings(), log=log) as server,
        PolicyClient(port=server.port) as client,
        pytest.raises(ServeError),
    ):
        client.infer({})
    assert len(log.named("listening")) == 1
