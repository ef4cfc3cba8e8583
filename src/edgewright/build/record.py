"""What a manifest says of a build: the model, the recipe module by module, versions, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from edgewright._version import __version__
from edgewright.build.outside import table_record
from edgewright.bundle import Manifest, StageEntry
from edgewright.checkpoint import Checkpoint
from edgewright.formats import FloatFormat
from edgewright.graph import Stage, Weight
from edgewright.graph.weights import Rows
from edgewright.graph.writer import parameter_count
from edgewright.models import build_llm
from edgewright.quant.apply import Applied, quantizable
from edgewright.quant.producers import second_roundings
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.report import SHARED, TAKEN, read_report

NOT_CHECKED: dict[str, Any] = {"status": "not checked"}
FLOATS = ("float32", "float16", "bfloat16")
#: The module of the table, with which a head may be tied.
EMBEDDING = "model.embed_tokens"


def manifest_of(
    checkpoint: Checkpoint,
    original: Checkpoint,
    record: Mapping[str, Any],
    recipe: Recipe,
    stage: Stage,
    applied: Sequence[Applied],
    entry: StageEntry,
    *,
    target: str | None,
    key: str,
) -> Manifest:
    """Return the manifest of a build, not yet sealed nor checked; `original` is what `checkpoint` was made from, or is
    the same.
    """
    config = checkpoint.config
    vocab = stage.contract.outputs[0].shape[-1]
    modules = _modules(checkpoint, original, stage, applied)
    return Manifest(
        model={
            "model_type": config["model_type"],
            "parameters": parameter_count(stage),
            "layers": stage.layers,
            "vocab_size": stage.vocabulary.get("full", vocab),
            **({"vocabulary": stage.vocabulary} if stage.vocabulary else {}),
            **({"embedding": table_record(stage.outside)} if stage.outside else {}),
            "max_context": stage.contract.bounds["capacity"][1],
            "eos_token_id": _eos(config),
        },
        source=record,
        recipe=_recipe_record(checkpoint, recipe, stage, applied, modules),
        stages={"llm": entry},
        versions=versions(),
        verdict=NOT_CHECKED,
        notes=(*stage.notes, *_notes(original, applied, modules)),
        target=target,
        key=key,
    )


def _recipe_record(
    checkpoint: Checkpoint, recipe: Recipe, stage: Stage, applied: Sequence[Applied], modules: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what was applied, with the cache's scales and what a quantized checkpoint was calibrated on."""
    record = {"name": recipe.name, "summary": summary_of(applied, modules), "modules": modules}
    if stage.cache is not None:
        record["kv"] = stage.cache
    if checkpoint.quantization is not None and checkpoint.quantization.record:
        record["quantized"] = dict(checkpoint.quantization.record)
    return record


def summary_of(applied: Sequence[Applied], modules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the formats that modules got, and the modules taken over bit-exactly."""
    formats = Counter(a.format.label for a in applied)
    exact = sum(module["bit_exact"] for module in modules)
    return {"formats": dict(formats), "bit_exact": exact, "modules": len(modules)}


def _modules(
    checkpoint: Checkpoint, original: Checkpoint, stage: Stage, applied: Sequence[Applied]
) -> list[dict[str, Any]]:
    """Return the record of every module; with an original, `stored_as` and `bit_exact` are about that one."""
    modules = modules_of(stage, applied)
    if original is checkpoint:
        return modules
    before, now, taken = _weights(original), _weights(checkpoint), _taken(checkpoint)
    for module, a in zip(modules, applied, strict=True):
        weight = before[a.module]
        stored = _stored_as(weight.stored())
        module["stored_as"] = stored
        if isinstance(a.format, FloatFormat):
            module["bit_exact"] = stored == a.format.label and _same(weight, now[a.module])
        else:
            module["bit_exact"] = a.module in taken
    return modules


def modules_of(stage: Stage, applied: Sequence[Applied]) -> list[dict[str, Any]]:
    """Return the record of every module of a stage that was built from the checkpoint as it was given."""
    again = second_roundings(stage)
    return [{**_module(a), **({"requantized": again[a.module]} if a.module in again else {})} for a in applied]


def _module(applied: Applied) -> dict[str, Any]:
    inputs = None if applied.inputs is None else applied.inputs.to_json()
    return {
        "module": applied.module,
        "kind": applied.kind,
        **applied.format.to_json(),
        **({} if inputs is None else {"activation": inputs}),
        "stored_as": applied.stored,
        "bit_exact": applied.exact,
    }


def _weights(checkpoint: Checkpoint) -> dict[str, Weight]:
    return {use.module: use.weight for use in quantizable(build_llm(checkpoint, max_context=1))}


def _taken(checkpoint: Checkpoint) -> set[str]:
    """Return the modules whose codes a quantized checkpoint has of its original, by its report."""
    found = read_report(checkpoint.path)
    modules = [] if found is None else found[1]
    taken = {report.module for report in modules if report.algorithm == TAKEN}
    # A tied head reads its table's codes.
    return taken | {report.module for report in modules if report.algorithm == SHARED and EMBEDDING in taken}


def _stored_as(tensor: Rows | None) -> str:
    return "transformed" if tensor is None else tensor.dtype


def _same(one: Weight, other: Weight) -> bool:
    """Tell whether two matrices are equal bit for bit, read in blocks of rows."""
    if one.shape != other.shape:
        return False
    return all(np.array_equal(one.rows(*block), other.rows(*block)) for block in one.blocks())


def _notes(original: Checkpoint, applied: Sequence[Applied], modules: Sequence[Mapping[str, Any]]) -> list[str]:
    if original.kind != "gguf":
        return []
    before = {name: weight.stored() for name, weight in _weights(original).items()}
    blocks = {name: t.dtype for name, t in before.items() if t is not None and getattr(t, "format", None) is not None}
    rounded = [a for a, module in zip(applied, modules, strict=True) if not module["bit_exact"]]
    return rounded_again((blocks.get(a.module), a.format.label) for a in rounded)


def rounded_again(pairs: Iterable[tuple[str | None, str]]) -> list[str]:
    """Say which blocks of a GGUF file were rounded again, given their types, or None, and the formats they got."""
    found = Counter((stored, label) for stored, label in pairs if stored is not None and label not in FLOATS)
    return [
        f"{count} modules that the source stores as {stored} were rounded a second time, to {label}"
        for (stored, label), count in sorted(found.items())
    ]


def versions() -> dict[str, str]:
    """Return the versions that decide over a bundle's bytes and its engine."""
    names = ("onnx", "onnx-ir", "onnxruntime", "numpy", "tokenizers")
    return {"edgewright": __version__, **{name: metadata.version(name) for name in names}}


def _eos(config: Mapping[str, Any]) -> Any:
    """Return the config's end-of-sequence ids; a wrapper may keep them in its text config."""
    inner = config.get("text_config")
    ids = config.get("eos_token_id")
    return ids if ids is not None or not isinstance(inner, Mapping) else inner.get("eos_token_id")
