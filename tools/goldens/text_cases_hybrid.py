"""Tiny text models with experts, recurrent layers or latent attention (MLA): one entry for each folder.

The conventions are those of text_cases.py. Weights are stored as bfloat16, router weights are drawn wide enough that
float32 rounding cannot swap two experts, and every recurrent parameter (A_log, dt_bias, D, conv, sinks ...) is random.
"""

from typing import Any

from text_cases import DROP, Case, Overrides, rope

ROPE = {"rope_type": "default", "rope_theta": 5000.0}
BASE = {
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 2e-3,
    "rope_parameters": ROPE,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EPS = {"rms_norm_eps": {"rms_norm_eps": 1e-6}}
ROPE_THETA = {"rope_theta": rope(ROPE, rope_theta=1e6)}


def case(name: str, about: str, model_class: str, config: Overrides, seed: int, **rest: Any) -> Case:
    return Case(name, about, model_class, config, seed=seed, dtype="bfloat16", **rest)


def old(scaling: Overrides | None = None, **changes: Any) -> Overrides:
    """Return the changes that spell a config as transformers 4 did, and so the public files."""
    rope_keys = {"rope_parameters": DROP, "rope_theta": 5000.0, "rope_scaling": scaling}
    return {"dtype": DROP, "torch_dtype": "bfloat16", "transformers_version": "4.57.1"} | rope_keys | changes


NO_LIMIT = {"time_step_limit": [0.0, float("inf")]}  # json writes Infinity, save_pretrained {"__float__": "Infinity"}
MAMBA_VALUES = {r"A_log$": (0.2, 0.7), r"\.D$": (1.0, 0.5), r"dt_bias$": (-0.5, 0.8)}
DELTA_VALUES = {r"A_log$": (-0.3, 0.8), r"dt_bias$": (0.0, 0.8), r"linear_attn\.norm": (1.0, 0.3)}
GATE = {r"\.gate\.weight$": 2.0}
ROUTER = {r"\.router\.weight$": 2.0}
CORRECTION = {r"e_score_correction_bias$": (0.0, 0.25)}

MIXTRAL = BASE | {
    "head_dim": 12,
    "intermediate_size": 14,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}

MIXTRAL_CASES = [
    case(
        "mixtral",
        "Mixtral: 5 experts, 2 of them a token, softmax over all experts, weights of the chosen ones sum to 1.",
        "MixtralForCausalLM",
        MIXTRAL,
        seed=2101,
        gains=GATE,
        public=old(),
        twins=EPS | ROPE_THETA | {"top_1": {"num_experts_per_tok": 1}, "window_8": {"sliding_window": 8}},
        no_effect={"jitter": {"router_jitter_noise": 0.5}},
        notes=("Public files use block_sparse_moe.experts.N.w1 / w3 / w2 and block_sparse_moe.gate, as stored here.",),
    ),
]

QWEN2_MOE = BASE | {
    "rms_norm_eps": 1e-3,
    "intermediate_size": 26,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 22,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
}
QWEN3_MOE = BASE | {
    "head_dim": 14,
    "rms_norm_eps": 1e-3,
    "intermediate_size": 26,
    "moe_intermediate_size": 12,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
}

QWEN_MOE_CASES = [
    case(
        "qwen2_moe",
        "Qwen2 MoE: 6 experts, 3 a token, weights not renormalised, one shared expert behind a sigmoid gate.",
        "Qwen2MoeForCausalLM",
        QWEN2_MOE,
        seed=2221,
        gains=GATE,
        twins=EPS | ROPE_THETA | {"norm_topk_prob": {"norm_topk_prob": True}, "top_2": {"num_experts_per_tok": 2}},
    ),
    case(
        "qwen2_moe_norm_topk",
        "Qwen2 MoE with norm_topk_prob: the weights of the chosen experts sum to 1; no bias on q, k and v; tied.",
        "Qwen2MoeForCausalLM",
        QWEN2_MOE | {"norm_topk_prob": True, "qkv_bias": False, "tie_word_embeddings": True},
        seed=2212,
        gains=GATE,
        twins={"norm_topk_prob": {"norm_topk_prob": False}},
    ),
    case(
        "qwen2_moe_sparse_step",
        "Qwen2 MoE, 4 layers: decoder_sparse_step 2 makes 1 and 3 sparse, mlp_only_layers takes 1 back; windows.",
        "Qwen2MoeForCausalLM",
        QWEN2_MOE
        | {
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
        seed=2203,
        gains=GATE,
        public=old(layer_types=DROP),
        twins={
            "window_9": {"sliding_window": 9},
            "window_on_0_and_2": {"max_window_layers": 3, "layer_types": None},
            "no_window": {"use_sliding_window": False, "layer_types": None},
        },
        notes=("Derived windows of Qwen2 MoE: layer i has one iff i is even and i < max_window_layers (not Qwen2).",),
    ),
    case(
        "qwen3_moe",
        "Qwen3 MoE: q and k norms, head_dim 14, 6 experts, 3 a token, renormalised (norm_topk_prob), no shared expert.",
        "Qwen3MoeForCausalLM",
        QWEN3_MOE,
        seed=2301,
        gains=GATE,
        public=old(num_local_experts=DROP, num_experts=6),
        twins=EPS
        | ROPE_THETA
        | {
            "norm_topk_prob": {"norm_topk_prob": False},
            "top_2": {"num_experts_per_tok": 2},
            "window_8": {"use_sliding_window": True, "sliding_window": 8},
        },
    ),
    case(
        "qwen3_moe_plain_topk",
        "Qwen3 MoE, 3 layers, without norm_topk_prob, with attention_bias; layer 0 dense by mlp_only_layers; tied.",
        "Qwen3MoeForCausalLM",
        QWEN3_MOE
        | {
            "num_hidden_layers": 3,
            "norm_topk_prob": False,
            "attention_bias": True,
            "mlp_only_layers": [0],
            "num_experts": 5,
            "tie_word_embeddings": True,
        },
        seed=2302,
        gains=GATE,
        twins={"norm_topk_prob": {"norm_topk_prob": True}},
    ),
]

MAMBA2 = {
    "vocab_size": 61,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "expand": 2,
    "num_heads": 6,
    "head_dim": 12,
    "state_size": 10,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": 16,
    "layer_norm_epsilon": 2e-3,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
CHUNK_SIZE = {"chunk_size": {"chunk_size": 256}}

MAMBA2_CASES = [
    case(
        "mamba2",
        "Mamba2: 6 heads of 12, one group of B and C, conv with bias, chunk_size 16, tied.",
        "Mamba2ForCausalLM",
        MAMBA2,
        seed=2401,
        values=MAMBA_VALUES,
        public=NO_LIMIT,
        twins={"eps": {"layer_norm_epsilon": 1e-6}, "dt_limit": {"time_step_limit": [0.3, 0.6]}},
        notes=("chunk_size only sets how the reference splits the sum: the same function, other rounding.",),
    ),
    case(
        "mamba2_groups",
        "Mamba2 with 3 groups (the gated norm is per group), biased in_proj and out_proj, conv without bias, untied.",
        "Mamba2ForCausalLM",
        MAMBA2
        | {
            "n_groups": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "conv_kernel": 3,
            "num_hidden_layers": 2,
            "tie_word_embeddings": False,
        },
        seed=2402,
        values=MAMBA_VALUES,
        twins={"eps": {"layer_norm_epsilon": 1e-6}},
    ),
    case(
        "mamba2_limit",
        "Mamba2 with time_step_limit [0.3, 0.6]: softplus(dt + dt_bias) is clamped.",
        "Mamba2ForCausalLM",
        MAMBA2 | {"num_hidden_layers": 2, "n_groups": 2, "time_step_limit": [0.3, 0.6]},
        seed=2403,
        values=MAMBA_VALUES,
        twins={"no_limit": {"time_step_limit": [0.0, 100.0]}},
        prefill_is_truth=True,
        notes=("The one-token step of transformers 5.24 (torch fallback) forgets the clamp.",),
    ),
]

LFM2 = {
    "vocab_size": 61,
    "hidden_size": 40,
    "intermediate_size": 54,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "norm_eps": 2e-3,
    "rope_parameters": ROPE,
    "conv_L_cache": 3,
    "conv_bias": False,
    "block_multiple_of": 6,
    "block_ffn_dim_multiplier": 1.2,
    "block_auto_adjust_ff_dim": True,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
}
LFM2_TWINS = {"eps": {"norm_eps": 1e-6}} | ROPE_THETA

LFM2_CASES = [
    case(
        "lfm2",
        "LFM2: gated short convolutions (kernel 3) and one attention layer with q / k norms; MLP width adjusted to 48.",
        "Lfm2ForCausalLM",
        LFM2,
        seed=2501,
        public=old(layer_types=DROP, full_attn_idxs=[2], block_ff_dim=54, block_dim=40, intermediate_size=DROP),
        twins=LFM2_TWINS,
        notes=("MLP width: int(1.2 * int(2 * 54 / 3)) = 43, rounded up to a multiple of 6: 48.",),
    ),
    case(
        "lfm2_bias",
        "LFM2 with conv_bias (in_proj, conv and out_proj), kernel 4, unadjusted MLP width, layers by full_attn_idxs.",
        "Lfm2ForCausalLM",
        {key: value for key, value in LFM2.items() if key != "layer_types"}
        | {
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_auto_adjust_ff_dim": False,
            "intermediate_size": 46,
            "num_hidden_layers": 3,
            "full_attn_idxs": [1],
            "tie_word_embeddings": False,
        },
        seed=2502,
        twins={"eps": {"norm_eps": 1e-6}},
        notes=("Left padding: in_proj has a bias, so padded positions feed the convolution with non-zero values.",),
    ),
    case(
        "lfm2_moe",
        "LFM2 MoE: layer 0 dense, then 6 experts, 2 a token: sigmoid scores, expert_bias only for the choice, norm.",
        "Lfm2MoeForCausalLM",
        {
            key: LFM2[key]
            for key in (
                "vocab_size",
                "hidden_size",
                "num_attention_heads",
                "num_key_value_heads",
                "max_position_embeddings",
                "norm_eps",
                "rope_parameters",
                "conv_L_cache",
                "conv_bias",
            )
        }
        | {
            "intermediate_size": 46,
            "moe_intermediate_size": 12,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.7,
        },
        seed=2523,
        gains=GATE,
        values={r"expert_bias$": (0.0, 0.25)},
        public=old(),
        twins=LFM2_TWINS
        | {
            "norm_topk_prob": {"norm_topk_prob": False},
            "scaling": {"routed_scaling_factor": 1.0},
            "top_1": {"num_experts_per_tok": 1},
        },
    ),
]

DELTA_NET = BASE | {
    "hidden_size": 32,
    "rms_norm_eps": 1e-3,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": ROPE | {"partial_rotary_factor": 0.25},
}
MOE_SHARED = {
    "moe_intermediate_size": 10,
    "shared_expert_intermediate_size": 14,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
PARTIAL_ROTARY = {"partial_rotary": rope(DELTA_NET["rope_parameters"], partial_rotary_factor=0.5)}

DELTA_NET_CASES = [
    case(
        "qwen3_next",
        "Qwen3-Next: 3 gated delta net layers and a gated attention layer, rope on 4 of 16 dims, experts + shared.",
        "Qwen3NextForCausalLM",
        DELTA_NET
        | MOE_SHARED
        | {"num_hidden_layers": 4, "intermediate_size": 26, "mlp_only_layers": [1], "norm_topk_prob": True},
        seed=2611,
        gains=GATE,
        values=DELTA_VALUES,
        plus_one_norms=True,
        public=old(layer_types=DROP, full_attention_interval=4, partial_rotary_factor=0.25),
        twins=EPS | ROPE_THETA | PARTIAL_ROTARY | {"norm_topk_prob": {"norm_topk_prob": False}},
    ),
    case(
        "qwen3_5_text",
        "Qwen3.5 text: gated delta net with separate q k v / z / b / a projections, gated attention, dense MLP, tied.",
        "Qwen3_5ForCausalLM",
        DELTA_NET
        | {
            "num_hidden_layers": 4,
            "intermediate_size": 34,
            "tie_word_embeddings": True,
            "rope_parameters": ROPE
            | {"partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True},
        },
        seed=2602,
        values=DELTA_VALUES,
        plus_one_norms=True,
        public={"layer_types": DROP, "full_attention_interval": 4},
        twins=EPS | ROPE_THETA,
        notes=("With text alone the three position rows are equal, so mrope_section has no effect.",),
    ),
    case(
        "qwen3_5_moe_text",
        "Qwen3.5 MoE text: layers linear, full, linear; softmax routing always renormalised, gated shared expert.",
        "Qwen3_5MoeForCausalLM",
        DELTA_NET
        | MOE_SHARED
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "rope_parameters": ROPE
            | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        },
        seed=2603,
        gains=GATE,
        values=DELTA_VALUES,
        plus_one_norms=True,
        twins=EPS | ROPE_THETA | {"top_1": {"num_experts_per_tok": 1}},
    ),
]

MLA = BASE | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "intermediate_size": 30,
    "moe_intermediate_size": 8,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 12,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
MLA_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
}

V4_YARN = {key: value for key, value in MLA_YARN.items() if key not in ("rope_type", "rope_theta")} | {"type": "yarn"}

QWEN3_5_VISION = {
    "vision_config": {
        "depth": 1,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_heads": 2,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
    },
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}

QWEN3_5_CASES = [
    case(
        "qwen3_5",
        "Qwen3.5 as the public files: nested text_config, names under model.language_model, vision and mtp to ignore.",
        "Qwen3_5ForConditionalGeneration",
        QWEN3_5_VISION
        | {
            "text_config": DELTA_NET
            | {
                "num_hidden_layers": 2,
                "layer_types": ["linear_attention", "full_attention"],
                "intermediate_size": 34,
                "tie_word_embeddings": True,
                "rope_parameters": ROPE
                | {"partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True},
            },
            "tie_word_embeddings": True,
        },
        seed=2604,
        values=DELTA_VALUES,
        plus_one_norms=True,
        extra={"mtp.fc.weight": (32, 64)},
    ),
    case(
        "qwen3_5_moe",
        "Qwen3.5 MoE as the public files: nested text_config, stacked experts, tensors under model.language_model.",
        "Qwen3_5MoeForConditionalGeneration",
        QWEN3_5_VISION
        | {
            "text_config": DELTA_NET
            | MOE_SHARED
            | {
                "num_hidden_layers": 2,
                "layer_types": ["linear_attention", "full_attention"],
                "rope_parameters": ROPE
                | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
            },
        },
        seed=2615,
        gains=GATE,
        values=DELTA_VALUES,
        plus_one_norms=True,
        stack_experts=True,
        extra={"mtp.fc.weight": (32, 64)},
    ),
]

DEEPSEEK_CASES = [
    case(
        "deepseek_v2_lite",
        "DeepSeek-V2 without q_lora_rank, greedy routing (softmax, not renormalised), plain rope, layer 0 dense.",
        "DeepseekV2ForCausalLM",
        MLA | {"q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.0},
        seed=2701,
        gains=GATE,
        public=old(),
        twins=EPS | ROPE_THETA | {"scaling": {"routed_scaling_factor": 2.0}, "top_1": {"num_experts_per_tok": 1}},
        no_effect={"norm_topk_prob": {"norm_topk_prob": True}},
        notes=("transformers 5.24 ignores norm_topk_prob for DeepSeek-V2.",),
    ),
    case(
        "deepseek_v2",
        "DeepSeek-V2: q_lora_rank 18, group limited greedy (best 2 of 3 groups by their maximum), scaling 2.5, yarn.",
        "DeepseekV2ForCausalLM",
        MLA
        | {
            "q_lora_rank": 18,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5,
            "rope_parameters": MLA_YARN | {"mscale": 0.9, "mscale_all_dim": 0.5},
        },
        seed=2702,
        gains=GATE,
        public=old(V4_YARN | {"mscale": 0.9, "mscale_all_dim": 0.5}),
        twins=EPS
        | {
            "greedy": {"topk_method": "greedy"},
            "one_group": {"topk_group": 1, "num_experts_per_tok": 2},
            "scaling": {"routed_scaling_factor": 1.0},
            "no_yarn": rope(ROPE),
            "no_mscale": rope(MLA_YARN),
            "mscale_equal": rope(MLA_YARN, mscale=0.9, mscale_all_dim=0.9),
        },
    ),
    case(
        "deepseek_v3",
        "DeepSeek-V3: q_lora_rank, sigmoid routing with a correction bias, 2 of 3 groups by their two best, yarn.",
        "DeepseekV3ForCausalLM",
        MLA
        | {
            "q_lora_rank": 18,
            "n_shared_experts": 1,
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "rope_parameters": MLA_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
        seed=2703,
        gains=GATE,
        values=CORRECTION,
        public=old(V4_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, rope_interleave=DROP),
        twins=EPS
        | {
            "all_groups": {"topk_group": 3},
            "norm_topk_prob": {"norm_topk_prob": False},
            "scaling": {"routed_scaling_factor": 1.0},
            "no_interleave": {"rope_interleave": False},
            "no_yarn": rope(ROPE),
            "no_mscale": rope(MLA_YARN),
        },
    ),
    case(
        "deepseek_v3_plain",
        "DeepSeek-V3 without q_lora_rank, rope not interleaved, one group, weights not renormalised, biases in MLA.",
        "DeepseekV3ForCausalLM",
        MLA
        | {
            "num_hidden_layers": 2,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        seed=2704,
        gains=GATE,
        values=CORRECTION,
        twins=EPS | ROPE_THETA | {"norm_topk_prob": {"norm_topk_prob": True}, "interleave": {"rope_interleave": True}},
    ),
]

GPT_OSS_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}

GPT_OSS_CASES = [
    case(
        "gpt_oss",
        "gpt-oss: sinks, windows of 8 on even layers, biases, clamped swiglu, softmax over the chosen logits, yarn.",
        "GptOssForCausalLM",
        BASE
        | {
            "head_dim": 12,
            "intermediate_size": 14,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "swiglu_limit": 1.2,
            "rope_parameters": GPT_OSS_YARN,
            "max_position_embeddings": 128,
        },
        seed=2811,
        gains=ROUTER,
        values={r"sinks$": (0.5, 1.0)},
        public=old(
            {k: v for k, v in GPT_OSS_YARN.items() if k != "rope_theta"},
            swiglu_alpha=DROP,
            num_local_experts=5,
            experts_per_token=2,
        ),
        twins=EPS
        | {
            "limit": {"swiglu_limit": 7.0},
            "alpha": {"swiglu_alpha": 1.0},
            "window_9": {"sliding_window": 9},
            "all_full": {"layer_types": ["full_attention"] * 2},
            "truncate": rope(GPT_OSS_YARN, truncate=True),
            "no_yarn": rope(ROPE),
        },
    ),
]

OLMOE = BASE | {
    "intermediate_size": 12,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "norm_topk_prob": False,
    "pad_token_id": 1,
}

OLMOE_CASES = [
    case(
        "olmoe",
        "OLMoE: q and k norms over all heads at once, 6 experts, 3 a token, weights not renormalised.",
        "OlmoeForCausalLM",
        OLMOE,
        seed=2901,
        gains=GATE,
        public=old(),
        twins=EPS | ROPE_THETA | {"norm_topk_prob": {"norm_topk_prob": True}, "clip": {"clip_qkv": 0.8}},
    ),
    case(
        "olmoe_clip",
        "OLMoE with clip_qkv 2.0 (after the norms, before rope; v too), norm_topk_prob and attention_bias; tied.",
        "OlmoeForCausalLM",
        OLMOE | {"clip_qkv": 2.0, "norm_topk_prob": True, "attention_bias": True, "tie_word_embeddings": True},
        seed=2912,
        gains=GATE,
        values={r"[qk]_norm": (1.7, 0.4)},
        twins={"norm_topk_prob": {"norm_topk_prob": False}, "no_clip": {"clip_qkv": None}},
    ),
]

GRANITE_SCALES = {
    "embedding_multiplier": 1.7,
    "logits_scaling": 0.8,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.21,
}
GRANITE_TWINS = {key: {key: 1.0} for key in GRANITE_SCALES}
GRANITE_HYBRID = (
    BASE
    | GRANITE_SCALES
    | {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "intermediate_size": 10,
        "shared_intermediate_size": 18,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_expand": 3,
        "mamba_n_groups": 1,
        "mamba_d_state": 10,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 16,
        "tie_word_embeddings": True,
    }
)

GRANITE_CASES = [
    case(
        "granitemoe",
        "Granite MoE: all four multipliers, 5 experts, 2 a token, softmax over the chosen logits.",
        "GraniteMoeForCausalLM",
        BASE | GRANITE_SCALES | {"intermediate_size": 14, "num_local_experts": 5, "num_experts_per_tok": 2},
        seed=3001,
        gains=ROUTER,
        public=old(),
        twins=EPS | ROPE_THETA | GRANITE_TWINS | {"top_1": {"num_experts_per_tok": 1}},
    ),
    case(
        "granitemoehybrid",
        "Granite MoE hybrid: mamba2, attention without rope, mamba2; experts plus an ungated shared MLP.",
        "GraniteMoeHybridForCausalLM",
        GRANITE_HYBRID,
        seed=3002,
        gains=ROUTER,
        values=MAMBA_VALUES,
        public=old(layer_types=["mamba", "attention", "mamba"], position_embedding_type="nope", **NO_LIMIT),
        twins=EPS | GRANITE_TWINS | {"rope": {"position_embedding_type": "rope"}},
        no_effect={"rope_theta": rope(ROPE, rope_theta=1e6)},
    ),
    case(
        "granitemoehybrid_dense",
        "Granite hybrid with num_local_experts 0 (only the shared MLP), rope on the attention layer, 2 mamba groups.",
        "GraniteMoeHybridForCausalLM",
        GRANITE_HYBRID
        | {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 42,
            "position_embedding_type": "rope",
            "mamba_n_groups": 2,
        },
        seed=3003,
        values=MAMBA_VALUES,
        twins=EPS | ROPE_THETA | GRANITE_TWINS | {"no_rope": {"position_embedding_type": None}},
    ),
]

BAMBA_CASES = [
    case(
        "bamba",
        "Bamba: mamba2 layers (2 groups) around one attention layer, rope on half of the head, dense MLP.",
        "BambaForCausalLM",
        BASE
        | {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "intermediate_size": 26,
            "attn_layer_indices": [1],
            "mamba_n_heads": 6,
            "mamba_d_head": 16,
            "mamba_expand": 3,
            "mamba_n_groups": 2,
            "mamba_d_state": 10,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 16,
        },
        seed=3101,
        values=MAMBA_VALUES,
        public=old(attn_rotary_emb=8, partial_rotary_factor=0.5, **NO_LIMIT),
        twins=EPS | ROPE_THETA,
        notes=("partial_rotary_factor is always 0.5 in transformers 5.24, whatever the file says.",),
    ),
]

NEMOTRON_H = {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "layer_norm_epsilon": 2e-3,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 10,
    "conv_kernel": 4,
    "chunk_size": 16,
    "hybrid_override_pattern": "M-*M",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

NEMOTRON_H_CASES = [
    case(
        "nemotron_h",
        "Nemotron-H, pattern M-*M: mamba2, squared relu MLP, attention without rope, mamba2; one mixer a layer.",
        "NemotronHForCausalLM",
        NEMOTRON_H,
        seed=3201,
        values=MAMBA_VALUES,
        public={"layers_block_type": DROP, "hybrid_override_pattern": "M-*M", "num_hidden_layers": 4} | NO_LIMIT,
        twins={"eps": {"layer_norm_epsilon": 1e-6}},
        notes=("The mamba width is mamba_num_heads * mamba_head_dim = 48, not expand * hidden_size = 72.",),
    ),
    case(
        "nemotron_h_moe",
        "Nemotron-H, pattern ME*E: ungated squared relu experts, sigmoid routing with correction bias and groups.",
        "NemotronHForCausalLM",
        NEMOTRON_H
        | {
            "hybrid_override_pattern": "ME*E",
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 14,
            "moe_shared_expert_intermediate_size": 22,
            "routed_scaling_factor": 2.5,
        },
        seed=3212,
        gains=GATE,
        values=MAMBA_VALUES | CORRECTION,
        twins={
            "eps": {"layer_norm_epsilon": 1e-6},
            "all_groups": {"topk_group": 3},
            "norm_topk_prob": {"norm_topk_prob": False},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    case(
        "nemotron_h_latent",
        "Nemotron-H, pattern ME* with moe_latent_size 20: the routed experts work between two projections.",
        "NemotronHForCausalLM",
        NEMOTRON_H
        | {
            "hybrid_override_pattern": "ME*",
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 14,
            "moe_shared_expert_intermediate_size": 22,
            "moe_latent_size": 20,
            "routed_scaling_factor": 1.5,
            "use_conv_bias": False,
        },
        seed=3203,
        gains=GATE,
        values=MAMBA_VALUES | CORRECTION,
        twins={"eps": {"layer_norm_epsilon": 1e-6}},
    ),
]

PHIMOE = BASE | {
    "intermediate_size": 14,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.3,
    "attention_bias": True,
    "lm_head_bias": True,
}
PHIMOE_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.1],
    "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 8,
}

PHIMOE_CASES = [
    case(
        "phimoe",
        "Phi-3.5 MoE: sparsemixer routing (two softmaxes over thresholded logits), LayerNorm, biases, head with bias.",
        "PhimoeForCausalLM",
        PHIMOE,
        seed=3311,
        gains=ROUTER,
        public=old(),
        twins=EPS | ROPE_THETA | {"jitter": {"router_jitter_noise": 0.01}, "window_8": {"sliding_window": 8}},
    ),
    case(
        "phimoe_longrope",
        "Phi-3.5 MoE with longrope, original length 8, so every run here is past it: long_mscale.",
        "PhimoeForCausalLM",
        PHIMOE | {"rope_parameters": PHIMOE_LONGROPE, "tie_word_embeddings": True, "lm_head_bias": False},
        seed=3302,
        gains=ROUTER,
        twins={
            "no_scaling": rope(ROPE),
            "long_mscale": rope(PHIMOE_LONGROPE, long_mscale=1.0),
            "short_factor": rope(PHIMOE_LONGROPE, short_factor=[1.0] * 5),
        },
        no_effect={"long_factor": rope(PHIMOE_LONGROPE, long_factor=[1.0] * 5)},
        notes=("transformers 5.24 takes long_mscale past the original length but always the short_factor list.",),
    ),
]

GEMMA4_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
}
GEMMA4 = {
    "vocab_size": 61,
    "hidden_size": 28,
    "intermediate_size": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "global_head_dim": 12,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "sliding_window": 8,
    "final_logit_softcapping": 3.0,
    "rope_parameters": GEMMA4_ROPE,
    "tie_word_embeddings": True,
}
GEMMA4_VALUES = {r"[qk]_norm": (0.7, 0.2), r"norm": (1.0, 0.3), r"layer_scalar$": (1.0, 0.3)}  # no 1 + weight here
GEMMA4_TWINS = {
    "window_9": {"sliding_window": 9},
    "no_cap": {"final_logit_softcapping": None},
    "partial": {
        "rope_parameters": GEMMA4_ROPE
        | {"full_attention": GEMMA4_ROPE["full_attention"] | {"partial_rotary_factor": 1.0}}
    },
}

GEMMA4_CASES = [
    case(
        "gemma4_text",
        "Gemma 4 E-series text: per-layer inputs, the last 3 of 6 layers share keys and values, double-wide MLP there.",
        "Gemma4ForCausalLM",
        GEMMA4
        | {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 3,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 61,
            "use_double_wide_mlp": True,
        },
        seed=3401,
        values=GEMMA4_VALUES,
        public={"per_layer_config": DROP, "global_head_dim": 12},
        twins=EPS | GEMMA4_TWINS,
    ),
    case(
        "gemma4_text_moe",
        "Gemma 4 MoE text: experts beside the MLP; keys serve as values on full layers (attention_k_eq_v).",
        "Gemma4ForCausalLM",
        GEMMA4
        | {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 10,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
        seed=3422,
        values=GEMMA4_VALUES | {r"router\.scale$": (1.0, 0.3), r"per_expert_scale$": (1.0, 0.4)},
        gains={r"router\.proj": 9.0},
        public={"per_layer_config": DROP, "global_head_dim": 12, "num_global_key_value_heads": 1},
        twins=EPS | GEMMA4_TWINS | {"top_1": {"top_k_experts": 1}},
    ),
]

GEMMA4_NESTED_CASES = [
    case(
        "gemma4",
        "Gemma4ForConditionalGeneration without towers: nested text_config, tensors under model.language_model.",
        "Gemma4ForConditionalGeneration",
        {
            "text_config": GEMMA4
            | {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 2,
                "hidden_size_per_layer_input": 6,
                "vocab_size_per_layer_input": 61,
                "use_double_wide_mlp": True,
            },
            "vision_config": None,
            "audio_config": None,
        },
        seed=3403,
        values=GEMMA4_VALUES,
    ),
]

GLM4_MOE_CASES = [
    case(
        "glm4_moe",
        "GLM-4.5: rope on half of the head, q and k norms, biases on q, k, v, routing as DeepSeek-V3, layer 0 dense.",
        "Glm4MoeForCausalLM",
        BASE
        | {
            "head_dim": 12,
            "intermediate_size": 30,
            "moe_intermediate_size": 10,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
        },
        seed=3531,
        gains=GATE,
        values=CORRECTION,
        public=old(partial_rotary_factor=0.5),
        twins=EPS
        | ROPE_THETA
        | {
            "all_groups": {"topk_group": 2},
            "norm_topk_prob": {"norm_topk_prob": False},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
]

ERNIE_CASES = [
    case(
        "ernie4_5_moe",
        "ERNIE 4.5 MoE: interleaved rope, softmax scores, correction bias for the choice only, two shared experts.",
        "Ernie4_5_MoeForCausalLM",
        BASE
        | {
            "intermediate_size": 30,
            "moe_intermediate_size": 10,
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        seed=3661,
        gains=GATE,
        values={r"e_score_correction_bias$": (0.0, 0.15)},
        twins=EPS | ROPE_THETA | {"top_2": {"moe_k": 2}},
    ),
]

HUNYUAN_CASES = [
    case(
        "hunyuan_v1_moe",
        "HunYuan MoE: q and k norms after rope, rope base raised by alpha, 5 experts, 2 a token, plus a shared MLP.",
        "HunYuanMoEV1ForCausalLM",
        BASE
        | {
            "head_dim": 12,
            "intermediate_size": 14,
            "num_experts": 5,
            "moe_topk": 2,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 5000.0, "alpha": 50.0, "factor": 1.0},
            "tie_word_embeddings": True,
        },
        seed=3701,
        gains={r"gate\.wg": 2.0},
        twins=EPS | {"no_alpha": rope(ROPE), "top_1": {"moe_topk": 1}},
    ),
]

FALCON_H1 = BASE | {
    "hidden_size": 32,
    "intermediate_size": 26,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "lm_head_multiplier": 0.8,
    "embedding_multiplier": 1.4,
    "mlp_multipliers": [0.9, 1.2],
    "key_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.1,
    "ssm_multipliers": [0.7, 1.2, 0.8, 1.1, 1.3],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.8,
}
FALCON_H1_TWINS = (
    EPS
    | ROPE_THETA
    | {key: {key: 1.0} for key in FALCON_H1 if key.endswith("_multiplier")}
    | {"mlp_multipliers": {"mlp_multipliers": [1.0, 1.0]}, "ssm_multipliers": {"ssm_multipliers": [1.0] * 5}}
)

FALCON_H1_CASES = [
    case(
        "falcon_h1",
        "Falcon-H1: attention and mamba2 side by side in every layer, all multipliers, gated norm with the gate first.",
        "FalconH1ForCausalLM",
        FALCON_H1,
        seed=3801,
        values=MAMBA_VALUES,
        public=old(**NO_LIMIT),
        twins=FALCON_H1_TWINS | {"norm_before_gate": {"mamba_norm_before_gate": True}},
    ),
    case(
        "falcon_h1_norm_first",
        "Falcon-H1 with mamba_norm_before_gate: norm in 2 groups, then the gate; biases on in_proj and out_proj.",
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_norm_before_gate": True, "mamba_proj_bias": True, "projectors_bias": True},
        seed=3802,
        values=MAMBA_VALUES,
        twins={"gate_first": {"mamba_norm_before_gate": False}},
    ),
    case(
        "falcon_h1_no_norm",
        "Falcon-H1 without the gated norm (mamba_rms_norm false): the scan times silu(gate); one group, tied.",
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_rms_norm": False, "mamba_n_groups": 1, "tie_word_embeddings": True},
        seed=3803,
        values=MAMBA_VALUES,
        twins=EPS,
    ),
]

HYBRID_CASES = [
    *MIXTRAL_CASES,
    *QWEN_MOE_CASES,
    *MAMBA2_CASES,
    *LFM2_CASES,
    *DELTA_NET_CASES,
    *QWEN3_5_CASES,
    *DEEPSEEK_CASES,
    *GPT_OSS_CASES,
    *OLMOE_CASES,
    *GRANITE_CASES,
    *BAMBA_CASES,
    *NEMOTRON_H_CASES,
    *PHIMOE_CASES,
    *GEMMA4_CASES,
    *GEMMA4_NESTED_CASES,
    *GLM4_MOE_CASES,
    *ERNIE_CASES,
    *HUNYUAN_CASES,
    *FALCON_H1_CASES,
]
