"""The small model trained from scratch: its logits, its perplexity on the held-out text, its shapes and its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import MakeEngine, relative_error
from edgewright.checkpoint import open_checkpoint
from edgewright.runtime.session import Session
from edgewright.runtime.text import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "goldens" / "trained"
HELD_OUT = ROOT / "benchmarks" / "data" / "heldout.txt"
RECORD: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text(encoding="utf-8"))
WINDOW = 512
#: Float32 sums in another order than PyTorch's.
TOLERANCE = 2e-5


def held_out_ids() -> list[int]:
    """Return the tokens of the held-out text."""
    config = json.loads((FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_files(FOLDER / "tokenizer.json", config)
    return list(tokenizer.encode(HELD_OUT.read_text(encoding="utf-8")))


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_the_logits_of_transformers(dialect: str, make_engine: MakeEngine) -> None:
    expected = load_file(FOLDER / "expected.safetensors")
    session = Session(make_engine(open_checkpoint(FOLDER), dialect))
    ids = expected["ids"][0]
    assert relative_error(session.append(ids, logits="all"), expected["logits"]) < TOLERANCE
    session.truncate(0)
    rows = np.concatenate([session.append(part, logits="all") for part in (ids[:37], ids[37:38], ids[38:])])
    assert relative_error(rows, expected["logits"]) < TOLERANCE


def test_the_perplexity_of_the_record(make_engine: MakeEngine) -> None:
    record = RECORD["held_out"]
    ids = held_out_ids()
    assert len(ids) == record["tokens"]
    assert ids[:64] == load_file(FOLDER / "expected.safetensors")["ids"][0].tolist()
    session = Session(make_engine(open_checkpoint(FOLDER)))
    losses = []
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = np.array(ids[start : start + WINDOW])
        session.truncate(0)
        logits = session.append(window, logits="all")[:-1].astype(np.float64)
        top = logits.max(axis=1)
        losses.append(
            top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(WINDOW - 1), window[1:]]
        )
    assert np.exp(np.mean(losses)) == pytest.approx(record["perplexity"], rel=1e-5)


def test_it_has_learnt_more_than_counts_of_pairs() -> None:
    record = RECORD["held_out"]
    assert record["perplexity"] < 0.8 * record["bigram_perplexity"] < 0.8 * record["unigram_perplexity"]


def test_its_matrices_fit_every_group_format() -> None:
    checkpoint = open_checkpoint(FOLDER)
    matrices = {name: tensor.shape for name, tensor in checkpoint.tensors.items() if len(tensor.shape) == 2}
    assert len(matrices) == 4 * 7 + 2
    assert all(rows % 64 == 0 and columns % 128 == 0 for rows, columns in matrices.values())
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"float32"}
    assert sum(int(np.prod(tensor.shape)) for tensor in checkpoint.tensors.values()) == RECORD["parameters"]
