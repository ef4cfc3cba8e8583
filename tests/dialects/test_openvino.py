"""The openvino dialect: standard ONNX but for the ops that stay, with attributes and bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from conftest import MakeEngine, golden, lowered, relative_error
from edgewright.dialects.openvino import KEPT
from edgewright.errors import UnsupportedFormatError
from edgewright.runtime.session import Session

#: Grouped heads; sinks, windows and experts; recurrent states; a soft cap.
CASES = ("qwen3", "gpt_oss", "falcon_h1", "gemma3_text_softcap")


@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_runs_the_bodies(case: str, make_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(make_engine(reference.checkpoint, "openvino"))
    got = np.concatenate([session.append(reference.ids[:40], logits="all"), session.append(reference.ids[40:41])])
    assert relative_error(got, reference.logits[:41]) < 2e-5


@pytest.mark.parametrize("recipe", ["int4", "int8"])
def test_quantized_products_are_those_of_the_portable_dialect(recipe: str, make_engine: MakeEngine) -> None:
    reference = golden("qwen3")
    mine, theirs = (
        Session(make_engine(reference.checkpoint, dialect, recipe)).append(reference.ids, logits="all")
        for dialect in ("openvino", "portable")
    )
    assert relative_error(mine, theirs) < 1e-5


def test_what_stays_says_all_about_itself(tmp_path: Path) -> None:
    stage = lowered(golden("gpt_oss").checkpoint, "openvino", "int4")
    kept = [node for node in stage.graph if node.domain]
    assert {node.domain for node in kept} == {"ew"}
    assert {node.op_type for node in kept} == KEPT - {"CacheWrite", "Linear"}
    windows = [node.attributes.get("window") for node in kept if node.op_type == "Attention"]
    assert [window and window.value for window in windows] == [8, None]
    for node in kept:
        function = stage.functions[(node.domain, node.op_type, node.overload)]
        assert set(function.attributes) == set(node.attributes)
        # The body has them inside, so that it needs none of them.
        references = [
            attribute
            for inner in ir.traversal.RecursiveGraphIterator(function)
            for attribute in inner.attributes.values()
            if attribute.is_ref()
        ]
        assert references == []
    assert stage.contract.kv_in_place


def test_linears_are_not_joined() -> None:
    stage = lowered(golden("qwen3").checkpoint, "openvino", "int4")
    names = {node.name for node in stage.graph if node.op_type == "QuantLinear"}
    assert {f"model.layers.0.self_attn.{part}_proj/Linear" for part in "qkvo"} <= names


def test_inputs_rounded_to_another_format_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"int8 only, and model\.layers\.0\.\S+ rounds them to mxfp8"):
        lowered(golden("qwen3").checkpoint, "openvino", "mxfp8")
