"""Sessions over int8 and FP8 caches: every way of feeding, cutting back, growing and saving; near to float32."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeEngine, golden, relative_error
from edgewright.contract import StageContract
from edgewright.errors import GenerationError, TruncationError
from edgewright.quant.kv import KVFormat
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.prefix import load_prefix, save_prefix
from edgewright.runtime.session import Session
from edgewright.verify.metrics import distance
from edgewright.verify.scenarios import scenarios
from kv_cases import FORMATS, FP8, FP8_HEAD, INT8, INT8_HEAD, cached_engine, scales_of

#: Grouped heads and the kernel; sliding window; norms of q and k and one key/value head; sinks; soft cap and odd sizes;
#: recurrent states beside the cache; layers that share a cache; keys wider than values.
CASES = (
    "llama_rope_linear", "gemma3_text", "qwen3", "gpt_oss", "gemma3_text_softcap", "falcon_h1", "gemma4_text",
    "deepseek_v2", "cohere2",
)  # fmt: skip
#: Mean KL in nats against the golden's float32 logits, with scales made of the very text; 4 times what was measured.
BOUNDS = {"int8": 0.01, "float8_e4m3": 0.05}
MakeCached = Callable[..., OnnxRuntimeEngine]


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> MakeCached:
    """A function (case, format, dialect) -> the Engine of a golden over a quantized cache, made once."""
    folder = tmp_path_factory.mktemp("cached")

    @functools.cache
    def make(case: str, fmt: KVFormat, dialect: str = "onnxruntime") -> OnnxRuntimeEngine:
        reference = golden(case)
        name = f"{case}-{fmt.dtype}-{fmt.per}"
        scales = scales_of(reference.checkpoint, fmt, reference.ids, folder / f"{name}-float")
        return cached_engine(reference.checkpoint, fmt, scales, dialect, folder / f"{name}-{dialect}")

    return make


@pytest.mark.parametrize("fmt", [INT8_HEAD, FP8], ids=lambda f: f.label)
@pytest.mark.parametrize("case", CASES)
def test_logits_stay_close_to_the_float32_model(case: str, fmt: KVFormat, cached: MakeCached) -> None:
    reference = golden(case)
    got = {d: Session(cached(case, fmt, d)).append(reference.ids, logits="all") for d in ("portable", "onnxruntime")}
    for logits in got.values():
        found = distance(logits, reference.logits)
        assert found.kl <= BOUNDS[fmt.dtype]
        assert found.max_error > 1e-4  # the codes are really used
    # One code that fell the other way is all that the dialects may differ by.
    assert distance(got["onnxruntime"], got["portable"]).kl < 1e-4


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize("fmt", [INT8, FP8_HEAD], ids=lambda f: f.label)
@pytest.mark.parametrize("case", CASES)
def test_every_scenario_gives_what_one_call_gives(
    case: str, fmt: KVFormat, dialect: str, cached: MakeCached, shared_engine: MakeEngine
) -> None:
    engine, plain = cached(case, fmt, dialect), shared_engine(case, dialect)
    rng = np.random.default_rng(8)
    tokens = rng.integers(0, golden(case).logits.shape[1], 96)

    def once(engine: OnnxRuntimeEngine, ids: np.ndarray) -> np.ndarray:
        return Session(engine, first_capacity=len(ids)).append(ids, logits="all")

    recurrent = Session(engine).recurrent
    for script in scenarios(tokens, 96, max_batch=3, cut_back=not recurrent):
        runs, exact = {}, {}
        for name, one in (("codes", engine), ("float32", plain)):
            got = script.run(Session(one, batch=len(script.sequences), first_capacity=40))
            wanted = script.wanted(functools.partial(once, one))
            runs[name], exact[name] = distance(got, wanted), np.array_equal(got, wanted)
        # A value between two codes may fall either way when sums are taken in another order.
        assert runs["codes"].kl < 1e-4, script.name
        if script.name == "chunked prefill":
            assert exact["codes"] or not exact["float32"]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_chunks_give_the_logits_and_codes_of_one_call_bit_for_bit(fmt: KVFormat, cached: MakeCached) -> None:
    """The kernel computes each row alone, and rows see rounded keys in a prefill already."""
    for case in ("llama_rope_linear", "qwen3"):
        ids = golden(case).ids
        one, many = Session(cached(case, fmt), first_capacity=64), Session(cached(case, fmt), first_capacity=7)
        wanted = one.append(ids, logits="all")
        got = [many.append(part, logits="all") for part in np.split(ids, [5, 6, 21, 40])]
        np.testing.assert_array_equal(np.concatenate(got), wanted)
        for a, b in zip(one.cache(), many.cache(), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == (np.int8 if fmt.dtype == "int8" else np.uint8)


@pytest.mark.parametrize("fmt", [INT8_HEAD, FP8_HEAD], ids=lambda f: f.label)
@pytest.mark.parametrize("case", ["llama_rope_linear", "gemma3_text"])
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_cutting_back_forgets(case: str, fmt: KVFormat, dialect: str, cached: MakeCached) -> None:
    ids = golden(case).ids
    session = Session(cached(case, fmt, dialect), first_capacity=16)
    session.append(ids[:40], logits="none")
    for other in ids[::-1][:5]:
        session.append([int(other)])
    session.truncate(23)
    assert session.length == 23
    got = session.append(ids[23:], logits="all")
    wanted = Session(cached(case, fmt, dialect)).append(ids, logits="all")[23:]
    assert distance(got, wanted).kl < 1e-4
    session.truncate(0)
    again = session.append(ids, logits="all")
    assert distance(again[23:], wanted).kl < 1e-4


@pytest.mark.parametrize("fmt", [INT8, FP8], ids=lambda f: f.label)
def test_recurrent_models_rewind_to_their_marks(fmt: KVFormat, cached: MakeCached) -> None:
    ids = golden("falcon_h1").ids
    session = Session(cached("falcon_h1", fmt))
    session.append(ids[:24], logits="none")
    first = session.append(ids[24:40], logits="all")
    session.append([1])
    with pytest.raises(TruncationError):
        session.truncate(30)
    assert session.rewind(30) == 24
    assert distance(session.append(ids[24:40], logits="all"), first).kl < 1e-6


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
@pytest.mark.parametrize("case", ["llama_rope_linear", "gpt_oss"])
def test_sequences_of_different_lengths_do_not_mix(case: str, fmt: KVFormat, cached: MakeCached) -> None:
    ids = golden(case).ids
    rows = [ids[:31], ids[10:17]]
    session = Session(cached(case, fmt), batch=2, first_capacity=8)
    heads = session.append_rows(rows, logits="all")
    tail = session.append(np.stack([ids[31:32], ids[17:18]]))
    assert session.lengths == (32, 8)
    for row, head, last, full in zip(rows, heads, tail, (ids[:32], ids[10:18]), strict=True):
        alone = Session(cached(case, fmt)).append(full, logits="all")
        assert distance(np.concatenate([head, last]), alone).kl < 1e-4
        assert len(head) == len(row)


@pytest.mark.parametrize("fmt", [INT8, FP8_HEAD], ids=lambda f: f.label)
def test_a_cache_is_a_quarter_of_its_size(fmt: KVFormat, cached: MakeCached, shared_engine: MakeEngine) -> None:
    for case in ("llama_rope_linear", "gemma3_text"):
        small, large = (Session(engine, first_capacity=77) for engine in (cached(case, fmt), shared_engine(case)))
        assert 4 * small.kv_bytes == large.kv_bytes
        for session in (small, large):
            session.append(golden(case).ids, logits="none")
            session.append(np.arange(60) % 50, logits="none")
        assert small.capacity == large.capacity > 77
        assert 4 * small.kv_bytes == large.kv_bytes


@pytest.mark.parametrize("fmt", [INT8_HEAD, FP8], ids=lambda f: f.label)
def test_copies_and_saved_prefixes_go_on_bit_for_bit(fmt: KVFormat, cached: MakeCached, tmp_path: Path) -> None:
    ids = golden("llama_rope_linear").ids
    engine = cached("llama_rope_linear", fmt)
    session = Session(engine)
    session.append(ids[:40], logits="none")
    save_prefix(tmp_path / "p.npz", session, [int(i) for i in ids[:40]], "model")
    twin, restored = session.copy(), Session(engine, first_capacity=16)
    assert load_prefix(tmp_path / "p.npz", restored, "model") == [int(i) for i in ids[:40]]
    wanted = session.append(ids[40:], logits="all")
    for other in (twin, restored):
        np.testing.assert_array_equal(other.append(ids[40:], logits="all"), wanted)


def test_a_cache_of_another_dtype_is_refused(cached: MakeCached, shared_engine: MakeEngine) -> None:
    ids = golden("llama_rope_linear").ids[:9]
    engines = [cached("llama_rope_linear", INT8), cached("llama_rope_linear", FP8), shared_engine("llama_rope_linear")]
    caches = []
    for engine in engines:
        session = Session(engine)
        session.append(ids, logits="none")
        caches.append([array.copy() for array in session.cache()])
    for i, engine in enumerate(engines):
        for j, cache in enumerate(caches):
            if i == j:
                Session(engine).restore(cache, ids)
            else:
                with pytest.raises(GenerationError, match="made by another model"):
                    Session(engine).restore(cache, ids)


@pytest.mark.parametrize("change", [{"kv_dtype": "float32"}, {"kv_dtype": "uint8"}, {"kv_dtype": "float8_e4m3"}])
def test_a_contract_of_another_cache_is_refused(change: dict[str, str], cached: MakeCached) -> None:
    contract = cached("llama_rope_linear", FP8).contract
    data = json.loads(json.dumps(contract.to_json()))
    assert StageContract.from_json(data) == contract
    with pytest.raises(ValueError, match=r"kv_dtype|as .* where"):
        StageContract.from_json(data | change)
    int8 = [{**t, "dtype": "int8"} if t["dtype"].startswith("float8") else t for t in data["inputs"]]
    with pytest.raises(ValueError, match="past_key"):
        StageContract.from_json(data | {"inputs": int8})
    assert dataclasses.replace(contract, kv_dtype="int8") != contract


def test_extreme_inputs_saturate(tmp_path: Path) -> None:
    """Scales of a hundredth of what is needed: nearly every code is cut off, and logits are numbers all the same."""
    reference = golden("llama_rope_linear")
    for fmt in (INT8, FP8):
        folder = tmp_path / fmt.dtype
        scales = scales_of(reference.checkpoint, fmt, reference.ids, folder / "float", room=0.01)
        got = {}
        for dialect in ("portable", "onnxruntime"):
            engine = cached_engine(reference.checkpoint, fmt, scales, dialect, folder / dialect)
            got[dialect] = Session(engine).append(reference.ids, logits="all")
            assert np.isfinite(got[dialect]).all()
        assert relative_error(got["onnxruntime"], got["portable"]) < 1e-3
        assert distance(got["portable"], reference.logits).kl > 0.01
