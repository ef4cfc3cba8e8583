"""Elements against casts of ml_dtypes and ONNX: every code, ties, what is too large; packing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.formats import E2M1, E4M3, INT8, pack, unpack
from format_goldens import arrays

SPECIAL = [0.0, -0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, -0.1, 1e-45, -1e-40, 448.0, 464.0, 465.0, 3e38]


def test_every_code_stands_for_what_the_tables_say() -> None:
    golden = arrays("codes")
    codes = np.arange(256, dtype=np.uint8)
    values = E4M3.values(codes.view(E4M3.numpy_dtype)[None])[0]
    np.testing.assert_array_equal(values, golden["e4m3.values"])
    packed = pack(np.arange(16, dtype=np.uint8)[None], 4)
    np.testing.assert_array_equal(E2M1.values(packed)[0], golden["e2m1.values"])


def test_casts_round_as_onnx_does() -> None:
    """Ties, neighbours of ties, what is too large and subnormal: ONNX's saturating cast for E4M3."""
    golden = arrays("codes")
    inputs = golden["cast.inputs"]
    finite = np.isfinite(inputs)
    x = inputs[finite]
    codes = E4M3.codes(E4M3.snap(x)[None])[0].view(np.uint8)
    np.testing.assert_array_equal(codes, golden["cast.e4m3.onnx_saturate"][finite])
    x = x[: len(x) // 2 * 2]
    codes = unpack(E2M1.codes(E2M1.snap(x)[None]), 4)[0]
    np.testing.assert_array_equal(codes, golden["cast.e2m1.ml_dtypes"][finite][: len(x)])


@pytest.mark.parametrize("element", [INT8, E4M3, E2M1], ids=lambda e: e.name)
def test_snapping_keeps_what_is_representable_and_saturates(element) -> None:  # type: ignore[no-untyped-def]
    if element is INT8:
        values = np.arange(-127, 128, dtype=np.float32)
    else:
        bits = 1 << element.bits
        codes = np.arange(bits, dtype=np.uint8)
        values = codes.view(element.numpy_dtype).astype(np.float32)
        values = values[np.isfinite(values)]
    np.testing.assert_array_equal(element.snap(values), values)
    assert element.snap(np.float32([3e38]))[0] == element.largest
    assert element.snap(np.float32([-3e38]))[0] == -element.largest


@given(values=st.lists(st.floats(-10, 10, width=32) | st.sampled_from(SPECIAL), min_size=1, max_size=20))
def test_the_nearest_number_is_taken_and_of_two_the_even_one(values: list[float]) -> None:
    x = np.float32(values)
    table = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for got, wanted in zip(E2M1.snap(x), np.clip(x, -6, 6), strict=True):
        distance = np.abs(table.astype(np.float64) - abs(float(wanted)))
        nearest = np.flatnonzero(distance == distance.min())
        even = nearest[nearest % 2 == 0][0] if len(nearest) > 1 else nearest[0]
        assert abs(got) == table[even]
        assert np.signbit(got) == np.signbit(wanted)
