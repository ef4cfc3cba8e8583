"""The qnn dialect: what has no form is refused by name, and the static graph computes what the checkpoint says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from conftest import engine_of, golden, lowered, relative_error
from edgewright.errors import UnsupportedFormatError
from edgewright.runtime.session import Session
from qnn_cases import float_logits, spelled

#: What a graph may be made of: ops that the HTP has, and no domain but ONNX's own.
OPS = {
    "Add", "Concat", "Div", "Gather", "Gelu", "LayerNormalization", "MatMul", "Mul", "RMSNormalization", "Relu",
    "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Sub", "Tanh", "Transpose",
}  # fmt: skip


@pytest.mark.parametrize(
    "case", ["llama", "llama_bias", "qwen3", "gemma2", "gemma3_text", "cohere", "phi3", "granite", "olmo2", "stablelm"]
)
def test_the_static_graph_computes_what_the_checkpoint_says(case: str, tmp_path: Path) -> None:
    reference = golden(case)
    ids = reference.ids[:22]
    graph, weights = spelled(case, tmp_path, rows=5, context=26)
    assert {node.op_type for node in graph.nodes} <= OPS
    assert max(len(shape) for shape in graph.shapes.values()) <= 4
    # The HTP's GELU is the exact one, from which the tanh form differs by 0.0005.
    bound = 2e-3 if case.startswith("gemma") else 2e-5
    assert relative_error(float_logits(graph, weights, ids), reference.logits[:22]) < bound


def test_rows_of_one_continue_what_many_began(tmp_path: Path) -> None:
    ids = golden("llama").ids[:9]
    many, weights = spelled("llama", tmp_path / "many", rows=3, context=12)
    one, same = spelled("llama", tmp_path / "one", rows=1, context=12)
    assert relative_error(float_logits(one, same, ids), float_logits(many, weights, ids)) < 1e-5


def test_the_interface_is_the_documented_one(tmp_path: Path) -> None:
    graph, _ = spelled("llama", tmp_path, rows=4, context=16)
    assert graph.inputs[:4] == ["input_ids", "attention_mask", "position_ids_cos", "position_ids_sin"]
    shapes = {name: graph.shapes[name] for name in (*graph.inputs, *graph.outputs)}
    assert shapes["input_ids"] == (1, 4)
    assert shapes["attention_mask"] == (1, 1, 4, 16)
    assert shapes["position_ids_cos"] == (1, 1, 4, 5)
    assert shapes["past_key_2_in"] == (2, 1, 10, 12)
    assert shapes["past_value_2_in"] == (2, 1, 12, 10)
    assert shapes["past_key_0_out"] == (2, 1, 10, 4)
    assert shapes["past_value_0_out"] == (2, 1, 4, 10)
    assert shapes["logits"] == (1, 4, 97)
    assert graph.outputs[0] == "logits"


def test_a_window_within_the_context_has_a_mask_of_its_own(tmp_path: Path) -> None:
    graph, _ = spelled("gemma2", tmp_path / "long", rows=4, context=24)
    windows = [window for window in graph.windows.values() if window is not None]
    assert len(graph.windows) == 2
    assert len(windows) == 1
    short, _ = spelled("gemma2", tmp_path / "short", rows=2, context=windows[0])
    assert short.windows == {"attention_mask": None}


def test_the_dialects_own_graph_is_the_reference(tmp_path: Path) -> None:
    reference = golden("llama")
    engine = engine_of(lowered(reference.checkpoint, "qnn"), tmp_path)
    assert engine.contract.kv_in_place
    got = Session(engine).append(reference.ids, "all")
    assert relative_error(got, reference.logits) < 2e-5


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("qwen3_next", r"the op CausalConv \(model\.layers\.0\.linear_attn"),
        ("mixtral", r"the op (Experts|Dequantize) \(model\.layers\.0\.block_sparse_moe"),
        ("gpt2", r"a table of positions \(model\.embed_positions\)"),
        ("falcon_alibi", r"attention with a table that is added to the scores \(\w+"),
        ("llama_rope_longrope", r"the rotation whose frequencies change with the length \(llm\)"),
    ],
)
def test_what_has_no_form_is_refused_with_its_layer(case: str, words: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=words) as caught:
        lowered(golden(case).checkpoint, "qnn")
    assert str(caught.value).endswith("use another target, such as cpu.")


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4"])
def test_formats_that_the_htp_lacks_are_refused(recipe: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"a weight in mxe\dm\d \(model\."):
        lowered(golden("qwen3").checkpoint, "qnn", recipe)


def test_an_op_that_a_graph_should_not_hold_is_named(tmp_path: Path) -> None:
    from edgewright.dialects.qnn_static import spell

    node = onnx.helper.make_node("Einsum", ["input_ids"], ["y"], name="model.layers.7.odd/Einsum", equation="ij->ji")
    value = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [value]))
    with pytest.raises(UnsupportedFormatError, match=r"the op Einsum \(model\.layers\.7\.odd\)"):
        spell(model, [], rows=2, context=4)


def test_masks_show_the_past_and_what_came_before() -> None:
    from edgewright.runtime.engines.qnn import masks

    seen = masks({"all": None, "near": 2}, rows=3, past=2, context=7)
    expected = np.array([[1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1, 1]], dtype=bool)
    assert np.array_equal(seen["all"], expected)
    near = np.array([[0, 1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1]], dtype=bool)
    assert np.array_equal(seen["near"], near)
