"""A build of a language model: its stage, its tokenizer, its manifest, its verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgewright.build.key import STAGES
from edgewright.build.parts import Part, Passed
from edgewright.build.quantized import quantized_first
from edgewright.build.record import manifest_of
from edgewright.build.reduced import Reduction
from edgewright.build.sources import LlmSource
from edgewright.build.vocabulary import vocabulary_notes
from edgewright.bundle import Manifest
from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.layouts import Quantization
from edgewright.dialects import find_lowering
from edgewright.graph import Stage
from edgewright.graph.outside import take_table_outside
from edgewright.models import build_llm, module_name
from edgewright.progress import Progress
from edgewright.quant.apply import quantize_stage
from edgewright.quant.kv import cache_record, calibrated_cache, quantize_cache
from edgewright.runtime.paired import DEFAULT_PREFILL_FROM, PREFILL, PREFILL_FROM

(STAGE,) = STAGES


class LlmMaker:
    """Makes a bundle's parts from a language model.

    Where the recipe searches or calibrates, a quantized checkpoint is made or found first, and taken over. Where a
    stage `prefill` is asked for, it is the stage `llm` again, for another engine.
    """

    stages = STAGES

    def __init__(self, source: LlmSource, record: dict[str, Any], progress: Progress) -> None:
        self._source, self._request, self._original = source, source.request, source.checkpoint
        self.path = source.checkpoint.path
        made = quantized_first(source.checkpoint, record, source.recipe, progress)
        self._checkpoint, self.record, self._recipe = made
        self._reduction: Reduction | None = None
        self._full: Any = None

    def key(self, **options: Any) -> str:
        """Return the digest of a build from the checkpoint that is built from."""
        return self._source.key(self.record, **options)

    def lower(self, dialects: Mapping[str, str], progress: Progress) -> dict[str, Part]:
        """Build, quantize and lower the stage, once for each dialect."""
        with progress.step("build graph"):
            return {name: self._lowered(dialect) for name, dialect in dialects.items()}

    def _lowered(self, dialect: str) -> Part:
        asked = self._request
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
        return Part(find_lowering(dialect)(stage), applied)

    def write_sidecars(self, sidecars: Path, parts: Mapping[str, Part], progress: Progress) -> None:
        """Write tokenizer and kept tokens."""
        stage = parts[STAGE].stage
        with progress.step("write tokenizer"):
            for name, data in self._checkpoint.sidecars().items():
                (sidecars / name).write_bytes(data)
                if name == "tokenizer.json":
                    assert isinstance(self._full, int)
                    stage.notes += vocabulary_notes(data, self._full)
            if self._reduction:
                self._reduction.write(sidecars)

    def manifest(self, parts: Mapping[str, Part], *, target: str | None, key: str) -> Manifest:
        """Return the manifest."""
        part = parts[STAGE]
        assert part.entry is not None
        made = manifest_of(
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
        beside = parts.get(PREFILL)
        if beside is None or beside.entry is None:
            return made
        notes = [f"prefill: {note}" for note in beside.stage.notes if note not in part.stage.notes]
        return replace(
            made,
            model={**made.model, PREFILL_FROM: DEFAULT_PREFILL_FROM},
            stages={**made.stages, PREFILL: beside.entry},
            notes=(*made.notes, *notes),
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
