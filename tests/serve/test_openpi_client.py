"""openpi's own client against our server.

`openpi-client` wants NumPy 1 and so can't be installed beside this package. Make an environment for it
(`pip install openpi-client typing_extensions`) and name its Python in EDGEWRIGHT_OPENPI_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_cases import PATIENCE_S, TOKEN, Arithmetic, actions_of, observation, settings

from edgewright.serve import serving

PYTHON = os.environ.get("EDGEWRIGHT_OPENPI_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="EDGEWRIGHT_OPENPI_PYTHON names no Python that has openpi-client")
CLIENT = """
import json, sys
import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
port, token, path = sys.argv[1:]
client = WebsocketClientPolicy("127.0.0.1", int(port), api_key=token or None)
data = np.load(path)
images = {name: data[name] for name in ("top", "wrist")}
observation = {"images": images, "state": data["state"], "prompt": str(data["prompt"])}
found = {"metadata": {k: np.asarray(v).tolist() for k, v in client.get_server_metadata().items()}}
answers = [client.infer(observation) for _ in range(2)]
found["actions"] = [[str(a["actions"].dtype), a["actions"].tolist()] for a in answers]
found["timing"] = [sorted(a["server_timing"]) + sorted(a["policy_timing"]) for a in answers]
try:
    client.infer(dict(observation, state=data["state"][:2]))
except RuntimeError as error:
    found["error"] = str(error)
broker = ActionChunkBroker(client, action_horizon=5)
found["steps"] = [broker.infer(observation)["actions"].tolist() for _ in range(6)]
print(json.dumps(found))
"""


def client(port: int, token: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-c", CLIENT, str(port), token, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("token", ["", TOKEN])
def test_openpi_client_gets_the_actions(token: str, tmp_path: Path) -> None:
    sent = observation(5)
    path = tmp_path / "observation.npz"
    np.savez(path, **sent["images"], state=sent["state"], prompt=sent["prompt"])
    policy = Arithmetic()
    with serving(policy, settings(token=token or None)) as server:
        done = client(server.port, token, path)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    expected = actions_of(sent).tolist()
    assert found["actions"] == [["float32", expected]] * 2
    assert found["metadata"] == {"kind": "arithmetic", "cameras": ["top", "wrist"], "reset_pose": [0, 1, 2]}
    times = ["denoise_ms", "infer_ms", "total_ms", "vision_ms"]
    assert found["timing"] == [["infer_ms", "queue_ms", *times], ["infer_ms", "prev_total_ms", "queue_ms", *times]]
    assert "The state has 2 numbers and the policy takes 7" in found["error"]
    assert "Traceback" not in found["error"]
    assert found["steps"] == [*expected, expected[0]]
    assert policy.calls == 5


def test_openpi_client_without_the_token_is_refused(tmp_path: Path) -> None:
    with serving(Arithmetic(), settings(token=TOKEN)) as server:
        done = client(server.port, "", tmp_path)
    assert done.returncode == 1
    assert "401" in done.stderr
