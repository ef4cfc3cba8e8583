"""How far an engine's logits are from the float32 reference on a fixed text."""

from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Engine

WINDOWS = 3
WINDOW = 512


def windows(checkpoint: Path, text: Path) -> np.ndarray:
    """Return the first WINDOWS * WINDOW token ids of the text as rows (needs transformers)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    ids = tokenizer(text.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    if len(ids) < WINDOWS * WINDOW:
        raise ValueError(f"{text} has {len(ids)} tokens, {WINDOWS * WINDOW} are needed")
    return np.array(ids[: WINDOWS * WINDOW], dtype=np.int64).reshape(WINDOWS, WINDOW)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def losses(log_probabilities: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the negative log-probability of every token but the first."""
    return -np.take_along_axis(log_probabilities[:-1], ids[1:, None], axis=-1)[:, 0]


def perplexity(losses_of_windows: list[np.ndarray]) -> float:
    return float(np.exp(np.concatenate(losses_of_windows).mean()))


def compare(engine: Engine, ids: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Run the text through the engine and compare; the reference has the same leading shape as `ids`."""
    divergences, surprises, agreements = [], [], []
    for row, expected in zip(ids, reference, strict=True):
        logits = engine.logits(row.tolist())
        if logits.shape != expected.shape:
            raise ValueError(f"logits of shape {logits.shape}, the reference has {expected.shape}")
        ours, theirs = log_softmax(logits), log_softmax(expected)
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=-1))
        surprises.append(losses(ours, row))
        agreements.append(ours.argmax(axis=-1) == theirs.argmax(axis=-1))
    divergence = np.concatenate(divergences)
    return {
        "kl": float(divergence.mean()),
        "kl_se": float(divergence.std(ddof=1) / np.sqrt(divergence.size)),
        "perplexity": perplexity(surprises),
        "top1": float(np.concatenate(agreements).mean()),
        "tokens": int(divergence.size),
    }
