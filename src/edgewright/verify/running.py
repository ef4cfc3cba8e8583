"""What a bundle's stages are run with here: their own engines, or what stands in for those of another device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.bundle import Manifest, StageEntry, read_manifest
from edgewright.runtime.engine import Engine, open_engine
from edgewright.runtime.llm import LLM, llm_stage
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.stages import STAGES
from edgewright.targets import find_target

#: The setting of a stage by which an engine says that it computes in another type than float32.
COMPUTES = "computes"
#: Floats of a graph in which no value can be compared with the float32 one of the reference.
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class NotChecked:
    """A level that could not be checked here, and why."""

    unchecked: tuple[str, ...]

    @property
    def faults(self) -> Sequence[str]:
        """Nothing is known to be wrong."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        return {"status": "not checked", "summary": " ".join(self.unchecked), "not_checked": list(self.unchecked)}


def computes(entry: StageEntry) -> str:
    """Return the type a stage computes in."""
    return str(entry.settings.get(COMPUTES, "float32"))


def open_stage(root: Path, manifest: Manifest, name: str, threads: int | None) -> tuple[Engine, str | None]:
    """Return what a stage is run with here and, where that is not its engine, what is not checked by it."""
    stands = _stand_in(root, manifest, name, threads)
    return stands or (open_engine(root, manifest.stages[name], threads=threads, check=False), None)


def load_llm(root: Path, threads: int | None) -> tuple[LLM, tuple[str, ...]]:
    """Load a language model as it is run here; returns what is not checked by that as well."""
    manifest = read_manifest(root)
    llm_stage(manifest)
    stands = _stand_in(root, manifest, "llm", threads)
    if stands is None:
        return LLM.load(root, threads=threads, check=False), ()
    return LLM(root, manifest, stands[0]), (stands[1],)


def load_policy(root: Path, threads: int | None) -> tuple[Policy, tuple[str, ...]]:
    """Load a policy as it is run here; returns what is not checked by that as well."""
    manifest = read_manifest(root)
    stood = {name: _stand_in(root, manifest, name, threads) for name in STAGES if name in manifest.stages}
    engines = {name: stands[0] for name, stands in stood.items() if stands}
    words = tuple(f"{name}: {stands[1]}" for name, stands in stood.items() if stands)
    return Policy.load(root, threads=threads, check=False, engines=engines), words


def _stand_in(root: Path, manifest: Manifest, name: str, threads: int | None) -> tuple[Engine, str] | None:
    """Return what stands in for a stage's engine, and what that leaves unchecked; None where the engine runs here."""
    if manifest.target is None:
        return None
    return find_target(manifest.target).stand_in(root, manifest.stages[name], threads)
