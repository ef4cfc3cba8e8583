"""Tiny checkpoints for the command line's tests: a golden's weights, wide enough for a tokenizer's vocabulary."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDENS = Path(__file__).parent.parent / "goldens"


def llama_folder(folder: Path, tokenizer: str | None = "bpe_chatml", *, vocab: int = 400, **config: Any) -> Path:
    """Write the `llama` golden with `vocab` tokens (the rows beyond the golden's are random) and a tokenizer."""
    folder.mkdir(parents=True)
    source = GOLDENS / "text" / "llama"
    rng = np.random.default_rng(5)
    tensors = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows, width = tensors[name].shape
        more = rng.normal(0, tensors[name].std(), (vocab - rows, width)).astype(np.float32)
        tensors[name] = np.concatenate([tensors[name], more])
    save_file(tensors, folder / "model.safetensors")
    settings = {**json.loads((source / "config.json").read_text()), "vocab_size": vocab, **config}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not ...}))
    if tokenizer:
        for path in (GOLDENS / "tokenizers" / tokenizer).iterdir():
            if path.name != "expected.json":
                shutil.copy(path, folder)
    return folder


def edit_json(path: Path, **keys: Any) -> None:
    """Set keys of a JSON file, or remove those whose value is `...`."""
    data = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


def edit_tensors(path: Path, **tensors: Any) -> None:
    """Set tensors of a safetensors file, or remove those whose value is `...`."""
    data = {**load_file(path), **tensors}
    save_file({k: v for k, v in data.items() if v is not ...}, path)


def the_sentence(stderr: str, *parts: str) -> str:
    """Check that stderr ends in one sentence by edgewright with these parts, and no traceback; returns it."""
    lines = stderr.strip().splitlines()
    assert lines[-1].startswith("edgewright: error: "), stderr
    assert sum(line.startswith("edgewright:") for line in lines) == 1, stderr
    assert "Traceback" not in stderr
    text = lines[-1].removeprefix("edgewright: error: ")
    assert re.search(r"[.?!]$", text), text
    for part in parts:
        assert part in text, text
    return text
