"""Calibration data and the graph a tool is given: what the stage really takes, and the same values in older ops."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from conftest import golden, lowered
from edgewright.bundle import read_manifest
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import UnsupportedFormatError, UsageError
from edgewright.graph.writer import write_stage
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import Session
from edgewright.targets.external.graph import write_graph
from edgewright.targets.external.samples import check_given, sample_feeds, write_samples
from edgewright.targets.external.sizes import chosen_sizes, fixed
from edgewright.targets.external.tool import Tool, find_tool
from policy_builds import export_policy

PLAIN = dataclasses.replace(find_tool("tvmc"), static=False, shapes={}, opset=None)


def written(case: str, folder: Path, recipe: str = "float32") -> StageContract:
    """Write a golden's stage in the dialect that tools read."""
    stage = lowered(golden(case).checkpoint, "onnx-qdq", recipe)
    write_stage(stage, folder / "stages" / "llm")
    return stage.contract


def given(folder: Path, contract: StageContract, tool: Tool, **sizes: int) -> Path:
    """Write what the tool gets beside the stage."""
    place = folder / "given"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    source = folder / "stages" / "llm"
    write_graph(source, place, chosen_sizes(source, tool, contract, sizes), tool)
    return place


def test_a_dialog_is_what_a_session_feeds(tmp_path: Path) -> None:
    """The caches of the third sample are those of a session that read the first two."""
    contract = written("llama", tmp_path)
    place = given(tmp_path, contract, PLAIN, seq=8, capacity=64)
    kind, feeds = sample_feeds(tmp_path, place, contract, {"seq": 8, "capacity": 64}, 3, 5)
    assert kind == "seeded token ids"
    taken = [{name: array.copy() for name, array in sample.items()} for sample in feeds]
    assert [int(sample["past_lengths"][0]) for sample in taken] == [0, 8, 16]
    model = tmp_path / "stages" / "llm" / "model.onnx"
    session = Session(OnnxRuntimeEngine(model, contract, EngineSettings("all"), threads=1), first_capacity=64)
    for sample in taken[:2]:
        session.append(sample["input_ids"][0], logits="none")
    names = [name for layer in contract.kv for name in (layer.past_key, layer.past_value)]
    for name, cache in zip(names, session.cache(), strict=True):
        np.testing.assert_allclose(taken[2][name][:, :, :16], cache, rtol=1e-5, atol=1e-6)
        assert np.abs(cache).max() > 0.1


def test_a_full_cache_begins_anew(tmp_path: Path) -> None:
    contract = written("mamba2", tmp_path)
    place = given(tmp_path, contract, PLAIN, seq=8)
    _, feeds = sample_feeds(tmp_path, place, contract, {"seq": 8}, 3, 0)
    states = [sample[contract.state[0].past].copy() for sample in feeds]
    assert not states[0].any()
    assert states[1].any()
    contract = written("qwen3", tmp_path / "full")
    place = given(tmp_path / "full", contract, PLAIN, seq=8, capacity=20)
    _, feeds = sample_feeds(tmp_path, place, contract, {"seq": 8, "capacity": 20}, 3, 0)
    assert [int(sample["past_lengths"][0]) for sample in feeds] == [0, 8, 0]
    place = given(tmp_path / "full", contract, PLAIN, seq=8, capacity=7)
    _, feeds = sample_feeds(tmp_path, place, contract, {"seq": 8, "capacity": 7}, 1, 0)
    with pytest.raises(UsageError, match="A cache of capacity 7 has no room for seq 8"):
        next(feeds)


def test_the_files_are_the_same_every_time(tmp_path: Path) -> None:
    contract = written("llama", tmp_path, "int8")
    place = given(tmp_path, contract, PLAIN, seq=4, capacity=16)
    digests = []
    for form in ("npy", "raw", "npy"):
        _, feeds = sample_feeds(tmp_path, place, contract, {"seq": 4, "capacity": 16}, 2, 3)
        folder = tmp_path / "calibration"
        shutil.rmtree(folder, ignore_errors=True)
        names = {tensor.name: tensor.name for tensor in contract.inputs}
        assert write_samples(feeds, folder, form, names) == 2
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        digests.append(hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest())
    assert digests[0] == digests[2] != digests[1]
    ids = np.load(folder / "input_ids" / "00001.npy")
    assert (ids.shape, ids.dtype) == ((1, 4), np.int64)
    line = (folder / "samples.txt").read_text().splitlines()[1]
    assert line.startswith("input_ids:=calibration/input_ids/00001.npy past_lengths:=calibration/past_lengths/")


@pytest.mark.parametrize(("case", "op"), [("llama", "TensorScatter"), ("gemma2_bias", "Gelu"), ("phi", "Gelu")])
def test_older_ops_give_the_same_values(case: str, op: str, tmp_path: Path) -> None:
    contract = written(case, tmp_path)
    source = tmp_path / "stages" / "llm"
    place = given(tmp_path, contract, dataclasses.replace(PLAIN, opset=18))
    ops = [{node.op_type for node in onnx.load(f / "model.onnx").graph.node} for f in (source, place)]
    assert op in ops[0]
    assert not {"TensorScatter", "Gelu"} & ops[1]
    (version,) = [one.version for one in onnx.load(place / "model.onnx").opset_import]
    assert version == 18
    ids = golden(case).ids[:24]
    logits = []
    for folder in (source, place):
        engine = OnnxRuntimeEngine(folder / "model.onnx", contract, EngineSettings("all"), threads=1)
        session = Session(engine, batch=2, first_capacity=32)
        parts = [*session.append_rows([ids[:5], ids[:9]], logits="all"), session.append(ids[None, 9:12].repeat(2, 0))]
        logits.append(np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts]))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    assert np.ptp(logits[0]) > 0.1


@pytest.mark.parametrize(("case", "recipe"), [("llama", "int8"), ("qwen3_moe", "float32"), ("mamba2", "float32")])
def test_shapes_are_computed_where_sizes_are_fixed(case: str, recipe: str, tmp_path: Path) -> None:
    contract = written(case, tmp_path, recipe)
    sizes = {"batch": 1, "positions": 2, "seq": 8, **({"capacity": 24} if contract.kv else {})}
    place = given(tmp_path, contract, dataclasses.replace(PLAIN, static=True), **sizes)
    models = [onnx.load(folder / "model.onnx") for folder in (tmp_path / "stages" / "llm", place)]
    ops = [Counter(node.op_type for node in model.graph.node) for model in models]
    assert ops[0]["Shape"] > 0
    assert ops[1]["Shape"] == ops[1]["Range"] == 0
    # Quantized weights are still seen as such, and no weight became a constant of the graph.
    assert ops[1]["DequantizeLinear"] == ops[0]["DequantizeLinear"]
    constants = [node.attribute[0].t for node in models[1].graph.node if node.op_type == "Constant"]
    assert max(np.prod(tensor.dims, dtype=int) for tensor in constants) < 200
    stated = {value.name for value in models[1].graph.value_info}
    assert len(stated) > 0.9 * sum(len(node.output) for node in models[1].graph.node) - len(models[1].graph.output)
    _, feeds = sample_feeds(tmp_path, place, contract, sizes, 2, 3)
    sessions = [ort.InferenceSession(model.SerializeToString()) for model in models]
    for sample in feeds:
        wanted, found = (session.run(None, sample) for session in sessions)
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_a_graph_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    contract = written("llama", tmp_path)
    sizes = {"seq": 8, "capacity": 16}
    place = given(tmp_path, contract, dataclasses.replace(PLAIN, opset=18), **sizes)
    feeds = next(sample_feeds(tmp_path, place, contract, sizes, 1, 0)[1])
    check_given(tmp_path / "stages" / "llm", contract, sizes, feeds, place)
    model = onnx.load(place / "model.onnx", load_external_data=False)
    next(node for node in model.graph.node if node.op_type == "Sigmoid").op_type = "Tanh"
    onnx.save(model, place / "model.onnx")
    with pytest.raises(UnsupportedFormatError, match="made for the tool gives another logits than the stage's own"):
        check_given(tmp_path / "stages" / "llm", contract, sizes, feeds, place)


def test_what_an_older_operator_set_lacks_is_named(tmp_path: Path) -> None:
    contract = written("llama", tmp_path, "int4")
    with pytest.raises(
        UnsupportedFormatError, match=r"model\.embed_tokens/.*with block_size, which the operator set 18"
    ):
        given(tmp_path, contract, dataclasses.replace(PLAIN, opset=18))
    with pytest.raises(UnsupportedFormatError, match=r"TVM \(tvmc\) has no op \w+, which positions/\w+ is made of"):
        given(tmp_path, contract, dataclasses.replace(PLAIN, ops=frozenset({"Constant", "Identity", "MatMul"})))


def test_sizes_are_fixed_in_the_graph_and_checked(tmp_path: Path) -> None:
    contract = written("llama", tmp_path)
    static = dataclasses.replace(PLAIN, static=True, shapes={"batch": 1, "positions": 1, "views": 1})
    place = given(tmp_path, contract, static, seq=8, capacity=32)
    graph = onnx.load(place / "model.onnx").graph
    shapes = {v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)}
    assert shapes["input_ids"] == [1, 8]
    assert shapes["past_key.0"] == shapes["present_value.2"] == [1, 2, 32, 10]
    assert all(all(shape) for shape in shapes.values())
    with pytest.raises(UsageError, match=r"has the free sizes capacity, seq, .*shapes=capacity=256,seq=32"):
        given(tmp_path, contract, static)
    with pytest.raises(UsageError, match=r"No stage has a free size sequence; .*did you mean seq\?"):
        given(tmp_path, contract, static, sequence=8)
    with pytest.raises(UsageError, match=r"seq=512 is outside the stage's bounds \(1 to 256\)"):
        fixed(contract, {"seq": 512})


def test_policies_get_numbers_that_fit_each_other(tmp_path: Path) -> None:
    export_policy("smolvla", tmp_path / "made", recipe="float32", dialect="onnx-qdq")
    for name, entry in read_manifest(tmp_path / "made").stages.items():
        place = tmp_path / name
        place.mkdir()
        write_graph(tmp_path / "made" / "stages" / name, place, {}, dataclasses.replace(PLAIN, opset=18))
        kind, feeds = sample_feeds(tmp_path, place, entry.contract, {}, 2, 1)
        assert kind == "seeded values"
        taken = [{key: array.copy() for key, array in sample.items()} for sample in feeds]
        assert len(taken) == 2
        for key, array in taken[0].items():
            assert key == "prefix_mask" or array.size < 3 or not np.array_equal(array, taken[1][key]), key
        if name == "prefix":
            assert (
                taken[0]["prefix_mask"].shape[1]
                == taken[0]["image_features"].shape[1] + taken[0]["token_ids"].shape[1] + 1
            )
            with pytest.raises(UsageError, match="A prefix of 20 is not image_slots 9 and text 5 and one of the state"):
                sample_feeds(tmp_path, place, entry.contract, {"prefix": 20, "image_slots": 9, "text": 5}, 1, 0)
