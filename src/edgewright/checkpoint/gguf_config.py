"""From GGUF metadata to the Hugging Face config it was made from.

What llama.cpp has in its source and not in the file (Gemma 3's layer pattern and local rope base, SmolLM3's layers
without rope) is added here. A key of the architecture that nothing reads is refused, as it could change the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.gguf import GgufFile, GgufTensor, Strings
from edgewright.checkpoint.text import REMAKE, shown
from edgewright.errors import MalformedHeaderError, UnknownModelTypeError, UnsupportedFormatError

ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
# Keys of an architecture that say nothing the tensors don't.
_INERT = frozenset({"vocab_size", "tensor_data_layout"})
_GEMMA3_LAYER_PATTERN = 6
_GEMMA3_LOCAL_BASE = 10000.0
_GEMMA3_27B_LAYERS = 62  # llama.cpp's rule: only this size scales queries by hidden size / heads
_SMOLLM3_NO_ROPE_INTERVAL = 4


class Metadata:
    """Typed access to a GGUF file's metadata that remembers which keys were read."""

    def __init__(self, file: GgufFile):
        self.path = file.path
        self.values = dict(file.metadata)
        self.read: set[str] = set()

    def get(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """Return the value of `key`, which must be of `kind` (an int is a float, too), or `default`."""
        self.read.add(key)
        if key not in self.values:
            return default
        value = self.values[key]
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise MalformedHeaderError(
                f"{self.path} has {shown(key)} as {type(value).__name__}, not as {kind.__name__}; {REMAKE}."
            )
        if kind is float:
            if not math.isfinite(value):
                raise MalformedHeaderError(f"{self.path} has {shown(key)} as {value}, which is no number; {REMAKE}.")
            return shortest(value)
        return value

    def need(self, key: str, kind: type[Any]) -> Any:
        """Return the value of `key`; raises MalformedHeaderError if it isn't there."""
        value = self.get(key, kind)
        if value is None:
            raise MalformedHeaderError(f"{self.path} lacks {shown(key)}, without which the model is unknown; {REMAKE}.")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Return an int of at least 1 and below 2**31; raises MalformedHeaderError if it is another number."""
        value: int = self.need(key, int) if default is None else self.get(key, int, default)
        if not 1 <= value < 1 << 31:
            raise MalformedHeaderError(f"{self.path} has {value} as {shown(key)}, which can't be a size; {REMAKE}.")
        return value

    def uniform(self, key: str, default: int | None = None) -> int:
        """Return a size that may also be stored as an array with one equal entry per layer."""
        value = self.values.get(key)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and (value == value[0]).all():
            self.values[key] = int(value[0])
        elif isinstance(value, np.ndarray | Strings):
            raise UnsupportedFormatError(
                f"{self.path} has a {shown(key)} that differs from layer to layer, which no known model family does;"
                " use"
                " another model."
            )
        return self.size(key, default)


def shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 9.999999747378752e-06 was 1e-05."""
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else float(value)


def synthesize_config(file: GgufFile) -> dict[str, Any]:
    """Return the content of `config.json` for a GGUF file, with the flat names of older transformers.

    Raises UnknownModelTypeError (architecture), UnsupportedFormatError (a feature or key that isn't known) or
    MalformedHeaderError (missing or mistyped keys).
    """
    meta = Metadata(file)
    arch = meta.need("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise UnknownModelTypeError(
            f"{file.path} is of the architecture {shown(arch)}, which is not known; use a model of one of"
            f" {', '.join(ARCHITECTURES)}."
        )
    _refuse_kinds(meta)
    model_type, class_name = ARCHITECTURES[arch]
    hidden = meta.size(f"{arch}.embedding_length")
    heads = meta.uniform(f"{arch}.attention.head_count")
    head_dim = meta.size(f"{arch}.attention.key_length", hidden // heads)
    if meta.size(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedFormatError(f"{file.path} has keys and values of different length; use another model.")
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": _few(meta, meta.size(f"{arch}.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.uniform(f"{arch}.attention.head_count_kv", heads),
        "intermediate_size": meta.uniform(f"{arch}.feed_forward_length"),
        "max_position_embeddings": meta.size(f"{arch}.context_length"),
        "rms_norm_eps": meta.need(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": _positive(meta, f"{arch}.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": _vocab_size(file),
        "torch_dtype": "float32",
    }
    if arch != "qwen2" or head_dim * heads != hidden:
        config["head_dim"] = head_dim
    rotated = meta.size(f"{arch}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    scaling = _rope_scaling(meta, arch, file, head_dim, config["rope_theta"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = meta.get(f"tokenizer.ggml.{name}_token_id", int)
    config["pad_token_id"] = meta.get("tokenizer.ggml.padding_token_id", int)
    _ADDITIONS[arch](config, meta, file)
    _refuse_unread(meta, arch)
    return config


def _refuse_kinds(meta: Metadata) -> None:
    kind = meta.get("general.type", str, "model")
    if kind != "model":
        raise UnsupportedFormatError(f"{meta.path} holds a GGUF {shown(kind)}, not a model; give the model's own file.")
    parts = meta.get("split.count", int, 0)
    if parts > 1:
        raise UnsupportedFormatError(
            f"{meta.path} is one of {parts} parts of a split model; join them with llama-gguf-split --merge."
        )


def _refuse_unread(meta: Metadata, arch: str) -> None:
    for key in meta.values:
        prefix, _, rest = key.partition(".")
        if prefix == arch and key not in meta.read and rest not in _INERT:
            raise UnsupportedFormatError(
                f"{meta.path} sets {shown(key)} to {shown(meta.values[key])}, which is not known for {arch} and could"
                " change"
                " the result; use a plain conversion of the model."
            )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise MalformedHeaderError(
            f"{file.path} has no matrix token_embd.weight, so it holds no language model; {REMAKE}."
        )
    return embedding.shape[0]


def _llama(config: dict[str, Any], meta: Metadata, file: GgufFile) -> None:
    if meta.get("llama.expert_count", int, 0):
        raise UnsupportedFormatError(
            f"{meta.path} is a mixture of experts, which can't be read from GGUF; use a dense model."
        )
    window = meta.get("llama.attention.sliding_window", int)
    if window:
        config.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=window)
    _silu(config, file)


def _silu(config: dict[str, Any], file: GgufFile) -> None:
    config["hidden_act"] = "silu"
    if config["model_type"] != "mistral":  # its config has no bias at all
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if config["model_type"] in ("llama", "smollm3"):
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors


def _smollm3(config: dict[str, Any], meta: Metadata, file: GgufFile) -> None:
    _silu(config, file)
    interval = _SMOLLM3_NO_ROPE_INTERVAL
    layers = config["num_hidden_layers"]
    config["no_rope_layer_interval"] = interval
    config["no_rope_layers"] = [int((layer + 1) % interval != 0) for layer in range(layers)]
    config["layer_types"] = ["full_attention"] * layers
    config["use_sliding_window"] = False
    config["sliding_window"] = None


def _qwen2(config: dict[str, Any], meta: Metadata, file: GgufFile) -> None:
    config["hidden_act"] = "silu"
    config["use_sliding_window"] = False


def _qwen3(config: dict[str, Any], meta: Metadata, file: GgufFile) -> None:
    _silu(config, file)
    config["use_sliding_window"] = False


def _gemma3(config: dict[str, Any], meta: Metadata, file: GgufFile) -> None:
    layers = config["num_hidden_layers"]
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    sliding = _gemma3_pattern(meta, layers)
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config["attention_bias"] = False
    config["sliding_window"] = meta.get("gemma3.attention.sliding_window", int)
    config["layer_types"] = ["sliding_attention" if local else "full_attention" for local in sliding]
    config["rope_local_base_freq"] = meta.get("gemma3.rope.freq_base_swa", float, _GEMMA3_LOCAL_BASE)
    config["query_pre_attn_scalar"] = config["hidden_size"] // heads if layers == _GEMMA3_27B_LAYERS else head_dim
    config["attn_logit_softcapping"] = None
    config["final_logit_softcapping"] = meta.get("gemma3.final_logit_softcapping", float)
    if config["sliding_window"] is None and any(sliding):
        raise MalformedHeaderError(
            f"{meta.path} lacks 'gemma3.attention.sliding_window', which its layers need; {REMAKE}."
        )


def _gemma3_pattern(meta: Metadata, layers: int) -> list[bool]:
    """Return for each layer whether its attention is local: all but every sixth, unless the file says otherwise."""
    key = "gemma3.attention.sliding_window_pattern"
    value = meta.values.get(key, _GEMMA3_LAYER_PATTERN)
    meta.read.add(key)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_ and len(value) == layers:
        return [bool(local) for local in value]
    if type(value) is not int or value < 1:
        raise MalformedHeaderError(f"{meta.path} has {shown(key)} that is no layer interval; {REMAKE}.")
    return [(layer + 1) % value != 0 for layer in range(layers)]


def _positive(meta: Metadata, key: str, default: float) -> float:
    value: float = meta.get(key, float, default)
    if value <= 0:
        raise MalformedHeaderError(f"{meta.path} has {value} as {shown(key)}, which must be above 0; {REMAKE}.")
    return value


def _few(meta: Metadata, layers: int) -> int:
    """Return the layer count if a list of that length may be made."""
    if layers > 1 << 16:
        raise MalformedHeaderError(f"{meta.path} announces {layers} layers; {REMAKE}.")
    return layers


_ADDITIONS = {"llama": _llama, "smollm3": _smollm3, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3}


def _rope_scaling(meta: Metadata, arch: str, file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Return the rope_scaling entry: linear, yarn, or llama3 recovered from its stored factors."""
    kind = meta.get(f"{arch}.rope.scaling.type", str, "none")
    factor = meta.get(f"{arch}.rope.scaling.factor", float) or meta.get(f"{arch}.rope.scale_linear", float)
    original = meta.get(f"{arch}.rope.scaling.original_context_length", int)
    meta.get(f"{arch}.rope.scaling.finetuned", bool)
    stored = file.tensors.get("rope_freqs.weight")
    if stored is not None and kind in ("none", "llama3"):
        return _llama3_scaling(meta, stored, head_dim, theta)
    if kind == "none" and factor in (None, 0.0, 1.0):
        return None
    if kind in ("none", "linear") and factor and stored is None:
        return {"rope_type": "linear", "type": "linear", "factor": factor}
    if kind == "yarn" and factor and stored is None:
        scaling = {"rope_type": "yarn", "type": "yarn", "factor": factor}
        extra = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow", "attention_factor": "attn_factor"}
        found = {name: meta.get(f"{arch}.rope.scaling.{key}", float) for name, key in extra.items()}
        if original is not None:
            found["original_max_position_embeddings"] = original
        return scaling | {name: value for name, value in found.items() if value is not None}
    raise UnsupportedFormatError(
        f"{meta.path} scales rope by {shown(kind)} with the factor {factor}, which can't be read from GGUF;"
        " use a Hugging Face"
        " folder of the model."
    )


def _llama3_scaling(meta: Metadata, stored: GgufTensor, head_dim: int, theta: float) -> dict[str, Any]:
    """Return llama3 rope parameters that give the stored factors to float32 rounding, or refuse."""
    if stored.dtype == "float32" and stored.shape == (head_dim // 2,):
        factors = stored.data.view(np.float32).astype(np.float64)
        for scaling in _llama3_candidates(factors, head_dim, theta):
            if np.allclose(_llama3_factors(scaling, head_dim, theta), factors, rtol=1e-5, atol=0):
                return scaling
    raise UnsupportedFormatError(
        f"{meta.path} has rope_freqs.weight, but no llama3 rope parameters give its factors; use a Hugging"
        " Face folder of the"
        " model."
    )


def _llama3_factors(scaling: dict[str, Any], head_dim: int, theta: float) -> npt.NDArray[np.float64]:
    """Return what llama.cpp's converter stores for these parameters: original over scaled frequency, [head_dim / 2]."""
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: npt.NDArray[np.float64] = 1.0 / ((1.0 - smooth) / scaling["factor"] + smooth)
    return factors


def _llama3_candidates(factors: npt.NDArray[np.float64], head_dim: int, theta: float) -> list[dict[str, Any]]:
    """Return parameters that may have made the factors: Llama 3's own, then those solved from two blended factors."""
    factor = round(float(factors.max(initial=0.0)), 4)
    if not np.isfinite(factors).all() or factor <= 1.0 or factors.min() < 1.0:
        return []
    known = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    candidates = [known | {"original_max_position_embeddings": 8192}]
    blended = np.flatnonzero((factors > 1.0 + 1e-6) & (factors < factor - 1e-6))
    if len(blended) >= 2:
        # smooth = (1/f - 1/factor) / (1 - 1/factor) is linear in the frequency; the low factor is 1 by convention.
        turns = theta ** (-2.0 * blended / head_dim) / (2 * np.pi)
        smooth = (1.0 / factors[blended] - 1.0 / factor) / (1.0 - 1.0 / factor)
        slope, shift = np.polyfit(turns, smooth, 1)
        if shift < 0 < slope:
            high = round(1.0 - 1.0 / float(shift), 3)
            original = round(float(slope) * (high - 1.0))
            candidates.append(known | {"high_freq_factor": high, "original_max_position_embeddings": original})
    return candidates
