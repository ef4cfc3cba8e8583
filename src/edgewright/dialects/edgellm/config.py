"""What TensorRT Edge-LLM's runtime is told of a model beside its graph: `config.json`, and the embedding table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewright.errors import UnsupportedFormatError
from edgewright.graph import Stage

if TYPE_CHECKING:
    from edgewright.dialects.edgellm.attention import Layer

#: The version of the exporter whose files these are like.
VERSION = "0.11.0"
#: What the runtime reads of a yarn rope; it has no others of its keys.
_YARN = frozenset({"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"})
_ALWAYS = frozenset({"rope_theta", "rope_type", "type"})
#: Columns of the ropes that the runtime has a kernel for, and of those with yarn.
_WIDTHS, _YARN_WIDTHS = (32, 64, 96, 128, 256, 512), (64, 128)


def builder_config(stage: Stage, layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the values of `config.json`, but for the tokens that end a text.

    Raises UnsupportedFormatError for a rope that the runtime computes otherwise, and for layers of several shapes.
    """
    config, first = stage.config, layers[0]
    shapes = {(a.heads, a.kv_heads, a.head_dim, a.scale, a.window, a.rope, a.scales is None) for a in layers}
    if len(shapes) != 1:
        raise UnsupportedFormatError(
            f"The attention layers of this {config.get('model_type')} model differ in heads, window or rope, which has "
            "no form in the tensorrt-edge-llm dialect."
        )
    hidden, vocab = stage.contract.inputs[0].shape[-1], stage.contract.outputs[0].shape[-1]
    theta, scaling = _rope(config)
    # A frequency by frequency table is the only other form; it is told of by the length from which it holds.
    limit = int(config["max_position_embeddings"])
    spelled, own = _spelled_rope(theta, scaling, first.head_dim, limit)
    known = _YARN_WIDTHS if spelled["type"] == "yarn" else _WIDTHS
    if first.head_dim not in known:
        stage.notes.append(
            f"TensorRT Edge-LLM's runtime is known to turn {', '.join(map(str, known))} columns of a head, and this "
            f"model's heads have {first.head_dim}"
        )
    result: dict[str, Any] = {
        "model": config.get("model_type"),
        "spec_decode_type": "none",
        "engine_role": "llm",
        "edgellm_version": VERSION,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": config.get("intermediate_size"),
        "num_hidden_layers": stage.layers,
        "num_attention_heads": first.heads,
        "num_key_value_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "max_position_embeddings": limit,
        "rope_theta": theta,
        "rope_scaling": spelled,
        "partial_rotary_factor": 1.0,
        "num_deepstack_features": 0,
        "use_vision_bidirectional_attention": False,
        "rms_norm_eps": float(config["rms_norm_eps"]),
        "attention_scaling": _attention_scale(first),
        "ple_enabled": False,
        "num_ple_inputs": 0,
        "ple_hidden_size": 0,
        "kv_cache_dtype": "fp16" if first.scales is None else "fp8",
    }
    if first.window:
        result["sliding_window_size"] = first.window
    return result | own


def _attention_scale(layer: Layer) -> float:
    """Return the scale, in double where it is the usual one: the graph's is that, rounded."""
    usual = 1.0 / math.sqrt(layer.head_dim)
    return usual if np.float32(usual) == np.float32(layer.scale) else layer.scale


def _rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the base of the frequencies and what is told of their scaling, as configs of both ages say it."""
    told = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(told.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = told.get("rope_type", told.get("type", "default"))
    return theta, {**told, "rope_theta": theta, "rope_type": kind, "type": kind}


def _spelled_rope(theta: float, scaling: dict[str, Any], dim: int, limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `rope_scaling` and the keys that go with it.

    The runtime takes llama3 for the plain type and knows no linear one; both are divisors of the frequencies, which
    its longrope type is as well. With the original length as long as the whole one that scales nothing else.
    """
    kind = scaling["type"]
    if kind == "default" or (kind == "yarn" and scaling.keys() <= _YARN | _ALWAYS):
        return scaling, {}
    if kind not in ("llama3", "linear"):
        raise UnsupportedFormatError(
            f"A rope of the type {kind} with these keys is not known to be computed by TensorRT Edge-LLM's runtime as "
            "the model means it; default, linear, llama3 and plain yarn are: use the target tensorrt."
        )
    factors = _divisors(theta, scaling, dim)
    spelled = {"rope_theta": theta, "rope_type": "longrope", "type": "longrope"}
    spelled |= {"long_factor": factors, "short_factor": factors}
    return spelled, {"original_max_position_embeddings": limit}


def _divisors(theta: float, scaling: Mapping[str, Any], dim: int) -> list[float]:
    """Return what every frequency is divided by."""
    factor = float(scaling["factor"])
    if scaling["type"] == "linear":
        return [factor] * (dim // 2)
    original = float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    result = []
    for place in range(dim // 2):
        turns = original * theta ** (-2 * place / dim) / (2 * math.pi)  # of the original length
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        result.append(1.0 / ((1.0 - share) / factor + share))
    return result


def table_record(stage: Stage) -> dict[str, Any]:
    """Return how the embedding table's file is read, as `EmbeddingTable` takes it."""
    table = stage.outside
    assert table is not None
    fmt = getattr(table.producer, "format", None)
    vocab, hidden = table.producer.weight.shape  # type: ignore[attr-defined]
    return {
        "format": {"dtype": table.producer.specs[0].dtype} if fmt is None else fmt.to_json(),
        "vocab": int(vocab),
        "hidden": int(hidden),
        "multiplier": table.multiplier,
    }
