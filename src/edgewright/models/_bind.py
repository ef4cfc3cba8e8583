"""From a checkpoint to a stage: find the family, read the config, bind every tensor, build the graph."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from edgewright.errors import ConfigError, TensorMismatchError, UnknownModelTypeError
from edgewright.graph import Stage
from edgewright.graph.weights import Rows, StoredWeight
from edgewright.models._config import NO_EFFECT, DecoderConfig
from edgewright.models._rules import Rule
from edgewright.nn import CausalLM, Parameter

#: The `model_type`s that can be built; each is a module of this package.
FAMILIES = (
    "apertus",
    "arcee",
    "bamba",
    "cohere",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "falcon",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma4",
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "lfm2",
    "lfm2_moe",
    "llama",
    "mamba2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "nemotron",
    "nemotron_h",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)

#: Buffers that old checkpoints stored and every loader computes anew.
_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.(bias|masked_bias))$")


class Source(Protocol):
    """What a family needs of a checkpoint."""

    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, Any]: ...


class Family(Protocol):
    """What a family's module offers."""

    Config: type[DecoderConfig]

    def network(self, config: DecoderConfig, max_context: int) -> CausalLM: ...


def config_of(config: Mapping[str, Any]) -> tuple[Family, DecoderConfig]:
    """Return the family of a config and its read config; raises UnknownModelTypeError or ConfigError."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError("config.json has no model_type, so the model's family is unknown: add the key.")
    if kind not in FAMILIES:
        near = difflib.get_close_matches(kind, FAMILIES, n=1)
        hint = f"the nearest known one is {near[0]}" if near else f"known are {', '.join(FAMILIES)}"
        raise UnknownModelTypeError(f"The model_type {kind!r} isn't supported; {hint}.")
    family = cast(Family, importlib.import_module(f"edgewright.models.{kind}"))
    key = getattr(family, "TEXT_CONFIG", None)
    if key is not None:
        config = _text_part(config, key, getattr(family, "WRAPPER_KEYS", frozenset()))
    return family, family.Config.read(config)


def _text_part(config: Mapping[str, Any], key: str, known: frozenset[str]) -> Mapping[str, Any]:
    """Return the text model's config out of a wrapper's; a tie given outside counts for the text part too."""
    inner = config.get(key)
    if not isinstance(inner, Mapping):
        raise ConfigError(f"The config of a {config.get('model_type')} model has no {key}.")
    if unknown := set(config) - known - NO_EFFECT.keys() - {key, "tie_word_embeddings"}:
        raise ConfigError(f"The config has keys that are unknown beside {key}: {', '.join(sorted(unknown))}.")
    outside = config.get("tie_word_embeddings")
    if outside is not None and inner.get("tie_word_embeddings", outside) != outside:
        raise ConfigError(f"tie_word_embeddings is {outside} in the config and the opposite in its {key}.")
    return inner if outside is None else {**inner, "tie_word_embeddings": outside}


def build_llm(source: Source, *, max_context: int | None = None, default_context: int = 8192) -> Stage:
    """Build the `llm` stage of a checkpoint.

    `max_context` bounds the cache and the rope tables; None takes the model's own limit, at most `default_context`.
    Raises ConfigError, UnknownModelTypeError, TensorMismatchError (all mismatches listed at once).
    """
    family, config = config_of(source.config)
    limit = config.max_position_embeddings
    context = min(limit, default_context) if max_context is None else max_context
    if not 1 <= context <= limit:
        raise ConfigError(f"A context of {context} tokens is outside what the model supports (1 to {limit}).")
    network = family.network(config, context)
    notes = _bind(network, source.tensors, family, config)
    stage = network.stage(max_context=context)
    stage.notes += notes
    if context < limit:
        stage.notes.append(f"context bounded to {context} of the model's {limit} tokens")
    return stage


def _bind(network: CausalLM, stored: Mapping[str, Any], family: Family, config: DecoderConfig) -> list[str]:
    """Give every parameter its tensor; everything missing, extra or of another shape is an error."""
    notes: list[str] = []
    tensors = _renamed(stored, family, config, notes)
    parameters = {p.name: p for p in network.parameters()}
    table = network.model.embed_tokens.weight.name
    if network.tied and "lm_head.weight" in tensors:
        if table not in tensors:
            tensors[table] = tensors.pop("lm_head.weight")
            notes.append("tied embedding table stored as lm_head.weight")
        elif _same(tensors[table], tensors["lm_head.weight"]):
            del tensors["lm_head.weight"]
            notes.append("lm_head.weight repeats the tied embedding table")
        else:
            raise TensorMismatchError(
                "The config ties lm_head to the embedding table but the checkpoint stores two different tensors: "
                "set tie_word_embeddings to false or remove one."
            )
    problems = [f"{name} is missing" for name in parameters if name not in tensors]
    problems += [f"{name} is not used by the family" for name in tensors if name not in parameters]
    for name, parameter in parameters.items():
        if name in tensors:
            problems += _attach(parameter, tensors[name])
    if problems:
        shown = "; ".join(problems[:20]) + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise TensorMismatchError(f"The checkpoint's tensors don't fit its config: {shown}.")
    return notes


def _attach(parameter: Parameter, tensor: Rows) -> list[str]:
    if tuple(tensor.shape) != parameter.shape:
        return [f"{parameter.name} has the shape {list(tensor.shape)} where {list(parameter.shape)} is needed"]
    if "float" not in tensor.dtype and not tensor.dtype.startswith("Q"):
        return [f"{parameter.name} is stored as {tensor.dtype} where floating-point numbers are needed"]
    parameter.weight = StoredWeight(tensor, parameter.name, parameter.plus)
    return []


def _renamed(stored: Mapping[str, Any], family: Family, config: DecoderConfig, notes: list[str]) -> dict[str, Any]:
    """Apply the family's renames and rules and leave out what belongs to other stages or is recomputed."""
    renames: dict[str, str] = getattr(family, "RENAMES", {})
    others: tuple[str, ...] = getattr(family, "OTHER_STAGES", ())
    tensors: dict[str, Any] = {}
    left_out = buffers = 0
    for name, tensor in stored.items():
        if others and name.startswith(others):
            left_out += 1
            continue
        if _BUFFERS.search(name):
            buffers += 1
            continue
        new = next((to + name[len(old) :] for old, to in renames.items() if name.startswith(old)), name)
        if new in tensors:
            raise TensorMismatchError(f"The checkpoint holds {new} twice, once under another prefix.")
        tensors[new] = tensor
    for rule in getattr(family, "rules", _no_rules)(config):
        note = rule.apply(tensors)
        if note:
            notes.append(note)
    if left_out:
        notes.append(f"{left_out} tensors of other stages left out")
    if buffers:
        notes.append(f"{buffers} stored buffers recomputed")
    return tensors


def _no_rules(config: DecoderConfig) -> Sequence[Rule]:
    return ()


def _same(a: Rows, b: Rows) -> bool:
    if a.shape != b.shape:
        return False
    step = 1024
    return all(
        np.array_equal(a.rows(i, min(a.shape[0], i + step)), b.rows(i, min(a.shape[0], i + step)))
        for i in range(0, a.shape[0], step)
    )
