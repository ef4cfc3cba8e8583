"""EXAONE 4: norms behind attention and MLP, not in front, q/k norms; beside windowed layers the others lack rope."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig, layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Exaone4Config`; where `sliding_window` is null every layer sees everything and has rotary positions."""

    num_key_value_heads: int | None = 32
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 4096
    sliding_window_pattern: int | str | None = 4
    layer_types: list[str] | None = None

    signed: typing.ClassVar[frozenset[str]] = frozenset({"sliding_window_pattern"})

    def problems(self) -> list[str]:
        found = super().problems()
        pattern, needed = self.sliding_window_pattern, self.sliding_window is not None and self.layer_types is None
        if needed and (not isinstance(pattern, int) or pattern < 1):
            found.append(f"sliding_window_pattern is {pattern!r} and there are no layer_types")
        return found

    def windows(self) -> list[int | None]:
        """Return each layer's window; without `layer_types` every `sliding_window_pattern`-th sees everything."""
        pattern = self.sliding_window_pattern
        default = [False] * self.num_hidden_layers
        if self.sliding_window is not None and isinstance(pattern, int) and pattern > 0:
            default = [bool((i + 1) % pattern) for i in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope if window or config.sliding_window is None else None,
            names=nn.POST_NORM,
            window=window,
            qk_norm_epsilon=config.rms_norm_eps,
        )
        for window in config.windows()
    ]
    return nn.causal_lm(config, layers)
