"""One virtual environment per peer, with pinned versions."""

import subprocess
import sys
import venv
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
PEERS = ROOT / ".peers"
REFERENCE_PEER = "onnxruntime_genai"
"""The environment that has torch and transformers, for checkpoints and reference logits."""


def interpreter(peer: str, edgewright: Path) -> Path:
    """Return the Python of a peer's environment; ours is made by the project, not by the race."""
    if peer == "edgewright":
        return edgewright
    return PEERS / (REFERENCE_PEER if peer == "reference" else peer) / "bin" / "python"


def ensure(peer: str, edgewright: Path) -> Path:
    """Make the peer's environment unless it is complete, and return its Python."""
    python = interpreter(peer, edgewright)
    if peer == "edgewright":
        if not python.exists():
            raise SystemExit(f"{python} does not exist; install the project there or pass --edgewright-python")
        return python
    folder = python.parents[1]
    done = folder / "race-complete"
    if done.exists():
        return python
    print(f"making the environment {folder.relative_to(ROOT)} (minutes)", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    requirements = BENCHMARKS / "requirements" / f"{folder.name}.txt"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", requirements], check=True)
    alone = requirements.with_suffix(".nodeps.txt")
    if alone.exists():
        subprocess.run([*pip, "--no-deps", "-r", alone], check=True)
    done.touch()
    return python
