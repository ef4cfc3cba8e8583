"""What a reader of a report should know of a LeRobot policy's files: defaults, and where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewright.checkpoint.policies import processors
from edgewright.checkpoint.policies.keys import Keys
from edgewright.checkpoint.policies.options import PolicyOptions
from edgewright.checkpoint.policies.processors import Pipeline
from edgewright.checkpoint.text import shown
from edgewright.runtime.policy.spec import Kind


def notes_of(
    keys: Keys, kind: Kind, tokenizer: Path | None, before: Pipeline, after: Pipeline, options: PolicyOptions
) -> tuple[str, ...]:
    """Return what is LeRobot's default because nothing says it, where config and processors differ, what is missing."""
    said = {"n_action_steps", "image_resolution", "max_state_dim", "max_action_dim"}
    if kind == "smolvla":
        said = {"n_action_steps", "max_state_dim", "max_action_dim", "vlm_model_name", "attention_mode"}
        said |= {"self_attn_every_n_layers"}
    if options.steps is None:
        said |= {"num_steps" if kind == "smolvla" else "num_inference_steps"}
    if not before.files:
        said |= {"tokenizer_max_length", "normalization_mapping", "use_relative_actions"}
    notes = []
    if unsaid := sorted(name for name in said if name not in keys):
        notes.append(f"config.json lacks {', '.join(unsaid)}: LeRobot's defaults are taken")
    if before.files:
        notes += _differences(keys, before, after)
    else:
        notes.append("no processor files: the config tells how to normalize")
    if tokenizer is None:
        notes.append("no tokenizer in the folder: give it before deploying")
    return tuple(notes)


def _differences(keys: Keys, before: Pipeline, after: Pipeline) -> list[str]:
    """Return where the processor files, which are what LeRobot runs, say something else than the config."""
    modes = processors.read_modes(keys.inner("normalization_mapping"))
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("normalization of the state", modes.get("state"), before.norms["state"]),
        ("normalization of actions", modes.get("actions"), after.norms["actions"]),
        ("tokenizer_max_length", keys.raw("tokenizer_max_length"), before.max_tokens),
        ("use_relative_actions", keys.raw("use_relative_actions"), after.relative),
    )
    return [
        f"{name} is {shown(stated)} in config.json and {shown(found)} in the processor files, which count"
        for name, stated, found in pairs
        if stated is not None and found is not None and stated != found
    ]
