"""Two builds with the same inputs are the same bytes, whatever the process, its hash seed, folders and cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import TEXT_GOLDENS
from policy_goldens import POLICY_GOLDENS

#: Source, recipe and target of each build.
CASES = {
    "llama": (TEXT_GOLDENS / "llama", "int4", "cpu"),
    "openvino": (TEXT_GOLDENS / "llama", "int8", "openvino"),
    "tensorrt": (TEXT_GOLDENS / "llama", "int4", "tensorrt"),
    "edgellm": (TEXT_GOLDENS / "llama", "float16", "tensorrt-edge-llm"),
    "pi05": (POLICY_GOLDENS / "pi05" / "checkpoint", "policy-int8", "cpu"),
}
SCRIPT = """
import json, sys
from edgewright.build.pipeline import deploy
for name, (source, recipe, target) in json.loads(sys.argv[1]).items():
    options = {"capability": "8.7", "builder": "script"} if target == "tensorrt" else None
    verify = name == "llama"
    deploy(source, f"{sys.argv[2]}/{name}", recipe=recipe, target=target, options=options, verify=verify)
"""


def built(place: Path, output: str, seed: int) -> dict[str, str]:
    """Build all cases in a fresh process; returns the digests of all files by path."""
    place.mkdir(parents=True)
    cases = {name: (str(source), recipe, target) for name, (source, recipe, target) in CASES.items()}
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "XDG_CACHE_HOME": str(place / f"cache{seed}")}
    command = [sys.executable, "-c", SCRIPT, json.dumps(cases), output]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    folder = place / output
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_fresh_processes_give_the_same_bytes(tmp_path: Path) -> None:
    one = built(tmp_path / "one", "out", 1)
    two = built(tmp_path / "deeper" / "and another", "of/another/name", 4242)
    assert {name.partition("/")[0] for name in one} == set(CASES)
    assert one == two
