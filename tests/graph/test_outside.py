"""The embedding table outside the graph: rows come in instead of ids, and the results are the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from conftest import golden
from edgewright.checkpoint import Checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import ModelError
from edgewright.formats import FloatFormat, Format, IntFormat, ScaledFormat
from edgewright.graph import Stage
from edgewright.graph.builder import make_node
from edgewright.graph.outside import EMBEDDINGS, take_table_outside
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe

FLOAT = FloatFormat("float32")
FP8 = ScaledFormat("e4m3", "row-block")
INT8 = IntFormat(8, 32, zero_point=False)


def stage_of(checkpoint: Checkpoint, table: Format = FLOAT, head: Format = FLOAT) -> Stage:
    stage = build_llm(checkpoint)
    quantize_stage(stage, Recipe("test", FLOAT, head, table))
    return stage


def outside(case: str, table: Format = FLOAT, head: Format = FLOAT) -> Stage:
    stage = stage_of(golden(case).checkpoint, table, head)
    take_table_outside(stage)
    return stage


@pytest.mark.parametrize("table", [FLOAT, FloatFormat("float16"), FP8, INT8], ids=lambda f: f.label)
def test_the_graph_takes_rows(table: Format) -> None:
    stage = outside("llama", table)
    assert [value.name for value in stage.graph.inputs][:3] == [EMBEDDINGS, "past_lengths", "logit_positions"]
    first = stage.contract.inputs[0]
    assert (first.name, first.dtype, first.shape) == (EMBEDDINGS, "float32", ("batch", "seq", 40))
    assert {node.op_type for node in stage.graph} & {"Embedding", "QuantEmbedding", "DecodeRows"} == set()
    assert stage.outside is not None
    assert not {spec.name for spec in stage.outside.producer.specs} & stage.producers.keys()
    assert (stage.outside.module, stage.outside.multiplier) == ("model.embed_tokens", None)
    # Positions follow the rows now, and nothing reads ids any more.
    shapes = [node for node in stage.graph if node.op_type == "Shape" and node.inputs[0] is stage.graph.inputs[0]]
    assert len(shapes) == 1


def test_the_rest_of_the_contract_stays() -> None:
    inside, other = stage_of(golden("gemma3").checkpoint), outside("gemma3")
    assert inside.contract.inputs[1:] == other.contract.inputs[1:]
    assert (inside.contract.outputs, inside.contract.bounds) == (other.contract.outputs, other.contract.bounds)


@pytest.mark.parametrize(("case", "factor"), [("gemma3", np.float32(40**0.5)), ("granite", 3.5), ("gpt2", None)])
def test_a_factor_of_all_rows_goes_with_the_table(case: str, factor: float | None) -> None:
    stage = outside(case)
    assert stage.outside is not None
    assert stage.outside.multiplier == factor
    assert sum(node.op_type == "Mul" for node in stage.graph) == sum(
        node.op_type == "Mul" for node in stage_of(golden(case).checkpoint).graph
    ) - (factor is not None)


@pytest.mark.parametrize("table", [FLOAT, INT8], ids=lambda f: f.label)
def test_a_tied_head_keeps_its_weight(table: Format) -> None:
    stage = outside("qwen3", table, table)
    assert stage.outside is not None
    assert {spec.name for spec in stage.outside.producer.specs} <= stage.producers.keys()
    assert any("each have a copy" in note for note in stage.notes)
    assert not any("copy" in note for note in outside("llama", table).notes)


def test_learned_positions_stay_inside() -> None:
    stage = outside("gpt2")
    tables = [node for node in stage.graph if node.op_type == "Embedding"]
    assert [table.inputs[1].name for table in tables if table.inputs[1]] == ["model.embed_positions.weight"]


def test_two_tables_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"2 tables .*model\.embed_tokens and model\.embed_tokens_per_layer.*inside"):
        outside("gemma4_text")


def test_a_graph_that_computes_with_ids_is_refused() -> None:
    stage = stage_of(golden("llama").checkpoint)
    ids = stage.graph.inputs[0]
    stage.graph.append(make_node("", "Abs", [ids], {}, name="odd/Abs"))
    with pytest.raises(ModelError, match="odd/Abs computes with token ids"):
        take_table_outside(stage)
    whole = stage_of(golden("llama").checkpoint)
    whole.graph.append(make_node("", "Shape", [whole.graph.inputs[0]], {"start": 1}, name="odd/Shape"))
    with pytest.raises(ModelError, match="odd/Shape"):  # the width of a row would be counted as well
        take_table_outside(whole)


@pytest.mark.parametrize("dialect", sorted(LOWERINGS))
def test_every_dialect_is_valid_onnx(dialect: str, tmp_path: Path) -> None:
    stage = LOWERINGS[dialect](outside("llama", FP8))
    write_stage(stage, tmp_path)
    model: Any = onnx.load(tmp_path / MODEL_FILE, load_external_data=False)
    assert model.graph.input[0].name == EMBEDDINGS
    halves = dialect == "tensorrt-edge-llm"  # its runtime feeds float16 rows
    assert model.graph.input[0].type.tensor_type.elem_type == (ir.DataType.FLOAT16 if halves else ir.DataType.FLOAT)
    read = {name for node in model.graph.node for name in node.input}
    assert EMBEDDINGS in read
    assert "input_ids" not in read
