"""Copies of the golden policies' folders, to be changed and opened; and what opening each takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from edgewright.checkpoint.policy import PolicyOptions

GOLDENS = Path(__file__).parents[1] / "goldens" / "policies"
TOKENIZERS = GOLDENS / "tokenizer"
#: The options that each golden needs, for what its files don't say.
NEEDED: dict[str, dict[str, Any]] = {
    "pi05": {},
    "pi05_libero": {"discrete_state": False, "max_tokens": 40},
    "pi0": {"state_dim": 14, "max_tokens": 32},
    "pi0_lerobot": {},
    "smolvla": {"sizes": {"text.head_dim": 14, "vision.heads": 3}},
}
CONFIG, PRE, POST = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"
EXPERT = "paligemma_with_expert.gemma_expert."
PALIGEMMA = "paligemma_with_expert.paligemma."
EMBEDDING = f"{PALIGEMMA}model.language_model.embed_tokens.weight"
HEAD = f"{PALIGEMMA}lm_head.weight"
Tensors = dict[str, np.ndarray]


def options(name: str, **more: Any) -> PolicyOptions:
    """The options a golden needs, and others."""
    return PolicyOptions(**{**NEEDED[name], **more})


def copy(name: str, folder: Path) -> Path:
    """A copy of a golden's checkpoint that may be changed."""
    target = folder / name
    shutil.copytree(GOLDENS / name / "checkpoint", target)
    return target


def edit(folder: Path, file: str, change: Callable[[Any], Any]) -> None:
    """Change the content of a JSON file in place."""
    path = folder / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def put(folder: Path, file: str, *keys: str | int, value: Any) -> None:
    """Set the value at a path of keys of a JSON file."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    edit(folder, file, change)


def stats_file(folder: Path) -> str:
    """The name of openpi's one statistics file below a folder."""
    return next(folder.rglob("norm_stats.json")).relative_to(folder).as_posix()


def rewrite(folder: Path, change: Callable[[Tensors], Any], file: str = "model.safetensors") -> None:
    """Change the tensors of a file: `change` edits them in place, or returns others."""
    tensors = load_file(folder / file)
    changed = change(tensors)
    save_file(tensors if changed is None else changed, folder / file)
