"""A quantized cache against an oracle of its own: the codes that are written, and attention over what they stand for.

The same stage is run in every dialect: as reference bodies, as plain ONNX, and as the kernel where there is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewright.dialects import LOWERINGS
from edgewright.quant.kv import KVFormat, KVScales, quantize_cache
from edgewright.verify.codes import ranks
from kv_cases import FORMATS, FP8, INT8, INT8_HEAD, MODULE, attention_stage, codes_np, run_stage, values_np

DIALECTS = ("portable", "onnx-qdq", "onnxruntime")


def bytes_of(codes: np.ndarray) -> np.ndarray:
    """Codes as a runtime holds them."""
    return codes.view(np.uint8) if codes.dtype == ml_dtypes.float8_e4m3fn else codes


def codes_of(array: np.ndarray) -> np.ndarray:
    return array.view(ml_dtypes.float8_e4m3fn) if array.dtype == np.uint8 else array


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """x `[batch, seq, heads, width]` rotated in two halves."""
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def mixed(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, past: np.ndarray, sizes: dict[str, Any], sinks: Any
) -> np.ndarray:
    """Attention of q `[batch, seq, heads, width]` over caches of floats, in float64 and one score after the other."""
    batch, seq, heads, _ = q.shape
    y = np.zeros((batch, seq, heads, values.shape[-1]))
    for b, i, h in np.ndindex(batch, seq, heads):
        stop = past[b] + i + 1
        seen = slice(max(0, stop - (sizes.get("window") or stop)), stop)
        group = h // (heads // keys.shape[1])
        scores = keys[b, group, seen].astype(np.float64) @ q[b, i, h] * sizes["scale"]
        if cap := sizes.get("softcap"):
            scores = cap * np.tanh(scores / cap)
        shares = np.exp(scores)
        total = shares.sum() + (0 if sinks is None else np.exp(np.float64(sinks[h])))
        y[b, i, h] = shares / total @ values[b, group, seen]
    return y


def check(
    seed: int, fmt: KVFormat, dialect: str, folder: Path, *, seq: int, rope: bool, sinks: bool, **sizes: Any
) -> None:
    """Write and read one call of a random attention, and compare with the oracle."""
    rng = np.random.default_rng(seed)
    batch = 1 if seq > 1 and dialect == "onnxruntime" else 3
    heads, kv_heads, widths = sizes["heads"], sizes["kv_heads"], (sizes["head_dim"], sizes["value_dim"])
    past = rng.integers(0, 9, batch)
    x = {
        n: rng.normal(size=(batch, seq, h, w)).astype(np.float32)
        for n, h, w in zip("qkv", (heads, kv_heads, kv_heads), (widths[0], *widths), strict=True)
    }
    count = kv_heads if fmt.per == "head" else 1
    scales = KVScales(
        *(rng.uniform(0.5, 2.0, count).astype(np.float32) * np.float32(2.2 / fmt.largest) for _ in range(2))
    )
    if fmt.dtype == "int8":
        held = [rng.integers(-128, 128, (batch, kv_heads, 17, w)).astype(np.int8) for w in widths]
    else:
        bits = [rng.integers(0, 256, (batch, kv_heads, 17, w)).astype(np.uint8) for w in widths]
        held = [np.where((b & 0x7F) == 0x7F, 0x7E, b).astype(np.uint8).view(ml_dtypes.float8_e4m3fn) for b in bits]
    feeds = {n: a.reshape(batch, seq, -1) for n, a in x.items()}
    feeds |= {"past_lengths": past, "input_ids": np.zeros((batch, seq), dtype=np.int64)}
    positions = past[:, None] + np.arange(seq)
    if rope:
        angles = np.arange(40)[:, None] * 0.5 ** np.arange(widths[0] // 2)
        tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        feeds |= {"positions": positions, **tables}
        x |= {n: turned(x[n], *tables.values(), positions) for n in "qk"}
    if sinks:
        feeds["sinks"] = rng.normal(size=heads).astype(np.float32)
    stage = attention_stage(sizes, feeds, rope=rope)
    quantize_cache(stage, fmt, {MODULE: scales})
    stage = LOWERINGS[dialect](stage)
    got = run_stage(stage, feeds | dict(zip(("past_key", "past_value"), map(bytes_of, held), strict=True)), folder)

    caches, floats = [], []
    for name, old, scale in zip("kv", held, (scales.key, scales.value), strict=True):
        present = codes_of(got["present_key" if name == "k" else "present_value"])
        wanted = old.copy()
        new = codes_np(np.moveaxis(x[name], 2, 1), scale, fmt)
        for b in range(batch):
            wanted[b, :, past[b] : past[b] + seq] = new[b]
        # What was there before stays bit for bit; a value between two codes may have gone either way.
        distance = np.abs(ranks(present) - ranks(wanted))
        kept = np.ones(17, dtype=bool)[None] & ~(
            (np.arange(17) >= past[:, None]) & (np.arange(17) < past[:, None] + seq)
        )
        kept &= np.arange(17) < past[:, None] + seq
        assert not np.moveaxis(distance, 2, 1)[kept].any()
        filled = np.arange(17) < past[:, None] + seq
        assert np.moveaxis(distance, 2, 1)[filled].max() <= 1
        assert (np.moveaxis(distance, 2, 1)[filled] > 0).mean() < 1e-3 + 1.5 / distance.size
        caches.append(present)
        floats.append(values_np(present, scale))
    wanted_y = mixed(x["q"], *floats, past, sizes, feeds.get("sinks"))
    y = got["y"].reshape(wanted_y.shape)
    assert np.abs(y - wanted_y).max() <= 5e-6 * np.abs(wanted_y).max()


few = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("dialect", DIALECTS)
@few
@given(
    seed=st.integers(0, 2**32 - 1), fmt=st.sampled_from(FORMATS), seq=st.integers(1, 6), kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3), head_dim=st.integers(1, 7), value_dim=st.integers(1, 5),
    window=st.sampled_from([None, 1, 3]), softcap=st.sampled_from([None, 1.5]), sinks=st.booleans(),
)  # fmt: skip
def test_odd_sizes_keep_the_body(
    seed: int, fmt: KVFormat, seq: int, kv_heads: int, groups: int, head_dim: int, value_dim: int, window: int | None,
    softcap: float | None, sinks: bool, dialect: str, tmp_path: Path,
) -> None:  # fmt: skip
    check(
        seed, fmt, dialect, tmp_path, seq=seq, rope=False, sinks=sinks, heads=kv_heads * groups, kv_heads=kv_heads,
        head_dim=head_dim, value_dim=value_dim, window=window, softcap=softcap, scale=0.7,
    )  # fmt: skip


@few
@given(
    seed=st.integers(0, 2**32 - 1), fmt=st.sampled_from(FORMATS), seq=st.integers(1, 6), kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3), head_dim=st.sampled_from([16, 48]), window=st.sampled_from([None, 1, 3]),
    softcap=st.sampled_from([None, 1.5]), sinks=st.booleans(), rope=st.booleans(),
)  # fmt: skip
def test_the_kernel_computes_what_the_body_does(
    seed: int, fmt: KVFormat, seq: int, kv_heads: int, groups: int, head_dim: int, window: int | None,
    softcap: float | None, sinks: bool, rope: bool, tmp_path: Path,
) -> None:  # fmt: skip
    for dialect in ("portable", "onnxruntime"):
        check(
            seed, fmt, dialect, tmp_path / dialect, seq=seq, rope=rope, sinks=sinks, heads=kv_heads * groups,
            kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, window=window, softcap=softcap, scale=0.3,
        )  # fmt: skip


@pytest.mark.parametrize("fmt", [INT8, FP8], ids=lambda f: f.label)
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_ties_ends_and_zeros(fmt: KVFormat, dialect: str, tmp_path: Path) -> None:
    """With a scale of a power of two nothing is between codes by accident: every code must be the oracle's."""
    scale = np.float32(0.25)
    if fmt.dtype == "int8":
        steps = np.arange(-130, 131, 0.5, dtype=np.float32)
    else:
        codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        steps = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2, [464, 465, 480, 1e30, 2.0**-10, 2.0**-11]])
        steps = np.concatenate([steps, -steps])
    steps = np.append(steps, [np.inf, -np.inf]).astype(np.float32)
    x = np.resize(steps * scale, (1, -(-steps.size // 16), 16))
    n = x.shape[1]
    feeds = {"q": np.zeros_like(x), "k": x, "v": x[:, ::-1].copy(), "past_lengths": np.array([2])}
    feeds["input_ids"] = np.zeros((1, n), dtype=np.int64)
    stage = attention_stage({"heads": 1, "kv_heads": 1, "head_dim": 16, "value_dim": 16, "scale": 1.0}, feeds)
    one = np.array([scale])
    quantize_cache(stage, fmt, {MODULE: KVScales(one, one)})
    past = {f"past_{name}": np.zeros((1, 1, n + 2, 16), dtype=np.int8) for name in ("key", "value")}
    past = {name: array.view(np.uint8) if fmt is FP8 else array for name, array in past.items()}
    got = run_stage(LOWERINGS[dialect](stage), feeds | past, tmp_path)
    for name, array in (("key", feeds["k"]), ("value", feeds["v"])):
        wanted = codes_np(array[:, None], one, fmt)
        present = codes_of(got[f"present_{name}"])
        np.testing.assert_array_equal(present[:, :, 2:].astype(np.float32), wanted.astype(np.float32))
        assert not present[:, :, :2].astype(np.float32).any()


def test_int8_codes_are_those_of_the_reference_evaluator() -> None:
    """An oracle from outside: ONNX's own implementation of QuantizeLinear per axis."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], axis=1, output_dtype=TensorProto.INT8)
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xs"]
    graph = helper.make_graph([node], "g", types, [helper.make_tensor_value_info("y", TensorProto.INT8, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    rng = np.random.default_rng(3)
    x, scales = rng.normal(size=(2, 3, 50, 7)).astype(np.float32) * 9, np.array([0.1, 0.07, 0.03], np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x, "s": scales})
    np.testing.assert_array_equal(codes_np(x, scales, INT8_HEAD), wanted)
