"""OLMo 3: OLMo 2 with windows on three layers of four; a rope scaling counts for the other layers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from edgewright import nn
from edgewright.errors import ConfigError
from edgewright.models import olmo2
from edgewright.models._config import kind_rope_problems, layer_windows

_THETA = 500000.0


@dataclass(frozen=True, kw_only=True)
class Config(olmo2.Config):
    """`Olmo3Config`; `rope_local_base_freq` is the windowed layers' theta in `rope_parameters`, 500000 where absent."""

    rope_theta: float = _THETA
    rope_local_base_freq: float | None = None
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read a config; raises ConfigError."""
        if "rope_local_base_freq" in config:
            raise ConfigError(
                "rope_local_base_freq is unknown to 'olmo3': rope_parameters say it for each kind of layer."
            )
        return super().read(config)

    def problems(self) -> list[str]:
        found = super().problems() + kind_rope_problems(self.rope_scaling)
        if self.rope_local_base_freq is None and self.rope_theta != _THETA:
            # transformers 4 takes rope_theta for these layers, transformers 5 its default.
            found.append(f"rope_theta is {self.rope_theta} but nothing says what it is on layers with a window")
        return found

    def windows(self) -> list[int | None]:
        """Return each layer's window: every fourth layer sees everything."""
        default = [bool((i + 1) % 4) for i in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    full = config.rope(max_context)
    local = nn.RopeTable("rope_local", max_context, config.head_size, config.rope_local_base_freq or _THETA)
    return olmo2.of_layers(config, [(local if window else full, window) for window in config.windows()])
