"""Specs, statistics and tokenizers of the policy goldens, written out by hand: the loader has its own tests."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from edgewright.checkpoint.sentencepiece import rebuild_tokenizer
from edgewright.runtime.policy.prompt import load_tokenizer
from edgewright.runtime.policy.spec import PolicySpec, Statistics
from edgewright.runtime.text import Tokenizer

GOLDENS = Path(__file__).parents[2] / "goldens" / "policies"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
_PI0_LEROBOT = ("observation.images.top", "observation.images.wrist", "observation.images.empty_camera_0")
_SMOLVLA = ("observation.images.front", "observation.images.wrist", "observation.images.empty_camera_0")
_PLAIN: dict[str, Any] = {
    "image_tokens": 4,
    "model_state_dim": 32,
    "model_action_dim": 32,
    "steps": 10,
    "tokenizer": "tokenizer.json",
    "required_cameras": (),
    "steps_to_run": 1,
}
_OPENPI: dict[str, Any] = {
    "convention": "openpi",
    "cameras": CAMERAS,
    "resize": "pil-center",
    "schedule": "float32-sum",
    "prompt": "text-newline",
}
_LEROBOT: dict[str, Any] = {"convention": "lerobot", "schedule": "float64-linear"}
_SIZES = {
    name: {"kind": kind, "image_size": size, "state_dim": state, "action_dim": action, "horizon": h, "max_tokens": most}
    for name, kind, size, state, action, h, most in (
        ("pi05", "pi05", (28, 28), 8, 7, 12, 80),
        ("libero", "pi05", (42, 42), 8, 7, 10, 40),
        ("pi0", "pi0", (28, 28), 14, 14, 9, 32),
        ("smolvla", "smolvla", (32, 32), 6, 7, 6, 24),
    )
}
_QUANTILE = {"state_norm": "quantile", "action_norm": "quantile"}
_MEAN_STD = {"state_norm": "mean-std", "action_norm": "mean-std"}
_CENTER = {"resize": "torch-center"}
SPECS = {
    "pi05": _LEROBOT | _SIZES["pi05"] | _QUANTILE | _CENTER
    | {"prompt": "state", "cameras": tuple(f"observation.images.{camera}" for camera in CAMERAS)},
    "pi05_openpi": _OPENPI | _SIZES["pi05"] | _QUANTILE | {"prompt": "state"},
    "pi05_libero": _OPENPI | _SIZES["libero"] | _QUANTILE,
    "pi0": _OPENPI | _SIZES["pi0"] | _MEAN_STD,
    "pi0_lerobot": _LEROBOT | _SIZES["pi0"] | _MEAN_STD | _CENTER
    | {"prompt": "text-newline", "cameras": _PI0_LEROBOT, "required_cameras": _PI0_LEROBOT[:1]},
    "smolvla": _LEROBOT | _SIZES["smolvla"] | _MEAN_STD
    | {"prompt": "text-newline", "cameras": _SMOLVLA, "resize": "torch-left-top"},
}  # fmt: skip
_STATISTICS = {
    "pi05": "policy_preprocessor_step_3_normalizer_processor.safetensors",
    "pi0_lerobot": "policy_preprocessor_step_6_normalizer_processor.safetensors",
    "smolvla": "policy_preprocessor_step_5_normalizer_processor.safetensors",
    "pi05_libero": "assets/physical-intelligence/libero/norm_stats.json",
    "pi0": "assets/trossen/norm_stats.json",
}


def spec_of(name: str, **changes: Any) -> PolicySpec:
    """The spec of a golden policy, or a variant of it."""
    return PolicySpec(**(_PLAIN | SPECS[name] | changes))


@cache
def statistics_of(name: str) -> Statistics:
    """The statistics of a golden policy, as the loader hands them over."""
    if name == "pi05_openpi":
        return _unrounded_statistics()
    path = GOLDENS / name / "checkpoint" / _STATISTICS[name]
    if path.suffix == ".json":
        groups = json.loads(path.read_text())["norm_stats"]
        return Statistics.from_json(groups)
    stored = load_file(path)
    names = {"state": "observation.state", "actions": "action"}
    known = ("mean", "std", "q01", "q99", "min", "max")
    found = {
        group: {k: stored[f"{key}.{k}"].astype(np.float64) for k in known if f"{key}.{k}" in stored}
        for group, key in names.items()
    }
    return Statistics(**found)


def _unrounded_statistics() -> Statistics:
    """The statistics of `pi05` before LeRobot made them float32, from the script that drew them."""
    path = GOLDENS.parents[2] / "tools" / "goldens" / "policies_cases.py"
    spec = importlib.util.spec_from_file_location("policies_cases", path)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = cases  # dataclasses look it up
    spec.loader.exec_module(cases)
    known = ("mean", "std", "q01", "q99")
    drawn = {"state": cases.statistics(101, 8, (5,)), "actions": cases.statistics(102, 7, (5,))}
    return Statistics(**{group: {key: vectors[key] for key in known} for group, vectors in drawn.items()})


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a golden policy: openpi's from its SentencePiece file, LeRobot's from its tokenizer.json."""
    spec = spec_of(name)
    if spec.convention == "openpi":
        settings: dict[str, Any] = {}
        return load_tokenizer(spec, rebuild_tokenizer(GOLDENS / "tokenizer" / "tokenizer.model", settings, {}))
    folder = "smolvla" if name == "smolvla" else "pi05"
    return load_tokenizer(spec, GOLDENS / folder / "checkpoint" / "tokenizer" / "tokenizer.json")


@cache
def golden_of(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and the tensors of a golden policy."""
    folder = GOLDENS / name
    return json.loads((folder / "golden.json").read_text()), load_file(folder / "golden.safetensors")
