"""Gemma 4 with vision and audio: its text part, as `gemma4_text`. The towers' tensors are left out by rule."""

from __future__ import annotations

from edgewright.models.gemma4_text import Config, network, rules

#: Where the text config stands in the wrapper's config.
TEXT_CONFIG = "text_config"

#: Keys of the wrapper's config that say nothing about the text part.
WRAPPER_KEYS = frozenset(
    {
        "vision_config",
        "audio_config",
        "image_token_id",
        "video_token_id",
        "audio_token_id",
        "boi_token_id",
        "eoi_token_id",
        "boa_token_id",
        "eoa_token_id",
        "eoa_token_index",
        "vision_soft_tokens_per_image",
    }
)

#: Tensor name prefixes of published checkpoints, and what they are here.
RENAMES = {"model.language_model.": "model."}

#: Tensors that belong to other stages, by prefix.
OTHER_STAGES = ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.")

__all__ = ["OTHER_STAGES", "RENAMES", "TEXT_CONFIG", "WRAPPER_KEYS", "Config", "network", "rules"]
