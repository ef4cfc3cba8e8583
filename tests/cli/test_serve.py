"""`edgewright serve`: refusals before anything is loaded, a server that ends well, what it needs installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.bundle import Manifest, read_manifest, write_manifest
from edgewright.serve import PolicyClient, RemoteError
from policy_specs import small_spec

from .conftest import Cli

PATIENCE_S = 60
TOKEN = "correct-horse-battery-staple"
#: The command with a runtime whose policy doubles the state; every call adds a little.
PROGRAM = """
import sys, time, types
from pathlib import Path
import numpy as np
from edgewright.bundle import read_manifest
from edgewright.cli import main
from edgewright.runtime.policy.policy import metadata_of, policy_spec
from edgewright.serve import bundles
class Policy:
    @classmethod
    def load(cls, bundle, threads=None):
        print("loaded", bundle, threads, flush=True)
        found = cls()
        found.spec = policy_spec(read_manifest(Path(bundle)))
        found.metadata = metadata_of(found.spec, takes_committed=True)
        return found
    calls = 0
    def infer(self, observation):
        Policy.calls += 1
        if "sleep" in observation:
            print("begun", flush=True)
            time.sleep(observation["sleep"])
        if observation["prompt"] == "fail":
            raise FileNotFoundError(2, "No such file", __file__)
        actions = np.full((2, 3), 2 * observation["state"].sum() + Policy.calls / 64, np.float32)
        return types.SimpleNamespace(actions=actions, timings={"total": 1.0})
__file__ = "/srv/secret.py"
bundles.Policy = Policy
sys.exit(main(["serve", *sys.argv[1:]]))
"""


@pytest.fixture
def policy_bundle(tmp_path: Path) -> Path:
    """A manifest that describes a policy."""
    spec = small_spec(
        cameras=("base_0_rgb",),
        required_cameras=(),
        image_size=(14, 14),
        image_tokens=1,
        horizon=2,
        steps=1,
        max_tokens=8,
        state_norm="identity",
        action_norm="identity",
        steps_to_run=2,
    )
    folder = tmp_path / "policy"
    folder.mkdir()
    model = {"policy": spec.to_json()}
    write_manifest(folder, Manifest(model=model, source={}, recipe={}, stages={}, versions={}, verdict={}))
    return folder


class Process:
    """The command in a process of its own; `port` is what it says it listens at."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.port: int = self.wait_for("listening")["port"]

    def wait_for(self, event: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line: dict[str, Any] = json.loads(text)
            self.lines.append(line)
            if line["event"] == event:
                return line
        raise AssertionError(f"no {event!r} in {self.lines}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@contextmanager
def serving(*arguments: object) -> Iterator[Process]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Process(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_it_serves_until_a_signal(policy_bundle: Path, number: signal.Signals, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    arguments = ("--port", 0, "--token-file", token, "--threads", 2, "--max-images", 2)
    with serving(policy_bundle, *arguments) as running:
        with pytest.raises(RemoteError, match="token"):
            PolicyClient(port=running.port)
        client = PolicyClient(port=running.port, token=TOKEN)
        assert client.metadata["cameras"] == ["base_0_rgb"]
        state = np.array([1.0, 2.5, 0.25, -1.0])
        answer = client.infer({"state": state, "prompt": "go"})
        assert np.array_equal(answer.actions, np.full((2, 3), 2 * 2.75 + 3 / 64))  # the third call: two to warm up
        with pytest.raises(RemoteError) as caught:
            client.infer({"state": state, "prompt": "fail"})
        assert "secret" not in str(caught.value)
        with pytest.raises(RemoteError, match="more than 2 images"):
            client.infer({"images": [np.zeros((1, 1, 3))] * 3})
        running.process.send_signal(number)
        code, out, err = running.end()
    assert code == 0
    assert out == f"loaded {policy_bundle} 2\n"
    events = [line["event"] for line in running.lines] + [json.loads(line)["event"] for line in err.splitlines()]
    assert events[:2] == ["warm", "listening"]
    assert events[-3:] == ["stopping", "disconnected", "stopped"]
    assert "secret" in err
    assert TOKEN not in err


def test_a_failed_verdict_is_told(policy_bundle: Path) -> None:
    write_manifest(policy_bundle, replace(read_manifest(policy_bundle), verdict={"status": "failed"}))
    with serving(policy_bundle, "--port", 0, "--quiet") as running:
        assert running.lines[0]["event"] == "warning"
        assert "this bundle failed its verification" in running.lines[0]["message"]


def test_a_request_under_way_is_answered_before_the_end(policy_bundle: Path) -> None:
    with serving(policy_bundle, "--port", 0, "--no-warm-up", "--deadline-ms", 50_000) as running:
        client = PolicyClient(port=running.port)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.infer, {"state": np.ones(4), "prompt": "go", "sleep": 0.5})
            assert running.process.stdout is not None
            while running.process.stdout.readline() != "begun\n":
                pass
            running.process.send_signal(signal.SIGTERM)
            running.wait_for("stopping")
            assert answer.result().actions[0, 0] == 8 + 1 / 64
        assert running.end()[0] == 0


def test_quiet_leaves_out_what_went_well(policy_bundle: Path) -> None:
    with serving(policy_bundle, "--port", 0, "--quiet") as running:
        client = PolicyClient(port=running.port)
        client.infer({"state": np.ones(4), "prompt": "go"})
        with pytest.raises(RemoteError):
            client.infer({"state": np.ones(4), "prompt": "fail"})
        running.process.send_signal(signal.SIGTERM)
        code, _, err = running.end()
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert (code, events) == (0, ["error", "stopping", "stopped"])


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["no-such-bundle"], 3, ["no-such-bundle does not exist"]),
        (
            ["no-such-bundle", "--host", "0.0.0.0"],
            2,
            ["can be reached from other machines", "--token-file", "--no-token"],
        ),
        (["no-such-bundle", "--host", "0.0.0.0", "--no-token"], 3, ["does not exist"]),
        (["no-such-bundle", "--token-file", "no-such-file"], 2, ["token file no-such-file can't be read"]),
        (["b", "--token-file", "f", "--no-token"], 2, ["not allowed with"]),
        (["b", "--port", "65536"], 2, ["'65536' is not a port"]),
        (["b", "--queue", "-1"], 2, ["--queue"]),
        (["b", "--deadline-ms", "0"], 2, ["'0' is not a whole number from 1"]),
        (["b", "--max-mesage", "3"], 2, ["did you mean --max-message?"]),
        ([], 2, ["BUNDLE"]),
    ],
)
def test_refusals(cli: Cli, arguments: list[str], code: int, parts: list[str]) -> None:
    result = cli("serve", *arguments)
    assert (result.code, result.out) == (code, "")
    assert all(part in result.err for part in parts), result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"short\n", b"two words in a token file", b"\xff" * 20], ids=repr)
def test_a_token_file_without_a_token(cli: Cli, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    result = cli("serve", "no-such-bundle", "--token-file", path)
    assert result.code == 2
    assert "oken" in result.err


def test_a_language_model_is_refused(cli: Cli, plain_bundle: Path) -> None:
    result = cli("serve", plain_bundle)
    assert result.code == 3
    assert "holds no robot policy" in result.err


@pytest.mark.parametrize("package", ["websockets", "msgpack"])
def test_a_missing_package_says_how_to_get_it(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; from edgewright.cli import main; sys.exit(main(['serve', 'b']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 4
    assert "pip install 'edgewright[serve]'" in done.stderr


def test_serving_needs_nothing_of_the_host_side() -> None:
    code = (
        "import sys, edgewright.serve, edgewright.serve.bundles; print(*sorted(m.split('.')[0] for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"websockets", "msgpack", "numpy"} <= loaded
    assert not loaded & {"onnx", "onnx_ir", "ml_dtypes", "yaml", "tqdm", "torch", "PIL", "pyarrow"}
