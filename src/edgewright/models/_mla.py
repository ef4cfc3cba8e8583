"""What DeepSeek's families share about their latent attention: the config's keys and the cut of the projections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Rule, Split, grouped_spans
from edgewright.nn import RopeTable
from edgewright.nn.mla import LatentAttention


@dataclass(frozen=True, kw_only=True)
class LatentConfig(DecoderConfig):
    """Sizes of the latent attention; `head_dim` and `qk_head_dim` only repeat what others say."""

    q_lora_rank: int | None = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    qk_head_dim: int | None = None
    attention_bias: bool = False

    @property
    def head_size(self) -> int:
        """Width of a query and a key of a head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def rotary_dim(self) -> int:
        """Width of the rotary part."""
        return self.qk_rope_head_dim

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = super().problems()
        if self.kv_heads != self.num_attention_heads:
            found.append(f"num_key_value_heads is {self.kv_heads} beside {self.num_attention_heads} heads")
        for key, value, needed in (
            ("head_dim", self.head_dim, self.qk_rope_head_dim),
            ("qk_head_dim", self.qk_head_dim, self.head_size),
        ):
            if value not in (None, needed):
                found.append(f"{key} is {value} where the other widths make it {needed}")
        return found

    def attention(self, rope: RopeTable, *, interleaved: bool) -> LatentAttention:
        """Return the attention of a layer; yarn's `mscale_all_dim` counts for the scores, too."""
        scale = self.head_size**-0.5
        weight = (self.rope_scaling or {}).get("mscale_all_dim")
        factor = (self.rope_scaling or {}).get("factor", 1)
        if weight and factor > 1:
            scale *= (0.1 * weight * math.log(factor) + 1) ** 2
        return LatentAttention(
            self.hidden_size,
            heads=self.num_attention_heads,
            q_rank=self.q_lora_rank,
            kv_rank=self.kv_lora_rank,
            plain_dim=self.qk_nope_head_dim,
            value_dim=self.v_head_dim,
            rope=rope,
            scale=scale,
            bias=self.attention_bias,
            interleaved=interleaved,
        )


def latent_rules(config: LatentConfig) -> Sequence[Rule]:
    """Put the rotary part of a head's query in front, and cut keys from values, head by head."""
    heads, plain = config.num_attention_heads, config.qk_nope_head_dim
    query = grouped_spans(heads, {"plain": plain, "rotary": config.qk_rope_head_dim})
    turned = [span for pair in zip(query["rotary"], query["plain"], strict=True) for span in pair]
    pair = grouped_spans(heads, {"k": plain, "v": config.v_head_dim})
    return (
        Split(r"(.*\.self_attn\.q(?:_b)?_proj\.weight)", {r"\1": turned}),
        Split(r"(.*\.self_attn\.)kv_b_proj\.weight", {rf"\1{name}_b_proj.weight": runs for name, runs in pair.items()}),
    )
