"""Specs of policies for tests that need no policy behind them."""

from __future__ import annotations

from typing import Any

from edgewright.runtime.policy.spec import PolicySpec


def small_spec(**changes: Any) -> PolicySpec:
    """A spec of two cameras, with what a test says otherwise."""
    content: dict[str, Any] = {
        "kind": "pi05",
        "convention": "openpi",
        "cameras": ("base_0_rgb", "left_wrist_0_rgb"),
        "required_cameras": ("base_0_rgb",),
        "image_size": (28, 42),
        "image_tokens": 6,
        "resize": "pil-center",
        "state_dim": 4,
        "action_dim": 3,
        "model_state_dim": 32,
        "model_action_dim": 32,
        "horizon": 10,
        "steps": 3,
        "schedule": "float32-sum",
        "prompt": "text",
        "max_tokens": 48,
        "tokenizer": "tokenizer.model",
        "state_norm": "quantile",
        "action_norm": "quantile",
        "steps_to_run": 8,
    }
    return PolicySpec(**{**content, **changes})
