"""Encodings: the numbers of the requirement's example, all pairs of types, rounding, saturation, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.errors import GenerationError, UsageError
from edgewright.runtime.encoding import INTEGERS, DType, EmbeddingFile, Encoding, Mode, Requantizer

#: The requirement's input, and the table of glm-4v.
INPUT = Encoding("uint16", 0.00031563572701998055, -32937)
GLM = Encoding("uint8", 0.001585477963089943, -129)
DTYPES: tuple[DType, ...] = get_args(DType)


def plain(dtype: DType, scale: float = 0.5, offset: int = -3) -> Encoding:
    return Encoding() if dtype == "float32" else Encoding(dtype, scale, offset)


def all_codes(encoding: Encoding) -> np.ndarray:
    return np.arange(encoding.low, encoding.high + 1).astype(encoding.numpy)


# -- an encoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "real"),
    [(32937, 0.0), (32768, -0.05334243786637671), (0, -10.3960939408571), (65535, 10.289093429397326)],
)
def test_dequantize(code: int, real: float) -> None:
    got = INPUT.dequantize(np.array([code], np.uint16))
    assert got.dtype == np.float32
    assert got[0] == np.float32(real)


@pytest.mark.parametrize(("real", "code", "cut"), [(1.0, 36105, 0), (-1.0, 29769, 0), (11.0, 65535, 1), (-10.5, 0, 1)])
def test_quantize(real: float, code: int, cut: int) -> None:
    codes, saturated = INPUT.quantize([real])
    assert (codes.tolist(), codes.dtype, saturated) == ([code], np.dtype("<u2"), cut)


def test_the_span_of_the_example() -> None:
    low, high = INPUT.dequantize(np.array([0, 65535], np.uint16)).astype(float)
    assert high - low == pytest.approx(20.685187370254425, rel=1e-7)
    assert Encoding("uint8", 0.1, -3).itemsize == 1
    assert (INPUT.itemsize, INPUT.low, INPUT.high) == (2, 0, 65535)
    assert (Encoding().itemsize, Encoding().low, Encoding().high) == (4, -math.inf, math.inf)
    assert 273 * 2560 * INPUT.itemsize == 1_397_760


def test_ties_go_to_the_even_code() -> None:
    codes, saturated = Encoding("int8", 0.5, 0).quantize([0.25, 0.75, 1.25, -0.25, -0.75, -1.25])
    assert codes.tolist() == [0, 2, 2, 0, -2, -2]
    assert saturated == 0


def test_what_is_cut_is_counted() -> None:
    encoding = Encoding("int8", 1.0, 0)
    codes, saturated = encoding.quantize([[127.4, 127.6, math.inf], [-128.4, -128.6, -math.inf]])
    assert codes.tolist() == [[127, 127, 127], [-128, -128, -128]]
    assert saturated == 4
    # Far outside of int64, where a bare cast would wrap.
    assert Encoding("uint16", 1e-30, 0).quantize([1e30, -1e30, 0.0])[0].tolist() == [65535, 0, 0]
    with pytest.raises(GenerationError, match="not a number"):
        encoding.quantize([0.0, math.nan])


def test_float32_is_stored_as_it_is() -> None:
    values = np.array([1.5, -0.0, math.inf, math.nan, 1e-45])
    codes, saturated = Encoding().quantize(values)
    assert (codes.dtype, saturated) == (np.dtype("<f4"), 0)
    assert codes.tobytes() == values.astype("<f4").tobytes()
    assert Encoding().dequantize(codes).tobytes() == codes.tobytes()


@given(
    st.sampled_from(INTEGERS),
    st.floats(1e-12, 1e12),
    st.integers(-70_000, 70_000),
    st.lists(st.integers(0, 65535), min_size=1, max_size=50),
)
def test_codes_survive_their_values(dtype: DType, scale: float, offset: int, picks: list[int]) -> None:
    encoding = Encoding(dtype, scale, offset)
    span = int(encoding.high - encoding.low) + 1
    codes = np.array([int(encoding.low) + pick % span for pick in picks]).astype(encoding.numpy)
    back, saturated = encoding.quantize(encoding.dequantize(codes))
    assert (back.tolist(), saturated) == (codes.tolist(), 0)


@given(st.sampled_from(INTEGERS), st.floats(-1000, 1000, width=32), st.floats(-1000, 1000, width=32))
def test_a_range_is_held(dtype: DType, a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    encoding = Encoding.of_range(dtype, low, high)
    assert encoding.dequantize(np.array([-encoding.offset]).astype(encoding.numpy))[0] == 0
    values = np.linspace(low, high, 257)
    codes, saturated = encoding.quantize(values)
    assert saturated <= 1  # an end that lies half a step beyond the last code
    worst = np.abs(encoding.dequantize(codes).astype(float) - values).max()
    assert worst <= encoding.scale * 0.51 + 1e-7 * max(abs(low), abs(high)) + 2e-45


def test_ranges_that_span_nothing() -> None:
    assert Encoding.of_range("uint8", 0.0, 0.0).quantize([0.0, 0.0])[1] == 0
    assert Encoding.of_range("float32", -5.0, 5.0) == Encoding()
    assert Encoding.of_range("int16", 0.0, 1e-320).scale > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("int4", 1.0, 0), "Invalid datatype 'int4'"),
        (("uint8", 0.0, 0), "scale 0.0"),
        (("uint8", -0.1, 0), "scale -0.1"),
        (("uint8", math.nan, 0), "scale nan"),
        (("uint8", math.inf, 0), "scale inf"),
        (("uint8", "0.1", 0), "scale '0.1'"),
        (("uint8", 1.0, 1.5), "offset 1.5"),
        (("uint8", 1.0, True), "offset True"),
        (("uint8", 1.0, 1 << 31), "offset 2147483648"),
        (("uint8", 1e38, 0), "beyond float32"),
        (("float32", 2.0, 0), "stored as they are"),
        (("float32", 1.0, 1), "stored as they are"),
    ],
)
def test_encodings_that_cannot_be(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Encoding(*arguments)


# -- files that state theirs -------------------------------------------------------------------------------------------


def test_an_embedding_argument() -> None:
    file = EmbeddingFile.parse("a b/inputs.bin,uint16,0.00031563572701998055,-32937", Path("/case"))
    assert file == EmbeddingFile(Path("/case/a b/inputs.bin"), INPUT, stated=True)
    assert EmbeddingFile.parse(str(file)) == file
    assert EmbeddingFile.parse("inputs.bin") == EmbeddingFile(Path("inputs.bin"), Encoding(), stated=False)
    assert EmbeddingFile.parse("/x/inputs.bin", Path("/case")).path == Path("/x/inputs.bin")
    assert str(EmbeddingFile.parse("inputs.bin")) == "inputs.bin"
    for scale, value in (("1e-3", 0.001), (".5", 0.5), ("2.", 2.0), ("+3E2", 300.0), (" 4 ", 4.0)):
        assert EmbeddingFile.parse(f"f,int8,{scale},+7").encoding == Encoding("int8", value, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f,uint16", "Invalid embedding argument.* 2 fields"),
        ("f,uint16,0.1", "Invalid embedding argument.* 3 fields"),
        ("f,uint16,0.1,-3,9", "Invalid embedding argument.* 5 fields"),
        ("", "Invalid embedding argument.* empty field"),
        ("f,,uint16,0.1,-3", "empty field, which genie-t2t-run would drop"),
        ("f,uint16,0.1,", "3 fields|empty field"),
        (",uint16,0.1,-3", "empty field|3 fields"),
        ("f,uint32,0.1,-3", "invalid datatype 'uint32'"),
        ("f,UINT16,0.1,-3", "invalid datatype 'UINT16'"),
        ("f,float32,1,0", "invalid datatype 'float32'.*PATH alone"),
        ("f,uint16,0.1abc,-3", r"Invalid quantization encodings: \{uint16,0.1abc,-3\}.*would take it as 0.1"),
        ("f,uint16,0.1,-32937.9", "'-32937.9' is not an integer .*would take it as -32937"),
        ("f,uint16,0.1,3x", "'3x' is not an integer .*would take it as 3"),
        ("f,uint16,abc,-3", "Invalid quantization encodings.*'abc' is not a number"),
        ("f,uint16,0.1,abc", "'abc' is not an integer"),
        ("f,uint16,nan,-3", "'nan' is not a number"),
        ("f,uint16,inf,-3", "'inf' is not a number"),
        ("f,uint16,1_0,-3", "'1_0' is not a number"),
        ("f,uint16,\u0661,-3", "is not a number"),
        ("f,uint16,0.1,\u0661", "is not an integer"),
        ("f,uint16,1e999,-3", "scale inf"),
        ("f,uint16,0,-3", "scale 0.0"),
        ("f,uint16,-0.1,-3", "scale -0.1"),
        ("f,uint16,0.1,99999999999", "within int32"),
        ("f,uint16,0.1," + "9" * 5000, "within int32"),
    ],
)
def test_embedding_arguments_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        EmbeddingFile.parse(text)


@given(st.text(st.sampled_from("ab,.eE+-0123456789 uintfloa"), max_size=30))
def test_any_text_is_an_argument_or_refused_by_name(text: str) -> None:
    try:
        file = EmbeddingFile.parse(text)
    except UsageError:
        return
    assert EmbeddingFile.parse(str(file)) == file


# -- from one encoding to another --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_all_pairs(source: DType, target: DType) -> None:
    one, other = plain(source), plain(target, 0.25, 7)
    floats = (source == "float32", target == "float32")
    signed = (source.startswith("int"), target.startswith("int"))
    if floats == (True, True) or (not any(floats) and signed[0] == signed[1]):
        for mixed in (False, True):
            Requantizer(one, other, mixed=mixed)
        return
    with pytest.raises(UsageError, match=f"Unsupported LUT requantization: {source} -> {target}"):
        Requantizer(one, other)
    if any(floats):
        with pytest.raises(UsageError, match="Unsupported LUT requantization"):
            Requantizer(one, other, mixed=True)
    else:
        Requantizer(one, other, mixed=True)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_same_encoding_changes_nothing(mode: Mode) -> None:
    same = Requantizer(INPUT, INPUT, mode=mode)
    assert (same.scale, same.offset) == (1.0, 0.0)
    codes = all_codes(INPUT)
    assert same(codes).tolist() == codes.tolist()
    assert same.saturated == 0
    floats = np.array([[0.1, math.nan, -0.0]], np.float32)
    assert Requantizer(Encoding(), Encoding(), mode=mode)(floats).tobytes() == floats.tobytes()


@pytest.mark.parametrize(
    ("code", "real", "exact", "truncated", "rounded"),
    [
        (0, -0.204526657, 32289.0168, (32289, -0.204531951), (32289, -0.204531951)),
        (128, -0.001585478, 32931.9769, (32931, -0.001893814), (32932, -0.001578179)),
        (129, 0.0, 32937.0, (32937, 0.0), (32937, 0.0)),
        (255, 0.199770223, 33569.9139, (33569, 0.199481779), (33570, 0.199797415)),
    ],
)
def test_the_table_of_glm(
    code: int, real: float, exact: float, truncated: tuple[int, float], rounded: tuple[int, float]
) -> None:
    codes = np.array([code], np.uint8)
    assert GLM.dequantize(codes)[0] == pytest.approx(real, abs=1e-9)
    for mode, (wanted, value) in (("legacy-truncate", truncated), ("round", rounded)):
        made = Requantizer(GLM, INPUT, mode=mode)  # type: ignore[arg-type]
        assert made.scale * code + made.offset == pytest.approx(exact, abs=1e-4)
        got = made(codes)
        assert (got.tolist(), got.dtype) == ([wanted], np.dtype("<u2"))
        assert INPUT.dequantize(got)[0] == pytest.approx(value, abs=1e-9)


def test_the_errors_over_all_codes_of_glm() -> None:
    codes = all_codes(GLM)
    exact = 5.02312579776363 * codes.astype(float) + 32289.016772088493
    errors = {}
    for mode in get_args(Mode):
        made = Requantizer(GLM, INPUT, mode=mode)
        assert (made.scale, made.offset) == (5.02312579776363, 32289.016772088493)
        errors[mode] = made(codes).astype(float) - exact
        assert made.saturated == 0
    assert errors["legacy-truncate"].mean() == pytest.approx(-0.4927, abs=5e-5)
    assert np.abs(errors["legacy-truncate"]).max() == pytest.approx(0.9944, abs=5e-5)
    assert errors["round"].mean() == pytest.approx(-0.0005, abs=5e-5)
    assert np.abs(errors["round"]).max() == pytest.approx(0.4976, abs=5e-5)


def test_truncating_shrinks_signed_values() -> None:
    made = Requantizer(Encoding("int8", 0.0031, 0), Encoding("int16", 0.00047, 0), mode="legacy-truncate")
    codes = all_codes(made.source)
    errors = made(codes).astype(float) - made.scale * codes
    assert errors[codes < 0].mean() > 0.25
    assert errors[codes > 0].mean() < -0.25


def test_a_quotient_a_little_too_small() -> None:
    third = Encoding("uint8", 0.3, 0), Encoding("uint8", 0.1, 0)
    assert Requantizer(*third, mode="legacy-truncate")(np.array([1], np.uint8)).tolist() == [2]
    assert Requantizer(*third)(np.array([1], np.uint8)).tolist() == [3]


def test_codes_beyond_the_range() -> None:
    pair = Encoding("uint8", 4.0, -96), Encoding("uint8", 1.0, 0)
    codes = np.array([160, 255, 0, 97], np.uint8)
    made = Requantizer(*pair)
    assert (made.scale, made.offset) == (4.0, -384.0)
    assert made(codes).tolist() == [255, 255, 0, 4]
    assert made.saturated == 3
    made(codes[:1])
    assert made.saturated == 4
    legacy = Requantizer(*pair, mode="legacy-truncate")
    assert legacy(codes).tolist() == [256 - 256, 636 - 512, -384 + 512, 4]
    assert legacy.saturated == 3
    # Beyond int32 the conversion gives its smallest number, whose low bits are 0.
    huge = Requantizer(Encoding("uint8", 1e12, 0), Encoding("uint8", 1.0, 0), mode="legacy-truncate")
    assert huge(np.array([0, 1, 255], np.uint8)).tolist() == [0, 0, 0]
    assert huge.saturated == 2


def test_another_signedness_where_it_is_asked_for() -> None:
    made = Requantizer(GLM, Encoding("int16", 2.44e-5, 0), mixed=True)
    assert made.scale == pytest.approx(64.97860504, abs=1e-8)
    assert made.offset == pytest.approx(-8382.24, abs=1e-2)
    assert made(np.array([0, 129, 255], np.uint8)).tolist() == [-8382, 0, 8187]


@given(
    st.sampled_from([(a, b) for a in INTEGERS for b in INTEGERS if a[0] == b[0]]),
    st.floats(1e-6, 1e3),
    st.floats(1e-6, 1e3),
    st.integers(-70_000, 70_000),
    st.integers(-70_000, 70_000),
    st.integers(0, 65535),
)
def test_within_half_a_step(
    pair: tuple[DType, DType], one: float, other: float, first: int, second: int, pick: int
) -> None:
    source, target = Encoding(pair[0], one, first), Encoding(pair[1], other, second)
    code = int(source.low) + pick % int(source.high - source.low + 1)
    made = Requantizer(source, target)
    got = int(made(np.array([code]).astype(source.numpy))[0])
    exact = Fraction(one) * (code + first) / Fraction(other) - second
    wanted = min(max(exact, int(target.low)), int(target.high))
    assert abs(got - wanted) <= Fraction(1, 2) + abs(exact + second) * Fraction(1, 10**15)
    assert made.saturated == (round(exact) != got) or abs(abs(exact - round(exact)) - Fraction(1, 2)) < 1e-6


def test_what_a_requantizer_refuses() -> None:
    with pytest.raises(UsageError, match="round and legacy-truncate, not 'nearest'"):
        Requantizer(GLM, INPUT, mode="nearest")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leaves the range of numbers"):
        Requantizer(Encoding("uint8", 1e30, 0), Encoding("uint8", 1e-300, 0))
    with pytest.raises(GenerationError, match="Codes of int16 are not those of uint8"):
        Requantizer(GLM, INPUT)(np.array([1], np.int16))
