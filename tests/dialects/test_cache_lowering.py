"""How the dialects spell a quantized cache: the kernel where it can, else the body; float32 caches as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conftest import golden
from edgewright.dialects import LOWERINGS
from edgewright.graph import Stage
from edgewright.graph.writer import write_stage
from edgewright.models import build_llm
from edgewright.quant.kv import KVFormat, KVScales, quantize_cache
from kv_cases import FORMATS, FP8, INT8, INT8_HEAD, scales_of


def written(stage: Stage, folder: Path) -> onnx.ModelProto:
    write_stage(stage, folder)
    return onnx.load(folder / "model.onnx")


def lowered(case: str, fmt: KVFormat, dialect: str, folder: Path) -> tuple[Stage, dict[str, KVScales]]:
    reference = golden(case)
    scales = scales_of(reference.checkpoint, fmt, reference.ids, folder / "float")
    stage = build_llm(reference.checkpoint)
    quantize_cache(stage, fmt, scales)
    return LOWERINGS[dialect](stage), scales


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize("fmt", [INT8, INT8_HEAD], ids=lambda f: f.label)
def test_int8_takes_the_kernel_with_its_scales(fmt: KVFormat, tmp_path: Path) -> None:
    stage, scales = lowered("llama_rope_linear", fmt, "onnxruntime", tmp_path)
    model = written(stage, tmp_path / "stage")
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    kernels = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    assert len(kernels) == len(scales) == 2
    for node, (module, one) in zip(kernels, scales.items(), strict=True):
        a = attributes(node)
        kind = b"PER_CHANNEL" if fmt.per == "head" else b"PER_TENSOR"
        assert (a["k_quant_type"], a["v_quant_type"], a["kv_cache_bit_width"]) == (kind, kind, 8)
        assert node.name.startswith(module)
        assert node.input[1] == node.input[2] == ""  # packed, as without codes
        assert a["do_rotary"] == 1
        for name, given in zip(node.input[12:14], (one.key, one.value), strict=True):
            wanted = given if fmt.per == "tensor" else np.repeat(given, 16).reshape(1, 2, 1, 16)
            np.testing.assert_array_equal(arrays[name], wanted)
    assert not [node for node in model.graph.node if node.domain == "ew"]
    assert not model.functions
    assert not any("reference body" in note for note in stage.notes)
    assert not [name for name in arrays if name.endswith("_scale")] or fmt.per == "tensor"
    assert stage.contract.kv_in_place


@pytest.mark.parametrize(
    ("case", "fmt", "reason"),
    [
        ("llama_rope_linear", FP8, "the kernel has no FP8 cache"),
        ("llama", INT8, "the head size is no multiple of 8"),
        ("deepseek_v2", INT8_HEAD, "keys and values have different widths"),
        ("gemma4_text", INT8, "the head size is no multiple of 8"),
    ],
)
def test_what_the_kernel_lacks_keeps_the_body(case: str, fmt: KVFormat, reason: str, tmp_path: Path) -> None:
    stage, scales = lowered(case, fmt, "onnxruntime", tmp_path)
    model = written(stage, tmp_path / "stage")
    kinds = [node.op_type for node in model.graph.node]
    assert "GroupQueryAttention" not in kinds
    assert kinds.count("CacheWrite") == len(scales)
    assert any(reason in note for note in stage.notes)
    assert stage.contract.kv_in_place


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
@pytest.mark.parametrize("dialect", ["portable", "onnx-qdq"])
def test_standard_spellings_pass_the_checker(fmt: KVFormat, dialect: str, tmp_path: Path) -> None:
    stage, _ = lowered("gemma3_text", fmt, dialect, tmp_path)
    written(stage, tmp_path / "stage")
    onnx.checker.check_model(str(tmp_path / "stage" / "model.onnx"), full_check=True)
    model = onnx.load(tmp_path / "stage" / "model.onnx", load_external_data=False)
    kind = onnx.TensorProto.INT8 if fmt.dtype == "int8" else onnx.TensorProto.FLOAT8E4M3FN
    values = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    assert {values[name] for name in values if name.startswith(("past_key", "past_value", "present"))} == {kind}
    ops = [n.op_type for f in model.functions for n in f.node] + [n.op_type for n in model.graph.node]
    assert "QuantizeLinear" in ops
    assert "DequantizeLinear" in ops
    domains = {node.domain for node in model.graph.node}
    assert domains <= ({"", "ew"} if dialect == "portable" else {""})


def test_a_node_without_a_quantized_cache_has_no_trace_of_one(tmp_path: Path) -> None:
    model = written(LOWERINGS["onnxruntime"](build_llm(golden("llama_rope_linear").checkpoint)), tmp_path)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            assert not {"k_quant_type", "v_quant_type", "kv_cache_bit_width"} & attributes(node).keys()
            assert len(node.input) == 9
