"""Sessions on OpenVINO: whatever is done to one, the states of its requests give what ONNX Runtime gives."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeEngine, golden, lowered, relative_error
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError, GenerationError, MissingExtraError, TargetMismatchError, UsageError
from edgewright.models import build_llm
from edgewright.quant.kv import KVFormat, quantize_cache
from edgewright.runtime.engine import open_engine
from edgewright.runtime.engines import openvino as module
from edgewright.runtime.engines.openvino import OpenVinoEngine
from edgewright.runtime.session import Session
from kv_cases import FP8, INT8_HEAD, cached_engine, scales_of
from openvino_engines import compiled, loaded, openvino_engine

#: Grouped heads; sliding windows and a soft cap; sinks; recurrent states beside a cache; layers that share a cache;
#: keys wider than values; a table that is added to the scores.
CASES = ("qwen3", "gemma3_text_softcap", "gpt_oss", "falcon_h1", "gemma4_text", "deepseek_v2", "falcon_alibi")
NEAR = 2e-5
MakeOpenVino = Callable[..., OpenVinoEngine]


@pytest.fixture(scope="module")
def openvino(tmp_path_factory: pytest.TempPathFactory) -> MakeOpenVino:
    """A function (case, recipe) -> the OpenVINO engine of a golden, made once."""
    folder = tmp_path_factory.mktemp("openvino")

    @functools.cache
    def make(case: str, recipe: str = "float32") -> OpenVinoEngine:
        return openvino_engine(golden(case).checkpoint, folder / f"{case}-{recipe}", recipe)

    return make


def near(got: np.ndarray, wanted: np.ndarray) -> bool:
    return relative_error(got, wanted) < NEAR


@pytest.mark.parametrize("case", CASES)
def test_every_way_of_feeding_gives_the_golden_logits(case: str, openvino: MakeOpenVino) -> None:
    """Whole, in splits, token by token, after cutting back, from a copy, restored, and after the cache has grown."""
    reference, engine = golden(case), openvino(case)
    ids, wanted = reference.ids, reference.logits
    assert near(Session(engine).append(ids, logits="all"), wanted)

    session = Session(engine, first_capacity=8)
    parts = [session.append(ids[:7], logits="all"), session.append(ids[7:30], logits="all")]
    parts += [session.append(ids[i : i + 1]) for i in range(30, 40)]
    assert near(np.concatenate(parts), wanted[:40])

    saved = [array.copy() for array in session.cache()]
    twin = session.copy()
    session.append(ids[:3], logits="none")  # what the twin must not see
    assert near(twin.append(ids[40:50], logits="all"), wanted[40:50])
    twin.rewind(40 if not twin.recurrent else 0)
    at = twin.length
    assert near(twin.append(ids[at:50], logits="all"), wanted[at:50])

    other = Session(engine)
    other.append(ids[10:50], logits="none")
    other.restore(saved, ids[:40])  # as many tokens as it held, in the same memory
    assert near(other.append(ids[40:41]), wanted[40:41])


@pytest.mark.parametrize("case", ["qwen3", "falcon_h1", "gemma4_text"])
def test_batches_of_equal_and_of_other_lengths(case: str, openvino: MakeOpenVino) -> None:
    reference = golden(case)
    rows, wanted = reference.expected["ids_b"], reference.expected["logits_b"]
    session = Session(openvino(case), batch=len(rows), first_capacity=4)
    first = session.append(rows[:, :6], logits="all")
    steps = [session.append(rows[:, [i]]) for i in (6, 7)]
    assert near(np.concatenate([first, *steps], axis=1), wanted[:, :8])
    ragged = Session(openvino(case), batch=len(rows))
    for step, logits in enumerate(
        (
            ragged.append_rows([row[: 3 + 2 * i] for i, row in enumerate(rows)]),
            ragged.append(np.stack([row[[3 + 2 * i]] for i, row in enumerate(rows)])),
        )
    ):
        for i, mine in enumerate(logits):
            assert near(mine, wanted[i, [2 + 2 * i + step]])


@pytest.mark.parametrize("recipe", ["int4", "int8", "float16"])
def test_quantized_weights_are_the_ones_that_onnxruntime_multiplies(
    recipe: str, tmp_path: Path, make_engine: MakeEngine
) -> None:
    """With inputs that are not rounded, what differs is the order of sums."""
    reference = golden("qwen3")
    engine = openvino_engine(reference.checkpoint, tmp_path, recipe, {"dynamic-quantization-group": "0"})
    wanted = Session(make_engine(reference.checkpoint, "portable", recipe)).append(reference.ids, logits="all")
    assert near(Session(engine).append(reference.ids, logits="all"), wanted)


def test_more_dialogs_than_requests_take_turns(openvino: MakeOpenVino, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUESTS", 2)
    reference, engine = golden("qwen3"), openvino("qwen3")
    sessions = [Session(engine, first_capacity=64) for _ in range(4)]
    for start in range(0, 40, 10):
        for session in sessions:
            got = session.append(reference.ids[start : start + 10], logits="all")
            assert near(got, reference.logits[start : start + 10])
    assert len(engine._requests) <= 2 + 14  # those of tests before this one are still there


def test_a_request_is_used_again_when_its_caches_are_gone(tmp_path: Path) -> None:
    engine = openvino_engine(golden("qwen3").checkpoint, tmp_path)
    for _ in range(3):
        session = Session(engine)
        session.append([1, 2, 3])
        del session
        gc.collect()
    assert len(engine._requests) == 1


def test_rows_that_another_engine_wrote_are_seen(openvino: MakeOpenVino, shared_engine: MakeEngine) -> None:
    """The states are loaded again where the arrays have other rows, though as many as they had."""
    reference = golden("qwen3")
    session = Session(openvino("qwen3"), first_capacity=64)
    session.append(reference.ids[::-1][:20], logits="none")
    right = Session(shared_engine("qwen3"), first_capacity=64)
    right.append(reference.ids[:20], logits="none")
    for mine, other in zip(session.cache(), right.cache(), strict=True):
        mine[:] = other
    assert near(session.append(reference.ids[20:21]), reference.logits[20:21])


def test_a_restored_cache_is_read_though_its_last_rows_are_those_that_were_there(
    openvino: MakeOpenVino, shared_engine: MakeEngine
) -> None:
    reference = golden("qwen3")
    sessions = [Session(engine, first_capacity=64) for engine in (openvino("qwen3"), shared_engine("qwen3"))]
    logits = []
    for session in sessions:
        session.append(reference.ids[:20], logits="none")
        saved = [array.copy() for array in session.cache()]
        for array in saved:
            array[:, :, :10] = 0.25
        session.restore(saved, reference.ids[:20])
        logits.append(session.append(reference.ids[20:21]))
    assert near(*logits)
    assert not near(logits[0], reference.logits[20:21])


def test_only_what_is_bound_is_written(tmp_path: Path) -> None:
    """A request that had another caller's arrays has none of them when it is used for one that gives fewer."""
    engine = openvino_engine(golden("qwen3").checkpoint, tmp_path)

    def run(outputs: dict[str, np.ndarray]) -> None:
        layer = engine.contract.kv[0]
        caches = {past: np.zeros((1, layer.kv_heads, 8, layer.head_dim), np.float32) for past, _ in engine.caches}
        inputs = {"input_ids": np.array([[1, 2]]), "past_lengths": np.zeros(1, np.int64)}
        made = {present: caches[past] for past, present in engine.caches}
        engine.bind({**inputs, "logit_positions": np.array([1]), **caches}, {**made, **outputs})()
        assert all(cache[:, :, :2].any() and not cache[:, :, 2:].any() for cache in caches.values())

    logits = np.zeros((1, 1, 97), np.float32)
    run({"logits": logits})
    assert logits.any()
    logits[:] = 7
    run({})
    assert (logits == 7).all()
    assert len(engine._requests) == 1


def test_the_users_model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes by what is in the files, and what is damaged in it is made anew."""
    reference, cache = golden("qwen3"), tmp_path / "cache"
    monkeypatch.setenv(module.CACHE_VARIABLE, str(cache))
    entry = compiled(lowered(reference.checkpoint, "openvino"), tmp_path)

    def logits() -> tuple[np.ndarray, bool]:
        engine = open_engine(tmp_path, entry, threads=1)
        assert isinstance(engine, OpenVinoEngine)
        got = Session(engine).append(reference.ids, logits="all")
        return got, bool(engine.compiled.get_property("LOADED_FROM_CACHE"))

    (first, made), (second, kept) = logits(), logits()
    assert (made, kept) == (False, True)
    assert near(first, reference.logits)
    np.testing.assert_array_equal(first, second)
    for blob in cache.glob("*.blob"):
        blob.write_bytes(blob.read_bytes()[:1000])
    np.testing.assert_array_equal(logits()[0], first)
    weights = tmp_path / "stages" / "llm" / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size // 2) + weights.read_bytes()[weights.stat().st_size // 2 :])
    other, kept = logits()
    assert not kept
    assert not near(other, first)
    monkeypatch.setenv(module.CACHE_VARIABLE, str(weights))
    with pytest.raises(UsageError, match="name a folder that can be written"):
        logits()


@pytest.mark.parametrize(("kv", "bound"), [("f16", 5e-3), ("u8", 0.1)])
def test_narrower_states_are_near_and_caches_stay_whole(kv: str, bound: float, tmp_path: Path) -> None:
    reference = golden("qwen3")
    engine = openvino_engine(reference.checkpoint, tmp_path, options={"kv": kv})
    session = Session(engine)
    got = np.concatenate([session.append(reference.ids[:30], logits="all"), session.append(reference.ids[30:31])])
    error = relative_error(got, reference.logits[:31])
    assert 1e-7 < error < bound
    copy = session.copy()
    assert relative_error(copy.append(reference.ids[31:32]), reference.logits[31:32]) < bound


@pytest.mark.parametrize("fmt", [INT8_HEAD, FP8], ids=lambda f: f.label)
@pytest.mark.parametrize("case", ["qwen3", "gpt_oss"])
def test_a_quantized_cache_holds_the_codes_that_onnxruntime_writes(case: str, fmt: KVFormat, tmp_path: Path) -> None:
    reference = golden(case)
    scales = scales_of(reference.checkpoint, fmt, reference.ids, tmp_path / "float")
    stage = build_llm(reference.checkpoint)
    quantize_cache(stage, fmt, scales)
    engine = loaded(LOWERINGS["openvino"](stage), tmp_path / "openvino")
    other = cached_engine(reference.checkpoint, fmt, scales, "portable", tmp_path / "portable")
    mine, theirs = Session(engine), Session(other)
    for part in (reference.ids[:20], reference.ids[20:21], reference.ids[21:40]):
        got, wanted = mine.append(part, logits="all"), theirs.append(part, logits="all")
        assert relative_error(got, wanted) < 0.05  # a code that fell the other way
    for index, (a, b) in enumerate(zip(mine.cache(), theirs.cache(), strict=True)):
        assert a.dtype == b.dtype
        assert (a != b).mean() < (0.01 if index < 2 else 0.15)
    twin = mine.copy()
    assert near(twin.append(reference.ids[40:41]), mine.append(reference.ids[40:41]))


def test_a_stage_without_openvino_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = compiled(lowered(golden("qwen3").checkpoint, "openvino"), tmp_path)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"OpenVINO is not installed: pip install 'edgewright\[openvino\]'"):
        open_engine(tmp_path, entry)


def test_files_and_settings_that_are_no_engine(tmp_path: Path) -> None:
    stage = lowered(golden("qwen3").checkpoint, "openvino")
    entry = compiled(stage, tmp_path)
    for settings in ({"kv": "f64", "group": 0, "threads": 0}, {}, {"kv": "f32", "group": "x", "threads": 0}):
        with pytest.raises(BundleError, match="are none of this version"):
            open_engine(tmp_path, dataclasses.replace(entry, settings=settings))
    contract = dataclasses.replace(entry.contract, outputs=entry.contract.outputs[:-1])
    with pytest.raises(TargetMismatchError, match=r"not the manifest's \(present_value.1 differ\)"):
        open_engine(tmp_path, dataclasses.replace(entry, contract=contract))
    assert entry.engine is not None
    (tmp_path / entry.engine).write_text("<net>")
    with pytest.raises(BundleError, match=r"OpenVINO 20\d\d\.\d+\.\d+ can't load engine.xml: "):
        open_engine(tmp_path, entry)


def test_a_failed_run_is_a_sentence_and_leaves_no_request(tmp_path: Path) -> None:
    engine = openvino_engine(golden("qwen3").checkpoint, tmp_path)
    session = Session(engine)
    session.append([1, 2])

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("Exception from src/x.cpp:1:\nCheck 'a' failed\nthe kernel broke")

    engine._requests[0].infer = Broken()
    with pytest.raises(GenerationError, match=r"The engine failed \(the kernel broke\): verify the bundle"):
        session.append([3])
    assert engine._requests == []
    whole = Session(engine).append([1, 2, 4])
    assert near(session.append([4]), whole)
