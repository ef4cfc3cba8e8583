"""MixedAttention and AdaRMSNorm: their bodies and their kernels against NumPy that follows the ops' docstrings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import run_graph
from edgewright import ops

DIALECTS = ("portable", "onnxruntime")
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 3e-6) -> None:
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * max(1.0, float(np.abs(wanted).max())))


def attention_np(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, seen: np.ndarray, heads: int, scale: float
) -> np.ndarray:
    """Attend row by row; keys and values `[batch, kv_heads, keys, dim]`, seen `[batch, seq, keys]`."""
    batch, seq, _ = q.shape
    _, kv_heads, _, dim = keys.shape
    y = np.zeros(q.shape)
    for b, i, h in np.ndindex(batch, seq, heads):
        part, kv, which = slice(h * dim, (h + 1) * dim), h * kv_heads // heads, seen[b, i].astype(bool)
        scores = scale * keys[b, kv, which].astype(np.float64) @ q[b, i, part]
        weights = np.exp(scores - scores.max())
        y[b, i, part] = weights / weights.sum() @ values[b, kv, which]
    return y


def by_head(rows: np.ndarray, kv_heads: int) -> np.ndarray:
    batch, count, width = rows.shape
    return rows.reshape(batch, count, kv_heads, width // kv_heads).transpose(0, 2, 1, 3)


@settings(max_examples=60)
@given(
    seed=seeds, batch=st.integers(1, 3), seq=st.integers(1, 5), prefix=st.integers(0, 6), own=st.booleans(),
    kv_heads=st.integers(1, 3), group=st.integers(1, 3), dim=st.integers(1, 7), scale=st.sampled_from([0.37, -0.5]),
    mask=st.sampled_from(["none", "keys", "rows"]), transposed=st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("dialect", DIALECTS)
def test_mixed_attention(
    dialect: str, seed: int, batch: int, seq: int, prefix: int, own: bool, kv_heads: int, group: int, dim: int,
    scale: float, mask: str, transposed: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    heads, own = kv_heads * group, own or not prefix
    feeds = {"q": normal(rng, batch, seq, heads * dim)}
    keys, values = (normal(rng, batch, kv_heads, prefix, dim) for _ in range(2))
    if prefix:
        feeds |= {"pk": np.ascontiguousarray(keys.swapaxes(2, 3)) if transposed else keys, "pv": values}
    if own:
        # Own rows need not be as many as those that ask: cross-attention projects a prefix's.
        rows = seq if mask == "rows" else seq + 1
        feeds |= {name: normal(rng, batch, rows, kv_heads * dim) for name in ("k", "v")}
        keys = np.concatenate([keys, by_head(feeds["k"], kv_heads)], axis=2)
        values = np.concatenate([values, by_head(feeds["v"], kv_heads)], axis=2)
    count = keys.shape[2]
    seen = np.ones((batch, seq, count), np.int64)
    if mask != "none":
        bits = rng.integers(0, 2, (batch, seq if mask == "rows" else 1, count))
        bits[..., rng.integers(0, count)] = 1
        seen = np.broadcast_to(bits, seen.shape)
        feeds["mask"] = bits if mask == "rows" else bits[:, 0]

    def build(g: Any, *given: Any) -> Any:
        v = dict(zip(feeds, given, strict=True))
        parts = (v.get(name) for name in ("k", "v", "pk", "pv", "mask"))
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "keys_transposed": transposed}
        return ops.mixed_attention(g, v["q"], *parts, scale=scale, by_row=mask == "rows", **sizes)

    close(run_graph(build, feeds, dialect=dialect), attention_np(feeds["q"], keys, values, seen, heads, scale))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hidden_keys_have_no_effect_at_all(dialect: str) -> None:
    """Whatever finite numbers stand there, the result is the same to the bit; a row that sees nothing stays finite."""
    rng = np.random.default_rng(3)
    feeds = {"q": normal(rng, 2, 3, 8), "k": normal(rng, 2, 1, 7, 4), "v": normal(rng, 2, 1, 7, 4)}
    feeds["mask"] = np.array([[1, 0, 1, 1, 0, 0, 1], [0] * 7])
    results = []
    for rubbish in (0.0, 1e20, -3e15):
        hidden = feeds["mask"][:, None, :, None] == 0
        given = {**feeds, **{name: np.where(hidden, np.float32(rubbish), feeds[name]) for name in "kv"}}

        def build(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
            return ops.mixed_attention(g, q, None, None, k, v, mask, heads=2, kv_heads=1, head_dim=4, scale=0.5)

        results.append(run_graph(build, given, dialect=dialect))
        assert np.isfinite(results[-1]).all()
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][0], results[2][0])
    assert np.abs(results[0][0]).max() > 0.1


@few
@given(
    seed=seeds, batch=st.integers(1, 3), seq=st.integers(1, 4), width=st.integers(1, 19), each_row=st.booleans(),
    epsilon=st.sampled_from([1e-6, 0.3]),
)  # fmt: skip
@pytest.mark.parametrize("dialect", DIALECTS)
def test_ada_rms_norm(
    dialect: str, seed: int, batch: int, seq: int, width: int, each_row: bool, epsilon: float
) -> None:
    rng = np.random.default_rng(seed)
    x = normal(rng, batch, seq, width) * np.float32(10.0 ** rng.integers(-3, 3))
    scale, shift = (normal(rng, batch, seq if each_row else 1, width) for _ in range(2))
    wanted = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon) * scale + shift
    got = run_graph(
        lambda g, *values: ops.ada_rms_norm(g, *values, epsilon=epsilon),
        {"x": x, "scale": scale, "shift": shift},
        dialect=dialect,
    )
    close(got, wanted, 5e-6)
