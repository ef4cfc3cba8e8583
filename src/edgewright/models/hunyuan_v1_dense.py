"""Hunyuan dense: Llama with norms on each head's q and k behind the rope, whose base `alpha` may raise."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig, because

#: What else stands in a `rope_scaling` with `alpha`. It counts for nothing there, so only published values are taken.
_BESIDE_ALPHA: dict[str, tuple[Any, ...]] = {
    "rope_type": ("dynamic",),
    "factor": (1,),
    "beta_fast": (32,),
    "beta_slow": (1,),
    "mscale": (1,),
    "mscale_all_dim": (0, 1),
}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`HunYuanDenseV1Config`."""

    rms_norm_eps: float = 1e-5
    attention_bias: bool = False

    aliases: typing.ClassVar[Mapping[str, str]] = {"attention_head_dim": "head_dim"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "add_classification_head": False,
        "mlp_bias": False,
        "norm_type": "rms",
        "use_cla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **because("classification heads", "class_num dense_list pool_type"),
        **because("token ids, used by the runtime from the sidecars", "eod_token_id pad_id"),
        **because("the vocabulary before it was padded", "org_vocab_size"),
        **because(
            "token ids of multimodal models",
            "im_start_id im_end_id im_newline_id text_start_id text_end_id mask_init_id",
        ),
        **because("use_cla is false", "cla_share_factor"),
    }

    def problems(self) -> list[str]:
        found = super().problems()
        scaling = self.rope_scaling or {}
        if "alpha" in scaling:
            alpha = scaling["alpha"]
            if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha <= 0:
                found.append(f"rope_scaling has alpha = {alpha!r} where a positive number is needed")
            found += [
                f"rope_scaling has {key} = {value!r} beside alpha"
                for key, value in scaling.items()
                if key != "alpha" and value not in _BESIDE_ALPHA.get(key, ())
            ]
        return found

    def rope(self, max_context: int, *, name: str = "rope") -> nn.RopeTable:
        """Return the rope table; `alpha` raises the base by alpha^(d / (d - 2)) and replaces any other scaling."""
        alpha = (self.rope_scaling or {}).get("alpha")
        if alpha is None:
            return super().rope(max_context, name=name)
        width = self.head_size
        return nn.RopeTable(name, max_context, width, self.rope_theta * alpha ** (width / (width - 2)))


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    return of_mlps(config, max_context, [None] * config.num_hidden_layers)


def of_mlps(config: Config, max_context: int, mlps: Sequence[nn.Module | None]) -> nn.CausalLM:
    """Return the network whose layers have these MLPs, None for the usual one."""
    rope = config.rope(max_context)
    bias, width, epsilon = config.attention_bias, config.head_size, config.rms_norm_eps

    def head_norm(heads: int) -> nn.RMSNorm:
        return nn.RMSNorm(heads * width, epsilon, group=width)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=mlp,
            qkv_bias=bias,
            out_bias=bias,
            norms=(
                ("query_layernorm", head_norm(config.num_attention_heads)),
                ("key_layernorm", head_norm(config.kv_heads)),
            ),
            norm_after_rope=True,
        )
        for mlp in mlps
    ]
    return nn.causal_lm(config, layers)
