"""The small parts of the localiser: relations of arrays, errors of rows, names of values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from conftest import golden, lowered
from edgewright.bundle.settings import EngineSettings
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models import build_llm
from edgewright.verify import clues
from edgewright.verify.cause import CLASSES
from edgewright.verify.graphs import Graph
from edgewright.verify.locate import FLOAT_BOUND, INT8_BOUND, layer_of
from edgewright.verify.names import Tap, match, part_names
from edgewright.verify.rows import block_energy, row_errors
from edgewright.verify.semantic import Semantic

RNG = np.random.default_rng(4)
WANTED = RNG.normal(size=(12, 16)).astype(np.float32)


def test_offsets_factors_and_orders_are_seen() -> None:
    offset = RNG.normal(size=16).astype(np.float32)
    found = clues.row_offset(WANTED + offset, WANTED)
    assert found is not None
    assert np.allclose(found, offset, atol=1e-5)
    assert clues.row_offset(WANTED * 1.5, WANTED) is None
    assert clues.factor(WANTED * -0.25, WANTED) == pytest.approx(-0.25)
    assert clues.factor(WANTED, WANTED) is None
    assert clues.factor(WANTED + offset, WANTED) is None
    order = [3, 0, 1, 2, *range(4, 16)]
    assert clues.column_order(WANTED[:, order], WANTED) == order
    assert clues.column_order(WANTED, WANTED) is None
    assert clues.column_order(WANTED * 2, WANTED) is None


def test_orders_of_heads_and_of_rope_pairs() -> None:
    heads = [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    assert clues.moves_blocks(heads, 4)
    assert not clues.moves_blocks(heads, 3)
    assert not clues.moves_blocks([1, 0, 2, 3], 2)
    pairs = [0, 4, 1, 5, 2, 6, 3, 7]
    assert clues.is_pairing(pairs, 8, 8)
    assert clues.is_pairing(list(np.argsort(pairs)), 8, 8)
    assert clues.is_pairing([*pairs, *(8 + i for i in pairs)], 8, 8)
    assert clues.is_pairing([0, 2, 1, 3, 4, 5, 6, 7], 8, 4)  # the rest of a head stays
    assert not clues.is_pairing(heads, 4, 4)


def test_errors_of_rows() -> None:
    wanted = np.ones((1, 3, 4), dtype=np.float32)
    given = wanted.copy()
    given[0, 1, 2] = 1.5
    assert row_errors(given, wanted, mean=False).tolist() == [[0.0, 0.5, 0.0]]
    assert row_errors(given, wanted, mean=True).tolist() == [[0.0, 0.25, 0.0]]
    given[0, 2, 0] = np.nan
    assert row_errors(given, wanted, mean=False)[0, 2] == math.inf
    # A score of minus infinity is equal to itself, and to nothing else.
    wanted[0, 0, 0] = given[0, 0, 0] = -np.inf
    assert row_errors(given, wanted, mean=False)[0, 0] == 0
    assert not np.signbit(row_errors(given, given, mean=False)).any()
    wanted[0, 1, 0] = -np.inf
    assert row_errors(given, wanted, mean=False)[0, 1] == math.inf
    ids = np.array([[[1, 2], [3, 4]]])
    assert row_errors(ids, ids, mean=False).tolist() == [[0.0, 0.0]]
    assert row_errors(ids + np.array([0, 1]), ids, mean=False)[0].tolist() == [math.inf, math.inf]
    assert row_errors(wanted[:, :, :0], wanted[:, :, :0], mean=False).shape == (1, 3)


def test_block_energy() -> None:
    weight = np.zeros((2, 40), dtype=np.float32)
    weight[0, 0] = weight[1, 1] = 2.0
    weight[0, 39] = 1.0
    assert block_energy(weight).tolist() == [4.0, 0.5]


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("model.layers.12.self_attn.q_proj", 12),
        ("transformer.h.3.mlp.c_fc", 3),
        ("model.layers.0", 0),
        ("model.norm", None),
        ("lm_head", None),
        ("positions", None),
    ],
)
def test_layers_of_modules(module: str, layer: int | None) -> None:
    assert layer_of(module) == layer


def test_names_of_parts() -> None:
    assert part_names("model.layers.1.mlp.gate_proj+up_proj") == [
        "model.layers.1.mlp.gate_proj",
        "model.layers.1.mlp.up_proj",
    ]


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_every_linear_and_norm_of_a_lowered_graph_is_known(dialect: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    checkpoint = golden("mistral_head_dim16").checkpoint
    semantic = Semantic(build_llm(checkpoint))
    write_stage(lowered(checkpoint, dialect), tmp_path)
    taps = match(semantic, Graph(tmp_path / MODEL_FILE, EngineSettings("disabled")))
    expected = {op.outputs[0] for op in semantic.ops if op.type in ("Linear", "RMSNorm", "Attention", "Embedding")}
    assert expected <= taps.keys()
    assert list(taps) == sorted(taps, key=lambda name: semantic.order[name])
    if dialect == "onnxruntime":
        q, k = (taps[f"model.layers.1.self_attn.{part}/Linear:0"] for part in ("q_proj", "k_proj"))
        assert q.name == k.name
        assert q.columns is not None
        assert k.columns is not None
        assert q.columns[1] == k.columns[0]
    else:
        assert all(tap == Tap(name) for name, tap in taps.items())


def test_the_documentation_has_the_bounds_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "verification.md").read_text(encoding="utf-8")
    assert f"may be {FLOAT_BOUND:g} of".replace("3e-05", "3e-5") in text
    assert f"may be {INT8_BOUND:.0%}".replace("%", " %") in text
    described = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]
    assert {f"`{kind}`" for kind in CLASSES} <= set(described)
    assert {f"`{level}`" for level in ("weights", "ops", "engine", "quality", "golden", "live", "bundles")} <= set(
        described
    )
