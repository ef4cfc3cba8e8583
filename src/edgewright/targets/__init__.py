"""Where a stage runs: the compile back ends, by target name, and the platforms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgewright.bundle.manifest import StageEntry
    from edgewright.contract import StageContract


def compile_stage(folder: Path, prefix: str, contract: StageContract, *, half_weights: bool) -> StageEntry:
    """Compile for ONNX Runtime's CPU provider, which is loaded only then; see `cpu.compile_stage`."""
    from edgewright.targets import cpu

    return cpu.compile_stage(folder, prefix, contract, half_weights=half_weights)


#: Target names and their compile functions.
TARGETS = {"cpu": compile_stage}

__all__ = ["TARGETS", "compile_stage"]
