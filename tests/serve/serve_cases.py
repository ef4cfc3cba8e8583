"""Stand-in policies, and a log and metrics that can be read."""

from __future__ import annotations

import io
import json
import re
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from edgewright.errors import ObservationError
from edgewright.serve import Log, PolicyServer, Settings

#: Long enough for a slow machine; nothing waits that long when all is well.
PATIENCE_S = 60
TOKEN = "correct-horse-battery-staple"


@dataclass
class Chunk:
    """What a policy returns."""

    actions: Any
    timings: Mapping[str, Any] = field(default_factory=lambda: {"vision": 1.5, "denoise": [2.0, 3.0], "total": 7.25})
    notes: tuple[str, ...] = ()


def actions_of(observation: Mapping[str, Any]) -> np.ndarray:
    """The actions of `Arithmetic`, from every number of the observation and its prompt."""
    step = np.arange(1, 6, dtype=np.float64)[:, None]
    pixels = sum(np.asarray(image, np.float64).sum() for image in observation["images"].values())
    actions = step * np.asarray(observation["state"], np.float64) + pixels + len(observation["prompt"])
    return actions.astype(np.float32)


class Arithmetic:
    """A policy whose actions [5, state] depend on all of an observation; a state of two numbers is not taken."""

    metadata: Mapping[str, Any] = {"kind": "arithmetic", "cameras": ["top", "wrist"], "reset_pose": np.arange(3.0)}

    def __init__(self) -> None:
        self.calls = 0

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        self.calls += 1
        if np.size(observation["state"]) == 2:
            raise ObservationError("The state has 2 numbers and the policy takes 7: send what the metadata says.")
        return Chunk(actions_of(observation), notes=tuple(observation.get("notes", ())))


class Gate:
    """A policy that waits until the test lets it go on; `begun` is released once per call."""

    metadata: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.seen: list[float] = []

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        self.seen.append(float(observation["state"][0]))
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        return Chunk(np.full((1, 2), observation["state"][0], np.float32), {})


class Raises:
    """A policy that raises what it is given."""

    metadata: Mapping[str, Any] = {}

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        raise self.error


class Gives:
    """A policy that returns what it is given."""

    metadata: Mapping[str, Any] = {}

    def __init__(self, chunk: Any) -> None:
        self.chunk = chunk

    def infer(self, observation: Mapping[str, Any], /) -> Any:
        return self.chunk


def observation(seed: int, size: int = 7) -> dict[str, Any]:
    """A random observation of two cameras."""
    rng = np.random.default_rng(seed)
    images = {name: rng.integers(0, 256, (9, 5, 3), dtype=np.uint8) for name in ("top", "wrist")}
    return {"images": images, "state": rng.standard_normal(size).astype(np.float32), "prompt": "fold it" * (seed + 1)}


def settings(**changes: Any) -> Settings:
    """Settings at a free port."""
    return Settings(**{"port": 0, **changes})


class Lines(Log):
    """A log that is read back."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        super().__init__(self.stream)

    def named(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    """The status and text of an HTTP answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(text: str) -> dict[str, float]:
    """Prometheus samples by name and labels, without the prefix."""
    found = re.findall(r"^edgewright_(\S+) (\S+)$", text, re.MULTILINE)
    assert len(found) == len(dict(found))
    return {name: float(value) for name, value in found}


def until(condition: Any) -> None:
    """Wait until `condition()` is true."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition did not come true")


def raw(port: int, **options: Any) -> ClientConnection:
    """A connection of the protocol's bare steps; the metadata is still to be received."""
    return connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, proxy=None, **options).__enter__()


def asked(port: int, message: str | bytes) -> str | bytes:
    """The answer to one message."""
    with raw(port) as connection:
        connection.recv(PATIENCE_S)
        connection.send(message)
        return connection.recv(PATIENCE_S)


def counted(server: PolicyServer) -> dict[str, float]:
    return samples(get(server.port, "/metrics")[1])
