"""Predictions kept and compared, against plain NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.quantizer.judge import Predictions, following_of


def log_softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def rows(seed: int, lengths: tuple[int, ...], vocab: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((n, vocab)).astype(np.float32), following_of(rng.integers(0, vocab, n))) for n in lengths
    ]


@pytest.mark.parametrize(("seed", "lengths", "vocab"), [(0, (70, 70, 70), 11), (1, (65, 3, 130, 1), 5)])
def test_figures_are_those_of_the_logits(tmp_path: Path, seed: int, lengths: tuple[int, ...], vocab: int) -> None:
    float_rows = rows(seed, lengths, vocab)
    rng = np.random.default_rng(seed + 100)
    changed = [(x + 0.1 * rng.standard_normal(x.shape).astype(np.float32), ids) for x, ids in float_rows]
    predictions = Predictions(tmp_path / "p.bin", float_rows)
    found = predictions.compare(changed)

    kl, agree, before, after = [], [], [], []
    for (x, ids), (y, _) in zip(float_rows, changed, strict=True):
        p, q = log_softmax(x), log_softmax(y)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        agree.append(x.argmax(axis=1) == y.argmax(axis=1))
        at = np.arange(len(ids) - 1)
        before.append(-p[at, ids[:-1]])
        after.append(-q[at, ids[:-1]])
    every = np.concatenate(kl)
    means = np.array([part.mean() for part in kl])
    assert found.kl == pytest.approx(every.mean(), rel=1e-4)
    assert found.kl_error == pytest.approx(every.std(ddof=1) / np.sqrt(len(every)), rel=1e-4)
    assert found.kl_windows_error == pytest.approx(means.std(ddof=1) / np.sqrt(len(means)), rel=1e-4)
    assert found.top1 == np.concatenate(agree).mean()
    assert (found.positions, found.windows) == (sum(lengths), len(lengths))
    assert found.perplexity == pytest.approx(np.exp(np.concatenate(after).mean()))
    assert predictions.perplexity == pytest.approx(np.exp(np.concatenate(before).mean()))
    own = np.array([part.mean() for part in after if len(part)])
    assert found.perplexity_error == pytest.approx(found.perplexity * own.std(ddof=1) / np.sqrt(len(own)))
    change = [b - a for a, b in zip(before, after, strict=True) if len(a)]
    assert found.loss_change == pytest.approx(np.concatenate(change).mean(), abs=1e-7)
    moved = np.array([part.mean() for part in change])
    assert found.loss_change_error == pytest.approx(moved.std(ddof=1) / np.sqrt(len(moved)), rel=1e-4)


def test_the_same_model_is_no_way_off(tmp_path: Path) -> None:
    float_rows = rows(3, (20, 20), 7)
    found = Predictions(tmp_path / "p.bin", float_rows).compare(float_rows)
    assert abs(found.kl) < 1e-7
    assert found.top1 == 1.0
    assert found.loss_change == 0.0


def test_one_row_has_no_error_over_rows_and_nan_is_infinitely_far(tmp_path: Path) -> None:
    ((logits, ids),) = rows(4, (9,), 6)
    predictions = Predictions(tmp_path / "p.bin", [(logits, ids)])
    assert predictions.perplexity_error is None
    broken = logits.copy()
    broken[4] = np.nan
    found = predictions.compare([(broken, ids)])
    assert found.kl == np.inf
    assert found.kl_windows_error is None
    assert found.top1 == 8 / 9
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["kl"] is None
