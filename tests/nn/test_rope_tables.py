"""Rope tables: the frequencies of each scaling by its own formula, and the tables made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgewright.contract import StageContract
from edgewright.graph import GraphBuilder, Stage
from edgewright.nn import RopeTable


def table(scaling: dict[str, Any] | None, *, positions: int = 50, dim: int = 14, theta: float = 5000.0) -> RopeTable:
    return RopeTable("rope", positions, dim, theta, scaling)


def plain(dim: int = 14, theta: float = 5000.0) -> np.ndarray:
    return np.array([theta ** (-2 * i / dim) for i in range(dim // 2)])


def test_plain_frequencies() -> None:
    for scaling in (None, {}, {"rope_type": "default"}, {"type": "default"}):
        freqs, factor = table(scaling).angles()
        np.testing.assert_allclose(freqs, plain(), rtol=1e-6)
        assert factor == 1.0


@pytest.mark.parametrize("factor", [2.5, 8])
def test_linear_scaling_divides(factor: float) -> None:
    freqs, attention = table({"rope_type": "linear", "factor": factor}).angles()
    np.testing.assert_allclose(freqs, plain() / factor, rtol=1e-6)
    assert attention == 1.0


def test_llama3_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 48,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    }  # fmt: skip
    freqs, _ = table(scaling).angles()
    wanted, kinds = [], set()
    for frequency in plain():
        wave = 2 * math.pi / frequency
        if wave < 48 / 4:
            wanted.append(frequency)
            kinds.add("kept")
        elif wave > 48 / 1:
            wanted.append(frequency / 8)
            kinds.add("divided")
        else:
            smooth = (48 / wave - 1.0) / (4.0 - 1.0)
            wanted.append((1 - smooth) * frequency / 8 + smooth * frequency)
            kinds.add("blended")
    assert kinds == {"kept", "divided", "blended"}
    np.testing.assert_allclose(freqs, wanted, rtol=2e-6)


@pytest.mark.parametrize(
    ("extra", "attention"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.3}, 1.3),
        ({"mscale": 0.7, "mscale_all_dim": 1.1}, (0.07 * math.log(4) + 1) / (0.11 * math.log(4) + 1)),
        ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
        ({"beta_fast": 16, "beta_slow": 2}, 0.1 * math.log(4) + 1),
        ({"truncate": False}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_ramps_from_kept_to_divided(extra: dict[str, Any], attention: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **extra}
    freqs, factor = table(scaling).angles()

    def correction(rotations: float) -> float:
        return 14 * math.log(32 / (rotations * 2 * math.pi)) / (2 * math.log(5000.0))

    low, high = correction(extra.get("beta_fast", 32)), correction(extra.get("beta_slow", 1))
    if extra.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 13)
    ramp = np.clip((np.arange(7) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(freqs, plain() / 4 * ramp + plain() * (1 - ramp), rtol=2e-6)
    assert factor == pytest.approx(attention)


def test_a_yarn_factor_below_one_does_not_scale_attention() -> None:
    _, factor = table({"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 32}).angles()
    assert factor == 1.0


def test_tables_are_cos_and_sin_of_position_times_frequency_times_the_factor() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.5}
    rope = table(scaling, positions=40)
    stage = Stage("t", ir.Graph([], [], nodes=[], name="t"), StageContract((), ()))
    g = GraphBuilder(stage)
    cos, sin = rope.values(g)
    again = rope.values(g)
    assert again[0] is cos
    assert again[1] is sin
    freqs, _ = rope.angles()
    angles = np.arange(40)[:, None] * freqs.astype(np.float64)
    for value, function in ((cos, np.cos), (sin, np.sin)):
        (chunk,) = stage.producers[value.name or ""].chunks()
        (got,) = chunk()
        assert got.shape == (40, 7)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, 1.5 * function(angles), atol=5e-6)
