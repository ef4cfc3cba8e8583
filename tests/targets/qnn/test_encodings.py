"""Encodings of activations: zero is a code, what moves shares one, hidden scores end where they no longer count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.targets.qnn.encodings import encode, encodings_of, groups_of
from qnn_cases import spelled

FLOATS = st.floats(-1e4, 1e4, width=32)


@given(low=FLOATS, high=FLOATS, bits=st.sampled_from([8, 16]))
def test_an_encoding_holds_its_range_and_zero(low: float, high: float, bits: int) -> None:
    low, high = min(low, high), max(low, high)
    encoding = encode(low, high, bits)
    values = np.asarray([min(low, 0), 0, max(high, 0)], dtype=np.float32)
    codes = encoding.codes(values)
    assert codes.dtype == np.dtype(f"uint{bits}")
    assert encoding.values(codes)[1] == 0
    assert 0 <= encoding.zero < 1 << bits
    assert np.abs(encoding.values(codes) - values).max() <= encoding.scale * 1.01


def test_values_beyond_the_range_get_the_last_code() -> None:
    encoding = encode(-1.0, 1.0, 8)
    assert encoding.codes(np.asarray([-9.0, 9.0, -np.inf, np.inf], np.float32)).tolist() == [0, 255, 0, 255]


def test_the_htps_own_encodings_are_exact() -> None:
    assert encode(0.0, 65535 / 65536, 16).scale == 1 / 65536
    tanh = encode(-1.0, 32767 / 32768, 16)
    assert (tanh.scale, tanh.offset) == (1 / 32768, -32768)


@pytest.mark.parametrize("kv_bits", [8, 16])
def test_caches_share_an_encoding_with_what_is_put_in_and_read(kv_bits: int, tmp_path: Path) -> None:
    graph, _ = spelled("gemma2", tmp_path, rows=2, context=16)
    groups = groups_of(graph)
    assert groups["past_key_1_in"] == groups["past_key_1_out"] == groups["keys_1"]
    assert groups["past_key_1_in"] != groups["past_value_1_in"]
    ranges = dict.fromkeys(graph.shapes, (-2.0, 3.0))
    found = encodings_of(graph, ranges, kv_bits)
    assert found["past_key_0_in"].dtype == f"uint{kv_bits}"
    assert found["past_key_0_in"] == found["keys_0"]
    assert found["logits"].dtype == "uint16"
    assert {name for node in graph.nodes for name in node.output} <= found.keys()
    assert set(graph.inputs) - {"input_ids"} <= found.keys()


def test_hidden_scores_are_far_below_all_that_are_seen(tmp_path: Path) -> None:
    graph, _ = spelled("llama", tmp_path, rows=2, context=16)
    found = encodings_of(graph, dict.fromkeys(graph.shapes, (-4.0, 6.0)), 16)
    mask = found["attention_mask"]
    assert mask.zero == 65535
    depth = -float(mask.values(np.zeros(1, np.uint16))[0])
    for masked, scores in graph.masked.items():
        span = found[scores].values(np.asarray([0, 65535], np.uint16))
        lowest, highest = found[masked].values(np.asarray([0, 65535], np.uint16))
        assert lowest <= span[0] - 15.9
        assert highest >= span[1] - found[masked].scale
        assert span[1] - depth <= lowest + 0.1
