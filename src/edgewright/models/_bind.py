"""From a checkpoint to a stage: find the family, read the config, bind every tensor, build the graph."""

from __future__ import annotations

import difflib
import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.errors import ConfigError, TensorMismatchError, UnknownModelTypeError
from edgewright.graph import Stage
from edgewright.graph.weights import Rows, StoredWeight
from edgewright.models._config import NO_EFFECT, DecoderConfig
from edgewright.models._rules import Rename, Rule
from edgewright.nn import CausalLM, Linear, Parameter

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
    @property
    def quantization(self) -> Quantization | None: ...


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
    quantization = source.quantization
    if quantization is not None:
        _follow(network, quantization)
    canonical = quantization is not None and quantization.canonical
    notes = _bind(network, source.tensors, family, config, canonical=canonical)
    if quantization is not None:
        notes = [f"quantized checkpoint: {quantization.method}", *quantization.notes, *notes, *_given_up(network)]
    stage = network.stage(max_context=context)
    stage.config = dict(source.config)
    stage.notes += notes
    if context < limit:
        stage.notes.append(f"context bounded to {context} of the model's {limit} tokens")
    return stage


def _given_up(network: CausalLM) -> list[str]:
    """Return what a quantized checkpoint's tensors had that the network's parameters have no place for."""
    tensors = [p.weight.tensor for p in network.parameters() if isinstance(p.weight, StoredWeight)]
    decoded = Counter(encoding.label for t in tensors if (encoding := getattr(t, "decoded", None)) is not None)
    notes = [
        f"{count} weights of {label} became exact floats: their parts have scales apart"
        for label, count in decoded.items()
    ]
    unrounded = sum(getattr(t, "unrounded", False) for t in tensors)
    if unrounded:
        notes.append(f"the inputs of {unrounded} weights stay floats: their parts round them differently")
    return notes


def module_name(config: Mapping[str, Any], stored: str) -> str:
    """Return the path that a module of a stored name, such as an attention, has in the network."""
    family, parsed = config_of(config)
    renames: dict[str, str] = getattr(family, "RENAMES", {})
    name = f"{stored}.k_proj.weight"
    tensors: dict[str, Any] = {
        next((to + name[len(old) :] for old, to in renames.items() if name.startswith(old)), name): None
    }
    for rule in getattr(family, "rules", _no_rules)(parsed):
        if isinstance(rule, Rename):
            rule.apply(tensors)
    return next(iter(tensors)).rsplit(".", 2)[0]


def _follow(network: CausalLM, quantization: Quantization) -> None:
    """Give the network what quantizing added: a head of its own, biases."""
    if quantization.untied and network.tied:
        table = network.model.embed_tokens.weight
        network.lm_head.weight = Parameter(*network.lm_head.weight.shape)
        network.lm_head.weight.name = "lm_head.weight"
        assert table is not network.lm_head.weight
        network.tied = False
    linears = {module.path: module for module in network.modules() if isinstance(module, Linear)}
    for path in quantization.biases:
        linear = linears.get(path)
        if linear is None:
            raise ConfigError(f"The quantized checkpoint has a bias for {path}, which is no linear of the model.")
        linear.bias = Parameter(linear.weight.shape[0])
        linear.bias.name = f"{path}.bias"


def _bind(
    network: CausalLM, stored: Mapping[str, Any], family: Family, config: DecoderConfig, *, canonical: bool
) -> list[str]:
    """Give every parameter its tensor; everything missing, extra or of another shape is an error.

    `canonical` tensors have the parameters' own names already.
    """
    notes: list[str] = []
    tensors = dict(stored) if canonical else _renamed(stored, family, config, notes)
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
    notes += _without_zero_biases(tensors, parameters)
    problems = [f"{name} is missing" for name in parameters if name not in tensors]
    problems += [f"{name} is not used by the family" for name in tensors if name not in parameters]
    for name, parameter in parameters.items():
        if name in tensors:
            problems += attach(parameter, tensors[name])
    if problems:
        shown = "; ".join(problems[:20]) + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise TensorMismatchError(f"The checkpoint's tensors don't fit its config: {shown}.")
    return notes


def _without_zero_biases(tensors: dict[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
    """Leave out the biases of zeros that old tools gave every linear they quantized; returns a note."""
    extra = [name for name in tensors if name.endswith(".bias") and name not in parameters]
    zeros = 0
    for name in extra:
        weight, bias = tensors.get(f"{name.removesuffix('.bias')}.weight"), tensors[name]
        quantized = getattr(weight, "encoding", None) is not None and len(bias.shape) == 1
        if quantized and not np.any(bias.rows(0, bias.shape[0])):
            del tensors[name]
            zeros += 1
    return [f"{zeros} biases of zeros left out"] if zeros else []


def attach(parameter: Parameter, tensor: Rows) -> list[str]:
    """Give a parameter its tensor; returns in words what doesn't fit, nothing where it does."""
    if tuple(tensor.shape) != parameter.shape:
        return [f"{parameter.name} has the shape {list(tensor.shape)} where {list(parameter.shape)} is needed"]
    encoded = getattr(tensor, "encoding", None) is not None
    if not encoded and "float" not in tensor.dtype and not tensor.dtype.startswith("Q"):
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
