"""Gemma 4 text: Gemma 3 with plain norm weights, wider heads on full layers, upper layers that read lower ones' caches,
and by size either an input of each layer's own or experts beside the MLP.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from edgewright import nn
from edgewright.errors import ConfigError
from edgewright.models._config import DecoderConfig, layer_windows
from edgewright.models._gemma4 import Attention, Decoder, Layer
from edgewright.models._rules import Drop, Rename, Reshape, Rule, grouped_spans, split

_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPE = {
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Gemma4TextConfig`. Heads of full layers are `global_head_dim` wide; newer files have `per_layer_config`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    global_head_dim: int | None = None
    num_global_key_value_heads: int | None = None
    per_layer_config: Mapping[str, Any] | None = None
    max_position_embeddings: int = 131072
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    rope_theta: float = 1000000.0
    rope_local_base_freq: float = 10000.0
    partial_rotary_factor: float = 1.0
    attention_bias: bool = False
    attention_k_eq_v: bool = False
    sliding_window: int = 512
    layer_types: list[str] | None = None
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    hidden_size_per_layer_input: int | None = 256
    vocab_size_per_layer_input: int = 262144
    enable_moe_block: bool = False
    num_experts: int | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: str | None = None

    activation: typing.ClassVar[str] = "hidden_activation"
    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act"})
    signed: typing.ClassVar[frozenset[str]] = frozenset(
        {"num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input"}
    )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        rope = config.get("rope_parameters")
        if rope is None:
            config = {**config, "rope_parameters": _ROPE}
        elif not isinstance(rope, Mapping) or set(rope) != set(_ROPE):
            raise ConfigError(f"rope_parameters must have {_FULL} and {_SLIDING}.")
        return super().read(config)

    @property
    def kinds(self) -> list[str]:
        """Each layer's kind; without `layer_types` every sixth layer and the last see everything."""
        if self.layer_types is not None:
            return self.layer_types
        last = self.num_hidden_layers - 1
        return [_SLIDING if (i + 1) % 6 and i != last else _FULL for i in range(self.num_hidden_layers)]

    def heads(self, layer: int) -> tuple[int, int]:
        """Return a layer's key/value heads and their width."""
        own: Mapping[str, Any] = {}
        if self.per_layer_config is not None:
            own = self.per_layer_config.get(str(layer), {})
        elif self.kinds[layer] == _FULL:
            own = {"head_dim": self.global_head_dim or 512, "num_key_value_heads": self.num_global_key_value_heads}
        return own.get("num_key_value_heads") or self.kv_heads, own.get("head_dim") or self.head_size

    def kv_from(self, layer: int) -> int | None:
        """Return the layer whose cache a layer reads: the last one of its kind before the sharing ones; or None."""
        first = self.num_hidden_layers - self.num_kv_shared_layers
        return None if layer < first else max(i for i in range(first) if self.kinds[i] == self.kinds[layer])

    def problems(self) -> list[str]:
        found = super().problems()
        if found:
            return found
        count, shared, own = self.num_hidden_layers, self.num_kv_shared_layers, self.hidden_size_per_layer_input or 0
        kinds = self.kinds
        layer_windows(kinds, self.sliding_window, [False] * count)
        if kinds[-1] != _FULL:
            found.append("the last layer isn't a full_attention one")
        if not 0 <= shared < count or set(kinds) - set(kinds[: count - shared]):
            found.append(f"num_kv_shared_layers is {shared}, which leaves layers without keys and values")
        if own < 0 or (own and self.vocab_size_per_layer_input < self.vocab_size):
            found.append("the inputs of each layer have a negative width, or a smaller vocabulary than the embedding")
        experts = (self.num_experts, self.top_k_experts, self.moe_intermediate_size)
        if any((value is not None) != self.enable_moe_block for value in experts):
            found.append(f"enable_moe_block is {self.enable_moe_block} and there are expert sizes {experts}")
        elif self.num_experts and self.top_k_experts and self.top_k_experts > self.num_experts:
            found.append(f"top_k_experts is {self.top_k_experts} of {self.num_experts} experts")
        if self.use_bidirectional_attention not in (None, "vision"):
            found.append(f"use_bidirectional_attention is {self.use_bidirectional_attention!r}")
        if (self.rope_scaling or {"rope_type": "default"})["rope_type"] not in ("default", "proportional"):
            found.append("the rope scaling of full_attention layers isn't proportional")
        if self.rope_scaling is None and self.partial_rotary_factor != 1.0:
            found.append("partial_rotary_factor needs the rope type proportional")
        return found or self._head_problems()

    def _head_problems(self) -> list[str]:
        found = []
        per_layer = self.per_layer_config
        if per_layer is not None:
            if self.global_head_dim or self.num_global_key_value_heads:
                found.append("there are both per_layer_config and sizes of the full layers")
            known = {"head_dim", "num_key_value_heads"}
            for key, value in per_layer.items():
                fine = isinstance(value, Mapping) and set(value) <= known and all(map(_positive, value.values()))
                if not fine or key not in map(str, range(self.num_hidden_layers)):
                    found.append(f"per_layer_config has {key}: {value!r}")
        elif self.num_global_key_value_heads not in (None, self.kv_heads) and not self.attention_k_eq_v:
            found.append("num_global_key_value_heads needs attention_k_eq_v")
        if found:
            return found
        for kind in set(self.kinds):
            sizes = {self.heads(i) for i, k in enumerate(self.kinds) if k == kind}
            if len(sizes) > 1:
                found.append(f"layers of one kind have different heads: {sorted(sizes)}")
            for kv_heads, width in sizes:
                if width % 2 or self.num_attention_heads % kv_heads:
                    found.append(f"{kind} layers have {kv_heads} key/value heads of {width}")
        return found


def rules(config: Config) -> Sequence[Rule]:
    """Leave out what the sharing layers don't use, and bring the experts' matrices behind each other."""
    layer = r"(model\.layers\.\d+\.experts\.)"
    first = config.num_hidden_layers - config.num_kv_shared_layers
    sharing = "|".join(str(i) for i in range(first, config.num_hidden_layers))
    found: list[Rule] = []
    if sharing:
        unused = rf"model\.layers\.({sharing})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*"
        found.append(Drop(unused, "keys and values of layers that read another layer's cache"))
    if config.num_experts and config.moe_intermediate_size:
        inner = config.moe_intermediate_size

        def flat(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (shape[0] * shape[1], *shape[2:]) if len(shape) == 3 else shape

        spans = grouped_spans(config.num_experts, {"gate_proj": inner, "up_proj": inner})
        found += [
            Reshape(layer + "(gate_up_proj|down_proj)", flat),
            split(layer + "gate_up_proj", spans, to=r"\1{part}.weight"),
            Rename(layer + "down_proj", r"\1down_proj.weight"),
        ]
    return found


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    full = (
        None
        if config.rope_scaling is None
        else {**config.rope_scaling, "partial_rotary_factor": config.partial_rotary_factor}
    )
    ropes, layers = {}, []
    for i, kind in enumerate(config.kinds):
        kv_heads, head_dim = config.heads(i)
        if kind not in ropes:
            theta = config.rope_theta if kind == _FULL else config.rope_local_base_freq
            name = "rope" if kind == _FULL else "rope_local"
            ropes[kind] = nn.RopeTable(name, max_context, head_dim, theta, full if kind == _FULL else None)
        shared = config.kv_from(i)
        wide = config.use_double_wide_mlp and shared is not None
        mixer = Attention(
            config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=config.rms_norm_eps,
            k_eq_v=config.attention_k_eq_v and kind == _FULL,
            rope=ropes[kind],
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=config.sliding_window if kind == _SLIDING else None,
            kv_from=shared,
        )
        mlp = nn.GatedMLP(config.hidden_size, config.intermediate_size * (1 + wide), config.hidden_activation)
        layers.append(Layer(config, mixer, mlp))
    head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size)
    model = Decoder(config, layers)
    return nn.CausalLM(model, head, vocab=config.vocab_size, softcap=config.final_logit_softcapping)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
