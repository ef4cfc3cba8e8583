"""A build that is killed at any moment: what stands is whole, the next build gives the same bytes, nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import export
from policy_goldens import POLICY_GOLDENS

SCRIPT = Path(__file__).parents[1] / "killing.py"
MSE = "body: {format: int4, algorithm: mse}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
#: Kind of build, its options, and at how many moments it is killed; a hundred in all. Each group is a process.
GROUPS: dict[str, dict[str, tuple[str, dict[str, Any], int]]] = {
    "deploy": {
        "deployed": ("deploy", {"recipe": "int8", "verify": False, "embeddings": "outside"}, 60),
        "verified": ("deploy", {"recipe": "float32"}, 2),
    },
    "others": {
        "replaced": ("replace", {"recipe": "int8", "verify": False}, 18),
        "quantized": ("deploy", {"recipe": MSE, "verify": False}, 6),
        "compiled": ("compile", {}, 10),
        "policy": ("policy", {"recipe": "float32", "verify": False}, 4),
    },
}


def case_of(kind: str, options: dict[str, Any], points: int, folder: Path) -> dict[str, Any]:
    """Return a case as the script takes it; what it needs is made in a folder."""
    source = TEXT_GOLDENS / "llama"
    if kind == "policy":
        source = POLICY_GOLDENS / "pi0" / "checkpoint"
    if kind == "compile":
        source = export(source, folder / "exported", recipe="int8", dialect="onnxruntime").path
    if options.get("recipe") == MSE:
        (folder / "mse.yaml").write_text(MSE)
        options = {**options, "recipe": str(folder / "mse.yaml")}
    return {"source": str(source), "kind": kind, "options": options, "points": points}


@pytest.mark.parametrize("group", GROUPS)
def test_killed_builds_are_finished_by_the_next_one(group: str, tmp_path: Path) -> None:
    cases = {name: case_of(*case, tmp_path) for name, case in GROUPS[group].items()}
    (tmp_path / "root").mkdir()
    # A process of its own: one that has run engines has threads, and can't be forked.
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "root"), json.dumps(cases)],
        env={
            **os.environ,
            "EDGEWRIGHT_CACHE_BYTES": "1000000000",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(SCRIPT.parent),
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results.keys() == cases.keys()
    for name, found in results.items():
        points = cases[name]["points"]
        assert found["wrong"] == [], name
        assert found["killed"] == points
        assert found["moments"] > 3 * points
        assert found["kept"] > 0


def test_there_are_a_hundred_moments() -> None:
    assert sum(points for group in GROUPS.values() for _, _, points in group.values()) == 100
