"""Qwen3.5 MoE with vision: its text part, as `qwen3_5_moe_text`. The vision tower's tensors are left out by rule."""

from __future__ import annotations

from edgewright.models.qwen3_5 import WRAPPER_KEYS
from edgewright.models.qwen3_5_moe_text import OTHER_STAGES, RENAMES, Config, network, rules

#: Where the text config stands in the wrapper's config.
TEXT_CONFIG = "text_config"

__all__ = ["OTHER_STAGES", "RENAMES", "TEXT_CONFIG", "WRAPPER_KEYS", "Config", "network", "rules"]
