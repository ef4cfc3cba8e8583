"""The pass that quantizes caches: what it changes, whom it refuses by name, and what a manifest keeps of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from conftest import golden
from edgewright.contract import StageContract
from edgewright.errors import RecipeError
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.models import build_llm
from edgewright.quant.kv import AppliedCache, KVFormat, KVScales, cache_of_record, cache_record, quantize_cache
from kv_cases import FORMATS, FP8, FP8_HEAD, INT8, INT8_HEAD


def scales(modules: list[str], fmt: KVFormat, kv_heads: int = 2) -> dict[str, KVScales]:
    """Scales that are all different."""
    n = kv_heads if fmt.per == "head" else 1
    return {
        module: KVScales(*(np.arange(1, n + 1, dtype=np.float32) / np.float32(20 + 2 * i + j) for j in (0, 1)))
        for i, module in enumerate(modules)
    }


def layers(*numbers: int) -> list[str]:
    return [f"model.layers.{i}.self_attn" for i in numbers]


def nodes(stage: Stage, kind: str) -> list[ir.Node]:
    return [node for node in stage.graph if node.domain == EW and node.op_type == kind]


def test_a_format_is_checked_and_has_a_name() -> None:
    assert [fmt.label for fmt in FORMATS] == ["int8/tensor", "int8/head", "float8_e4m3/tensor", "float8_e4m3/head"]
    assert [fmt.cache_dtype for fmt in FORMATS] == ["int8", "int8", "float8_e4m3fn", "float8_e4m3fn"]
    assert [fmt.largest for fmt in (INT8, FP8)] == [127, 448]
    for dtype, per in (("int4", "tensor"), ("float8_e4m3fn", "head"), ("int8", "channel")):
        with pytest.raises(RecipeError, match="unknown"):
            KVFormat(dtype, per)  # type: ignore[arg-type]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_contract_and_graph_say_the_same(fmt: KVFormat) -> None:
    stage = build_llm(golden("llama").checkpoint)
    before = stage.contract
    applied = quantize_cache(stage, fmt, scales(layers(0, 1, 2), fmt))
    assert [a.module for a in applied] == layers(0, 1, 2)
    assert all(a.format == fmt and a.readers == () for a in applied)
    contract = stage.contract
    assert contract.kv == before.kv
    assert contract.kv_dtype == fmt.cache_dtype
    assert StageContract.from_json(json.loads(json.dumps(contract.to_json()))) == contract
    assert [t.name for t in contract.inputs] == [t.name for t in before.inputs]
    for old, new in zip((*before.inputs, *before.outputs), (*contract.inputs, *contract.outputs), strict=True):
        cache = "_key." in old.name or "_value." in old.name
        assert new == dataclasses.replace(old, dtype=fmt.cache_dtype if cache else old.dtype)
    kind = {"int8": ir.DataType.INT8, "float8_e4m3": ir.DataType.FLOAT8E4M3FN}[fmt.dtype]
    for value, tensor in zip(
        (*stage.graph.inputs, *stage.graph.outputs), (*contract.inputs, *contract.outputs), strict=True
    ):
        assert value.name == tensor.name
        assert (value.dtype == kind) is (tensor.dtype == fmt.cache_dtype)
    assert len(nodes(stage, "CacheWrite")) == len(nodes(stage, "Attention")) == 3
    for node in nodes(stage, "Attention"):
        assert node.inputs[1] is node.inputs[2] is None
        assert len(node.outputs) == 1


def test_states_stay_as_they_are() -> None:
    stage = build_llm(golden("granitemoehybrid").checkpoint)
    states = stage.contract.state
    (module,) = {str(n.name).rsplit("/", 1)[0] for n in nodes(stage, "Attention")}
    quantize_cache(stage, INT8, scales([module], INT8))
    assert states
    assert stage.contract.state == states
    declared = {t.name: t.dtype for t in (*stage.contract.inputs, *stage.contract.outputs)}
    assert {declared[name] for state in states for name in (state.past, state.present)} == {"float32"}


def test_layers_that_share_a_cache_follow_it() -> None:
    """Gemma 4: later layers read what an earlier one has written, with its scales."""
    stage = build_llm(golden("gemma4_text").checkpoint)
    before = {node.name: node.inputs[1] is not None for node in nodes(stage, "Attention")}
    owners = [str(name).rsplit("/", 1)[0] for name, own in before.items() if own]
    readers = [str(name).rsplit("/", 1)[0] for name, own in before.items() if not own]
    assert readers
    heads = {str(n.name).rsplit("/", 1)[0]: n.attributes["kv_heads"].as_int() for n in nodes(stage, "Attention")}
    given = {m: scales([m], INT8_HEAD, heads[m])[m] for m in owners}
    applied = quantize_cache(stage, INT8_HEAD, given)
    assert sorted(reader for a in applied for reader in a.readers) == sorted(readers)
    writes = {str(n.name).rsplit("/", 1)[0]: n for n in nodes(stage, "CacheWrite")}
    reads = {str(n.name).rsplit("/", 1)[0]: n for n in nodes(stage, "Attention")}
    assert list(writes) == owners
    for a in applied:
        for module in (a.module, *a.readers):
            assert list(reads[module].inputs[3:5]) == list(writes[a.module].outputs)
            assert list(reads[module].inputs[8:10]) == list(writes[a.module].inputs[5:7])
    stage = build_llm(golden("gemma4_text").checkpoint)
    with pytest.raises(RecipeError, match=f"{readers[0]}.*no cache of its own"):
        quantize_cache(stage, INT8_HEAD, given | {readers[0]: given[owners[0]]})


def test_a_cache_from_elsewhere_is_refused_by_name() -> None:
    stage = build_llm(golden("llama").checkpoint)
    node = nodes(stage, "Attention")[2]
    node.replace_input_with(1, None)
    node.replace_input_with(2, None)
    with pytest.raises(RecipeError, match=r"model\.layers\.2\.self_attn reads a cache that no layer before it writes"):
        quantize_cache(stage, INT8, scales(layers(0, 1), INT8))


@pytest.mark.parametrize("fmt", [INT8_HEAD, FP8], ids=lambda f: f.label)
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("bad", [0.0, -0.1, np.nan, np.inf, 1e-44, 1e37, -np.inf])
def test_scales_that_make_no_codes_are_refused_by_name(fmt: KVFormat, part: str, bad: float) -> None:
    given = scales(layers(0, 1, 2), fmt)
    array = getattr(given["model.layers.1.self_attn"], part).copy()
    array[-1] = bad
    given["model.layers.1.self_attn"] = dataclasses.replace(given["model.layers.1.self_attn"], **{part: array})
    head = " of head 1" if fmt.per == "head" else ""
    with pytest.raises(RecipeError, match=rf"The {part} scale{head} of model\.layers\.1\.self_attn is"):
        quantize_cache(build_llm(golden("llama").checkpoint), fmt, given)


def test_the_smallest_and_the_largest_scale_that_work() -> None:
    tiny, largest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    for fmt, low, high in ((INT8, tiny, largest / 128), (FP8, tiny * 512, largest / 512)):
        for value in (low, high):
            one = np.array([value], dtype=np.float32)
            stage = build_llm(golden("qwen3").checkpoint)
            assert len(quantize_cache(stage, fmt, dict.fromkeys(layers(0, 1), KVScales(one, one)))) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.layers.1.self_attn"), r"cache of model\.layers\.1\.self_attn has no scales"),
        (lambda s: s.clear(), r"cache of model\.layers\.0\.self_attn, .* has no scales"),
        (
            lambda s: s.update({"model.layers.9.self_attn": next(iter(s.values()))}),
            r"model\.layers\.9\.self_attn, where",
        ),
        (
            lambda s: s.update({"model.layers.0.self_attn": KVScales(np.ones(3, np.float32), np.ones(2, np.float32))}),
            r"key scales of model\.layers\.0\.self_attn are float32 \[3\] where int8/head needs float32 \[2\]",
        ),
        (
            lambda s: s.update({"model.layers.2.self_attn": KVScales(np.ones(2, np.float32), np.ones(2))}),
            r"value scales of model\.layers\.2\.self_attn are float64 \[2\]",
        ),
    ],
)
def test_scales_must_be_those_of_the_model(change: Any, message: str) -> None:
    given = scales(layers(0, 1, 2), INT8_HEAD)
    change(given)
    stage = build_llm(golden("llama").checkpoint)
    before = stage.contract
    with pytest.raises(RecipeError, match=message):
        quantize_cache(stage, INT8_HEAD, given)
    assert stage.contract == before  # refused before anything was changed
    assert not nodes(stage, "CacheWrite")


def test_a_model_without_a_cache_is_refused() -> None:
    with pytest.raises(RecipeError, match="no key/value cache"):
        quantize_cache(build_llm(golden("mamba2").checkpoint), INT8, {})


def test_many_missing_layers_are_counted() -> None:
    stage = build_llm(golden("gemma4_text").checkpoint)
    given = scales(layers(*range(10, 16)), INT8) | scales_of_all(stage)
    with pytest.raises(RecipeError, match="and 2 more"):
        quantize_cache(stage, INT8, given)


def scales_of_all(stage: Stage) -> dict[str, KVScales]:
    """Scales of every layer that has a cache."""
    modules = [str(n.name).rsplit("/", 1)[0] for n in nodes(stage, "Attention") if n.inputs[1] is not None]
    return scales(modules, INT8)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_a_record_reads_back_bit_for_bit(fmt: KVFormat) -> None:
    rng = np.random.default_rng(1)
    given = {m: KVScales(*rng.uniform(1e-6, 3, (2, 2 if fmt.per == "head" else 1)).astype(np.float32)) for m in "ab"}
    record = json.loads(json.dumps(cache_record([AppliedCache(m, fmt, s) for m, s in given.items()])))
    again, read = cache_of_record(record)
    assert again == fmt
    for module, one in given.items():
        np.testing.assert_array_equal(read[module].key, one.key)
        np.testing.assert_array_equal(read[module].value, one.value)
        assert read[module].key.dtype == np.float32
    for bad in (
        {},
        {**record, "layers": {"a": {"key": ["x"], "value": [1]}}},
        {**record, "layers": [1]},
        {**record, "dtype": "int3"},
    ):
        with pytest.raises(RecipeError):
            cache_of_record(bad)


def test_formats_per_head_of_one_head_are_per_tensor() -> None:
    """A model of one key/value head: the two ways of counting scales are one."""
    for fmt in (INT8_HEAD, FP8_HEAD):
        applied = quantize_cache(build_llm(golden("qwen3").checkpoint), fmt, scales(layers(0, 1), fmt, 1))
        assert all(a.scales.key.shape == (1,) for a in applied)
