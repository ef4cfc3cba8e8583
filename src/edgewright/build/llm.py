"""A build of a language model: its stage, its tokenizer, its manifest, its verification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.build.outside import write_outside
from edgewright.build.parts import Part, Passed
from edgewright.build.quantized import quantized_first
from edgewright.build.record import manifest_of
from edgewright.build.reduced import Reduction
from edgewright.build.sources import LlmSource
from edgewright.build.vocabulary import vocabulary_notes
from edgewright.bundle import Manifest
from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.layouts import Quantization
from edgewright.dialects import LOWERINGS
from edgewright.graph import Stage
from edgewright.graph.outside import take_table_outside
from edgewright.models import build_llm, module_name
from edgewright.progress import Progress
from edgewright.quant.apply import quantize_stage
from edgewright.quant.kv import cache_record, calibrated_cache, quantize_cache

STAGE = "llm"


class LlmMaker:
    """Makes a bundle's parts from a language model.

    Where the recipe searches or calibrates, a quantized checkpoint is made or found first, and taken over.
    """

    def __init__(self, source: LlmSource, record: dict[str, Any], progress: Progress) -> None:
        self._request, self._original = source.request, source.checkpoint
        self.path = source.checkpoint.path
        made = quantized_first(source.checkpoint, record, source.recipe, progress)
        self._checkpoint, self.record, self._recipe = made
        self._reduction: Reduction | None = None
        self._full: Any = None

    def lower(self, dialect: str, progress: Progress) -> dict[str, Part]:
        """Build, quantize and lower the stage."""
        asked = self._request
        with progress.step("build graph"):
            stage = build_llm(self._checkpoint, max_context=asked.max_context)
            self._full = stage.contract.outputs[0].shape[-1]
            self._reduction = Reduction(stage, self._checkpoint, asked.vocabulary) if asked.vocabulary else None
            applied = quantize_stage(stage, self._recipe, requantize=asked.requantize)
            if self._checkpoint.quantization is not None:
                stage.cache = give_cache(stage, self._checkpoint, self._checkpoint.quantization)
            if self._reduction:
                self._reduction.finish(stage)
            if asked.embeddings == "outside":
                take_table_outside(stage)
            stage = LOWERINGS[dialect](stage)
        return {STAGE: Part(stage, applied)}

    def write_sidecars(self, sidecars: Path, parts: Mapping[str, Part], progress: Progress) -> None:
        """Write tokenizer, kept tokens and an embedding table that isn't in the graph."""
        stage = parts[STAGE].stage
        with progress.step("write tokenizer"):
            for name, data in self._checkpoint.sidecars().items():
                (sidecars / name).write_bytes(data)
                if name == "tokenizer.json":
                    assert isinstance(self._full, int)
                    stage.notes += vocabulary_notes(data, self._full)
            if self._reduction:
                self._reduction.write(sidecars)
        write_outside(stage, sidecars, progress)

    def manifest(self, parts: Mapping[str, Part], *, target: str | None, key: str) -> Manifest:
        """Return the manifest."""
        part = parts[STAGE]
        assert part.entry is not None
        return manifest_of(
            self._checkpoint,
            self._original,
            self.record,
            self._recipe,
            part.stage,
            part.applied,
            part.entry,
            target=target,
            key=key,
        )

    def verify(self, folder: Path, progress: Progress) -> Passed:
        """Verify a finished folder; where the checkpoint is a quantized form of the original, that one judges it."""
        from edgewright import verify

        original = None if self._original is self._checkpoint else self._original
        return verify.verify_bundle(folder, self._checkpoint, original=original, progress=progress)


def give_cache(stage: Stage, checkpoint: Checkpoint, found: Quantization) -> dict[str, Any] | None:
    """Give the stage the cache that the checkpoint was calibrated for; returns its record, or None for float32."""
    if found.kv_dtype is None:
        return None
    scales = {
        module if found.canonical else module_name(checkpoint.config, module): pair
        for module, pair in found.kv_scales.items()
    }
    return cache_record(quantize_cache(stage, *calibrated_cache(found.kv_dtype, scales)))
