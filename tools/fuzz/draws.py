"""Random configs of every family, as keyword arguments of the config class in transformers.

A draw varies what changes the graph: sizes that fused kernels take and sizes they don't, biases, ties, windows, kinds
of layers, scalings of the rope, norms, caps, experts, mixers. Sizes stay tiny; a context is 256 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Config = dict[str, Any]

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "quick_gelu", "relu", "relu2")
#: Widths of heads: the attention kernel takes multiples of 8, and of 16 with the rope in it.
HEADS = (8, 10, 12, 14, 16, 18, 22, 24, 26, 32, 40, 44, 48, 56, 64, 80)
SCALINGS = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")


class Draw:
    """A source of random choices."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def pick(self, *options: T) -> T:
        """Return one of the options."""
        return self.random.choice(options)

    def flip(self, chance: float = 0.5) -> bool:
        """Return true with a chance."""
        return self.random.random() < chance

    def factor(self, low: float = 0.5, high: float = 1.8) -> float:
        """Return a number with three digits."""
        return round(self.random.uniform(low, high), 3)

    def act(self, usual: str = "silu", others: Sequence[str] = (*ACTIVATIONS, "silu")) -> str:
        """Return an activation, mostly the usual one."""
        return usual if self.flip(0.6) else self.random.choice(others)

    def base(self, eps: str = "rms_norm_eps") -> Config:
        """Return what every config has."""
        return {
            "vocab_size": self.pick(61, 64, 97, 130),
            "num_hidden_layers": self.pick(2, 3, 4),
            "max_position_embeddings": 256,
            eps: self.pick(1e-6, 1e-5, 2e-3, 1e-2),
            "tie_word_embeddings": self.flip(),
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }

    def heads(self, *, own_width: bool = True, grouped: bool = True) -> Config:
        """Return head counts, the hidden width, and with `own_width` a `head_dim` that need not divide it."""
        pairs = ((4, 2), (4, 1), (3, 1), (6, 2), (2, 2), (6, 3), (5, 5), (4, 4), (8, 2))
        count, kv = self.pick(*pairs)
        width = self.pick(*HEADS)
        while count * width > 256:
            width = self.pick(*HEADS)
        result: Config = {"num_attention_heads": count}
        if grouped:
            result["num_key_value_heads"] = kv
        if own_width and self.flip(0.8):
            return result | {"head_dim": width, "hidden_size": count * self.pick(6, 8, 10, 12, 16)}
        return result | {"hidden_size": count * width}

    def mlp(self) -> Config:
        """Return the MLP's width."""
        return {"intermediate_size": self.pick(24, 33, 44, 64, 70)}

    def kinds(self, layers: int, *options: str) -> list[str]:
        """Return kinds of layers."""
        return [self.pick(*options) for _ in range(layers)]

    def rope(self, width: int, *, kinds: Sequence[str] = SCALINGS, partial: Sequence[float] = ()) -> Config:
        """Return rope parameters; `partial` are the possible parts of a head of `width` that turn."""
        kind = "default" if self.flip(0.35) else self.random.choice(list(kinds))
        rope: Config = {"rope_type": kind, "rope_theta": self.pick(1e4, 5e3, 1e6, 777.0)}
        if partial:
            fitting = [f for f in partial if int(width * f) >= 2 and int(width * f) % 2 == 0]
            rope["partial_rotary_factor"] = self.random.choice(fitting or [1.0])
        turning = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
        original = self.pick(16, 32, 50, 64)
        if kind == "linear":
            rope["factor"] = self.pick(2.0, 4.0, 1.5)
        elif kind == "dynamic":
            rope["factor"] = self.pick(2.0, 4.0)
        elif kind == "llama3":
            low, high = self.pick((1.0, 4.0), (1.0, 2.0), (0.5, 8.0))
            rope |= {"factor": self.pick(3.0, 8.0), "original_max_position_embeddings": original}
            rope |= {"low_freq_factor": low, "high_freq_factor": high}
        elif kind == "yarn":
            rope |= {"factor": self.pick(2.0, 4.0, 16.0), "original_max_position_embeddings": original}
            if self.flip():
                rope |= {"beta_fast": self.pick(32.0, 8.0), "beta_slow": self.pick(1.0, 2.0)}
            if self.flip(0.3):
                rope |= {"mscale": self.pick(1.0, 0.7), "mscale_all_dim": self.pick(1.0, 0.5, 0.0)}
            if self.flip(0.2):
                rope["attention_factor"] = self.factor()
            if self.flip(0.2):
                rope["truncate"] = False
        elif kind == "longrope":
            rope |= {"original_max_position_embeddings": self.pick(24, 128)}
            rope |= {name: [self.factor(1, 5) for _ in range(turning)] for name in ("short_factor", "long_factor")}
            if self.flip(0.7):
                rope["factor"] = self.pick(4.0, 8.0)
            if self.flip(0.2):
                rope["attention_factor"] = self.factor()
        return {"rope_parameters": rope}


def width(config: Config) -> int:
    """Return the width of a head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def usual(d: Draw, *, own_width: bool = True, eps: str = "rms_norm_eps", kinds: Sequence[str] = SCALINGS) -> Config:
    """Return what Llama-like families have."""
    config = d.base(eps) | d.heads(own_width=own_width) | d.mlp() | {"hidden_act": d.act()}
    return config | d.rope(width(config), kinds=kinds)


def without(config: Config, *keys: str) -> Config:
    """Return a config without keys."""
    return {key: value for key, value in config.items() if key not in keys}


def biases(d: Draw, *keys: str) -> Config:
    """Return switches."""
    return {key: d.flip() for key in keys}


def window(d: Draw) -> int:
    """Return a window."""
    return d.pick(3, 8, 9, 16, 33, 200)


def llama(d: Draw) -> Config:
    return usual(d) | biases(d, "attention_bias", "mlp_bias")


def mistral(d: Draw) -> Config:
    return usual(d) | {"sliding_window": d.pick(None, window(d))}


def ministral(d: Draw) -> Config:
    config = usual(d) | {"sliding_window": window(d)}
    config["head_dim"] = width(config)  # transformers 5.24 fails where it is absent
    return config | ({"layer_types": d.kinds(config["num_hidden_layers"], FULL, SLIDING)} if d.flip(0.8) else {})


def ministral3(d: Draw) -> Config:
    config = usual(d, kinds=("yarn",))
    rope = config["rope_parameters"]
    rope |= {"rope_type": "yarn", "factor": rope.get("factor", 4.0), "original_max_position_embeddings": d.pick(16, 24)}
    rope["llama_4_scaling_beta"] = d.pick(0.1, 0.3)
    return config | {"sliding_window": d.pick(None, None, window(d))}


def qwen2(d: Draw, *, own_width: bool = False) -> Config:
    config = usual(d, own_width=own_width)
    layers = config["num_hidden_layers"]
    config |= {"use_sliding_window": d.flip(), "sliding_window": window(d), "max_window_layers": d.pick(0, 1, 2)}
    if config["use_sliding_window"] and d.flip(0.4):
        config["layer_types"] = d.kinds(layers, FULL, SLIDING)
    return config


def qwen3(d: Draw) -> Config:
    config = qwen2(d, own_width=True) | biases(d, "attention_bias")
    return {"head_dim": width(config)} | config


def smollm3(d: Draw) -> Config:
    config = usual(d, own_width=False) | biases(d, "attention_bias", "mlp_bias")
    layers = config["num_hidden_layers"]
    if d.flip():
        config["no_rope_layers"] = [d.pick(0, 1) for _ in range(layers)]
    else:
        config["no_rope_layer_interval"] = d.pick(1, 2, 3, 4)
    if d.flip():
        config |= {"use_sliding_window": True, "sliding_window": window(d)}
        if d.flip(0.4):
            config["layer_types"] = d.kinds(layers, FULL, SLIDING)
    return config


def gemma(d: Draw) -> Config:
    config = usual(d) | biases(d, "attention_bias") | {"hidden_act": d.pick("gelu", "gelu_pytorch_tanh", "silu")}
    return {"head_dim": width(config)} | config


def gemma2(d: Draw) -> Config:
    config = without(usual(d), "hidden_act") | biases(d, "attention_bias")
    config |= {"head_dim": width(config), "hidden_activation": d.act("gelu_pytorch_tanh")}
    config |= {"query_pre_attn_scalar": d.pick(7, 16, 40), "sliding_window": window(d)}
    config |= {"attn_logit_softcapping": d.pick(None, 1.5, 20.0), "final_logit_softcapping": d.pick(None, 3.0, 30.0)}
    return config | ({"layer_types": d.kinds(config["num_hidden_layers"], FULL, SLIDING)} if d.flip(0.4) else {})


def gemma3_text(d: Draw) -> Config:
    config = without(gemma2(d), "attn_logit_softcapping", "rope_parameters")
    full = d.rope(width(config))["rope_parameters"]
    local = {"rope_type": "default", "rope_theta": d.pick(1e4, 300.0)}
    return config | {"rope_parameters": {FULL: full, SLIDING: local}}


def gemma4_text(d: Draw) -> Config:
    config = without(d.base() | d.heads() | d.mlp(), "hidden_act")
    layers = config["num_hidden_layers"] = d.pick(2, 3, 4, 6)
    config |= {"head_dim": width(config), "hidden_activation": d.act("gelu_pytorch_tanh"), "sliding_window": window(d)}
    config |= {"global_head_dim": d.pick(12, 16, 24, 32, 64), "final_logit_softcapping": d.pick(None, 3.0)}
    kinds = [*d.kinds(layers - 1, FULL, SLIDING), FULL]
    config |= {"layer_types": kinds, **biases(d, "attention_bias")}
    shared = d.pick(*(n for n in range(layers) if n == 0 or set(kinds[layers - n :]) <= set(kinds[: layers - n])))
    config |= {"num_kv_shared_layers": shared, "use_double_wide_mlp": d.flip()}
    own = d.pick(6, 8) if shared else d.pick(0, 6, 8)  # transformers 5.24 fails on shared caches alone
    config |= {"hidden_size_per_layer_input": own, "vocab_size_per_layer_input": config["vocab_size"]}
    if d.flip(0.4):
        config |= {"enable_moe_block": True, "num_experts": 5, "top_k_experts": d.pick(1, 2, 3)}
        config["moe_intermediate_size"] = d.pick(10, 16)
    if d.flip(0.4):
        config |= {"attention_k_eq_v": True, "num_global_key_value_heads": d.pick(None, 1)}
    full: Config = {"rope_type": "proportional", "partial_rotary_factor": d.pick(0.25, 0.5, 1.0), "rope_theta": 1e6}
    if d.flip(0.3):
        full["factor"] = 8.0
    local = {"rope_type": "default", "rope_theta": d.pick(1e4, 300.0)}
    return config | {"rope_parameters": {FULL: full, SLIDING: local}}


def phi(d: Draw) -> Config:
    config = usual(d, own_width=False, eps="layer_norm_eps") | {"hidden_act": d.act("gelu_new")}
    parts = d.rope(width(config), partial=(0.25, 0.4, 0.5, 1.0))
    return config | parts | biases(d, "qk_layernorm")


def phi3(d: Draw) -> Config:
    config = usual(d, own_width=False)
    parts = d.rope(width(config), kinds=("default", "longrope"), partial=(0.5, 0.75, 1.0))
    original = parts["rope_parameters"].get("original_max_position_embeddings", 256)
    return config | parts | {"sliding_window": d.pick(None, window(d)), "original_max_position_embeddings": original}


def stablelm(d: Draw) -> Config:
    config = usual(d, own_width=False, eps="layer_norm_eps")
    parts = d.rope(width(config), partial=(0.25, 0.5, 1.0))
    return config | parts | biases(d, "use_qkv_bias", "qk_layernorm", "use_parallel_residual")


def starcoder2(d: Draw) -> Config:
    config = usual(d, own_width=False, eps="norm_epsilon") | {"hidden_act": d.act("gelu_pytorch_tanh")}
    return config | biases(d, "use_bias") | {"sliding_window": d.pick(None, window(d))}


def olmo(d: Draw) -> Config:
    config = without(usual(d, own_width=False), "rms_norm_eps")
    return config | biases(d, "attention_bias") | {"clip_qkv": d.pick(None, 0.8, 2.0)}


def olmo2(d: Draw) -> Config:
    return usual(d) | biases(d, "attention_bias")


def olmo3(d: Draw) -> Config:
    config = olmo2(d) | {"sliding_window": window(d)}
    full = config.pop("rope_parameters") | {"rope_theta": d.pick(5e5, 5e5, 777.0)}
    local = {"rope_type": "default", "rope_theta": d.pick(1e4, 5e5)}
    kinds = {"layer_types": d.kinds(config["num_hidden_layers"], FULL, SLIDING)} if d.flip(0.7) else {}
    return config | kinds | {"rope_parameters": {FULL: full, SLIDING: local}}


def granite(d: Draw) -> Config:
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    config = llama(d) | {name: d.factor() for name in names}
    return config | {"attention_multiplier": round(d.factor() * width(config) ** -0.5, 4)}


def cohere(d: Draw) -> Config:
    config = usual(d, own_width=False, eps="layer_norm_eps") | biases(d, "attention_bias", "use_qk_norm")
    return config | {"logit_scale": d.factor()}


def cohere2(d: Draw) -> Config:
    config = without(cohere(d), "use_qk_norm") | {"sliding_window": window(d)}
    if d.flip(0.4):
        return config | {"sliding_window_pattern": d.pick(2, 3)}
    return config | {"layer_types": d.kinds(config["num_hidden_layers"], FULL, SLIDING)}


def glm(d: Draw) -> Config:
    config = usual(d) | biases(d, "attention_bias")
    return config | {"head_dim": width(config)} | d.rope(width(config), partial=(0.5, 0.25, 1.0))


def gpt2(d: Draw) -> Config:
    count, size = d.pick(2, 3, 4), d.pick(*HEADS[:10])
    return {
        "vocab_size": d.pick(61, 97),
        "n_positions": 128,
        "n_embd": count * size,
        "n_layer": d.pick(2, 3),
        "n_head": count,
        "n_inner": d.pick(None, 50),
        "activation_function": d.act("gelu_new"),
        "layer_norm_epsilon": d.pick(1e-5, 2e-3),
        "tie_word_embeddings": d.flip(0.8),
        "bos_token_id": 1,
        "eos_token_id": 2,
        **biases(d, "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
    }


def gpt_neox(d: Draw) -> Config:
    config = d.base("layer_norm_eps") | d.heads(own_width=False, grouped=False) | d.mlp()
    config |= {"hidden_act": d.act("gelu"), **biases(d, "attention_bias", "use_parallel_residual")}
    return config | d.rope(width(config), partial=(0.25, 0.5, 1.0))


def opt(d: Draw) -> Config:
    config = without(d.base("unused"), "unused") | d.heads(own_width=False, grouped=False)
    config |= {"ffn_dim": d.pick(33, 48), "activation_function": d.act("relu"), "max_position_embeddings": 128}
    config |= {"word_embed_proj_dim": d.pick(config["hidden_size"], 20), "do_layer_norm_before": d.flip(0.7)}
    return config | {"enable_bias": d.flip(0.7), "layer_norm_elementwise_affine": d.flip(0.7)}


def falcon(d: Draw) -> Config:
    config = d.base("layer_norm_epsilon") | d.heads(own_width=False)
    kv = config.pop("num_key_value_heads")
    config |= {"ffn_hidden_size": d.pick(None, 50), "activation": d.act("gelu"), "bias": d.flip(), "alibi": d.flip(0.4)}
    if d.flip():
        config |= {"new_decoder_architecture": True, "num_kv_heads": kv, "parallel_attn": True}
        config |= {"num_ln_in_parallel_attn": d.pick(None, 1, 2)}
    else:
        config |= {"new_decoder_architecture": False, **biases(d, "multi_query", "parallel_attn")}
    return config if config["alibi"] else config | d.rope(width(config))


def nemotron(d: Draw) -> Config:
    config = usual(d, eps="norm_eps") | {"hidden_act": d.act("relu2")}
    return config | d.rope(width(config), partial=(0.5, 0.25, 1.0)) | biases(d, "attention_bias", "mlp_bias")


def exaone4(d: Draw) -> Config:
    config = usual(d)
    layers = config["num_hidden_layers"]
    if d.flip(0.3):
        return config | {"sliding_window": None, "layer_types": [FULL] * layers}
    config |= {"sliding_window": window(d)}
    if d.flip(0.4):
        return config | {"sliding_window_pattern": d.pick(2, 3, 4)}
    return config | {"layer_types": d.kinds(layers, FULL, SLIDING)}


def ernie4_5(d: Draw) -> Config:
    config = usual(d) | biases(d, "use_bias")
    return {"head_dim": width(config)} | config


def hunyuan_v1_dense(d: Draw) -> Config:
    config = usual(d) | biases(d, "attention_bias")
    config["head_dim"] = width(config)  # transformers 5.24 fails where it is absent
    if d.flip(0.4):
        config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
    return config


def apertus(d: Draw) -> Config:
    return usual(d) | {"hidden_act": d.pick("xielu", "xielu", "relu2", "silu")} | biases(d, "attention_bias")


def arcee(d: Draw) -> Config:
    return llama(d) | {"hidden_act": d.act("relu2")}


def helium(d: Draw) -> Config:
    config = llama(d)
    config["hidden_size"] = config["num_attention_heads"] * width(config)  # o_proj is square
    return config | {"head_dim": config["hidden_size"] // config["num_attention_heads"]}


def seed_oss(d: Draw) -> Config:
    config = usual(d) | biases(d, "attention_bias", "attention_out_bias", "mlp_bias")
    return {"head_dim": width(config)} | config


def mamba2(d: Draw) -> Config:
    groups, share, size = d.pick(1, 2, 3), d.pick(1, 2, 4), d.pick(6, 8, 12, 16)
    inner = groups * share * size
    expand = d.pick(1, 2) if inner % 2 == 0 else 1
    return {
        "vocab_size": d.pick(61, 97),
        "hidden_size": inner // expand,
        "num_hidden_layers": d.pick(2, 3),
        "expand": expand,
        "num_heads": groups * share,
        "head_dim": size,
        "state_size": d.pick(5, 10, 16),
        "n_groups": groups,
        "conv_kernel": d.pick(2, 3, 4),
        "chunk_size": d.pick(8, 16, 256),
        "layer_norm_epsilon": d.pick(1e-5, 2e-3),
        "tie_word_embeddings": d.flip(),
        "time_step_limit": d.pick((0.0, float("inf")), (0.0, float("inf")), (0.2, 0.6)),
        **biases(d, "use_bias", "use_conv_bias"),
    }


def mamba_keys(d: Draw, hidden: int) -> Config:
    """Return the keys of Mamba-2 mixers beside attention."""
    expand = d.pick(1, 2, 3)
    divisors = [n for n in (2, 3, 4, 6, 8) if expand * hidden % n == 0]
    count = d.pick(*(divisors or [1]))
    return {
        "mamba_expand": expand,
        "mamba_n_heads": count,
        "mamba_d_head": d.pick("auto", expand * hidden // count),
        "mamba_n_groups": d.pick(*(n for n in (1, 2, 3, 4) if count % n == 0)),
        "mamba_d_state": d.pick(6, 10, 16),
        "mamba_d_conv": d.pick(2, 3, 4),
        "mamba_chunk_size": d.pick(8, 16, 256),
        **biases(d, "mamba_conv_bias", "mamba_proj_bias"),
    }


def bamba(d: Draw) -> Config:
    config = without(usual(d, own_width=False), "hidden_act") | biases(d, "mlp_bias", "attention_bias")
    while width(config) % 4:  # half of a head turns
        config |= d.heads(own_width=False)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": d.pick(1e4, 777.0)}
    layers = range(config["num_hidden_layers"])
    return config | mamba_keys(d, config["hidden_size"]) | {"attn_layer_indices": [i for i in layers if d.flip()]}


def falcon_h1(d: Draw) -> Config:
    config = without(usual(d, own_width=d.flip(), kinds=SCALINGS), "hidden_act")
    config |= mamba_keys(d, config["hidden_size"]) | biases(d, "attention_bias", "mlp_bias", "projectors_bias")
    inner = config["mamba_expand"] * config["hidden_size"]
    config |= {"mamba_d_ssm": inner, "mamba_d_head": inner // config["mamba_n_heads"]}
    if d.flip(0.4):
        config |= {"mamba_d_ssm": config["mamba_n_heads"] * 8, "mamba_d_head": 8}
    config |= biases(d, "mamba_rms_norm", "mamba_norm_before_gate")
    names = ["embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"]
    config |= {f"{name}_multiplier": d.factor() for name in names}
    return config | {
        "ssm_multipliers": d.pick(None, [d.factor() for _ in range(5)]),
        "mlp_multipliers": d.pick(None, [d.factor(), d.factor()]),
    }


def lfm2(d: Draw) -> Config:
    config = without(usual(d, own_width=False, eps="norm_eps"), "hidden_act")
    config |= {"conv_L_cache": d.pick(2, 3, 4), "conv_bias": d.flip(), "block_auto_adjust_ff_dim": d.flip()}
    config |= {"block_multiple_of": d.pick(4, 16), "block_ffn_dim_multiplier": d.pick(1.0, 1.3)}
    kinds = d.kinds(config["num_hidden_layers"], "conv", FULL)
    if d.flip(0.3):
        return config | {"full_attn_idxs": [i for i, kind in enumerate(kinds) if kind == FULL]}
    return config | {"layer_types": kinds}


def lfm2_moe(d: Draw) -> Config:
    config = without(usual(d, own_width=False, eps="norm_eps"), "hidden_act")
    config |= {"conv_L_cache": d.pick(2, 3, 4), "conv_bias": d.flip(), "num_dense_layers": d.pick(0, 1)}
    config |= {"moe_intermediate_size": d.pick(10, 16), "num_experts": 6, "num_experts_per_tok": d.pick(1, 2, 3)}
    config |= {"routed_scaling_factor": d.factor(), **biases(d, "use_expert_bias", "norm_topk_prob")}
    return config | {"layer_types": d.kinds(config["num_hidden_layers"], "conv", FULL)}


def nemotron_h(d: Draw) -> Config:
    config = without(d.base("layer_norm_epsilon") | d.heads() | d.mlp(), "num_hidden_layers")
    config |= {"head_dim": width(config)}
    groups = d.pick(1, 2, 3)
    config |= {"n_groups": groups, "mamba_num_heads": groups * d.pick(1, 2), "mamba_head_dim": d.pick(6, 8, 16)}
    config |= {"ssm_state_size": d.pick(6, 10), "conv_kernel": d.pick(2, 3, 4), "chunk_size": d.pick(8, 16)}
    config["tie_word_embeddings"] = False  # transformers never ties it
    letters = d.pick("M*-", "ME*E", "M-*-M", "*EM")
    config |= {"hybrid_override_pattern": letters, "mlp_hidden_act": d.act("relu2")}
    config |= biases(d, "use_bias", "mlp_bias", "use_conv_bias")
    many, few = d.pick((1, 1), (2, 1), (3, 2))
    config |= {"n_routed_experts": 6, "n_group": many, "topk_group": few, "num_experts_per_tok": d.pick(1, 2, 3)}
    config |= {"moe_intermediate_size": 14, "moe_shared_expert_intermediate_size": d.pick(22, 16)}
    config |= {"moe_latent_size": d.pick(None, 20), "norm_topk_prob": d.flip(), "routed_scaling_factor": d.factor()}
    return config


def granitemoe(d: Draw) -> Config:
    config = without(granite(d), "mlp_bias", "head_dim")
    return config | d.rope(width(config)) | {"num_local_experts": 5, "num_experts_per_tok": d.pick(1, 2, 3)}


def granitemoehybrid(d: Draw) -> Config:
    config = without(granite(d), "mlp_bias", "head_dim", "hidden_act")
    config |= mamba_keys(d, config["hidden_size"]) | d.rope(width(config), kinds=SCALINGS[:2])
    config |= {"layer_types": d.kinds(config["num_hidden_layers"], "mamba", "attention")}
    config |= {"position_embedding_type": d.pick(None, "rope", "nope"), "shared_intermediate_size": d.pick(18, 32)}
    experts = d.pick(0, 5)
    return config | {"num_local_experts": experts, "num_experts_per_tok": min(experts, d.pick(1, 2, 3))}


def delta(d: Draw) -> Config:
    """Return what families with gated delta nets share."""
    config = without(usual(d), "hidden_act") | biases(d, "attention_bias")
    config |= {"head_dim": width(config)} | d.rope(width(config), kinds=SCALINGS[:4], partial=(0.25, 0.5, 1.0))
    keys, share = d.pick(1, 2, 3), d.pick(1, 2, 3)
    config |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * share}
    config |= {"linear_key_head_dim": d.pick(6, 8, 10, 16), "linear_value_head_dim": d.pick(6, 8, 10, 16)}
    config |= {"linear_conv_kernel_dim": d.pick(2, 3, 4)}
    if d.flip(0.3):
        return config | {"full_attention_interval": d.pick(2, 3)}
    return config | {"layer_types": [*d.kinds(config["num_hidden_layers"] - 1, LINEAR, FULL), d.pick(LINEAR, FULL)]}


def sparse(d: Draw) -> Config:
    """Return Qwen's keys about experts."""
    return {
        "moe_intermediate_size": d.pick(10, 16),
        "num_experts": d.pick(4, 6),
        "num_experts_per_tok": d.pick(1, 2, 3),
        "norm_topk_prob": d.flip(),
        "decoder_sparse_step": d.pick(1, 1, 2),
        "mlp_only_layers": d.pick([], [1], [0]),
    }


def qwen3_5_text(d: Draw) -> Config:
    return delta(d)


def qwen3_next(d: Draw) -> Config:
    return delta(d) | sparse(d) | {"shared_expert_intermediate_size": d.pick(14, 20)}


def qwen3_5_moe_text(d: Draw) -> Config:
    return delta(d) | {
        key: value
        for key, value in (sparse(d) | {"shared_expert_intermediate_size": d.pick(14, 20)}).items()
        if key not in ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
    }


def mixtral(d: Draw) -> Config:
    config = mistral(d) | {"num_local_experts": d.pick(4, 5), "num_experts_per_tok": d.pick(1, 2, 3)}
    return {"head_dim": width(config)} | config


def qwen2_moe(d: Draw) -> Config:
    return qwen2(d) | sparse(d) | {"shared_expert_intermediate_size": d.pick(14, 20), "qkv_bias": d.flip()}


def qwen3_moe(d: Draw) -> Config:
    config = usual(d) | sparse(d) | biases(d, "attention_bias", "use_sliding_window")
    return {"head_dim": width(config)} | config | {"sliding_window": window(d)}


def olmoe(d: Draw) -> Config:
    config = usual(d, own_width=False) | biases(d, "attention_bias", "norm_topk_prob")
    return config | {"num_experts": 6, "num_experts_per_tok": d.pick(1, 2, 3), "clip_qkv": d.pick(None, 0.8, 2.0)}


def phimoe(d: Draw) -> Config:
    config = usual(d, own_width=False, kinds=("default",)) | biases(d, "attention_bias", "lm_head_bias")
    config |= {"num_local_experts": d.pick(4, 5), "router_jitter_noise": d.pick(0.01, 0.3)}
    config |= {"sliding_window": d.pick(None, window(d)), "num_experts_per_tok": 2}
    if d.flip(0.4):
        half = width(config) // 2
        config["rope_parameters"] |= {"rope_type": "longrope", "original_max_position_embeddings": d.pick(24, 128)}
        lists = {name: [d.factor(1, 5) for _ in range(half)] for name in ("short_factor", "long_factor")}
        config["rope_parameters"] |= lists | {"short_mscale": d.factor(), "long_mscale": d.factor()}
    return config


def gpt_oss(d: Draw) -> Config:
    config = without(usual(d), "hidden_act") | biases(d, "attention_bias") | {"sliding_window": window(d)}
    config |= {"head_dim": width(config), "num_local_experts": 5, "num_experts_per_tok": d.pick(1, 2, 3)}
    config |= {"swiglu_limit": d.pick(1.2, 7.0)}
    return config | ({"layer_types": d.kinds(config["num_hidden_layers"], FULL, SLIDING)} if d.flip() else {})


def latent(d: Draw) -> Config:
    """Return what DeepSeek's families share."""
    count = d.pick(2, 3, 4)
    config = d.base() | d.mlp() | {"num_attention_heads": count, "num_key_value_heads": count}
    many, few = d.pick((1, 1), (2, 1), (3, 2))
    turning = d.pick(4, 6, 8, 16)
    config |= {"hidden_size": d.pick(32, 40, 48), "qk_rope_head_dim": turning, "qk_nope_head_dim": d.pick(8, 10, 16)}
    config |= {"v_head_dim": d.pick(8, 12, 16, 24), "kv_lora_rank": d.pick(14, 16), "q_lora_rank": d.pick(None, 18)}
    config |= {"moe_intermediate_size": d.pick(8, 12), "n_routed_experts": 6, "n_shared_experts": d.pick(1, 2)}
    config |= {"num_experts_per_tok": d.pick(1, 2, 3), "first_k_dense_replace": d.pick(0, 1), "n_group": many}
    config |= {"topk_group": few, "routed_scaling_factor": d.factor(), "attention_bias": d.flip()}
    return config | d.rope(turning, kinds=("default", "yarn", "linear"))


def deepseek_v2(d: Draw) -> Config:
    config = latent(d)
    return config | {"topk_method": d.pick("greedy", "group_limited_greedy")}


def deepseek_v3(d: Draw) -> Config:
    return latent(d) | biases(d, "norm_topk_prob", "rope_interleave")


def glm4_moe(d: Draw) -> Config:
    config = usual(d) | biases(d, "attention_bias", "use_qk_norm", "norm_topk_prob")
    config |= d.rope(width(config), partial=(0.5, 1.0))
    many, few = d.pick((1, 1), (2, 1), (3, 2))
    config |= {"moe_intermediate_size": 10, "n_routed_experts": 6, "num_experts_per_tok": d.pick(1, 2, 3)}
    config |= {"n_shared_experts": d.pick(1, 2), "n_group": many, "topk_group": few}
    return config | {"routed_scaling_factor": d.factor(), "first_k_dense_replace": d.pick(0, 1)}


def ernie4_5_moe(d: Draw) -> Config:
    config = usual(d, own_width=False) | biases(d, "use_bias")
    config |= {"moe_intermediate_size": 10, "moe_num_experts": 6, "moe_k": d.pick(1, 2, 3)}
    return config | {"moe_num_shared_experts": d.pick(1, 2), "moe_layer_start_index": d.pick(0, 1)}


def hunyuan_v1_moe(d: Draw) -> Config:
    return hunyuan_v1_dense(d) | {"num_experts": 5, "moe_topk": d.pick(1, 2, 3)}


def wrapped(text: Config, **around: Any) -> Config:
    """Return the config of a model with images around a text model's; the ids of images lie outside the vocabulary."""
    ids = {"image_token_id": 900, "video_token_id": 901, "vision_start_token_id": 902, "vision_end_token_id": 903}
    return {"text_config": text, "tie_word_embeddings": text["tie_word_embeddings"], **ids, **around}


def gemma3(d: Draw) -> Config:
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**sizes, "image_size": 8, "patch_size": 4}
    ids = {"image_token_index": 900, "boi_token_index": 901, "eoi_token_index": 902}
    text = gemma3_text(d) | {"final_logit_softcapping": None}  # never applied here
    return {"text_config": text, "tie_word_embeddings": text["tie_word_embeddings"], "vision_config": vision, **ids}


def gemma4(d: Draw) -> Config:
    text = gemma4_text(d)
    tie = {"tie_word_embeddings": text["tie_word_embeddings"]}
    return {"text_config": text, "vision_config": None, "audio_config": None, **tie}


def _vision(text: Config) -> Config:
    sizes = {"depth": 1, "hidden_size": 8, "intermediate_size": 12, "num_heads": 2, "patch_size": 4}
    return {**sizes, "temporal_patch_size": 2, "out_hidden_size": text["hidden_size"], "num_position_embeddings": 16}


def _mrope(d: Draw, text: Config) -> Config:
    """Return a text config whose rope's turning part is shared by time, height and width."""
    pairs = int(width(text) * text["rope_parameters"].get("partial_rotary_factor", 1.0)) // 2
    rest = pairs // 3
    section = [pairs - 2 * rest, rest, rest]
    rope = {**text["rope_parameters"], "mrope_section": section, "mrope_interleaved": True}
    return {**text, "rope_parameters": rope} if d.flip(0.8) else text


def qwen3_5(d: Draw) -> Config:
    text = _mrope(d, qwen3_5_text(d))
    return wrapped(text, vision_config=_vision(text))


def qwen3_5_moe(d: Draw) -> Config:
    text = _mrope(d, qwen3_5_moe_text(d))
    return wrapped(text, vision_config=_vision(text))


#: The draw of each `model_type`.
DRAWS: dict[str, Callable[[Draw], Config]] = {
    draw.__name__: draw
    for draw in (
        apertus,
        arcee,
        bamba,
        cohere,
        cohere2,
        deepseek_v2,
        deepseek_v3,
        ernie4_5,
        ernie4_5_moe,
        exaone4,
        falcon,
        falcon_h1,
        gemma,
        gemma2,
        gemma3,
        gemma3_text,
        gemma4,
        gemma4_text,
        glm,
        glm4_moe,
        gpt2,
        gpt_neox,
        gpt_oss,
        granite,
        granitemoe,
        granitemoehybrid,
        helium,
        hunyuan_v1_dense,
        hunyuan_v1_moe,
        lfm2,
        lfm2_moe,
        llama,
        mamba2,
        ministral,
        ministral3,
        mistral,
        mixtral,
        nemotron,
        nemotron_h,
        olmo,
        olmo2,
        olmo3,
        olmoe,
        opt,
        phi,
        phi3,
        phimoe,
        qwen2,
        qwen2_moe,
        qwen3,
        qwen3_5,
        qwen3_5_moe,
        qwen3_5_moe_text,
        qwen3_5_text,
        qwen3_moe,
        qwen3_next,
        seed_oss,
        smollm3,
        stablelm,
        starcoder2,
    )
} | {"glm4": glm}
