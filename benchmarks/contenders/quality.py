"""How far an engine's logits are from the float32 reference on a fixed text."""

from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Engine

WINDOWS = 3
WINDOW = 512
BLOCK = 8
"""Rows compared at once, to bound the float64 copies."""


def windows(checkpoint: Path, text: Path, count: int = WINDOWS, *, at_most: bool = False) -> np.ndarray:
    """Return the text's first tokens as `count` rows of WINDOW ids (needs transformers), int64.

    A row begins with the model's begin-of-text token where its tokenizer puts one. A shorter text is an error, or with
    `at_most` gives fewer rows.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    content = text.read_text(encoding="utf-8")
    ids = tokenizer(content, add_special_tokens=False)["input_ids"]
    first = tokenizer("a")["input_ids"][:1]
    begin = first if first == [tokenizer.bos_token_id] else []
    share = WINDOW - len(begin)
    if at_most:
        count = min(count, len(ids) // share)
    if count < 1 or len(ids) < count * share:
        raise ValueError(f"{text} has {len(ids)} tokens, {max(count, 1) * share} are needed")
    rows = np.array(ids[: count * share], dtype=np.int64).reshape(count, share)
    return np.concatenate([np.tile(np.array(begin, dtype=np.int64), (count, 1)), rows], axis=1)


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


def distance(logits: np.ndarray, expected: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return KL(expected || logits) and the agreement of the largest row by row, and the losses of `ids[1:]`."""
    if logits.shape != expected.shape:
        raise ValueError(f"logits of shape {logits.shape}, the reference has {expected.shape}")
    divergences, agreements, surprises = [], [], []
    for begin in range(0, len(logits), BLOCK):
        part = slice(begin, begin + BLOCK)
        ours, theirs = log_softmax(logits[part]), log_softmax(expected[part])
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=-1))
        agreements.append(ours.argmax(axis=-1) == theirs.argmax(axis=-1))
        following = ids[begin + 1 : begin + 1 + BLOCK]
        surprises.append(-np.take_along_axis(ours[: len(following)], following[:, None], axis=-1)[:, 0])
    return np.concatenate(divergences), np.concatenate(agreements), np.concatenate(surprises)


def compare(engine: Engine, ids: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Run the text through the engine and compare; the reference `[windows, scored, vocab]` has each row's last logits.

    `kl_se` treats tokens as independent, `kl_se_windows` windows, which is the more careful of the two.
    """
    parts = []
    for row, expected in zip(ids, reference, strict=True):
        scored = len(expected)
        parts.append(distance(engine.logits(row.tolist())[-scored:], expected, row[-scored:]))
    divergences, agreements, surprises = zip(*parts, strict=True)
    divergence = np.concatenate(divergences)
    by_window = np.array([part.mean() for part in divergences])
    careful = float(by_window.std(ddof=1) / np.sqrt(by_window.size)) if by_window.size > 1 else float("inf")
    return {
        "kl": float(divergence.mean()),
        "kl_se": float(divergence.std(ddof=1) / np.sqrt(divergence.size)),
        "kl_se_windows": careful,
        "kl_windows": by_window.tolist(),
        "perplexity": perplexity(list(surprises)),
        "top1": float(np.concatenate(agreements).mean()),
        "tokens": int(divergence.size),
    }
