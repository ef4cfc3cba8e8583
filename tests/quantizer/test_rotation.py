"""Rotations: the float model computes the same, weights do change, and what can't be rotated is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import RecipeError
from edgewright.graph.weights import ComputedWeight
from edgewright.models import build_llm
from edgewright.quantizer.rotation import rotate
from edgewright.quantizer.stream import FloatModel
from edgewright.quantizer.turned import Ones, Turned, hadamard, hadamard_size

GOLDENS = Path(__file__).parent.parent / "goldens" / "text"


def logits(case: str, kind: str | None, folder: Path) -> np.ndarray:
    stage = build_llm(open_checkpoint(GOLDENS / case), max_context=24)
    vocab = stage.contract.outputs[0].shape[-1]
    if kind is not None:
        rotate(stage, kind)
    model = FloatModel(stage, folder, None, 1)
    ids = np.random.default_rng(3).integers(0, vocab, 17)
    return model.logits(model.whole(), ids, np.arange(17))


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_hadamard_matrices_are_orthonormal_symmetric_and_flat(size: int) -> None:
    matrix = hadamard(size)
    assert np.allclose(matrix @ matrix.T, np.eye(size), atol=1e-6)
    assert np.array_equal(matrix, matrix.T)
    assert np.allclose(np.abs(matrix), 1 / np.sqrt(size))


def test_a_width_is_turned_in_blocks_of_its_largest_power_of_two() -> None:
    assert [hadamard_size(width) for width in (1, 3, 40, 64, 576)] == [1, 1, 8, 64, 64]


@pytest.mark.parametrize("seed", [0, 1])
def test_turned_rows_can_be_read_in_any_runs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((24, 12)).astype(np.float32)
    by = rng.uniform(0.5, 2, 12).astype(np.float32)
    weight = Turned(ComputedWeight("w", (24, 12), lambda a, b: values[a:b]), rows=8, columns=4, by=by)
    turn = np.kron(np.eye(3), hadamard(8)) @ (values * by) @ np.kron(np.eye(3), hadamard(4))
    assert np.allclose(weight.rows(0, 24), turn, atol=1e-5)
    for start, stop in ((0, 1), (5, 17), (23, 24), (7, 7)):
        assert np.array_equal(weight.rows(start, stop), weight.rows(0, 24)[start:stop])


@pytest.mark.parametrize("case", ["llama", "qwen2", "gemma3_text", "phi3", "gpt_oss", "lfm2", "deepseek_v3"])
def test_turning_values_changes_weights_and_no_logits(case: str, tmp_path: Path) -> None:
    plain, turned = logits(case, None, tmp_path / "a"), logits(case, "values", tmp_path / "b")
    assert np.abs(turned - plain).max() <= 5e-6 * np.abs(plain).max()
    assert not np.array_equal(turned, plain)


@pytest.mark.parametrize("case", ["llama", "qwen3", "granite", "phi3", "lfm2", "mamba2", "qwen3_moe", "gpt_oss"])
def test_turning_the_residual_stream_changes_no_logits(case: str, tmp_path: Path) -> None:
    plain, turned = logits(case, None, tmp_path / "a"), logits(case, "residual", tmp_path / "b")
    assert np.abs(turned - plain).max() <= 1e-5 * np.abs(plain).max()


def test_the_residual_rotation_moves_norm_weights_and_unties_the_head() -> None:
    stage = build_llm(open_checkpoint(GOLDENS / "qwen3"), max_context=8)
    tied = "lm_head.weight" not in stage.weights
    before = {name: weight.rows(0, weight.shape[0]) for name, weight in stage.weights.items()}
    rotate(stage, "residual")
    assert isinstance(stage.weights["model.norm.weight"], Ones)
    assert np.all(stage.weights["model.norm.weight"].rows(0, 3) == 1)
    assert "lm_head.weight" in stage.weights
    assert tied != ("lm_head.weight" in before)
    changed = {
        n for n, w in stage.weights.items() if n in before and not np.array_equal(w.rows(0, w.shape[0]), before[n])
    }
    assert any("q_proj" in name for name in changed)
    assert any("down_proj" in name for name in changed)
    assert not any("q_norm" in name for name in changed)


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("gemma2", "residual", r"model\.layers\.0\.post_attention_layernorm \(RMSNorm\) is added to it"),
        ("cohere", "residual", r"model\.layers\.0\.input_layernorm \(LayerNorm\) reads it in another way"),
        ("gpt2", "residual", "several tables"),
        ("mamba2", "values", "fits no attention layer"),
    ],
)
def test_what_cant_be_rotated_is_refused(case: str, kind: str, message: str) -> None:
    stage = build_llm(open_checkpoint(GOLDENS / case), max_context=8)
    with pytest.raises(RecipeError, match=message):
        rotate(stage, kind)


def test_outliers_get_smaller(tmp_path: Path) -> None:
    """A stream with one huge column is spread over its block."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((16, 64)).astype(np.float32)
    values[:, 5] *= 50
    turned = Turned(ComputedWeight("w", values.shape, lambda a, b: values[a:b]), columns=64).rows(0, 16)
    assert np.allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(values, axis=1), rtol=1e-5)
    ratio = np.abs(values).max(axis=1) / np.abs(turned).max(axis=1)
    assert np.median(ratio) > 4
