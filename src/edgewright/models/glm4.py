"""GLM-4-0414: GLM with two more norms a layer, behind attention and MLP."""

from __future__ import annotations

from edgewright import nn
from edgewright.models import glm
from edgewright.models.glm import Config, rules

_NAMES = nn.LayerNames(after_mixer="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    return glm.network(config, max_context, names=_NAMES)


__all__ = ["Config", "network", "rules"]
