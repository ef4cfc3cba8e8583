"""The openvino back end: a model that plain OpenVINO loads, over the bundle's only copy of the weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import openvino as ov
import pytest

from conftest import golden, lowered, relative_error
from edgewright.build.pipeline import compile_bundle, deploy, export
from edgewright.bundle import check_files, read_manifest, this_machine
from edgewright.errors import MissingExtraError, UnsupportedFormatError, UsageError
from edgewright.graph.writer import write_stage
from edgewright.runtime.llm import LLM
from edgewright.targets import find_target
from edgewright.targets.openvino import BACKEND
from edgewright.targets.openvino.reading import read_graph
from openvino_engines import PREFIX, compiled


def external(model: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of a graph's tensors in its weight file."""
    places = {}
    for tensor in onnx.load(model, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            places[tensor.name] = int(entries.get("offset", 0)), int(entries["length"])
    return places


def constants(engine: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of an engine's constants in the weight file."""
    layers = ElementTree.parse(engine).getroot().iter("layer")
    found = {layer.get("name", ""): layer.find("data") for layer in layers if layer.get("type") == "Const"}
    return {
        name: (int(data.get("offset", 0)), int(data.get("size", 0))) for name, data in found.items() if data is not None
    }


@pytest.mark.parametrize(("case", "recipe"), [("qwen3", "int4"), ("gpt_oss", "int8"), ("qwen3", "float16")])
def test_no_weight_is_stored_twice(case: str, recipe: str, tmp_path: Path) -> None:
    stage = lowered(golden(case).checkpoint, "openvino", recipe)
    entry = compiled(stage, tmp_path)
    folder = tmp_path / PREFIX
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "weights.bin", "engine.xml"}
    assert (entry.graph, entry.engine) == (f"{PREFIX}/model.onnx", f"{PREFIX}/engine.xml")
    assert (entry.runtime, entry.dialect, entry.machine) == ("openvino", "openvino", this_machine("openvino"))
    places = external(folder / "model.onnx")
    end = max(offset + length for offset, length in places.values())
    size = (folder / "weights.bin").stat().st_size
    shared = {name: place for name, place in constants(folder / "engine.xml").items() if place in places.values()}
    assert {name for name in places if "layers.0" in name and places[name][1] > 64} <= shared.keys()
    assert all(places[name] == place for name, place in shared.items() if name in places)
    # What is added are shapes, masks and the like.
    assert 0 < size - end < 20_000
    assert all(offset + length <= size for offset, length in constants(folder / "engine.xml").values())


@pytest.mark.parametrize("recipe", ["int4", "int8"])
def test_compiling_copies_no_weight(recipe: str, tmp_path: Path) -> None:
    """Constants lie in the mapped file, in whatever type OpenVINO sees them."""
    stage = lowered(golden("qwen3").checkpoint, "openvino", recipe)
    write_stage(stage, tmp_path)
    read = read_graph(tmp_path / "model.onnx", stage.contract)
    constants = [node for node in read.model.get_ordered_ops() if node.get_type_name() == "Constant"]
    codes = [node for node in constants if node.get_friendly_name().endswith((".codes", ".scales"))]
    assert len(codes) == 30
    held = {one.ctypes.data for one in read.memory if isinstance(one, np.ndarray)}
    assert {node.data.ctypes.data for node in codes} <= held


def test_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    engines = []
    for name in ("a", "b"):
        compiled(lowered(golden("gpt_oss").checkpoint, "openvino", "int4"), tmp_path / name)
        engines.append({path.name: path.read_bytes() for path in (tmp_path / name / PREFIX).iterdir()})
    assert engines[0] == engines[1]
    assert str(tmp_path).encode() not in engines[0]["engine.xml"]


def test_plain_openvino_runs_it(tmp_path: Path) -> None:
    """Without a line of this package: a state a cache, and the inputs the contract names."""
    reference = golden("qwen3")
    compiled(lowered(reference.checkpoint, "openvino"), tmp_path)
    folder = tmp_path / PREFIX
    core = ov.Core()
    model = core.read_model(folder / "engine.xml", folder / "weights.bin")
    request = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"})
    request = request.create_infer_request()
    assert sorted(state.name for state in request.query_state()) == [
        "past_key.0", "past_key.1", "past_value.0", "past_value.1"
    ]  # fmt: skip
    parts = []
    for start, stop in ((0, 30), (30, 31)):
        results = request.infer(
            {
                "input_ids": reference.ids[None, start:stop],
                "past_lengths": np.array([start]),
                "logit_positions": np.arange(stop - start),
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        assert results["present_key.1"].shape == (1, 1, stop - start, 32)
        parts.append(results["logits"][0])
    assert relative_error(np.concatenate(parts), reference.logits[:31]) < 2e-5


def test_attention_and_compressed_products_are_openvinos_own(tmp_path: Path) -> None:
    compiled(lowered(golden("qwen3").checkpoint, "openvino", "int4"), tmp_path)
    folder = tmp_path / PREFIX
    core = ov.Core()
    made = core.compile_model(core.read_model(folder / "engine.xml", folder / "weights.bin"), "CPU", {})
    kinds = [str(node.get_rt_info()["layerType"].astype(str)) for node in made.get_runtime_model().get_ops()]
    assert kinds.count("ScaledDotProductAttention") == 2
    assert kinds.count("RoPE") == 4
    assert kinds.count("RMS") == 9
    assert kinds.count("FullyConnected") == 15
    assert not {"MatMul", "Softmax"} & set(kinds)


def test_deploy_verifies_and_compile_makes_the_same_again(tmp_path: Path) -> None:
    source = golden("qwen3").checkpoint.path
    built = deploy(source, tmp_path / "deployed", target="openvino", recipe="int8")
    assert built.manifest.verdict["status"] == "passed"
    assert built.manifest.stages["llm"].settings == {"group": 32, "kv": "f32", "threads": 0}
    export(source, tmp_path / "exported", dialect="openvino", recipe="int8")
    compile_bundle(tmp_path / "exported", tmp_path / "compiled", target="openvino")
    again = compile_bundle(tmp_path / "deployed", tmp_path / "again", target="openvino", options={"kv": "u8"})
    for name in ("model.onnx", "weights.bin", "engine.xml"):
        wanted = (tmp_path / "deployed" / PREFIX / name).read_bytes()
        assert (tmp_path / "compiled" / PREFIX / name).read_bytes() == wanted
        assert (tmp_path / "again" / PREFIX / name).read_bytes() == wanted
    assert again.manifest.stages["llm"].settings["kv"] == "u8"
    # The bundle it was made from is as it was.
    check_files(tmp_path / "deployed", read_manifest(tmp_path / "deployed"))
    LLM.load(tmp_path / "again").session().append([1, 2, 3])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv": "f64"}, "kv of the target openvino can't be 'f64': f32, f16, u8"),
        ({"dynamic-quantization-group": "7"}, "can't be '7': 0, 32, 64, 128, 256"),
        ({"threads": "-1"}, "threads of the target openvino can't be '-1': give a number from 0"),
    ],
)
def test_options_that_it_has_not(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        BACKEND.require(None, options)
    assert find_target("openvino") is BACKEND


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else found(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[openvino\]'"):
        BACKEND.require(None, {})


def test_an_op_that_openvino_has_not_is_named_with_its_layer(tmp_path: Path) -> None:
    stage = lowered(golden("qwen3").checkpoint, "openvino")
    node = next(node for node in stage.graph if node.op_type == "Attention")
    node.op_type, node.domain = "NoSuchOp", "elsewhere"
    stage.functions.clear()
    with pytest.raises(UnsupportedFormatError, match=r"elsewhere\.NoSuchOp, which model\.layers\.0\.self_attn"):
        compiled(stage, tmp_path)
    assert {path.name for path in (tmp_path / PREFIX).iterdir()} == {"model.onnx", "weights.bin"}
