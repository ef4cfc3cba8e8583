"""The table of tiny text models: one entry for each folder in tests/goldens/text/.

Sizes are not powers of two, head_dim differs from hidden / heads where the family allows it, and every value that an
exporter might hard-code (rms_norm_eps, rope_theta, query_pre_attn_scalar ...) has an unusual value.
`twins` are configs that differ in one key and must give *other* logits: the proof that the golden would catch that bug.
`no_effect` are keys that the reference ignores; the same logits must come out.
"""

from dataclasses import dataclass, field
from typing import Any

Overrides = dict[str, Any]
DROP = "(remove this key)"


@dataclass(frozen=True)
class Case:
    """One tiny checkpoint: the class in transformers, its config as keyword arguments, and what to store with it."""

    name: str
    about: str
    model_class: str
    config: Overrides
    seed: int
    twins: dict[str, Overrides] = field(default_factory=dict)
    no_effect: dict[str, Overrides] = field(default_factory=dict)
    v4: Overrides | None = None  # write config.v4.json; keys to set there (None drops some keys, see to_v4)
    dtype: str = "float32"  # of the stored weights; the expected values are always computed in float32
    public: Overrides | None = None  # write config.v4.json as the saved config with these keys set, or removed by DROP
    prefill_is_truth: bool = False  # decode_logits from the prefill: transformers does not agree with itself
    stack_experts: bool = False  # store the experts of a layer as gate_up_proj and down_proj, as some public files
    plus_one_norms: bool = False  # norms multiply by 1 + weight (Gemma classes: always)
    values: dict[str, tuple[float, float]] = field(default_factory=dict)  # name pattern -> mean, std of the tensor
    gains: dict[str, float] = field(default_factory=dict)  # name pattern -> factor on the usual std
    attention: str = "eager"  # the implementation that computes the expected values
    rename: dict[str, str] = field(default_factory=dict)  # prefixes of tensor names to replace in the stored file
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)  # useless tensors to add to it: name -> shape
    other_prefix: bool = False  # Gemma 3: store the names under model.language_model. instead of language_model.model.
    notes: tuple[str, ...] = ()


EPS = {"rms_norm_eps": {"rms_norm_eps": 1e-6}}

LLAMA = {
    "vocab_size": 97,
    "hidden_size": 40,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 2e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Two layers with 16 rotary dims are enough to show every band of a scaled rope.
LLAMA_ROPE = LLAMA | {"num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 36, "tie_word_embeddings": True}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 5000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 3.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def rope(base: Overrides, **changes: Any) -> Overrides:
    return {"rope_parameters": base | changes}


LLAMA_CASES = [
    Case(
        "llama",
        "Llama with grouped queries: 4 heads, 2 key/value heads, no bias, untied head.",
        "LlamaForCausalLM",
        LLAMA,
        seed=101,
        twins=EPS | {"rope_theta": rope(DEFAULT_ROPE, rope_theta=10000.0)},
        v4={"head_dim": None},
        notes=("config.v4.json has no head_dim, like old Llama files: hidden / heads.",),
    ),
    Case(
        "llama_bias",
        "Llama with attention_bias (q, k, v and o) and mlp_bias, embedding tied to the head.",
        "LlamaForCausalLM",
        LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        seed=102,
        twins=EPS,
    ),
    Case(
        "llama_head_dim",
        "Llama whose head_dim (14) is not hidden / heads (10).",
        "LlamaForCausalLM",
        LLAMA | {"head_dim": 14, "tie_word_embeddings": True},
        seed=103,
        twins=EPS,
    ),
    Case(
        "llama_rope_llama3",
        "Rope type llama3 with unusual fields (factor 3, original length 16), evaluated at 64 tokens.",
        "LlamaForCausalLM",
        LLAMA_ROPE | rope(LLAMA3_ROPE),
        seed=104,
        twins={
            "no_scaling": rope(DEFAULT_ROPE),
            "factor_8": rope(LLAMA3_ROPE, factor=8.0),
            "original_32": rope(LLAMA3_ROPE, original_max_position_embeddings=32),
            "low_freq_2": rope(LLAMA3_ROPE, low_freq_factor=2.0),
            "high_freq_8": rope(LLAMA3_ROPE, high_freq_factor=8.0),
        },
        v4={},
        notes=("Every wavelength is above original / high_freq_factor, so no frequency stays unscaled here.",),
    ),
    Case(
        "llama_rope_llama3_bands",
        "Rope type llama3, original length 48: one frequency unscaled, one interpolated, six divided by factor 8.",
        "LlamaForCausalLM",
        LLAMA_ROPE | rope(LLAMA3_ROPE, original_max_position_embeddings=48, factor=8.0),
        seed=108,
        twins={
            "factor_3": rope(LLAMA3_ROPE, original_max_position_embeddings=48),
            "original_64": rope(LLAMA3_ROPE, original_max_position_embeddings=64, factor=8.0),
            "low_freq_2": rope(LLAMA3_ROPE, original_max_position_embeddings=48, factor=8.0, low_freq_factor=2.0),
        },
    ),
    Case(
        "llama_rope_linear",
        "Rope type linear, factor 2.5. config.v4.json uses the oldest spelling: rope_scaling.type.",
        "LlamaForCausalLM",
        LLAMA_ROPE | rope({"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.5}),
        seed=105,
        twins={"no_scaling": rope(DEFAULT_ROPE)},
        v4={"rope_scaling": {"type": "linear", "factor": 2.5}},
    ),
    Case(
        "llama_rope_yarn",
        "Rope type yarn, factor 4, original length 32; attention factor 0.1 ln(4) + 1 at all lengths.",
        "LlamaForCausalLM",
        LLAMA_ROPE | {"max_position_embeddings": 128} | rope(YARN_ROPE),
        seed=106,
        twins={
            "no_scaling": rope(DEFAULT_ROPE),
            "attention_factor_1": rope(YARN_ROPE, attention_factor=1.0),
            "original_64": rope(YARN_ROPE, original_max_position_embeddings=64),
            "no_truncate": rope(YARN_ROPE, truncate=False),
        },
        v4={},
    ),
    Case(
        "llama_rope_yarn_factor",
        "Rope type yarn with an explicit attention_factor 1.3, beta_fast 16 and beta_slow 2.",
        "LlamaForCausalLM",
        LLAMA_ROPE
        | {"max_position_embeddings": 128}
        | rope(YARN_ROPE, attention_factor=1.3, beta_fast=16.0, beta_slow=2.0),
        seed=107,
        twins={
            "computed_attention_factor": rope(YARN_ROPE, beta_fast=16.0, beta_slow=2.0),
            "default_betas": rope(YARN_ROPE, attention_factor=1.3),
        },
        v4={},
    ),
]

MISTRAL = LLAMA | {"rms_norm_eps": 1e-3, "sliding_window": None, "tie_word_embeddings": True, "vocab_size": 101}

MISTRAL_CASES = [
    Case(
        "mistral",
        "Mistral without a window (sliding_window null), head_dim 14 as in the Nemo models (not hidden / heads).",
        "MistralForCausalLM",
        MISTRAL | {"head_dim": 14},
        seed=201,
        twins={"window_8": {"sliding_window": 8}},
    ),
    Case(
        "mistral_window",
        "Mistral with a window of 8 keys on every layer: key k is visible to query q if 0 <= q - k < 8.",
        "MistralForCausalLM",
        MISTRAL | {"sliding_window": 8},
        seed=202,
        twins={"no_window": {"sliding_window": None}, "window_9": {"sliding_window": 9}},
        v4={"head_dim": None},
    ),
]

QWEN2 = LLAMA | {"rms_norm_eps": 1e-3, "tie_word_embeddings": True, "vocab_size": 103, "use_sliding_window": False}
QWEN2_WINDOW = QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
QWEN3 = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 5e-3,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
}

QWEN_CASES = [
    Case(
        "qwen2",
        "Qwen2: bias on q, k, v (not o), tied embedding, use_sliding_window false with a sliding_window value given.",
        "Qwen2ForCausalLM",
        QWEN2 | {"sliding_window": 8, "max_window_layers": 1},
        seed=301,
        twins=EPS | {"window_used": {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}},
        v4={"sliding_window": 8, "layer_types": None},
        notes=("config.v4.json keeps the unused sliding_window 8, as real Qwen2 configs do; it must have no effect.",),
    ),
    Case(
        "qwen2_window",
        "Qwen2 with use_sliding_window: layer 0 is full (max_window_layers 1), layers 1 and 2 have a window of 8.",
        "Qwen2ForCausalLM",
        QWEN2_WINDOW,
        seed=302,
        twins={
            "window_on_all_layers": {"max_window_layers": 0, "layer_types": None},
            "window_on_last_layer": {"max_window_layers": 2, "layer_types": None},
            "no_window": {"use_sliding_window": False, "layer_types": None},
        },
        v4={"layer_types": None},
        notes=("config.v4.json has no layer_types: they follow from max_window_layers (window iff i >= it).",),
    ),
    Case(
        "qwen3",
        "Qwen3: norm on q and k before rope, head_dim 32 with hidden 64 and 4 heads, one key/value head, tied.",
        "Qwen3ForCausalLM",
        QWEN3,
        seed=303,
        twins=EPS | {"rope_theta": rope(DEFAULT_ROPE, rope_theta=1e6)},
        v4={"sliding_window": None, "layer_types": None},
    ),
    Case(
        "qwen3_bf16",
        "The weights of qwen3 rounded to bfloat16 and stored so; expected values computed in float32 from them.",
        "Qwen3ForCausalLM",
        QWEN3,
        seed=303,
        dtype="bfloat16",
    ),
]

GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
}
GEMMA3_LINEAR = GEMMA3_ROPE | {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
GEMMA3 = {
    "vocab_size": 97,
    "hidden_size": 40,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "query_pre_attn_scalar": 5,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": GEMMA3_ROPE,
}
GEMMA3_V4 = {"layer_types": None, "sliding_window_pattern": 2, "cache_implementation": "hybrid"}
GEMMA3_TWINS = {
    "query_pre_attn_scalar": {"query_pre_attn_scalar": 12},
    "window_9": {"sliding_window": 9},
    "one_rope_base": {"rope_parameters": GEMMA3_ROPE | {"sliding_attention": GEMMA3_ROPE["full_attention"]}},
    "all_full": {"layer_types": ["full_attention"] * 3},
}
GEMMA3_MM = {
    "text_config": GEMMA3 | {"rope_parameters": GEMMA3_LINEAR},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "vision_use_head": False,
    },
    "mm_tokens_per_image": 4,
    "boi_token_index": 94,
    "eoi_token_index": 95,
    "image_token_index": 96,
}

GEMMA3_CASES = [
    Case(
        "gemma3_text",
        "Gemma 3 text: local (window 8, base 1e4) and global (base 1e6) layers alternate, 1 + w norms.",
        "Gemma3ForCausalLM",
        GEMMA3,
        seed=401,
        twins=EPS | GEMMA3_TWINS,
        v4=GEMMA3_V4,
        notes=("config.v4.json gives the pattern as sliding_window_pattern: 2 (every second layer is global).",),
    ),
    Case(
        "gemma3_text_rope_linear",
        "Gemma 3 text with linear rope scaling (factor 8) on the global layers only.",
        "Gemma3ForCausalLM",
        GEMMA3 | {"rope_parameters": GEMMA3_LINEAR},
        seed=402,
        twins={
            "no_scaling": {"rope_parameters": GEMMA3_ROPE},
            "scaling_on_local_too": {
                "rope_parameters": {
                    "full_attention": GEMMA3_LINEAR["full_attention"],
                    "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
                }
            },
        },
        v4=GEMMA3_V4,
    ),
    Case(
        "gemma3_text_softcap",
        "Gemma 3 text with final_logit_softcapping 2.0 (honoured) and attn_logit_softcapping 5.0 (not honoured).",
        "Gemma3ForCausalLM",
        GEMMA3 | {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 5.0},
        seed=403,
        twins={"no_final_cap": {"final_logit_softcapping": None}},
        no_effect={"no_attention_cap": {"attn_logit_softcapping": None}},
        notes=(
            "transformers 5.24 Gemma3Attention reads attn_logit_softcapping but never passes it to the attention "
            "function, so the attention cap has no effect; final_logit_softcapping is applied in Gemma3ForCausalLM.",
        ),
    ),
    Case(
        "gemma3",
        "Gemma3ForConditionalGeneration (text_config nested, minimal vision tower), text only.",
        "Gemma3ForConditionalGeneration",
        GEMMA3_MM,
        seed=404,
        twins={"no_scaling": {"text_config": {"rope_parameters": GEMMA3_ROPE}}},
        v4=GEMMA3_V4,
    ),
    Case(
        "gemma3_prefix",
        "The checkpoint of gemma3 with the tensor names under the other prefix that is found in the wild.",
        "Gemma3ForConditionalGeneration",
        GEMMA3_MM,
        seed=404,
        other_prefix=True,
    ),
]

SMOLLM3 = LLAMA | {
    "rms_norm_eps": 1e-3,
    "num_hidden_layers": 4,
    "intermediate_size": 36,
    "tie_word_embeddings": True,
    "no_rope_layers": [1, 0, 1, 0],
    "pad_token_id": 0,
}

SMOLLM3_CASES = [
    Case(
        "smollm3",
        "SmolLM3: layers 1 and 3 without rope (no_rope_layers: 1 = rope, 0 = none), tied.",
        "SmolLM3ForCausalLM",
        SMOLLM3,
        seed=501,
        twins={"rope_everywhere": {"no_rope_layers": [1, 1, 1, 1]}, "inverted": {"no_rope_layers": [0, 1, 0, 1]}},
        v4={"layer_types": None},
    ),
    Case(
        "smollm3_window",
        "SmolLM3 with use_sliding_window: the window of 8 is on the layers WITHOUT rope only.",
        "SmolLM3ForCausalLM",
        SMOLLM3 | {"use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [1, 0, 1, 1]},
        seed=502,
        twins={
            "no_window": {"use_sliding_window": False, "layer_types": None},
            "window_everywhere": {"layer_types": ["sliding_attention"] * 4},
        },
        v4={"layer_types": None},
        notes=("config.v4.json has no layer_types: they follow from no_rope_layers.",),
    ),
]

CASES = [*LLAMA_CASES, *QWEN_CASES, *MISTRAL_CASES, *GEMMA3_CASES, *SMOLLM3_CASES]
