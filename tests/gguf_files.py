"""Small llamas in GGUF files whose matrices are blocks of one type."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from edgewright.checkpoint import Checkpoint, open_checkpoint

TYPES = {name: getattr(gguf.GGMLQuantizationType, name) for name in ("Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q5_1", "F16")}
WIDTH, INNER, VOCAB = 64, 96, 45
SHAPES = {
    "token_embd.weight": (VOCAB, WIDTH),
    "output.weight": (VOCAB, WIDTH),
    "output_norm.weight": (WIDTH,),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH // 2, WIDTH),
    "blk.0.attn_v.weight": (WIDTH // 2, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_gate.weight": (INNER, WIDTH),
    "blk.0.ffn_up.weight": (INNER, WIDTH),
    "blk.0.ffn_down.weight": (WIDTH, INNER),
}


def gguf_checkpoint(path: Path, kind: str, seed: int) -> tuple[Checkpoint, dict[str, np.ndarray]]:
    """Write a llama GGUF whose matrices are of one type; returns it and what the gguf package decodes."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "block_count": 1, "context_length": 64, "embedding_length": WIDTH, "feed_forward_length": INNER,
        "attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 16,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    rng = np.random.default_rng(seed)
    decoded = {}
    for name, shape in SHAPES.items():
        values = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
            continue
        packed = gguf.quants.quantize(values / np.float32(shape[1] ** 0.5), TYPES[kind])
        decoded[name.removesuffix(".weight")] = gguf.quants.dequantize(packed, TYPES[kind])
        writer.add_tensor(name, packed, raw_dtype=TYPES[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path), decoded
