"""Write a float GGUF from a Llama or Qwen3 checkpoint, for llama.cpp's own quantizer to start from.

Without a tokenizer: the race feeds token ids, and llama.cpp accepts a vocabulary of kind "none".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}
DTYPES = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2")}


def read_tensors(checkpoint: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of every safetensors file; bfloat16 comes as its raw uint16."""
    for file in sorted(checkpoint.glob("*.safetensors")):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(length))
        blob = np.memmap(file, dtype=np.uint8, mode="r", offset=8 + length)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                yield name, blob[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a query or key projection: llama.cpp rotates adjacent pairs where Llama rotates halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write the hyperparameters llama.cpp reads."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type {rope['rope_type']!r}: this small converter knows only 'default'")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def write_gguf(checkpoint: Path, out: Path) -> None:
    """Write the checkpoint to the file `out`, matrices in their own type, vectors in float32."""
    config = json.loads((checkpoint / "config.json").read_text())
    kind = config["model_type"]
    if kind not in ARCHITECTURES:
        raise ValueError(f"model_type {kind!r}: this small converter knows only {', '.join(ARCHITECTURES)}")
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[kind]])
    write_config(writer, config)
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in read_tensors(checkpoint):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        target = names.get_name(name, try_suffixes=(".weight",))
        if target is None:
            raise ValueError(f"no GGUF name for tensor {name!r}")
        part = name.split(".")[-2]
        if kind == "llama" and part in heads:
            tensor = interleave(tensor, heads[part])
        if tensor.dtype == np.float32:
            writer.add_tensor(target, np.ascontiguousarray(tensor))
        elif tensor.ndim == 1:
            writer.add_tensor(target, (tensor.astype(np.uint32) << 16).view(np.float32))
        else:
            raw = np.ascontiguousarray(tensor).view(np.uint8)
            writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
