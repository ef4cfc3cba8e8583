"""What is known of a model before it is loaded: from a bundle's manifest, a Genie configuration or a cost model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from edgewright.bench.case.costs import simulated_task
from edgewright.bench.case.genie_model import genie_defaults
from edgewright.bench.case.spec import DialogSpec, InputSpec, ModelSpec, SimulatedModel
from edgewright.bundle import MANIFEST, Manifest, read_manifest
from edgewright.contract import StageContract
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.runtime.engine import Engine
    from edgewright.runtime.llm import LLM

Kind = Literal["llm", "policy"]
_CACHE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What of a cost model has no meaning for a policy.
_DIALOG_COSTS = ("prefill_ms", "decode_ms", "chunk", "context")


@dataclass(frozen=True)
class Facts:
    """A model's kind and sizes; None is unknown.

    `width` is that of the rows of embeddings it takes, None where it takes token ids only; `rows` is how many rows a
    table needs, so that every token has one. `file_bytes` are the bundle's, `cache_bytes` those of a dialog's cache
    with a full context.
    """

    kind: Kind
    width: int | None = None
    rows: int | None = None
    context: int | None = None
    file_bytes: int | None = None
    cache_bytes: int | None = None


def facts_of(model: ModelSpec) -> Facts:
    """Return what is known of a model; raises UsageError, BundleError or GenieError for one that isn't there."""
    if model.simulated is not None:
        return _of_costs(model.name, model.simulated)
    if model.bundle is not None:
        return _of_bundle(model.bundle, read_manifest(model.bundle))
    if model.genie is not None:
        if not model.genie.is_file():
            raise UsageError(f"{model.genie} does not exist: give a Genie dialog configuration, or a bundle's folder.")
        said = genie_defaults(model.genie)
        return Facts("llm", width=said.hidden, rows=said.vocab, context=said.context)
    raise UsageError("the model has neither a bundle nor a Genie configuration nor simulated costs: give one of them.")


def _of_costs(model: str, costs: SimulatedModel) -> Facts:
    usual = SimulatedModel(stages=costs.stages)
    unused = [name for name in _DIALOG_COSTS if getattr(costs, name) != getattr(usual, name)]
    if costs.stages and unused:
        raise UsageError(f"a model with stages is a robot policy, which has no {' or '.join(unused)}: leave it out.")
    simulated_task(DialogSpec(name=model, model=model, input=InputSpec()), costs, 0)  # which says what can't be
    kind = kind_of_costs(costs)
    return Facts(kind, context=costs.context if kind == "llm" else None)


def kind_of_costs(costs: SimulatedModel) -> Kind:
    """Return what a cost model stands for: with stages it is a policy."""
    return "policy" if costs.stages else "llm"


def _of_bundle(folder: Path, manifest: Manifest) -> Facts:
    size = sum(int(entry["bytes"]) for entry in manifest.files.values())
    if manifest.model.get("policy") is not None:
        return Facts("policy", file_bytes=size)
    stage = manifest.stages.get("llm")
    if stage is None:
        raise UsageError(f"{folder} has neither an llm stage nor a policy, so it can't run here: deploy a whole model.")
    contract = stage.contract
    taken = next((tensor for tensor in contract.inputs if tensor.name == "inputs_embeds"), None)
    return Facts(
        "llm",
        width=None if taken is None else int(taken.shape[-1]),
        rows=_rows(folder, manifest, contract),
        context=contract.bounds["capacity"][1],
        file_bytes=size,
        cache_bytes=_cache_bytes(contract),
    )


def _rows(folder: Path, manifest: Manifest, contract: StageContract) -> int:
    """Return one more than the largest token id that can be generated."""
    from edgewright.runtime.vocabulary import vocabulary_of

    kept = vocabulary_of(folder, manifest)
    return int(contract.outputs[0].shape[-1]) if kept is None else int(kept.ids[-1]) + 1


def _cache_bytes(contract: StageContract) -> int:
    tokens, size = contract.bounds["capacity"][1], _CACHE_BYTES.get(contract.kv_dtype, 1)
    numbers = sum(
        layer.kv_heads * (layer.head_dim + (layer.head_dim if layer.value_dim is None else layer.value_dim))
        for layer in contract.kv
    )
    states = 0
    for state in contract.state:
        count = 4
        for dim in state.shape:
            count *= dim
        states += count
    return numbers * tokens * size + states


@functools.lru_cache(maxsize=8)
def _speller(bundle: Path, written_ns: int) -> LLM:
    """Return what spells texts for a bundle, as it was written at a time."""
    from edgewright.runtime.llm import LLM

    return LLM(bundle, read_manifest(bundle), cast("Engine", None))  # spelling asks no engine


def prompt_tokens(bundle: Path, text: str, *, raw: bool) -> int:
    """Return the tokens of a prompt, with `raw` as it stands and else as a chat's first message, without loading.

    Raises TokenizerError and TemplateError where the bundle can't spell it.
    """
    llm = _speller(bundle, (bundle / MANIFEST).stat().st_mtime_ns)
    return len(llm.prompt_ids(text if raw else [{"role": "user", "content": text}]))
