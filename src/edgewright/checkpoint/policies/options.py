"""What a policy's checkpoint doesn't say and whoever opens it has to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgewright.runtime.policy.spec import Limits

#: What the command line calls the options below; those that it lacks follow from the checkpoint's tensors.
FLAGS: Mapping[str, str] = {
    "discrete_state": "--discrete-state or --no-discrete-state",
    "horizon": "--horizon",
    "steps": "--steps",
    "max_tokens": "--max-prompt",
    "statistics": "--statistics",
    "tokenizer": "--tokenizer",
    "state_dim": "--state-dim",
    "action_dim": "--action-dim",
    "cameras": "--cameras",
    "required_cameras": "--required-cameras",
    "delta_mask": "--delta-actions",
    "limits": "--limits",
    "sizes": "--size NAME=N",
}


def option(name: str) -> str:
    """Return how a message names an option: as Python has it, and the flag."""
    return f"option {name} ({FLAGS[name]})" if name in FLAGS else f"option {name}"


def size_option(name: str) -> str:
    """Return how a message names one of the sizes."""
    return f"option sizes ({size_flag(name)})"


def size_flag(name: str) -> str:
    """Return the flag that gives one of the sizes."""
    return f"--size {name}=N"


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Answers to what a checkpoint leaves open; None is no answer.

    An answer that contradicts the checkpoint is refused (ConfigError). `statistics` is an asset id, or a file:
    openpi's `norm_stats.json`, a LeRobot dataset's `stats.json` or a normalizer's safetensors file. `tokenizer` is a
    `tokenizer.json`, a SentencePiece model, or a folder with one of them. `cameras` are names for openpi's image slots,
    or those of LeRobot's cameras that the robot has; `required_cameras` those that every observation must have.
    `delta_mask` marks the leading action dimensions that are relative to the state. `limits` are what the robot may be
    sent, which no checkpoint says. `sizes` are numbers that no shape tells: `vision.heads`, `text.heads` of pi0.5 and
    pi0, `vision.heads`, `text.head_dim`, `text.epsilon` of SmolVLA.
    """

    kind: str | None = None
    discrete_state: bool | None = None
    horizon: int | None = None
    steps: int | None = None
    max_tokens: int | None = None
    statistics: str | Path | None = None
    tokenizer: Path | None = None
    state_dim: int | None = None
    action_dim: int | None = None
    cameras: tuple[str, ...] | None = None
    required_cameras: tuple[str, ...] | None = None
    delta_mask: tuple[bool, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    sizes: Mapping[str, float] = field(default_factory=dict)
