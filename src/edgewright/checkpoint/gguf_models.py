"""From a GGUF file to a checkpoint: Hugging Face tensor names, row order and values."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.checkpoint import Checkpoint
from edgewright.checkpoint.gguf import GgufTensor, read_gguf
from edgewright.checkpoint.gguf_blocks import BLOCK_FORMATS, BlockTensor
from edgewright.checkpoint.gguf_config import synthesize_config
from edgewright.checkpoint.tensor import MappedTensor, OffsetTensor, StoredTensor
from edgewright.checkpoint.text import REMAKE, shown
from edgewright.errors import TensorLayoutError, UnsupportedFormatError

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK_NAME = re.compile(r"blk\.(0|[1-9]\d{0,5})\.([a-z_]+)\.(weight|bias)")
# Architectures whose converter interleaves the two rotary halves of the rows of q and k (llama.cpp's "normal" rope);
# those with "neox" rope keep Hugging Face's order.
_INTERLEAVED = frozenset({"llama", "smollm3"})
_IN_CONFIG = frozenset({"rope_freqs.weight"})


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file as a checkpoint with Hugging Face names, row order and values.

    Raises what `read_gguf` and `synthesize_config` raise, UnsupportedFormatError for a tensor that has no place in the
    architecture.
    """
    file = read_gguf(path)
    config = synthesize_config(file)
    arch: str = file.metadata["general.architecture"]
    tensors: dict[str, StoredTensor] = {}
    for entry in file.tensors.values():
        if entry.name not in _IN_CONFIG:
            name = huggingface_name(entry.name, arch, path)
            tensors[name] = _map_tensor(entry, name, arch, config, path)

    def load_sidecars() -> dict[str, bytes]:
        from edgewright.checkpoint.gguf_tokenizer import make_sidecars

        return make_sidecars(file)

    return Checkpoint(path, "gguf", config, tensors, (path,), functools.cache(load_sidecars))


def huggingface_name(name: str, arch: str, path: Path) -> str:
    """Return the Hugging Face name of a GGUF tensor; raises UnsupportedFormatError if it has none."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP and suffix == "weight":
        return f"{_TOP[stem]}.weight"
    match = _BLOCK_NAME.fullmatch(name)
    names = _GEMMA3_LAYER if arch == "gemma3" else _LAYER
    if match is None or match[2] not in names:
        raise UnsupportedFormatError(
            f"{path} holds the tensor {shown(name)}, which has no place in the architecture {arch}; use a plain"
            " conversion of the model."
        )
    return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"


def _map_tensor(entry: GgufTensor, name: str, arch: str, config: dict[str, Any], path: Path) -> StoredTensor:
    order = None
    if arch in _INTERLEAVED and ".self_attn." in name and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        order = uninterleaved(entry, heads, path)
    if entry.dtype in BLOCK_FORMATS:
        return BlockTensor(name, entry.shape, entry.dtype, entry.data, order)
    tensor = MappedTensor(name, entry.shape, entry.dtype, entry.data, order)
    # Gemma's norms multiply by 1 + weight; its converter stores the sum.
    return OffsetTensor(tensor, 1.0) if arch == "gemma3" and name.endswith("norm.weight") else tensor


def uninterleaved(entry: GgufTensor, heads: int, path: Path) -> npt.NDArray[np.intp]:
    """Return the stored row of each Hugging Face row of a q or k projection, int [rows].

    The converter stores row i of a head's first half at 2 i and of its second half at 2 i + 1.
    """
    rows = entry.shape[0] if entry.shape else 0
    if heads < 1 or rows % (2 * heads):
        raise TensorLayoutError(
            f"{path}: tensor {shown(entry.name)} has {rows} rows, which {heads} heads with two rotary halves can't"
            f" share; {REMAKE}."
        )
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
