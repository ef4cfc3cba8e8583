"""Committed actions over the wire: an extra key that our client sends where the policy takes them, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_cases import Arithmetic, Chunk, Lines, actions_of, asked, counted, observation

from edgewright.errors import GenerationError
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.control import Control
from edgewright.serve import PolicyClient, PolicyServer, serving
from edgewright.serve.bundles import ServedBundle
from edgewright.serve.errors import RemoteError, ServeError
from edgewright.serve.protocol import COMMITTED
from edgewright.serve.wire import decode, encode
from policy_builds import deploy_policy, request_for


class Continuing(Arithmetic):
    """A policy that begins its chunk with the committed actions; more than three are not taken."""

    metadata: Mapping[str, Any] = {"takes_committed": True}

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def infer(self, observation: Mapping[str, Any], /, *, committed: Any = None) -> Chunk:
        assert COMMITTED not in observation
        self.seen.append(committed)
        actions = actions_of(observation)
        if committed is not None:
            if len(committed) > 3:
                raise GenerationError("4 committed actions leave nothing to infer: commit fewer.")
            actions[: len(committed)] = committed
        return Chunk(actions)


def test_they_reach_the_policy_and_only_when_they_are_sent() -> None:
    policy, kept = Continuing(), np.arange(14, dtype=np.float64).reshape(2, 7)
    with serving(policy) as server, PolicyClient(port=server.port) as client:
        assert client.metadata["takes_committed"] is True
        plain = client.infer(observation(1)).actions
        continued = client.infer(observation(1), committed=kept).actions
        client.infer(observation(1), committed=[])
    np.testing.assert_array_equal(continued, np.concatenate([kept.astype(np.float32), plain[2:]]))
    assert [None if seen is None else seen.tolist() for seen in policy.seen] == [None, kept.tolist(), None]


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([[1.0] * 7], "are not a table of numbers"),
        (np.zeros(7), "are not a table of numbers"),
        (np.zeros((2, 7), bool), "are not a table of numbers"),
        (None, "are not a table of numbers"),
        ("now", "are not a table of numbers"),
        (np.zeros((4, 7)), "4 committed actions leave nothing to infer"),
    ],
)
def test_what_is_not_taken_is_told(actions: Any, words: str) -> None:
    policy, log = Continuing(), Lines()
    with serving(policy, log=log) as server:
        answer = asked(server.port, encode({**observation(2), COMMITTED: actions}))
        assert isinstance(answer, str)
        assert words in answer
        assert "[error " in answer
        assert isinstance(asked(server.port, encode(observation(2))), bytes)  # the next one is answered
        assert counted(server)["answers_total"] == 1
    assert not any("trace" in line for line in log.named("error"))


def test_a_policy_that_takes_none_is_not_asked() -> None:
    policy = Arithmetic()
    with serving(policy) as server, PolicyClient(port=server.port) as client:
        with pytest.raises(ServeError, match="takes no committed actions, as its metadata says"):
            client.infer(observation(3), committed=np.zeros((1, 7)))
        answer = asked(server.port, encode({**observation(3), COMMITTED: np.zeros((1, 7))}))
        assert isinstance(answer, str)
        assert "takes no committed_actions" in answer
        assert policy.calls == 0
        np.testing.assert_array_equal(client.infer(observation(3)).actions, actions_of(observation(3)))


def test_an_error_of_the_policy_itself_stays_its_own() -> None:
    """Without committed actions what generation says is in the server's log alone, as before."""

    class Fails(Continuing):
        def infer(self, observation: Mapping[str, Any], /, *, committed: Any = None) -> Chunk:
            raise GenerationError("The engine failed.")

    with serving(Fails(), log=Lines()) as server, PolicyClient(port=server.port) as client:
        with pytest.raises(RemoteError, match="The policy failed on this observation"):
            client.infer(observation(4))
        with pytest.raises(RemoteError, match="The engine failed"):
            client.infer(observation(4), committed=np.zeros((1, 7)))


def test_a_bundle_behind_a_server_continues_like_one_that_is_here(tmp_path: Path) -> None:
    deploy_policy("pi05", tmp_path / "b")
    served = ServedBundle(tmp_path / "b", threads=1)
    seen = served.example()
    with serving(served) as server, PolicyClient(port=server.port) as client:
        control = Control.of(client.metadata, 20.0, mode="committed", delay=2)
        control.reset()
        first = control.due()
        assert first is not None
        assert first.committed is None or not len(first.committed)
        control.deliver(first, client.infer(seen, committed=first.committed).actions)
        sent = control.step()
        assert sent is not None
        assert sent.action is not None
        kept = client.infer(seen).actions[:3] + np.float32(0.01)
        answer = client.infer(seen, committed=kept).actions
        with pytest.raises(RemoteError, match="leave nothing to infer"):
            client.infer(seen, committed=np.zeros((served.policy.spec.horizon, kept.shape[1])))
        with pytest.raises(RemoteError, match="an action has 7 numbers"):
            client.infer(seen, committed=kept[:, :3])
    moved = np.arange(7) != 5  # which has one value in the data of this golden
    np.testing.assert_allclose(answer[:3, moved], kept[:, moved], rtol=1e-4, atol=1e-5)
    assert not np.allclose(answer[3:], kept[-1], atol=1e-3)


def test_a_bundle_of_the_whole_loop_says_that_it_takes_none(tmp_path: Path) -> None:
    deploy_policy("pi05", tmp_path / "b", policy=request_for("pi05", {"loop": "graph"}))
    policy = Policy.load(tmp_path / "b", threads=1)
    server = PolicyServer(policy)
    assert decode(server._metadata)["takes_committed"] is False
