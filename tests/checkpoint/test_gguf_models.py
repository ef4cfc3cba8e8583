"""GGUF architectures: names, row order, values and the config, against the conversion that made them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_files import LLAMA, assert_one_sentence, llama_tensors, write_gguf
from gguf.quants import dequantize, quantize

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import (
    CheckpointError,
    MalformedHeaderError,
    TensorLayoutError,
    UnknownModelTypeError,
    UnsupportedFormatError,
)


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k."""
    split = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return split.swapaxes(1, 2).reshape(weights.shape)


def renamed(metadata: dict[str, Any], arch: str) -> dict[str, Any]:
    """The same metadata for another architecture."""
    values = {key.replace("llama.", f"{arch}."): value for key, value in metadata.items()}
    return values | {"general.architecture": arch}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arch", ["llama", "smollm3", "qwen2", "qwen3"])
def test_row_order_of_q_and_k(tmp_path: Path, arch: str, seed: int) -> None:
    tensors = llama_tensors(np.random.default_rng(seed))
    biases = {"q": 16, "k": 8, "v": 8}
    tensors |= {
        f"blk.0.attn_{x}.bias": np.random.default_rng(n).normal(size=n).astype(np.float32) for x, n in biases.items()
    }
    stored = dict(tensors)
    if arch in ("llama", "smollm3"):
        for kind in ("weight", "bias"):
            stored[f"blk.0.attn_q.{kind}"] = permute(tensors[f"blk.0.attn_q.{kind}"], 4)
            stored[f"blk.0.attn_k.{kind}"] = permute(tensors[f"blk.0.attn_k.{kind}"], 2)
    got = open_checkpoint(write_gguf(tmp_path / "m.gguf", renamed(LLAMA, arch), stored)).tensors
    for x in "qkv":
        for kind in ("weight", "bias"):
            tensor = got[f"model.layers.0.self_attn.{x}_proj.{kind}"]
            expected = tensors[f"blk.0.attn_{x}.{kind}"]
            np.testing.assert_array_equal(tensor.read(), expected)
            np.testing.assert_array_equal(tensor.rows(3, 7), expected[3:7])
            assert tensor.raw(3, 7).tobytes() == expected[3:7].tobytes()


def test_row_order_of_blocks(tmp_path: Path) -> None:
    metadata = LLAMA | {
        "llama.embedding_length": 64,
        "llama.attention.key_length": 4,
        "llama.attention.value_length": 4,
    }
    weights = np.random.default_rng(5).normal(size=(16, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    stored = quantize(permute(weights, 4), kind)
    tensors = {"token_embd.weight": np.ones((3, 64), np.float32), "blk.0.attn_q.weight": (stored, kind)}
    tensor = open_checkpoint(write_gguf(tmp_path / "q.gguf", metadata, tensors)).tensors[
        "model.layers.0.self_attn.q_proj.weight"
    ]
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("Q4_1", (16, 64), 16 * 40)
    expected = quantize(weights, kind)
    np.testing.assert_array_equal(tensor.raw(0, 16), expected)
    np.testing.assert_array_equal(tensor.raw(5, 6), expected[5:6])
    np.testing.assert_array_equal(tensor.read(), dequantize(expected, kind))
    np.testing.assert_array_equal(tensor.rows(2, 9), dequantize(expected, kind)[2:9])


def test_llama_names_and_config(tmp_path: Path) -> None:
    tensors = llama_tensors(np.random.default_rng(0)) | {"output.weight": np.ones((12, 16), np.float32)}
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    path = write_gguf(tmp_path / "m.gguf", LLAMA | ids, tensors)
    checkpoint = open_checkpoint(path)
    assert checkpoint.kind == "gguf"
    assert checkpoint.files == (path,)
    assert sorted(checkpoint.tensors) == [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.norm.weight",
    ]
    np.testing.assert_array_equal(
        checkpoint.tensors["model.layers.0.mlp.down_proj.weight"].read(), tensors["blk.0.ffn_down.weight"]
    )
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "vocab_size": 12,
        "torch_dtype": "float32",
        "head_dim": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def test_mistral_with_a_window(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", LLAMA | {"llama.attention.sliding_window": 32}, llama_tensors(np.random.default_rng(0))
    )
    config = open_checkpoint(path).config
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 32)


def test_smollm3_layers_without_rope(tmp_path: Path) -> None:
    metadata = renamed(LLAMA, "smollm3") | {"smollm3.block_count": 8}
    config = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, llama_tensors(np.random.default_rng(0)))).config
    assert config["no_rope_layers"] == [1, 1, 1, 0, 1, 1, 1, 0]


GEMMA = renamed(LLAMA, "gemma3") | {
    "gemma3.block_count": 7,
    "gemma3.attention.sliding_window": 16,
    "gemma3.attention.key_length": 8,
    "gemma3.attention.value_length": 8,
    "gemma3.rope.dimension_count": 8,
    "gemma3.rope.freq_base": 1e6,
}


def gemma_tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
    tensors = {f"blk.6.{name}.weight": rng.normal(size=16).astype(np.float32) for name in names}
    return tensors | {"token_embd.weight": np.ones((5, 16), np.float32), "output_norm.weight": np.ones(16, np.float32)}


def test_gemma3_norms_and_config(tmp_path: Path) -> None:
    tensors = gemma_tensors(np.random.default_rng(2))
    checkpoint = open_checkpoint(write_gguf(tmp_path / "g.gguf", GEMMA, tensors))
    layer = "model.layers.6."
    for stored, name in {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
    }.items():
        tensor = checkpoint.tensors[f"{layer}{name}.weight"]
        expected = tensors[f"blk.6.{stored}.weight"] - np.float32(1)
        np.testing.assert_array_equal(tensor.read(), expected)
        assert tensor.raw(2, 5).tobytes() == expected[2:5].tobytes()
        assert tensor.transformed
    assert not checkpoint.tensors["model.embed_tokens.weight"].transformed
    config = checkpoint.config
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert (config["rope_theta"], config["rope_local_base_freq"], config["sliding_window"]) == (1e6, 1e4, 16)
    assert (config["head_dim"], config["query_pre_attn_scalar"], config["tie_word_embeddings"]) == (8, 8, True)


def test_gemma3_27b_scales_queries_by_width(tmp_path: Path) -> None:
    metadata = GEMMA | {"gemma3.block_count": 62}
    config = open_checkpoint(write_gguf(tmp_path / "g.gguf", metadata, gemma_tensors(np.random.default_rng(0)))).config
    assert config["query_pre_attn_scalar"] == 4


def llama3_factors(head_dim: int, theta: float, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """llama.cpp's converter, as it writes rope_freqs.weight."""
    factors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("parameters", [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (4.0, 1.0, 8.0, 2048)])
def test_llama3_rope_is_recovered(tmp_path: Path, parameters: tuple[float, float, float, int]) -> None:
    head_dim = 64
    metadata = LLAMA | {
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": 500000.0,
    }
    factors = llama3_factors(head_dim, 500000.0, *parameters)
    tensors = {"token_embd.weight": np.ones((3, 16), np.float32), "rope_freqs.weight": factors}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "r.gguf", metadata, tensors))
    assert list(checkpoint.tensors) == ["model.embed_tokens.weight"]
    factor, low, high, original = parameters
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    tensors["rope_freqs.weight"] = factors * np.linspace(1, 1.5, len(factors), dtype=np.float32)
    with pytest.raises(UnsupportedFormatError) as caught:
        open_checkpoint(write_gguf(tmp_path / "s.gguf", metadata, tensors))
    assert_one_sentence(caught.value, "s.gguf", "rope_freqs.weight")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        ({"type": "none"}, None),
    ],
)
def test_rope_scaling(tmp_path: Path, keys: dict[str, Any], expected: dict[str, Any] | None) -> None:
    metadata = LLAMA | {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    config = open_checkpoint(write_gguf(tmp_path / "r.gguf", metadata, llama_tensors(np.random.default_rng(0)))).config
    assert config.get("rope_scaling") == expected


REFUSED: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], type[Exception], str]] = {
    "unknown architecture": ({"general.architecture": "mamba"}, {}, UnknownModelTypeError, "mamba"),
    "experts": ({"llama.expert_count": 8}, {}, UnsupportedFormatError, "mixture"),
    "unknown key": ({"llama.logit_scale": 2.0}, {}, UnsupportedFormatError, "llama.logit_scale"),
    "unknown tensor": ({}, {"blk.0.attn_sinks.weight": np.ones(3, np.float32)}, UnsupportedFormatError, "attn_sinks"),
    "layer 007": ({}, {"blk.007.attn_norm.weight": np.ones(3, np.float32)}, UnsupportedFormatError, "blk.007"),
    "longrope": ({"llama.rope.scaling.type": "longrope"}, {}, UnsupportedFormatError, "longrope"),
    "split file": ({"split.count": 3}, {}, UnsupportedFormatError, "merge"),
    "adapter": ({"general.type": "adapter"}, {}, UnsupportedFormatError, "adapter"),
    "heads differ by layer": ({"llama.attention.head_count_kv": [1, 2]}, {}, UnsupportedFormatError, "head_count_kv"),
    "no width": ({"llama.embedding_length": 0}, {}, MalformedHeaderError, "embedding_length"),
    "text as number": ({"llama.block_count": "1"}, {}, MalformedHeaderError, "block_count"),
    "many layers": ({"llama.block_count": 1 << 30}, {}, MalformedHeaderError, "layers"),
    "NaN base": ({"llama.rope.freq_base": math.nan}, {}, MalformedHeaderError, "freq_base"),
    "odd rows": ({"llama.attention.head_count": 3}, {}, TensorLayoutError, "attn_q"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused(tmp_path: Path, case: str) -> None:
    metadata, tensors, error, part = REFUSED[case]
    path = write_gguf(tmp_path / "x.gguf", LLAMA | metadata, llama_tensors(np.random.default_rng(0)) | tensors)
    with pytest.raises((CheckpointError, UnknownModelTypeError)) as caught:
        open_checkpoint(path)
    assert caught.type is error, caught.value
    assert_one_sentence(caught.value, "x.gguf", part)


def test_missing_key(tmp_path: Path) -> None:
    metadata = {key: value for key, value in LLAMA.items() if not key.endswith("block_count")}
    with pytest.raises(MalformedHeaderError) as caught:
        open_checkpoint(write_gguf(tmp_path / "x.gguf", metadata, llama_tensors(np.random.default_rng(0))))
    assert_one_sentence(caught.value, "x.gguf", "llama.block_count")


def test_equal_heads_per_layer_are_one_number(tmp_path: Path) -> None:
    metadata = LLAMA | {"llama.attention.head_count_kv": [2]}
    path = write_gguf(tmp_path / "x.gguf", metadata, llama_tensors(np.random.default_rng(0)))
    assert open_checkpoint(path).config["num_key_value_heads"] == 2
