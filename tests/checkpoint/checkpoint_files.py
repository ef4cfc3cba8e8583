"""Files for the checkpoint tests, made by hand where they have to be wrong."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint.gguf import read_gguf
from edgewright.errors import EdgewrightError


def assert_one_sentence(error: EdgewrightError, *parts: str) -> None:
    """Check that the message is one sentence with these parts in it."""
    text = str(error)
    assert text.endswith("."), text
    assert not re.search(r"[.!?]\s", text), text
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with a header as given: an object, or text, or bytes."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def table_entry(name: str, sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def gguf_bytes(
    pairs: list[bytes] | None = None,
    table: list[bytes] | None = None,
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    magic: bytes = b"GGUF",
) -> bytes:
    """A GGUF file with pairs, table and data as given; `counts` (tensors, pairs) may lie."""
    pairs, table = pairs or [], table or []
    tensors, metadata = counts or (len(table), len(pairs))
    head = magic + struct.pack("<IQQ", version, tensors, metadata) + b"".join(pairs) + b"".join(table)
    return head + bytes(-len(head) % 32) + data if data else head


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 24,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 50000.0,
    "llama.rope.dimension_count": 4,
}


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a GGUF file with the gguf package; a tensor is an array, or (bytes array, ggml type)."""
    import gguf

    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if key == "general.alignment":
            writer.add_custom_alignment(value)
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, value in tensors.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[0], raw_dtype=value[1])
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_gguf(path).metadata
    return path


def llama_tensors(rng: np.random.Generator, vocab: int = 12) -> dict[str, np.ndarray]:
    """Random weights for LLAMA under their GGUF names, in GGUF's row order."""
    shapes = {
        "token_embd.weight": (vocab, 16),
        "output_norm.weight": (16,),
        "blk.0.attn_norm.weight": (16,),
        "blk.0.ffn_norm.weight": (16,),
        "blk.0.attn_q.weight": (16, 16),
        "blk.0.attn_k.weight": (8, 16),
        "blk.0.attn_v.weight": (8, 16),
        "blk.0.attn_output.weight": (16, 16),
        "blk.0.ffn_gate.weight": (24, 16),
        "blk.0.ffn_up.weight": (24, 16),
        "blk.0.ffn_down.weight": (16, 24),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
