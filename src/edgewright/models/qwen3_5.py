"""Qwen3.5 with vision: its text part, as `qwen3_5_text`. The vision tower's tensors are left out by rule."""

from __future__ import annotations

from edgewright.models.qwen3_5_text import OTHER_STAGES, RENAMES, Config, network, rules

#: Where the text config stands in the wrapper's config.
TEXT_CONFIG = "text_config"

#: Keys of the wrapper's config that say nothing about the text part.
WRAPPER_KEYS = frozenset(
    {
        "vision_config",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    }
)

__all__ = ["OTHER_STAGES", "RENAMES", "TEXT_CONFIG", "WRAPPER_KEYS", "Config", "network", "rules"]
