"""Ministral: Mistral whose `layer_types` say which layers have the window."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models import mistral
from edgewright.models._config import layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(mistral.Config):
    """`MinistralConfig`; without `layer_types` every layer has the window, if there is one."""

    layer_types: list[str] | None = None

    def windows(self) -> list[int | None]:
        """Return each layer's window."""
        default = [self.sliding_window is not None] * self.num_hidden_layers
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    return nn.causal_lm(config, [nn.decoder_layer(config, rope, window=window) for window in config.windows()])
