"""Leaves a plan as scripts that build the engine on the device, where no builder for it is here."""

from __future__ import annotations

import shlex
from pathlib import Path

from edgewright.targets.tensorrt import device_build
from edgewright.targets.tensorrt.plan import BuildPlan
from edgewright.targets.tensorrt.trtexec import command

#: The folder they are in, below the stage's.
FOLDER = "engine"


def write_scripts(plan: BuildPlan, folder: Path) -> None:
    """Write `engine/build_engine.sh`, for trtexec, and `engine/build_engine.py`, for TensorRT's Python package."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    words = command(plan)
    lines = [shlex.quote(word) for word in words]
    shell = place / "build_engine.sh"
    shell.write_text(
        "#!/bin/sh\n"
        f"# Builds {plan.engine} for a GPU of compute capability {plan.capability}, on the device.\n"
        "set -eu\n"
        'cd "$(dirname "$0")/.."\n'
        "exec " + " \\\n  ".join(lines) + "\n",
        encoding="utf-8",
    )
    source = Path(device_build.__file__)
    script = place / "build_engine.py"
    script.write_bytes(source.read_bytes())
    for path in (shell, script):
        path.chmod(0o755)
