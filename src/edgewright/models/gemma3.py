"""Gemma 3 with vision: its text part, as `gemma3_text`. The vision tower's tensors are left out by rule."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright.models import gemma3_text
from edgewright.models.gemma3_text import network


@dataclass(frozen=True, kw_only=True)
class Config(gemma3_text.Config):
    """`Gemma3TextConfig` inside of `Gemma3Config`. transformers never caps the logits of a model with vision."""

    absent: typing.ClassVar[frozenset[str]] = gemma3_text.Config.absent | {"final_logit_softcapping"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {**gemma3_text.Config.fixed, "final_logit_softcapping": None}


#: Where the text config stands in the wrapper's config.
TEXT_CONFIG = "text_config"

#: Keys of the wrapper's config that say nothing about the text part.
WRAPPER_KEYS = frozenset(
    {
        "vision_config",
        "image_token_id",
        "image_token_index",
        "boi_token_id",
        "boi_token_index",
        "eoi_token_id",
        "eoi_token_index",
        "mm_tokens_per_image",
    }
)

#: Tensor name prefixes of published checkpoints, and what they are here.
RENAMES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}

#: Tensors that belong to other stages, by prefix.
OTHER_STAGES = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)

__all__ = ["OTHER_STAGES", "RENAMES", "TEXT_CONFIG", "WRAPPER_KEYS", "Config", "network"]
