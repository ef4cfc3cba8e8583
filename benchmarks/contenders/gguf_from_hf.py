"""Write a float GGUF from a Llama, Qwen3 or Gemma 3 checkpoint for llama.cpp's own quantizer, and read one back.

Without a tokenizer: token ids are fed, and llama.cpp accepts a vocabulary of kind "none".
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
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
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def deinterleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo `interleave`.

    >>> rows = np.arange(12).reshape(12, 1)
    >>> bool((deinterleave(interleave(rows, 2), 2) == rows).all())
    True
    """
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


class Layout:
    """How a checkpoint's tensors are called and stored in a GGUF file."""

    def __init__(self, checkpoint: Path) -> None:
        self.config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
        self.kind: str = self.config["model_type"]
        if self.kind not in ARCHITECTURES:
            raise ValueError(f"model_type {self.kind!r}: this small converter knows only {', '.join(ARCHITECTURES)}")
        self.names = gguf.get_tensor_name_map(ARCHITECTURES[self.kind], self.config["num_hidden_layers"])
        self.heads = {"q_proj": self.config["num_attention_heads"], "k_proj": self.config["num_key_value_heads"]}

    def target(self, name: str) -> str | None:
        """Return a tensor's name in the file, None for a head that is the embedding table."""
        if name == "lm_head.weight" and self.config.get("tie_word_embeddings"):
            return None
        target: str | None = self.names.get_name(name, try_suffixes=(".weight",))
        if target is None:
            raise ValueError(f"no GGUF name for tensor {name!r}")
        return target

    def stored(self, name: str, tensor: np.ndarray) -> np.ndarray:
        """Return the tensor as llama.cpp wants it; vectors become float32."""
        if tensor.ndim == 1 and tensor.dtype != np.float32:
            tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
        if heads := self._rotated(name):
            return interleave(tensor, heads)
        return tensor + np.float32(1) if self._shifted(name) else tensor

    def restored(self, name: str, tensor: np.ndarray) -> np.ndarray:
        """Undo `stored`."""
        if heads := self._rotated(name):
            return deinterleave(tensor, heads)
        return tensor - np.float32(1) if self._shifted(name) else tensor

    def _rotated(self, name: str) -> int:
        return self.heads.get(name.split(".")[-2], 0) if self.kind == "llama" else 0

    def _shifted(self, name: str) -> bool:
        """Gemma multiplies by one plus the weight; the file holds the sum."""
        return self.kind == "gemma3_text" and name.endswith("norm.weight")


def write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write the hyperparameters llama.cpp reads."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    if "full_attention" in rope:  # llama.cpp knows the base and the pattern of Gemma 3's sliding layers itself
        rope = rope["full_attention"]
        writer.add_sliding_window(config["sliding_window"])
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
    layout = Layout(checkpoint)
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[layout.kind]])
    write_config(writer, layout.config)
    for name, tensor in read_tensors(checkpoint):
        if (target := layout.target(name)) is None:
            continue
        tensor = np.ascontiguousarray(layout.stored(name, tensor))
        if tensor.dtype == np.float32:
            writer.add_tensor(target, tensor)
        else:
            writer.add_tensor(target, tensor.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(checkpoint: Path, file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a file made from the checkpoint, dequantized to float32, under the checkpoint's names."""
    layout = Layout(checkpoint)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for name, _ in read_tensors(checkpoint):
        if (target := layout.target(name)) is not None:
            values = gguf.quants.dequantize(tensors[target].data, tensors[target].tensor_type)
            yield name, layout.restored(name, values)


def stored_types(file: Path) -> dict[str, int]:
    """Return how many bytes the file holds in each type."""
    sizes: Counter[str] = Counter()
    for tensor in gguf.GGUFReader(file).tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_bytes)
    return dict(sizes.most_common())
