"""A llama of random weights whose sizes fit every block format, as a folder; and quantized folders made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint.safetensors_writer import array_spec, write_safetensors

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def llama_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Return the tensors of a llama, float32; single channels are louder, as in trained models."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    sizes = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors = {
        "model.embed_tokens.weight": rng.normal(0, 1, (vocab, hidden)),
        "model.norm.weight": rng.uniform(0.5, 2, hidden),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = rng.normal(0, 0.2, (vocab, hidden))
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, width) in sizes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = rng.standard_t(4, (rows, width)) / np.sqrt(width)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.exp(rng.normal(0, 0.7, hidden))
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Write a Hugging Face folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    specs = {name: array_spec(np.array(array, order="C")) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", specs, {"format": "pt"})
    return folder


def write_llama(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the llama, with other values in its config."""
    config = {**CONFIG, **changes}
    return write_checkpoint(folder, config, llama_tensors(config, seed))
