"""Bundles with quantized caches: good ones pass, a single code may fall either way, and planted faults are found."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from conftest import TEXT_GOLDENS, golden
from edgewright.build import llm, pipeline
from edgewright.bundle import read_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError
from edgewright.graph import Stage
from edgewright.graph.builder import make_node
from edgewright.graph.rewrite import int64_constant
from edgewright.graph.weights import ComputedWeight
from edgewright.quant.kv import AppliedCache, KVFormat, KVScales, cache_record, quantize_cache
from edgewright.verify import Report, verify, verify_bundle
from edgewright.verify.codes import CODE_BOUND, code_errors, is_codes, ranks
from edgewright.verify.thresholds import CACHE_ENGINE, CACHE_QUALITY, ENGINE, QUALITY, Threshold, with_cache
from kv_cases import FP8, FP8_HEAD, INT8, INT8_HEAD, scales_of

Change = Callable[[Stage], None]


def build(
    case: str,
    fmt: KVFormat,
    folder: Path,
    *,
    form: str = "bundle",
    recipe: str = "float32",
    lowered: Change | None = None,
    scales: dict[str, KVScales] | None = None,
) -> Path:
    """Build an unverified bundle of a golden with a quantized cache; `lowered` plants a fault after lowering."""
    reference = golden(case)
    given = scales or scales_of(reference.checkpoint, fmt, reference.ids, folder / "float")
    real, applied = llm.quantize_stage, list[AppliedCache]()

    def quantized(stage: Stage, *args: Any, **kwargs: Any) -> Any:
        result = real(stage, *args, **kwargs)
        applied[:] = quantize_cache(stage, fmt, given)
        return result

    def wrapped(lower: Callable[[Stage], Stage]) -> Callable[[Stage], Stage]:
        def run(stage: Stage) -> Stage:
            stage = lower(stage)
            if lowered is not None:
                lowered(stage)
            return stage

        return run

    lowerings = {name: wrapped(lower) for name, lower in LOWERINGS.items()}
    with (
        mock.patch.object(llm, "quantize_stage", quantized),
        mock.patch.object(llm, "find_lowering", lowerings.__getitem__),
    ):
        if form == "bundle":
            pipeline.deploy(TEXT_GOLDENS / case, folder / "b", recipe=recipe, verify=False)
        else:
            pipeline.export(TEXT_GOLDENS / case, folder / "b", recipe=recipe, dialect=form)
    reseal(folder / "b", {"kv": cache_record(applied)})
    return folder / "b"


def reseal(bundle: Path, changes: dict[str, object]) -> None:
    """Change the manifest's record of the recipe."""
    manifest = read_manifest(bundle)
    recipe = {k: v for k, v in {**manifest.recipe, **changes}.items() if v is not None}
    pipeline._seal(bundle, dataclasses.replace(manifest, recipe=recipe, files={}))


def judge(case: str, bundle: Path) -> Report:
    return verify_bundle(bundle, open_checkpoint(TEXT_GOLDENS / case), threads=1)


@pytest.mark.parametrize(
    ("case", "fmt", "form", "recipe"),
    [
        ("llama_rope_linear", INT8, "bundle", "float32"),
        ("llama_rope_linear", INT8_HEAD, "bundle", "int4"),
        ("qwen3", FP8, "bundle", "int4"),
        ("gemma3_text", INT8_HEAD, "portable", "float32"),
        ("gpt_oss", FP8_HEAD, "bundle", "float32"),
        ("falcon_h1", INT8_HEAD, "bundle", "int8"),
        ("gemma4_text", INT8_HEAD, "bundle", "float32"),
        ("deepseek_v2", FP8, "portable", "int8"),
    ],
    ids=lambda x: getattr(x, "label", x),
)
def test_good_bundles_pass(case: str, fmt: KVFormat, form: str, recipe: str, tmp_path: Path) -> None:
    bundle = build(case, fmt, tmp_path, form=form, recipe=recipe)
    report = judge(case, bundle)
    assert report.passed, report.reason()
    levels = report.to_json()["levels"]
    assert {"ops", "engine", "quality"} <= levels.keys()
    # With codes and float weights, the engine is near to the reference with the same scales and far from the model.
    if recipe == "float32":
        assert levels["engine"]["pooled"]["kl"] < 1e-4 < levels["quality"]["pooled"]["kl"]
    manifest = read_manifest(bundle)
    assert manifest.stages["llm"].contract.kv_dtype == fmt.cache_dtype
    assert manifest.recipe["kv"]["dtype"] == fmt.dtype
    assert manifest.recipe["kv"]["per"] == fmt.per


def test_a_golden_and_another_bundle_may_be_compared_with(tmp_path: Path) -> None:
    bundles = [build("llama_rope_linear", INT8, tmp_path / name) for name in "ab"]
    report = verify(bundles[0], TEXT_GOLDENS / "llama_rope_linear", threads=1)
    assert report.passed, report.reason()
    assert "golden" in report.levels
    assert verify(bundles[0], bundles[1], threads=1).passed
    other = build("llama_rope_linear", FP8, tmp_path / "c")
    with pytest.raises(BundleError, match="contracts differ"):
        verify(bundles[0], other, threads=1)


# -- planted faults ----------------------------------------------------------------------------------------------------


def kernel(stage: Stage) -> tuple[list[tuple[ir.Node, int]], list[tuple[ir.Node, int]]]:
    """Where the first layer's graph has the scales of keys and of values."""
    for node in stage.graph:
        if node.op_type == "GroupQueryAttention":
            return [(node, 12)], [(node, 13)]
    write, read = (next(n for n in stage.graph if n.op_type == kind) for kind in ("CacheWrite", "Attention"))
    return [(write, 5), (read, 8)], [(write, 6), (read, 9)]


def scale_of(stage: Stage, places: list[tuple[ir.Node, int]]) -> np.ndarray:
    value = places[0][0].inputs[places[0][1]]
    assert value is not None
    weight = stage.weights[str(value.name)]
    return weight.rows(0, weight.shape[0])


def put(stage: Stage, places: list[tuple[ir.Node, int]], scales: np.ndarray) -> None:
    array = np.ascontiguousarray(scales, dtype=np.float32)
    value = stage.float_value(ComputedWeight(f"wrong.{places[0][1]}", array.shape, lambda a, b: array[a:b]))
    for node, place in places:
        node.replace_input_with(place, value)


def times(factor: float, which: int) -> Change:
    return lambda stage: put(stage, kernel(stage)[which], scale_of(stage, kernel(stage)[which]) * factor)


def exchanged(stage: Stage) -> None:
    places = kernel(stage)
    arrays = [scale_of(stage, one) for one in places]
    for one, array in zip(places, arrays[::-1], strict=True):
        put(stage, one, array)


def heads_exchanged(which: int) -> Change:
    def change(stage: Stage) -> None:
        places = kernel(stage)[which]
        scales = scale_of(stage, places)
        put(stage, places, np.flip(scales, axis=1 if scales.ndim == 4 else 0))

    return change


def other_heads(which: int) -> Change:
    """The keys or values of two heads go to each other's cache."""

    def change(stage: Stage) -> None:
        write = next(n for n in stage.graph if n.op_type == "CacheWrite")
        x = write.inputs[which]
        heads = int64_constant(stage, [0, 0, 2, -1], "by_head")
        flat = int64_constant(stage, [0, 0, -1], "flat_again")
        split = make_node("", "Reshape", [x, heads], {}, name="fault/split")
        turn = make_node(
            "", "Gather", [split.outputs[0], int64_constant(stage, [1, 0], "turned")], {"axis": 2}, name="fault/turn"
        )
        join = make_node("", "Reshape", [turn.outputs[0], flat], {}, name="fault/join")
        stage.graph.insert_before(write, [split, turn, join])
        write.replace_input_with(which, join.outputs[0])

    return change


def window(stage: Stage) -> None:
    node = next(n for n in stage.graph if n.op_type == "GroupQueryAttention")
    node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", 20)


FAULTS: dict[str, tuple[Change, str, str]] = {
    "key scale of 1.1": (times(1.1, 0), "scale", r"scale of the keys is 1\.(1|10\d|09\d) times"),
    "value scale of 0.9": (times(0.9, 1), "scale", r"scale of the values is 0\.(9|90\d|89\d) times"),
    "value scale of 1.003": (times(1.003, 1), "scale", "scale"),
    "scales exchanged": (exchanged, "scale", "scales of keys and values exchanged"),
}
HEADS: dict[str, tuple[Change, str, str]] = {
    "key scales of other heads": (heads_exchanged(0), "scale", "k_scale of the heads 1, 0"),
    "value scales of other heads": (heads_exchanged(1), "scale", "v_scale of the heads 1, 0"),
}
WRITTEN: dict[str, tuple[Change, str, str]] = {
    "keys of other heads": (other_heads(0), "head layout", "key heads in the order 1, 0"),
    "values of other heads": (other_heads(1), "head layout", "value heads in the order 1, 0"),
}
CASES = [
    *(("llama_rope_linear", INT8, name, fault) for name, fault in FAULTS.items()),
    *(("llama_rope_linear", INT8_HEAD, name, fault) for name, fault in HEADS.items()),
    *(("gemma3_text", FP8_HEAD, name, fault) for name, fault in (FAULTS | HEADS | WRITTEN).items()),
    *(("gpt_oss", INT8, name, fault) for name, fault in WRITTEN.items()),
    ("llama_rope_linear", INT8, "a window", (window, "window", "window 20")),
]


@pytest.mark.parametrize(
    ("case", "fmt", "name", "fault"), CASES, ids=lambda x: getattr(x, "label", x if isinstance(x, str) else "")
)
def test_a_planted_fault_is_found(
    case: str, fmt: KVFormat, name: str, fault: tuple[Change, str, str], tmp_path: Path
) -> None:
    change, kind, words = fault
    report = judge(case, build(case, fmt, tmp_path, lowered=change))
    levels = report.to_json()["levels"]
    assert levels["ops"]["status"] == "failed"
    place = report.localisation
    assert place is not None
    assert place.layer == 0
    assert place.module == "model.layers.0.self_attn"
    assert place.cause.kind == kind, place.sentence
    assert re.search(words, place.cause.words), place.cause.words


def test_a_wrong_scale_in_the_weight_file_is_told_from_the_record(tmp_path: Path) -> None:
    """The manifest says which scales there are: a file that has another one is told from it, by the last bit."""
    bundle = build("llama_rope_linear", INT8, tmp_path)
    record = read_manifest(bundle).recipe["kv"]
    layer = record["layers"]["model.layers.1.self_attn"]
    layer["key"][0] *= 1 + 2e-7
    reseal(bundle, {"kv": record})
    report = judge("llama_rope_linear", bundle)
    assert [name for name, level in report.to_json()["levels"].items() if level["status"] == "failed"] == ["weights"]
    assert "model.layers.1.self_attn.k_scale" in report.reason()


def test_a_manifest_must_have_the_scales_of_its_cache(tmp_path: Path) -> None:
    bundle = build("llama_rope_linear", INT8, tmp_path)
    record = read_manifest(bundle).recipe["kv"]
    reseal(bundle, {"kv": {**record, "dtype": "float8_e4m3"}})
    with pytest.raises(BundleError, match="float8_e4m3/tensor for a cache of int8"):
        judge("llama_rope_linear", bundle)
    reseal(bundle, {"kv": None})
    with pytest.raises(BundleError, match="no scales for a cache of int8"):
        judge("llama_rope_linear", bundle)


# -- codes -------------------------------------------------------------------------------------------------------------


def test_ranks_follow_the_values() -> None:
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    finite = every[np.isfinite(every.astype(np.float32))]
    order = np.argsort(finite.astype(np.float32), kind="stable")
    steps = np.diff(ranks(finite)[order])
    assert set(steps.tolist()) == {0, 1}  # 0 for the two zeros
    assert (steps == 0).sum() == 1
    np.testing.assert_array_equal(ranks(np.array([-128, 0, 127], np.int8)), [-128, 0, 127])
    assert ranks(np.array([-128, 127], np.int8)).dtype == np.int16
    assert not is_codes(np.zeros(1, np.float32))


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn])
def test_one_code_may_fall_either_way_and_no_more(dtype: type) -> None:
    rng = np.random.default_rng(4)
    bits = rng.integers(1, 100, (2, 5, 3, 8)).astype(np.uint8)
    wanted = bits.view(np.int8 if dtype is np.int8 else ml_dtypes.float8_e4m3fn)

    def moved(count: int, step: int) -> np.ndarray:
        given = bits.copy()
        given[1, 2].reshape(-1)[:count] += np.uint8(step)
        return code_errors(given.view(wanted.dtype), wanted)

    assert not moved(0, 0).any()
    assert not moved(1, 1).any()
    assert moved(2, 1)[1, 2] == 1 / 24 > CODE_BOUND
    assert np.count_nonzero(moved(2, 1)) == 1
    assert moved(1, 2)[1, 2] == np.inf
    assert (code_errors(wanted.astype(np.float32), wanted) == np.inf).all()
    empty = wanted[..., :0]
    assert code_errors(empty, empty).shape == (2, 5)


def test_a_cache_of_codes_has_an_allowance_of_its_own() -> None:
    for table, allowance in ((QUALITY, CACHE_QUALITY), (ENGINE, CACHE_ENGINE)):
        for threshold in table.values():
            assert with_cache(threshold, allowance, "float32") is threshold
            for dtype, more in allowance.items():
                both = with_cache(threshold, allowance, dtype)
                assert both.kl == threshold.kl + more.kl
                assert both.cosine is None
    assert with_cache(ENGINE[False], CACHE_ENGINE, "int8") == Threshold(1e-5 + 5e-3, 1e-4 + 0.1)
