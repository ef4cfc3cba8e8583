"""The cases that NVIDIA's exporter was asked about, and how its answers are kept."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

GOLDENS = Path(__file__).parent / "goldens"
EDGELLM = GOLDENS / "edgellm"
#: The tokenizer that every checkpoint is given: the exporter asks for one with a chat template.
TOKENIZER = GOLDENS / "tokenizers" / "bpe_chatml"


@dataclass(frozen=True)
class Case:
    """A golden checkpoint: its folder, the recipe that gives the same model here, and what the exporter is asked."""

    name: str
    folder: str
    recipe: str = "stored"
    plugin: int = 2
    flags: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return GOLDENS / self.folder


FLOATS = ("llama", "qwen2", "qwen3", "mistral", "hunyuan_v1_dense", "llama_rope_yarn")
#: Of these the exporter's graph and files are the dialect's own.
CASES = (
    *(Case(name, f"text/{name}", "float16") for name in FLOATS),
    *(
        Case(name, f"prequantized/{name}")
        for name in ("mo-fp8", "mo-fp8-kv", "mo-nvfp4", "mo-int8-sq", "mo-mxfp8", "mo-mixed", "mo-int4-awq-mha")
    ),
    *(Case(name, f"prequantized/{name}", plugin=1) for name in ("mo-int4-awq", "gptq-v1-g128")),
    Case("act-order", ""),
    Case("act-order-first", "", plugin=1),
)
#: Of these they are not: the exporter leaves something out, or puts something in.
OTHERS = (
    Case("mo-nvfp4a16", "prequantized/mo-nvfp4a16", flags=("--no-quantize-activations",)),
    Case("awq-g128", "prequantized/awq-g128", plugin=1),
    Case("mistral_window", "text/mistral_window", "float16"),
    Case("llama_rope_llama3", "text/llama_rope_llama3", "float16"),
    Case("smollm3", "text/smollm3", "float16"),
)
#: Sizes of int4 weights whose packed bytes are kept: those that fill no tile, and those that do.
LAYOUT_SIZES = ((64, 128), (192, 128), (320, 256), (128, 384))


def checkpoint_of(case: Case, folder: Path) -> Path:
    """Return where a case's checkpoint is; one that is no golden is written into `folder`."""
    if case.folder:
        return case.path
    write_act_order(folder)
    return folder


def write_act_order(folder: Path) -> None:
    """Write a GPTQ checkpoint whose columns are in the order of activations, with zero points of 6 to 9.

    It has sizes that fill no tile, two groups, and biases of queries, keys and values.
    """
    folder.mkdir(parents=True)
    hidden, inner, heads, kv, dim, vocab = 256, 384, 4, 1, 64, 96
    rng = np.random.Generator(np.random.PCG64(11))
    halves = {name: rng.standard_normal((vocab, hidden)) for name in ("model.embed_tokens", "lm_head")}
    tensors = {f"{name}.weight": (0.1 * values).astype(np.float16) for name, values in halves.items()}
    layer = "model.layers.0"
    for name in (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", "model.norm"):
        tensors[f"{name}.weight"] = rng.uniform(0.5, 1.5, hidden).astype(np.float16)
    for number, (name, rows, width) in enumerate(
        (
            ("self_attn.q_proj", heads * dim, hidden),
            ("self_attn.k_proj", kv * dim, hidden),
            ("self_attn.v_proj", kv * dim, hidden),
            ("self_attn.o_proj", hidden, heads * dim),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        )
    ):
        groups, module = width // 128, f"{layer}.{name}"
        codes = 1 + (layout_codes(rows, width) + number) % 13
        zeros = 6 + (np.arange(groups)[:, None] + np.arange(rows)) % 4
        # Linears of one input have one order.
        shared = {"q_proj": 1, "k_proj": 1, "v_proj": 1, "gate_proj": 2, "up_proj": 2}
        seed = shared.get(name.split(".")[1], number + 3)
        order = np.random.Generator(np.random.PCG64(seed)).permutation(width)
        index = np.empty(width, np.int32)
        index[order] = np.arange(width) // 128
        tensors |= {
            f"{module}.qweight": eights(codes.T),
            f"{module}.qzeros": eights((zeros - 1).T).T.copy(),
            f"{module}.scales": rng.uniform(0.005, 0.02, (groups, rows)).astype(np.float16),
            f"{module}.g_idx": index,
        }
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            tensors[f"{module}.bias"] = (0.1 * rng.standard_normal(rows)).astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "quantization_config": {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "desc_act": True,
            "sym": False,
            "checkpoint_format": "gptq",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


def eights(codes: np.ndarray) -> np.ndarray:
    """Return codes `[n, columns]` as int32 `[n / 8, columns]`, the first of eight lowest."""
    parts = codes.astype(np.uint32).reshape(-1, 8, codes.shape[1])
    words = sum(parts[:, place] << np.uint32(4 * place) for place in range(8))
    return np.asarray(words, np.uint32).view(np.int32)


def layout_codes(rows: int, width: int) -> np.ndarray:
    """Return codes 0 to 15 `[rows, width]` of which no two rows or columns are alike."""
    n, k = np.arange(rows)[:, None], np.arange(width)[None, :]
    return ((n * 7 + k * 13 + n * k * 3 + n // 16 + k // 8 * 5) % 16).astype(np.uint8)


def read_golden(name: str) -> Any:
    """Return what is kept of a case."""
    return json.loads(gzip.decompress((EDGELLM / f"{name}.json.gz").read_bytes()))


def write_golden(name: str, content: Any) -> None:
    """Keep it, always as the same bytes."""
    EDGELLM.mkdir(exist_ok=True)
    data = (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
    (EDGELLM / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))
