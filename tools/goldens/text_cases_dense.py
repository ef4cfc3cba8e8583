"""Tiny text models of the dense families, stored in bfloat16; see text_cases.py for what a case is.

Head sizes are 8 or 16 in some cases and 10, 12 or 14 in others: the exporter has a path for each.
"""

from typing import Any

from text_cases import Case, Overrides


def case(name: str, about: str, model_class: str, config: Overrides, seed: int, **more: Any) -> Case:
    return Case(name, about, model_class, config, seed, dtype="bfloat16", **more)


def rope(theta: float = 5000.0, rope_type: str = "default", **more: Any) -> Overrides:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **more}}


def without(config: Overrides, *keys: str) -> Overrides:
    return {key: value for key, value in config.items() if key not in keys}


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEAD10 = (
    {
        "vocab_size": 61,
        "hidden_size": 40,
        "intermediate_size": 52,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 2e-3,
    }
    | TOKENS
    | rope()
)
HEAD8 = HEAD10 | {"vocab_size": 63, "hidden_size": 32, "intermediate_size": 44}
HEAD14 = HEAD10 | {"vocab_size": 67, "hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 1}
HEAD16 = HEAD10 | {"vocab_size": 63, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1}
LAYERS3 = {"num_hidden_layers": 3, "intermediate_size": 36}

EPS = {"rms_norm_eps": {"rms_norm_eps": 1e-6}}
LN = {"layer_norm_eps": 3e-3}
LN_EPS = {"layer_norm_eps": {"layer_norm_eps": 1e-5}}
THETA = {"rope_theta": rope(10000.0)}
FULL, LOCAL = "full_attention", "sliding_attention"

LLAMA_LONG = {"factor": 5.0, "short_factor": [1.1, 1.3, 1.7, 2.0], "long_factor": [1.5, 2.5, 4.0, 7.0]}
LLAMA_CASES = [
    case(
        "llama_rope_dynamic",
        "Rope type dynamic, factor 4: no effect below max_position_embeddings (256), so this is the plain rope.",
        "LlamaForCausalLM",
        HEAD8 | rope(rope_type="dynamic", factor=4.0),
        seed=1001,
        twins=EPS | {"rope_theta": rope(10000.0, "dynamic", factor=4.0)},
        no_effect={"no_scaling": rope()},
        v4={},
    ),
    case(
        "llama_rope_longrope",
        "Rope type longrope: long factors if there are more than 24 positions (64-token run), else the short ones.",
        "LlamaForCausalLM",
        HEAD8 | rope(rope_type="longrope", original_max_position_embeddings=24, **LLAMA_LONG),
        seed=1003,
        twins={
            "no_scaling": rope(),
            "always_short": rope(
                rope_type="longrope", original_max_position_embeddings=64, attention_factor=1.0, **LLAMA_LONG
            ),
            "attention_factor_1": rope(
                rope_type="longrope", original_max_position_embeddings=24, attention_factor=1.0, **LLAMA_LONG
            ),
        },
        v4={},
        notes=("Attention factor sqrt(1 + ln(factor) / ln(original)), for short and long sequences alike.",),
    ),
]

GEMMA = HEAD10 | {"head_dim": 12, "hidden_act": "gelu_pytorch_tanh"}
GEMMA2 = without(HEAD8, "hidden_act") | {
    "num_hidden_layers": 3,
    "intermediate_size": 36,
    "head_dim": 16,
    "query_pre_attn_scalar": 11,
    "sliding_window": 7,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 3.0,
}
GEMMA_CASES = [
    case(
        "gemma",
        "Gemma 1: 1 + w norms, embedding times sqrt(hidden), gelu tanh gate, head_dim 12 is not hidden / heads.",
        "GemmaForCausalLM",
        GEMMA,
        seed=1101,
        twins=EPS | THETA | {"act": {"hidden_act": "silu"}},
        no_effect={"legacy_gelu": {"hidden_act": "gelu"}, "hidden_activation": {"hidden_activation": "relu"}},
        v4={"hidden_act": "gelu", "hidden_activation": None},
        notes=("hidden_act gelu means gelu_pytorch_tanh in Gemma 1 (legacy files); hidden_activation is ignored.",),
    ),
    case(
        "gemma2",
        "Gemma 2: four norms a layer, soft caps on scores and logits, window 7 on layers 0 and 2, scale 11 ** -0.5.",
        "Gemma2ForCausalLM",
        GEMMA2,
        seed=1102,
        twins=EPS
        | THETA
        | {
            "no_attention_cap": {"attn_logit_softcapping": None},
            "no_final_cap": {"final_logit_softcapping": None},
            "query_pre_attn_scalar": {"query_pre_attn_scalar": 16},
            "window_8": {"sliding_window": 8},
            "all_full": {"layer_types": [FULL] * 3},
            "pattern_shifted": {"layer_types": [FULL, LOCAL, FULL]},
        },
        no_effect={"hidden_act": {"hidden_act": "relu"}},
        v4={"layer_types": None, "hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
        notes=("config.v4.json has no layer_types: even layers have the window, odd layers are full.",),
    ),
    case(
        "gemma2_bias",
        "Gemma 2 with attention_bias (q, k, v, o), no caps, untied head, window on layer 1 by layer_types.",
        "Gemma2ForCausalLM",
        GEMMA2
        | {
            "attention_bias": True,
            "head_dim": 10,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "layer_types": [FULL, LOCAL, FULL],
        },
        seed=1103,
        twins={"default_pattern": {"layer_types": None}, "window_8": {"sliding_window": 8}},
    ),
]

MISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "llama_4_scaling_beta": 0.3,
}
MISTRAL_CASES = [
    case(
        "mistral_head_dim16",
        "Mistral with head_dim 16 (hidden / heads is 8), a window of 9, untied head.",
        "MistralForCausalLM",
        HEAD8 | {"head_dim": 16, "sliding_window": 9},
        seed=1201,
        twins=EPS | THETA | {"window_10": {"sliding_window": 10}, "no_window": {"sliding_window": None}},
        v4={},
    ),
    case(
        "ministral",
        "Ministral: layer_types choose the layers with a window of 9; rope on all.",
        "MinistralForCausalLM",
        HEAD8 | LAYERS3 | {"head_dim": 8, "sliding_window": 9, "layer_types": [LOCAL, FULL, LOCAL]},
        seed=1202,
        twins=EPS
        | THETA
        | {
            "window_10": {"sliding_window": 10},
            "all_full": {"layer_types": [FULL] * 3},
            "all_local": {"layer_types": [LOCAL] * 3},
        },
    ),
    case(
        "ministral_default_types",
        "Ministral without layer_types: all layers have the window if sliding_window is not null. head_dim 14.",
        "MinistralForCausalLM",
        HEAD10 | {"sliding_window": 9, "head_dim": 14},
        seed=1203,
        twins={"all_full": {"layer_types": [FULL] * 2}, "window_10": {"sliding_window": 10}},
        v4={"layer_types": None},
    ),
    case(
        "ministral3",
        "Ministral 3: yarn with mscale / mscale_all_dim, and queries scaled by 1 + beta ln(1 + floor(pos / original)).",
        "Ministral3ForCausalLM",
        HEAD8 | {"head_dim": 16, "max_position_embeddings": 64, "rope_parameters": MISTRAL3_ROPE},
        seed=1204,
        twins=EPS
        | {
            "beta_0": {"rope_parameters": MISTRAL3_ROPE | {"llama_4_scaling_beta": 0.0}},
            "mscale_all_dim_1": {"rope_parameters": MISTRAL3_ROPE | {"mscale_all_dim": 1.0}},
            "no_mscale": {"rope_parameters": without(MISTRAL3_ROPE, "mscale", "mscale_all_dim")},
            "theta": {"rope_parameters": MISTRAL3_ROPE | {"rope_theta": 1e4}},
            "window": {"sliding_window": 8},
        },
    ),
]

PHI = without(HEAD10, "rms_norm_eps") | LN | {"num_key_value_heads": 4} | rope(partial_rotary_factor=0.4)
PHI3 = HEAD10 | {"original_max_position_embeddings": 256}
PHI3_LONG = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.6, 2.0],
    "long_factor": [1.2, 1.9, 2.5, 4.0, 6.0, 7.0],
}
PHI3_SCALING = {"type": "longrope", "short_factor": PHI3_LONG["short_factor"], "long_factor": PHI3_LONG["long_factor"]}
PHI_CASES = [
    case(
        "phi",
        "Phi: one LayerNorm, attention and MLP in parallel, biases everywhere (head too), 4 of 10 dims rotated.",
        "PhiForCausalLM",
        PHI,
        seed=1301,
        twins=LN_EPS
        | {
            "rope_theta": rope(10000.0, partial_rotary_factor=0.4),
            "partial": rope(partial_rotary_factor=0.8),
            "act": {"hidden_act": "relu"},
        },
        v4={},
        notes=("hidden_act gelu_new differs from gelu (erf) by about 1e-3.",),
    ),
    case(
        "phi_qk_norm",
        "Phi with qk_layernorm (LayerNorm with bias over head_dim 8, before rope), grouped keys, 4 of 8 dims rotated.",
        "PhiForCausalLM",
        PHI | {"hidden_size": 32, "num_key_value_heads": 2, "qk_layernorm": True} | rope(partial_rotary_factor=0.5),
        seed=1302,
        twins=LN_EPS | {"no_qk_norm": {"qk_layernorm": False}},
        v4={},
    ),
    case(
        "phi3",
        "Phi-3: fused qkv_proj and gate_up_proj, full rope, a window of 9 on every layer.",
        "Phi3ForCausalLM",
        PHI3 | {"sliding_window": 9},
        seed=1303,
        twins=EPS
        | {
            "rope_theta": rope(10000.0, partial_rotary_factor=1.0),
            "window_10": {"sliding_window": 10},
            "no_window": {"sliding_window": None},
        },
        v4={"rope_scaling": None},
    ),
    case(
        "phi3_partial",
        "Phi-3 (as Phi-4-mini): partial rotary 0.75 of head_dim 8, tied head.",
        "Phi3ForCausalLM",
        PHI3 | HEAD8 | {"tie_word_embeddings": True} | rope(partial_rotary_factor=0.75),
        seed=1304,
        twins=EPS | {"full_rotary": rope(partial_rotary_factor=1.0)},
        v4={},
    ),
    case(
        "phi3_longrope",
        "Phi-3 longrope, original length 24: 64 tokens use the long factors, the 20-token batch the short ones.",
        "Phi3ForCausalLM",
        PHI3 | HEAD16 | {"original_max_position_embeddings": 24, "rope_parameters": PHI3_LONG},
        seed=1305,
        twins={
            "no_scaling": rope(partial_rotary_factor=0.75),
            "always_short": {
                "rope_parameters": PHI3_LONG | {"long_factor": PHI3_LONG["short_factor"]},
            },
            "attention_factor_1": {"rope_parameters": PHI3_LONG | {"attention_factor": 1.0}},
            "max_position": {"max_position_embeddings": 128},
        },
        no_effect={"inner_original": {"rope_parameters": PHI3_LONG | {"original_max_position_embeddings": 64}}},
        v4={"rope_scaling": PHI3_SCALING},
        notes=(
            "Attention factor sqrt(1 + ln(max_position_embeddings / original) / ln(original)) at all lengths.",
            "original_max_position_embeddings at the top level of the config wins over the one in rope_parameters.",
        ),
    ),
]

STABLELM = without(HEAD10, "rms_norm_eps") | LN | rope(partial_rotary_factor=0.4)
STABLELM_CASES = [
    case(
        "stablelm",
        "StableLM: LayerNorm with bias, silu gate, 4 of 10 dims rotated, grouped keys, no bias in projections.",
        "StableLmForCausalLM",
        STABLELM,
        seed=1401,
        twins=LN_EPS
        | {
            "rope_theta": rope(10000.0, partial_rotary_factor=0.4),
            "partial": rope(partial_rotary_factor=0.8),
        },
        v4={},
    ),
    case(
        "stablelm_parallel",
        "StableLM with use_parallel_residual (one norm), use_qkv_bias, head_dim 8 with 2 rotated dims, tied head.",
        "StableLmForCausalLM",
        without(HEAD8, "rms_norm_eps")
        | LN
        | rope(partial_rotary_factor=0.25)
        | {"use_parallel_residual": True, "use_qkv_bias": True, "tie_word_embeddings": True},
        seed=1402,
        twins=LN_EPS,
        v4={},
    ),
    case(
        "stablelm_qk_norm",
        "StableLM with qk_layernorm: one LayerNorm (no bias) for every head, before rope.",
        "StableLmForCausalLM",
        STABLELM | {"qk_layernorm": True},
        seed=1403,
        twins=LN_EPS | {"no_qk_norm": {"qk_layernorm": False}},
    ),
]

STARCODER2 = without(HEAD10, "rms_norm_eps") | {"norm_epsilon": 3e-3, "tie_word_embeddings": True}
STARCODER2_CASES = [
    case(
        "starcoder2",
        "StarCoder2: LayerNorm with bias, c_fc / c_proj MLP (gelu tanh), biases, a window of 9, tied head.",
        "Starcoder2ForCausalLM",
        STARCODER2 | {"sliding_window": 9},
        seed=1501,
        twins=THETA
        | {
            "norm_epsilon": {"norm_epsilon": 1e-5},
            "window_10": {"sliding_window": 10},
            "no_window": {"sliding_window": None},
            "act": {"hidden_act": "relu"},
        },
        v4={},
    ),
    case(
        "starcoder2_no_bias",
        "StarCoder2 with use_bias false (the norms keep theirs), no window, head_dim 8, untied head.",
        "Starcoder2ForCausalLM",
        STARCODER2 | {"hidden_size": 32, "use_bias": False, "tie_word_embeddings": False},
        seed=1502,
        twins={"norm_epsilon": {"norm_epsilon": 1e-5}},
        v4={},
    ),
]

OLMO = without(HEAD10, "rms_norm_eps")
OLMO3_ROPE = {
    LOCAL: {"rope_type": "default", "rope_theta": 3000.0},
    FULL: {
        "rope_type": "yarn",
        "rope_theta": 7000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 1.2,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
}
OLMO3 = HEAD8 | LAYERS3 | {"sliding_window": 7, "layer_types": [LOCAL, FULL, LOCAL], "rope_parameters": OLMO3_ROPE}
OLMO3_V4_ROPE = {LOCAL: {"rope_type": "default", "rope_theta": 5e5}, FULL: OLMO3_ROPE[FULL] | {"rope_theta": 5e5}}
OLMO_CASES = [
    case(
        "olmo",
        "OLMo: LayerNorm without weights (eps 1e-5 always), no clipping.",
        "OlmoForCausalLM",
        OLMO,
        seed=1601,
        twins=THETA,
        no_effect={"rms_norm_eps": {"rms_norm_eps": 0.5}, "layer_norm_eps": {"layer_norm_eps": 0.5}},
        v4={},
    ),
    case(
        "olmo_clip",
        "OLMo with clip_qkv 1.5 (q, k, v clamped before rope), attention_bias (q, k, v, o), head_dim 16, tied head.",
        "OlmoForCausalLM",
        without(HEAD16, "rms_norm_eps") | {"clip_qkv": 1.5, "attention_bias": True, "tie_word_embeddings": True},
        seed=1602,
        twins={"no_clip": {"clip_qkv": None}, "clip_1.6": {"clip_qkv": 1.6}},
        v4={},
        gains={r"[qk]_proj\.weight": 2.5},
    ),
    case(
        "olmo2",
        "OLMo 2: no norm before a block, norms after attention and MLP; q_norm over all heads together, before rope.",
        "Olmo2ForCausalLM",
        HEAD10,
        seed=1603,
        twins=EPS | THETA,
        v4={},
    ),
    case(
        "olmo2_mha",
        "OLMo 2 without grouped keys (num_key_value_heads null), attention_bias, head_dim 8, tied head.",
        "Olmo2ForCausalLM",
        HEAD8 | {"num_key_value_heads": None, "attention_bias": True, "tie_word_embeddings": True},
        seed=1604,
        twins=EPS,
        v4={},
    ),
    case(
        "olmo3",
        "OLMo 3: as OLMo 2 with a window of 7 on layers 0 and 2; yarn rope on the full layer only.",
        "Olmo3ForCausalLM",
        OLMO3,
        seed=1605,
        twins=EPS
        | {
            "window_8": {"sliding_window": 8},
            "all_full": {"layer_types": [FULL] * 3},
            "yarn_everywhere": {"rope_parameters": OLMO3_ROPE | {LOCAL: OLMO3_ROPE[FULL]}},
            "yarn_nowhere": {"rope_parameters": OLMO3_ROPE | {FULL: OLMO3_ROPE[LOCAL]}},
        },
    ),
    case(
        "olmo3_default_types",
        "OLMo 3 without layer_types (every fourth layer is full) and the default rope_theta 500000, head_dim 10.",
        "Olmo3ForCausalLM",
        without(OLMO3, "layer_types")
        | {"num_hidden_layers": 4, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 3}
        | {"rope_parameters": OLMO3_V4_ROPE},
        seed=1606,
        twins={
            "all_local": {"layer_types": [LOCAL] * 4},
            "yarn_everywhere": {"rope_parameters": OLMO3_V4_ROPE | {LOCAL: OLMO3_V4_ROPE[FULL]}},
        },
        v4={"layer_types": None, "rope_local_base_freq": None},
        notes=("transformers 5.24 drops a top-level rope_theta for the window layers (it stays 500000 there).",),
    ),
]

GRANITE = HEAD10 | {
    "rms_norm_eps": 2e-2,
    "embedding_multiplier": 3.5,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.41,
    "logits_scaling": 1.3,
}
GRANITE_CASES = [
    case(
        "granite",
        "Granite: embedding, residual and attention multipliers, logits divided by logits_scaling.",
        "GraniteForCausalLM",
        GRANITE,
        seed=1701,
        twins=EPS
        | THETA
        | {
            "embedding_multiplier": {"embedding_multiplier": 1.0},
            "residual_multiplier": {"residual_multiplier": 1.0},
            "attention_multiplier": {"attention_multiplier": 10**-0.5},
            "logits_scaling": {"logits_scaling": 1.0},
        },
        v4={},
    ),
    case(
        "granite_bias",
        "Granite with attention_bias and mlp_bias, head_dim 16, tied head.",
        "GraniteForCausalLM",
        GRANITE | HEAD16 | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        seed=1702,
        twins={"attention_multiplier": {"attention_multiplier": 0.25}},
        v4={},
    ),
]

COHERE = without(HEAD10, "rms_norm_eps") | LN | {"logit_scale": 0.7}
COHERE_CASES = [
    case(
        "cohere",
        "Cohere: one LayerNorm without bias, attention and MLP in parallel, interleaved rope, logits times 0.7, tied.",
        "CohereForCausalLM",
        COHERE,
        seed=1801,
        twins=LN_EPS | THETA | {"logit_scale": {"logit_scale": 0.0625}},
        v4={},
    ),
    case(
        "cohere_qk_norm",
        "Cohere with use_qk_norm: LayerNorm over head_dim with a weight [heads, head_dim], before rope; head_dim 8.",
        "CohereForCausalLM",
        COHERE | {"hidden_size": 32, "use_qk_norm": True, "tie_word_embeddings": False},
        seed=1802,
        twins=LN_EPS | {"no_qk_norm": {"use_qk_norm": False}},
        v4={},
    ),
    case(
        "cohere_bias",
        "Cohere with attention_bias on q, k, v and o.",
        "CohereForCausalLM",
        COHERE | {"attention_bias": True},
        seed=1803,
        twins=LN_EPS,
    ),
    case(
        "cohere2",
        "Cohere 2: as Cohere; window of 7 and rope on layers 0 and 2, no rope and no window on layer 1.",
        "Cohere2ForCausalLM",
        without(HEAD8, "rms_norm_eps")
        | LN
        | LAYERS3
        | {"logit_scale": 0.7, "sliding_window": 7}
        # two of three layers, as sliding_window_pattern 2 gives
        | {"layer_types": [LOCAL, FULL, LOCAL]},
        seed=1804,
        twins=LN_EPS
        | THETA
        | {
            "window_8": {"sliding_window": 8},
            "all_full": {"layer_types": [FULL] * 3},
            "all_local": {"layer_types": [LOCAL] * 3},
        },
        v4={"layer_types": None, "sliding_window_pattern": 2},
        notes=("config.v4.json gives the pattern as sliding_window_pattern: 2 (every second layer is full).",),
    ),
    case(
        "cohere2_default_types",
        "Cohere 2 without layer_types and pattern: every fourth layer is full. Attention bias, untied, head_dim 10.",
        "Cohere2ForCausalLM",
        without(HEAD10, "rms_norm_eps")
        | LN
        | {"num_hidden_layers": 4, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1}
        | {"intermediate_size": 34, "sliding_window": 7, "attention_bias": True, "logit_scale": 0.6}
        | {"tie_word_embeddings": False},
        seed=1805,
        twins={"all_local": {"layer_types": [LOCAL] * 4}},
        v4={"layer_types": None},
    ),
]

GLM = HEAD10 | rope(partial_rotary_factor=0.4) | {"head_dim": 10}
GLM_TWINS = {
    "rope_theta": rope(10000.0, partial_rotary_factor=0.4),
    "partial": rope(partial_rotary_factor=0.8),
}
GLM8 = HEAD8 | {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True} | rope(partial_rotary_factor=0.5)
GLM_CASES = [
    case(
        "glm",
        "GLM: interleaved rope on 4 of 10 dims, fused gate_up_proj, bias on q, k, v (attention_bias), not on o.",
        "GlmForCausalLM",
        GLM,
        seed=1901,
        twins=EPS | GLM_TWINS,
        v4={},
    ),
    case(
        "glm_no_bias",
        "GLM without attention_bias, head_dim 16 (hidden / heads is 8), 8 dims rotated, tied head.",
        "GlmForCausalLM",
        GLM8,
        seed=1902,
        twins=EPS | {"full_rotary": rope(partial_rotary_factor=1.0)},
        v4={},
    ),
    case(
        "glm4",
        "GLM-4-0414: as GLM with two more norms, after attention and after the MLP, before the residual is added.",
        "Glm4ForCausalLM",
        GLM,
        seed=1903,
        twins=EPS | GLM_TWINS,
        v4={},
    ),
    case(
        "glm4_no_bias",
        "GLM-4-0414 without attention_bias, head_dim 16, 8 dims rotated, tied head.",
        "Glm4ForCausalLM",
        GLM8,
        seed=1904,
        twins=EPS,
        v4={},
    ),
]

GPT2 = TOKENS | {"vocab_size": 61, "n_positions": 80, "n_embd": 40, "n_layer": 3, "n_head": 4}
GPT2 |= {"n_inner": 52, "layer_norm_epsilon": 3e-3}
GPT2_TWINS = {
    "layer_norm_epsilon": {"layer_norm_epsilon": 1e-5},
    "act": {"activation_function": "relu"},
}
GPT2_CASES = [
    case(
        "gpt2",
        "GPT-2: learned positions, Conv1D weights [in, out], fused c_attn, n_inner 52, tied head.",
        "GPT2LMHeadModel",
        GPT2,
        seed=2001,
        twins=GPT2_TWINS | {"no_scale": {"scale_attn_weights": False}},
    ),
    case(
        "gpt2_scale",
        "GPT-2 with scale_attn_by_inverse_layer_idx, scale_attn_weights false, n_inner null (4 x hidden), head_dim 8.",
        "GPT2LMHeadModel",
        GPT2
        | {"n_embd": 24, "n_head": 3, "n_inner": None, "activation_function": "relu", "tie_word_embeddings": False}
        | {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        seed=2002,
        twins={
            "inverse_layer": {"scale_attn_by_inverse_layer_idx": False},
            "scale": {"scale_attn_weights": True},
        },
        gains={r"c_attn\.weight": 0.7},
    ),
    case(
        "gpt2_bare",
        "GPT-2 with the tensor names of the first files: no prefix transformer., causal masks h.*.attn.bias to ignore.",
        "GPT2LMHeadModel",
        GPT2 | {"n_layer": 2, "n_positions": 64},
        seed=2003,
        rename={"transformer.": ""},
        extra={f"h.{i}.attn.bias": (1, 1, 64, 64) for i in range(2)},
    ),
]

NEOX = without(HEAD10, "rms_norm_eps", "num_key_value_heads") | LN | rope(partial_rotary_factor=0.4)
NEOX_CASES = [
    case(
        "gpt_neox",
        "GPT-NeoX: parallel residual with two norms, query_key_value interleaved by head, 4 of 10 dims rotated, gelu.",
        "GPTNeoXForCausalLM",
        NEOX,
        seed=2101,
        twins=LN_EPS
        | {
            "rope_theta": rope(10000.0, partial_rotary_factor=0.4),
            "partial": rope(partial_rotary_factor=0.8),
            "sequential": {"use_parallel_residual": False},
            "act": {"hidden_act": "relu"},
        },
        v4={},
        notes=("config.v4.json says rotary_pct and rotary_emb_base.",),
    ),
    case(
        "gpt_neox_sequential",
        "GPT-NeoX without parallel residual and without attention_bias, head_dim 8, all dims rotated, tied head.",
        "GPTNeoXForCausalLM",
        NEOX
        | {"hidden_size": 32, "use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True}
        | rope(partial_rotary_factor=1.0),
        seed=2102,
        twins=LN_EPS | {"parallel": {"use_parallel_residual": True}},
        v4={},
        extra={
            f"gpt_neox.layers.{i}.attention.{name}": shape
            for i in range(2)
            for name, shape in (("bias", (1, 1, 9, 9)), ("masked_bias", ()), ("rotary_emb.inv_freq", (4,)))
        },
    ),
]

OPT = TOKENS | {"vocab_size": 61, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 52}
OPT |= {"max_position_embeddings": 80}
OPT_CASES = [
    case(
        "opt",
        "OPT: norms before the blocks, relu, learned positions with an offset of 2, biases, tied head.",
        "OPTForCausalLM",
        OPT,
        seed=2201,
        twins={"act": {"activation_function": "gelu"}, "no_final_norm": {"_remove_final_layer_norm": True}},
    ),
    case(
        "opt_project",
        "OPT as the 350m model: norms after the blocks (no final norm), embedding 24 wide, project_in / project_out.",
        "OPTForCausalLM",
        OPT | {"word_embed_proj_dim": 24, "do_layer_norm_before": False},
        seed=2202,
        twins={"norm_before": {"do_layer_norm_before": True, "_remove_final_layer_norm": True}},
    ),
    case(
        "opt_no_bias",
        "OPT as Galactica: enable_bias false (norms keep theirs), gelu, _remove_final_layer_norm, head_dim 8.",
        "OPTForCausalLM",
        OPT
        | {"hidden_size": 32, "enable_bias": False, "activation_function": "gelu", "_remove_final_layer_norm": True}
        | {"tie_word_embeddings": False},
        seed=2203,
        twins={"act": {"activation_function": "relu"}},
    ),
    case(
        "opt_no_affine",
        "OPT with layer_norm_elementwise_affine false: norms without weights.",
        "OPTForCausalLM",
        OPT | {"layer_norm_elementwise_affine": False},
        seed=2204,
        twins={"norm_after": {"do_layer_norm_before": False}},
    ),
]

FALCON = without(HEAD10, "rms_norm_eps", "num_key_value_heads", "intermediate_size")
FALCON |= {"layer_norm_epsilon": 3e-3, "ffn_hidden_size": 52}
FALCON_EPS = {"layer_norm_epsilon": {"layer_norm_epsilon": 1e-5}}
FALCON_CASES = [
    case(
        "falcon",
        "Falcon as 7B: multi_query (one key/value head at the end of query_key_value), parallel, one norm, tied head.",
        "FalconForCausalLM",
        FALCON,
        seed=2301,
        twins=FALCON_EPS | THETA | {"act": {"activation": "relu"}},
        no_effect={"num_kv_heads": {"num_kv_heads": 2}},
        v4={"rope_scaling": None},
        notes=("With multi_query and the old architecture there is one key/value head whatever num_kv_heads says.",),
    ),
    case(
        "falcon_new",
        "Falcon as 40B: new_decoder_architecture, 2 key/value heads (fused by group), two norms, head_dim 8.",
        "FalconForCausalLM",
        FALCON | {"hidden_size": 32, "new_decoder_architecture": True, "num_kv_heads": 2},
        seed=2302,
        twins=FALCON_EPS | THETA,
        no_effect={"multi_query": {"multi_query": False}},
        v4={"rope_scaling": None},
    ),
    case(
        "falcon_new_one_norm",
        "Falcon as 11B: new_decoder_architecture with num_ln_in_parallel_attn 1, untied head, head_dim 10.",
        "FalconForCausalLM",
        FALCON
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}
        | {"tie_word_embeddings": False},
        seed=2303,
        twins=FALCON_EPS,
    ),
    case(
        "falcon_alibi",
        "Falcon as rw-1b: alibi, 4 key/value heads (q, k, v by head), sequential with two norms, biases.",
        "FalconForCausalLM",
        FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        seed=2304,
        twins=FALCON_EPS | {"no_alibi": {"alibi": False}},
        attention="sdpa",
        notes=(
            "Computed with sdpa attention: the eager code of transformers 5.24 adds the alibi bias twice.",
            "softmax((q k + slope * k_position) / sqrt(head_dim)): the bias is divided too.",
        ),
    ),
    case(
        "falcon_alibi_heads3",
        "Falcon with alibi, 3 heads (slopes 1/16, 1/256, 1/4), multi_query, parallel, head_dim 16.",
        "FalconForCausalLM",
        FALCON | {"hidden_size": 48, "num_attention_heads": 3, "alibi": True, "bias": True},
        seed=2305,
        twins=FALCON_EPS | {"no_alibi": {"alibi": False}},
        attention="sdpa",
    ),
    case(
        "falcon_mha",
        "Falcon with rope, without multi_query and without parallel attention.",
        "FalconForCausalLM",
        FALCON | {"hidden_size": 32, "multi_query": False, "parallel_attn": False},
        seed=2306,
        twins=FALCON_EPS | THETA,
    ),
]

NEMOTRON = without(HEAD10, "rms_norm_eps") | {"norm_eps": 3e-3} | rope(partial_rotary_factor=0.4)
NEMOTRON_CASES = [
    case(
        "nemotron",
        "Nemotron: LayerNorm with weight + 1 and bias, relu squared without gate, 4 of 10 dims rotated.",
        "NemotronForCausalLM",
        NEMOTRON,
        seed=2401,
        plus_one_norms=True,
        twins={
            "norm_eps": {"norm_eps": 1e-5},
            "rope_theta": rope(10000.0, partial_rotary_factor=0.4),
            "partial": rope(partial_rotary_factor=0.8),
            "act": {"hidden_act": "relu"},
        },
        v4={},
    ),
    case(
        "nemotron_bias",
        "Nemotron with attention_bias and mlp_bias, head_dim 16 (hidden / heads is 8), 8 dims rotated, tied head.",
        "NemotronForCausalLM",
        NEMOTRON
        | {"hidden_size": 32, "head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
        | rope(partial_rotary_factor=0.5),
        seed=2402,
        plus_one_norms=True,
        twins={"norm_eps": {"norm_eps": 1e-5}},
        v4={},
    ),
]

EXAONE4 = HEAD8 | LAYERS3 | {"sliding_window": 7, "sliding_window_pattern": 2}
EXAONE4_CASES = [
    case(
        "exaone4",
        "EXAONE 4: norms after attention and MLP only, q/k norm before rope; window of 7 and rope on layers 0 and 2, "
        "neither on layer 1.",
        "Exaone4ForCausalLM",
        EXAONE4,
        seed=2501,
        twins=EPS
        | THETA
        | {
            "window_8": {"sliding_window": 8},
            "all_full": {"layer_types": [FULL] * 3},
            "pattern_3": {"sliding_window_pattern": 3, "layer_types": None},
        },
        v4={"layer_types": None},
    ),
    case(
        "exaone4_full",
        "EXAONE 4 as the 1.2B model: no window, rope on all (full) layers, head_dim 12, tied head.",
        "Exaone4ForCausalLM",
        HEAD10 | {"head_dim": 12, "sliding_window": None, "layer_types": [FULL] * 2, "tie_word_embeddings": True},
        seed=2502,
        twins=EPS | THETA | {"no_rope": {"sliding_window": 4096}},
        v4={},
        notes=("With sliding_window null and no layer_types transformers 5.24 divides by zero.",),
    ),
]

ERNIE_CASES = [
    case(
        "ernie4_5",
        "ERNIE 4.5: interleaved rope, no biases, tied head, head_dim 12.",
        "Ernie4_5ForCausalLM",
        HEAD10 | {"head_dim": 12},
        seed=2601,
        twins=EPS | THETA,
        v4={},
    ),
    case(
        "ernie4_5_bias",
        "ERNIE 4.5 with use_bias (q, k, v, o and the MLP), head_dim 16, untied head.",
        "Ernie4_5ForCausalLM",
        HEAD8 | {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False},
        seed=2602,
        twins=EPS,
        v4={},
    ),
]

HUNYUAN_ALPHA = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 1.0, "alpha": 50.0}
HUNYUAN_CASES = [
    case(
        "hunyuan_v1_dense",
        "HunYuan dense: q/k norm AFTER rope, plain rope.",
        "HunYuanDenseV1ForCausalLM",
        HEAD10 | {"head_dim": 10},
        seed=2701,
        twins=EPS | THETA,
        v4={},
    ),
    case(
        "hunyuan_v1_dense_alpha",
        "HunYuan dense with rope type dynamic and alpha 50: theta times alpha ** (d / (d - 2)) at all lengths; "
        "attention_bias, tied, head_dim 16.",
        "HunYuanDenseV1ForCausalLM",
        HEAD8 | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": HUNYUAN_ALPHA},
        seed=2702,
        twins=EPS | {"no_alpha": rope(), "alpha_1000": {"rope_parameters": HUNYUAN_ALPHA | {"alpha": 1000.0}}},
        no_effect={"factor": {"rope_parameters": HUNYUAN_ALPHA | {"factor": 8.0}}},
        v4={"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}},
    ),
]

XIELU = {r"act_fn\.alpha": (0.2, 0.5), r"act_fn\.beta": (0.45, 0.1), r"act_fn\.eps": (-0.05, 0.01)}
APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 48,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
APERTUS_CASES = [
    case(
        "apertus",
        "Apertus: xIELU without gate (alpha_p, alpha_n, beta, eps stored for each layer), q/k norm before rope.",
        "ApertusForCausalLM",
        HEAD10,
        seed=2801,
        twins=EPS | THETA,
        values=XIELU,
        notes=("beta and eps are buffers in the checkpoint; real files have 0.5 and -1e-6 there.",),
    ),
    case(
        "apertus_llama3",
        "Apertus with llama3 rope, attention_bias, head_dim 16, tied head.",
        "ApertusForCausalLM",
        HEAD16 | {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": APERTUS_ROPE},
        seed=2802,
        twins={"no_scaling": rope()},
        values=XIELU | {"[qk]_norm": (1.5, 0.3)},
        v4={},
    ),
]

OTHER_CASES = [
    case(
        "arcee",
        "Arcee: as Llama with an MLP without gate, relu squared.",
        "ArceeForCausalLM",
        HEAD10 | {"head_dim": 14},
        seed=2901,
        twins=EPS | THETA | {"act": {"hidden_act": "relu"}},
        v4={},
    ),
    case(
        "arcee_bias",
        "Arcee with attention_bias and mlp_bias, yarn rope, head_dim 8, tied head.",
        "ArceeForCausalLM",
        HEAD8
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "max_position_embeddings": 128}
        | rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
        seed=2902,
        twins={"no_scaling": rope()},
        v4={},
    ),
    case(
        "helium",
        "Helium: as Llama with interleaved rope; o_proj without bias even if attention_bias.",
        "HeliumForCausalLM",
        HEAD10 | {"head_dim": 10},
        seed=2903,
        twins=EPS | THETA,
        v4={},
    ),
    case(
        "helium_bias",
        "Helium with attention_bias (q, k, v) and mlp_bias, head_dim 16, tied head.",
        "HeliumForCausalLM",
        HEAD16 | {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        seed=2904,
        twins=EPS,
        v4={},
    ),
    case(
        "seed_oss",
        "Seed-OSS: as Llama with bias on q, k, v (attention_bias), not on o (attention_out_bias false), head_dim 14.",
        "SeedOssForCausalLM",
        HEAD10 | {"head_dim": 14, "attention_bias": True},
        seed=2905,
        twins=EPS | THETA,
        v4={},
    ),
    case(
        "seed_oss_out_bias",
        "Seed-OSS with attention_out_bias (o only, not q, k, v) and mlp_bias, head_dim 16, tied head.",
        "SeedOssForCausalLM",
        HEAD8
        | {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
        | {"tie_word_embeddings": True},
        seed=2906,
        twins=EPS,
        v4={},
    ),
]

DENSE_CASES: list[Case] = [
    *LLAMA_CASES,
    *GEMMA_CASES,
    *MISTRAL_CASES,
    *PHI_CASES,
    *STABLELM_CASES,
    *STARCODER2_CASES,
    *OLMO_CASES,
    *GRANITE_CASES,
    *COHERE_CASES,
    *GLM_CASES,
    *GPT2_CASES,
    *NEOX_CASES,
    *OPT_CASES,
    *FALCON_CASES,
    *NEMOTRON_CASES,
    *EXAONE4_CASES,
    *ERNIE_CASES,
    *HUNYUAN_CASES,
    *APERTUS_CASES,
    *OTHER_CASES,
]
