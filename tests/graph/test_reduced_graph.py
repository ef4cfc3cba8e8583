"""A reduced vocabulary in the graph: rows are picked and not changed, logits of kept tokens are the full model's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import CASES, ArrayTensor, engine_of, golden, lowered, relative_error
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import ModelError
from edgewright.graph import Producer, Stage, Weight
from edgewright.graph.vocabulary import PickedRows, PickedWeight, reduce_vocabulary, table_bytes
from edgewright.graph.weights import ComputedWeight, StoredWeight
from edgewright.graph.writer import unique_producers
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.session import Session
from edgewright.runtime.vocabulary import Vocabulary


def some_ids(full: int, count: int, seed: int, needed: np.ndarray | None = None) -> np.ndarray:
    """Return `count` ids and the needed ones, ascending."""
    drawn = np.random.default_rng(seed).choice(full, count, replace=False)
    return np.union1d(drawn, drawn if needed is None else needed).astype(np.int64)


def reduced(checkpoint: Checkpoint, kept: np.ndarray, dialect: str, recipe: str) -> Stage:
    stage = build_llm(checkpoint)
    reduce_vocabulary(stage, kept)
    quantize_stage(stage, load_recipe(recipe))
    return LOWERINGS[dialect](stage)


# -- picked rows -------------------------------------------------------------------------------------------------------


@given(
    picked=st.sets(st.integers(0, 499), min_size=1, max_size=200),
    cuts=st.tuples(st.integers(0, 200), st.integers(0, 200)),
)
def test_picked_rows_are_the_rows(picked: set[int], cuts: tuple[int, int]) -> None:
    values = np.arange(500 * 3, dtype=np.float32).reshape(500, 3)
    ids = np.array(sorted(picked), dtype=np.int64)
    rows = PickedRows(ArrayTensor("t", values), ids)
    start, stop = sorted(min(cut, len(ids)) for cut in cuts)
    np.testing.assert_array_equal(rows.rows(start, stop), values[ids[start:stop]])
    if start < stop:
        np.testing.assert_array_equal(rows.raw(start, stop).view(np.float32), values[ids[start:stop]])
    assert rows.shape == (len(ids), 3)
    assert not hasattr(rows, "format")


@dataclass(frozen=True)
class Encoding:
    row_step: int = 1
    shared: frozenset[str] = frozenset({"global_scale"})


class Encoded(ArrayTensor):
    """A tensor that another tool quantized."""

    def __init__(self, values: np.ndarray, encoding: Encoding) -> None:
        super().__init__("t", values)
        self.encoding, self.input = encoding, "scales"

    def encoded(self, start: int, stop: int) -> dict[str, np.ndarray]:
        return {"codes": self.values[start:stop] + 1, "global_scale": np.float32([7])}


def test_parts_of_other_tools_are_picked_where_rows_have_their_own_scales() -> None:
    values = np.arange(300, dtype=np.float32).reshape(100, 3)
    ids = np.array([2, 3, 50, 99], dtype=np.int64)
    rows = PickedRows(Encoded(values, Encoding()), ids)
    parts = rows.encoded(1, 4)
    np.testing.assert_array_equal(parts["codes"], values[ids[1:4]] + 1)
    assert parts["global_scale"] == 7
    assert rows.input == "scales"
    assert PickedRows(Encoded(values, Encoding(row_step=128)), ids).encoding is None


def test_a_changed_weight_is_picked_as_floats() -> None:
    table = ComputedWeight("t", (90, 2), lambda a, b: np.arange(2 * a, 2 * b).reshape(-1, 2).astype(np.float32))
    picked = PickedWeight(table, np.array([0, 7, 89]))
    np.testing.assert_array_equal(picked.rows(0, 3), [[0, 1], [14, 15], [178, 179]])
    assert picked.stored() is None
    assert StoredWeight(ArrayTensor("t", np.ones((3, 2))), "t").stored() is not None


# -- the pass ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_family_can_be_reduced(case: str) -> None:
    stage = build_llm(golden(case).checkpoint)
    full = stage.contract.outputs[0].shape[-1]
    assert isinstance(full, int)
    before = {name: weight.shape for name, weight in stage.weights.items()}
    kept = some_ids(full, full // 3, seed=1)
    rows = reduce_vocabulary(stage, kept)
    assert stage.contract.outputs[0].shape == ("batch", "positions", len(kept))
    for name, weight in stage.weights.items():
        old = before[name]
        assert weight.shape == ((len(kept), *old[1:]) if name in rows else old), name
        assert tuple(stage.graph.initializers[name].shape or ()) == weight.shape
        assert rows.get(name, old[0] if old else 0) == (old[0] if old else 0)
    assert not [name for name, shape in before.items() if shape[:1] == (full,) and len(shape) == 2 and name not in rows]


#: Tied and untied heads, one with a bias, inputs of each layer, tables of positions, scaled and capped logits, states.
NUMBERS = ("llama", "phi", "gemma3", "gemma4_text", "gpt2", "opt_project", "cohere", "gemma2", "mamba2", "qwen3_next")


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize("case", NUMBERS)
def test_logits_of_kept_tokens_are_the_full_models(case: str, dialect: str, tmp_path: Path) -> None:
    known = golden(case)
    full = known.logits.shape[-1]
    kept = some_ids(full, full // 3, seed=len(case), needed=np.unique(known.ids))
    assert len(kept) < full
    wanted = Session(engine_of(lowered(known.checkpoint, dialect), tmp_path / "full")).append(known.ids, logits="all")
    engine = engine_of(reduced(known.checkpoint, kept, dialect, "float32"), tmp_path / "reduced")
    session = Session(engine, vocabulary=Vocabulary(kept, full))
    given = session.append(known.ids, logits="all")
    assert given.shape == (len(known.ids), len(kept))
    assert relative_error(given, wanted[:, kept]) < 1e-6
    assert relative_error(given, known.logits[:, kept]) < 1e-4


def produced(producer: Producer) -> dict[str, np.ndarray]:
    columns = zip(*(chunk() for chunk in producer.chunks()), strict=True)
    return {spec.name: np.concatenate(c) for spec, c in zip(producer.specs, columns, strict=True)}


def tensors(stage: Stage) -> dict[str, np.ndarray]:
    """Return all tensors of a stage by name."""
    return {name: array for p in unique_producers(stage) for name, array in produced(p).items()}


def gguf_checkpoint(path: Path, kind: str, vocab: int) -> Checkpoint:
    """Write a tiny llama GGUF whose matrices are of one type."""
    width, inner = 64, 96
    writer = gguf.GGUFWriter(path, "llama")
    sizes: dict[str, Any] = {"block_count": 1, "context_length": 64, "embedding_length": width}
    sizes |= {"feed_forward_length": inner, "attention.head_count": 4, "attention.head_count_kv": 2}
    for key, value in {**sizes, "rope.dimension_count": 16}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    shapes = {"token_embd": (vocab, width), "output": (vocab, width), "output_norm": (width,)}
    layer = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (32, width)}
    layer |= {"attn_v": (32, width), "attn_output": (width, width)}
    layer |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    rng = np.random.default_rng(len(kind))
    for name, shape in {**shapes, **{f"blk.0.{k}": v for k, v in layer.items()}}.items():
        values = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
            continue
        of_type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values / 8, of_type), raw_dtype=of_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path)


@pytest.mark.parametrize("recipe", ["stored", "int4", "int8", "float16"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "llama", "gemma3", "phi"])
def test_what_is_stored_are_rows_of_what_the_full_model_stores(kind: str, recipe: str, tmp_path: Path) -> None:
    """Codes, scales and offsets of kept tokens are bit for bit those of the full table."""
    vocab = 701
    checkpoint = gguf_checkpoint(tmp_path / "m.gguf", kind, vocab) if kind[0] == "Q" else golden(kind).checkpoint
    stage = build_llm(checkpoint)
    full = stage.contract.outputs[0].shape[-1]
    assert isinstance(full, int)
    applied = quantize_stage(stage, load_recipe(recipe))
    kept = some_ids(full, full // 4, seed=8)
    smaller = build_llm(checkpoint)
    rows = reduce_vocabulary(smaller, kept)
    assert quantize_stage(smaller, load_recipe(recipe)) == applied
    whole, cut = tensors(stage), tensors(smaller)
    assert whole.keys() == cut.keys()
    changed = [name for name in whole if whole[name].shape != cut[name].shape]
    for name in whole:
        wanted = whole[name][kept] if name in changed else whole[name]
        np.testing.assert_array_equal(cut[name].view(np.uint8), np.ascontiguousarray(wanted).view(np.uint8))
    bytes_cut = sum(cut[name].nbytes for name in changed)
    assert table_bytes(smaller, rows) == (bytes_cut, sum(whole[name].nbytes for name in changed))
    assert bytes_cut * full == table_bytes(smaller, rows)[1] * len(kept)


def test_a_graph_that_uses_ids_otherwise_is_refused() -> None:
    stage = build_llm(golden("llama").checkpoint)
    ids = next(value for value in stage.graph.inputs if value.name == "input_ids")
    node = next(node for node in stage.graph if node.op_type == "Shape")
    node.op_type = "Cast"
    assert any(use.node is node for use in ids.uses())
    with pytest.raises(ModelError, match=r"can't be reduced: .* computes with token ids themselves"):
        reduce_vocabulary(stage, np.arange(5))


def test_a_table_with_another_reader_is_refused() -> None:
    stage = build_llm(golden("llama").checkpoint)
    table: Weight = stage.weights["model.embed_tokens.weight"]
    other = next(node for node in stage.graph if node.op_type == "Linear" and "q_proj" in (node.name or ""))
    other.replace_input_with(1, stage.graph.initializers[table.name])
    with pytest.raises(ModelError, match=r"q_proj.* reads model.embed_tokens.weight as well"):
        reduce_vocabulary(stage, np.arange(5))
