"""Every op's reference body against NumPy that follows the op's docstring, over random sizes and attributes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import run_graph
from edgewright import ops
from edgewright.graph.builder import EW
from edgewright.ops import OPS
from edgewright.ops._body import ints, number

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
few = settings(max_examples=15)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-6) -> None:
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    if got.size:
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale)


def test_this_file_covers_every_op() -> None:
    here = "Activation Attention Embedding GatedActivation LayerNorm Linear RMSNorm Rope Softcap"
    in_their_own_files = "QuantLinear QuantEmbedding Dequantize Experts CausalConv StateSpace GatedDelta"
    in_their_own_files += " Decode DecodeRows RoundInput CacheWrite CacheRound CacheRead MixedAttention AdaRMSNorm"
    assert set(OPS) == set(here.split()) | set(in_their_own_files.split())
    assert all(name == op.name for name, op in OPS.items())


@few
@given(
    seed=seeds,
    lead=st.lists(sizes, min_size=0, max_size=2),
    inputs=st.integers(1, 37),
    outputs=sizes,
    bias=st.booleans(),
)
def test_linear(seed: int, lead: list[int], inputs: int, outputs: int, bias: bool) -> None:
    rng = np.random.default_rng(seed)
    x, w, b = normal(rng, *lead, 3, inputs), normal(rng, outputs, inputs), normal(rng, outputs)
    feeds = {"x": x, "w": w, **({"b": b} if bias else {})}
    wanted = x.astype(np.float64) @ w.T + (b if bias else 0)
    for dialect in ("portable", "onnxruntime"):
        close(run_graph(ops.linear, feeds, dialect=dialect), wanted)


@few
@given(seed=seeds, shape=st.lists(st.integers(0, 4), min_size=1, max_size=3), vocab=sizes, width=sizes)
def test_embedding(seed: int, shape: list[int], vocab: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    table, ids = normal(rng, vocab, width), rng.integers(0, vocab, shape)
    for dialect in ("portable", "onnxruntime"):
        got = run_graph(ops.embedding, {"ids": ids, "table": table}, dialect=dialect)
        np.testing.assert_array_equal(got, table[ids])


@few
@given(seed=seeds, batch=sizes, seq=sizes, groups=st.integers(1, 4), width=st.integers(1, 19), grouped=st.booleans())
@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
def test_rms_norm(epsilon: float, seed: int, batch: int, seq: int, groups: int, width: int, grouped: bool) -> None:
    rng = np.random.default_rng(seed)
    total = groups * width
    x = normal(rng, batch, seq, total) * np.float32(10.0 ** rng.integers(-3, 3))
    weight = normal(rng, width if grouped else total)
    v = x.reshape(batch, seq, groups, width) if grouped else x
    wanted = v / np.sqrt((v.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon) * weight

    def build(g: Any, a: Any, b: Any) -> Any:
        return ops.rms_norm(g, a, b, epsilon=epsilon, group=width if grouped else None)

    for dialect in ("portable", "onnxruntime"):
        close(run_graph(build, {"x": x, "w": weight}, dialect=dialect), wanted.reshape(x.shape), 5e-6)


@few
@given(
    seed=seeds, batch=sizes, seq=sizes, groups=st.integers(1, 4), width=st.integers(1, 19), grouped=st.booleans(),
    own=st.booleans(), weight=st.booleans(), bias=st.booleans(),
)  # fmt: skip
def test_layer_norm(
    seed: int, batch: int, seq: int, groups: int, width: int, grouped: bool, own: bool, weight: bool, bias: bool
) -> None:
    rng = np.random.default_rng(seed)
    total, bias, own = groups * width, bias and weight, own and grouped
    x = normal(rng, batch, seq, total) * 3 + 1
    shape = (groups, width) if own else (width if grouped else total,)
    w, b = normal(rng, *shape), normal(rng, *shape)
    v = (x.reshape(batch, seq, groups, width) if grouped else x).astype(np.float64)
    wanted = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 0.01)
    wanted = wanted * (w if weight else 1) + (b if bias else 0)
    feeds = {"x": x, **({"w": w} if weight else {}), **({"b": b} if bias else {})}

    def build(g: Any, *values: Any) -> Any:
        return ops.layer_norm(g, *values, epsilon=0.01, group=width if grouped else None)

    for dialect in ("portable", "onnxruntime"):
        close(run_graph(build, feeds, dialect=dialect), wanted.reshape(x.shape), 5e-6)


ERF = np.vectorize(math.erf)
ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def test_activation_names() -> None:
    assert set(ops.ACTIVATIONS.values()) == set(ACTIVATIONS)
    assert ops.ACTIVATIONS["gelu_pytorch_tanh"] == ops.ACTIVATIONS["gelu_new"] == "gelu_tanh"
    assert ops.ACTIVATIONS["swish"] == "silu"
    assert ops.ACTIVATIONS["gelu"] == "gelu"


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_activations(name: str, dialect: str) -> None:
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        gate, up = normal(rng, 2, 3, 17) * 4, normal(rng, 2, 3, 17)
        wanted = ACTIVATIONS[name](gate.astype(np.float64)) * up

        def build(g: Any, a: Any, b: Any) -> Any:
            return ops.gated_activation(g, a, b, activation=name)

        close(run_graph(build, {"gate": gate, "up": up}, dialect=dialect), wanted)
        plain = run_graph(lambda g, x: ops.activation(g, x, activation=name), {"x": gate}, dialect=dialect)
        close(plain, ACTIVATIONS[name](gate.astype(np.float64)))


@few
@given(seed=seeds, cap=st.sampled_from([0.5, 2.0, 30.0, 1e-3, 12345.678]))
def test_softcap(seed: int, cap: float) -> None:
    x = normal(np.random.default_rng(seed), 2, 3, 11) * 10
    got = run_graph(lambda g, a: ops.softcap(g, a, cap=cap), {"x": x})
    close(got, cap * np.tanh(x.astype(np.float64) / cap))
    assert float(np.abs(got).max()) <= cap * (1 + 1e-6)


def rope_np(
    x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray, head_dim: int, rotary: int, pairs: bool
) -> np.ndarray:
    batch, seq, total = x.shape
    v = x.reshape(batch, seq, total // head_dim, head_dim).astype(np.float64)
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    out = v.copy()
    first = slice(0, rotary, 2) if pairs else slice(0, rotary // 2)
    second = slice(1, rotary, 2) if pairs else slice(rotary // 2, rotary)
    out[..., first] = v[..., first] * c - v[..., second] * s
    out[..., second] = v[..., second] * c + v[..., first] * s
    return out.reshape(x.shape)


@few
@given(
    seed=seeds, batch=sizes, seq=sizes, heads=sizes, half=st.integers(1, 5), rest=st.sampled_from([0, 1, 6]),
    interleaved=st.booleans(),
)  # fmt: skip
def test_rope(seed: int, batch: int, seq: int, heads: int, half: int, rest: int, interleaved: bool) -> None:
    rng = np.random.default_rng(seed)
    rotary, head_dim, rows = 2 * half, 2 * half + rest, 23
    x = normal(rng, batch, seq, heads * head_dim)
    cos, sin = normal(rng, rows, half), normal(rng, rows, half)  # not on a circle: that is the table's business
    positions = rng.integers(0, rows, (batch, seq))

    def build(g: Any, *values: Any) -> Any:
        return ops.rope(g, *values, head_dim=head_dim, rotary_dim=rotary, interleaved=interleaved)

    got = run_graph(build, {"x": x, "positions": positions, "cos": cos, "sin": sin})
    close(got, rope_np(x, positions, cos, sin, head_dim, rotary, interleaved))


def attention_np(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, past_key: np.ndarray, past_value: np.ndarray, lengths: np.ndarray,
    heads: int, scale: float, window: int | None, softcap: float | None,
    sinks: np.ndarray | None = None, bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    batch, seq, _ = q.shape
    _, kv_heads, _, head_dim = past_key.shape
    wide = past_value.shape[3]
    keys, values = past_key.copy(), past_value.copy()
    y = np.zeros((batch, seq, heads * wide))
    for b in range(batch):
        for i in range(seq):
            slot = lengths[b] + i
            keys[b, :, slot] = k[b, i].reshape(kv_heads, head_dim)
            values[b, :, slot] = v[b, i].reshape(kv_heads, wide)
        for i in range(seq):
            slot = lengths[b] + i
            seen = slice(0 if window is None else max(0, slot + 1 - window), slot + 1)
            for h in range(heads):
                kv = h // (heads // kv_heads)
                part = slice(h * head_dim, (h + 1) * head_dim)
                scores = scale * keys[b, kv, seen].astype(np.float64) @ q[b, i, part]
                scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
                scores = scores if bias is None else scores + bias[h, seen]
                weights = np.exp(scores - scores.max())
                total = weights.sum() + (0 if sinks is None else np.exp(sinks[h] - scores.max()))
                y[b, i, h * wide : (h + 1) * wide] = weights / total @ values[b, kv, seen]
    return y, keys, values


@settings(max_examples=40)
@given(
    seed=seeds, batch=st.integers(1, 3), seq=st.integers(1, 6), kv_heads=st.integers(1, 3), groups=st.integers(1, 3),
    head_dim=st.integers(1, 7), window=st.sampled_from([None, 1, 2, 5]), softcap=st.sampled_from([None, 1.5, 20.0]),
    scale=st.sampled_from([1.0, 0.37, -0.5]), value_dim=st.integers(1, 5), with_sinks=st.booleans(),
    with_bias=st.booleans(),
)  # fmt: skip
def test_attention(
    seed: int, batch: int, seq: int, kv_heads: int, groups: int, head_dim: int, window: int | None,
    softcap: float | None, scale: float, value_dim: int, with_sinks: bool, with_bias: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    heads, capacity = kv_heads * groups, 11
    lengths = rng.integers(0, capacity - seq + 1, batch)
    q = normal(rng, batch, seq, heads * head_dim)
    k, v = normal(rng, batch, seq, kv_heads * head_dim), normal(rng, batch, seq, kv_heads * value_dim)
    past = [normal(rng, batch, kv_heads, capacity, width) for width in (head_dim, value_dim)]
    sinks, bias = normal(rng, heads), normal(rng, heads, capacity + 3)
    feeds = {"q": q, "k": k, "v": v, "past_key": past[0], "past_value": past[1], "past_lengths": lengths}
    more = {**({"sinks": sinks} if with_sinks else {}), **({"bias": bias} if with_bias else {})}

    def build(g: Any, *values: Any) -> Any:
        return ops.attention(
            g, *values[:6], heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=scale, window=window,
            softcap=softcap, value_dim=value_dim, **dict(zip(more, values[6:], strict=True)),
        )  # fmt: skip

    y, keys, values = run_graph(build, feeds | more, outputs=3)
    wanted, wanted_keys, wanted_values = attention_np(
        q, k, v, *past, lengths, heads, scale, window, softcap, more.get("sinks"), more.get("bias")
    )
    close(y, wanted, 3e-6)
    np.testing.assert_array_equal(keys, wanted_keys)
    np.testing.assert_array_equal(values, wanted_values)

    # A layer without keys and values of its own reads the caches that another has written.
    def reader(g: Any, q: Any, keys: Any, values: Any, lengths: Any) -> Any:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        y, _, _ = ops.attention(
            g, q, None, None, keys, values, lengths, scale=scale, window=window, softcap=softcap, **sizes
        )
        return y

    shared = run_graph(reader, {"q": q, "keys": keys, "values": values, "lengths": lengths})
    close(shared, attention_np(q, k, v, *past, lengths, heads, scale, window, softcap)[0], 3e-6)


def test_attention_ignores_what_lies_behind_its_length() -> None:
    """Slots at and after a sequence's length are unspecified: rubbish there (but for NaN) changes nothing."""
    rng = np.random.default_rng(5)
    feeds = {name: normal(rng, 1, 2, 6) for name in "qkv"}
    caches = [normal(rng, 1, 2, 9, 3) for _ in range(2)]
    results = []
    for rubbish in (0.0, 1e20):
        past = [cache.copy() for cache in caches]
        for cache in past:
            cache[:, :, 4:] = rubbish
        feeds |= {"past_key": past[0], "past_value": past[1], "past_lengths": np.array([4])}
        results.append(
            run_graph(lambda g, *v: ops.attention(g, *v, heads=2, kv_heads=2, head_dim=3, scale=0.5), feeds, outputs=3)[
                0
            ]
        )
    np.testing.assert_array_equal(*results)


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
@few
def test_numbers_are_spelled_so_that_they_read_back(value: float) -> None:
    text = number(value)
    assert np.float32(float(text)) == np.float32(value)
    assert any(c in text for c in ".e")


def test_spelling_of_vectors() -> None:
    assert ints("a", 1, -2, 3) == "a = Constant<value = int64[3] {1, -2, 3}>()\n"
    assert number(3) == "3.0"


def test_two_uses_of_an_op_with_other_attributes_do_not_mix() -> None:
    """Each distinct use is an overload of its own; equal uses share one."""

    def build(g: Any, x: Any) -> Any:
        outs = [ops.softcap(g, x, cap=cap) for cap in (1.0, 2.0, 1.0)]
        assert all(node.domain == EW for node in g.graph)
        return tuple(outs)

    x = np.linspace(-5, 5, 7, dtype=np.float32)
    got = run_graph(build, {"x": x}, outputs=3)
    for out, cap in zip(got, (1.0, 2.0, 1.0), strict=True):
        close(out, cap * np.tanh(x / cap))
