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
    entry = manifest.stages[name]
    if manifest.target is not None:
        stands = find_target(manifest.target).stand_in(root, entry, threads)
        if stands is not None:
            return stands
    return open_engine(root, entry, threads=threads, check=False), None


def load_llm(root: Path, threads: int | None) -> tuple[LLM, tuple[str, ...]]:
    """Load a language model as it is run here; returns what is not checked by that as well."""
    manifest = read_manifest(root)
    llm_stage(manifest)
    if manifest.target is not None:
        stands = find_target(manifest.target).stand_in(root, manifest.stages["llm"], threads)
        if stands is not None:
            return LLM(root, manifest, stands[0]), (stands[1],)
    return LLM.load(root, threads=threads, check=False), ()


def load_policy(root: Path, threads: int | None) -> tuple[Policy, tuple[str, ...]]:
    """Load a policy as it is run here; returns what is not checked by that as well."""
    manifest = read_manifest(root)
    engines, words = {}, []
    if manifest.target is not None:
        backend = find_target(manifest.target)
        for name in (name for name in STAGES if name in manifest.stages):
            stands = backend.stand_in(root, manifest.stages[name], threads)
            if stands is not None:
                engines[name] = stands[0]
                words.append(f"{name}: {stands[1]}")
    return Policy.load(root, threads=threads, check=False, engines=engines), tuple(words)
