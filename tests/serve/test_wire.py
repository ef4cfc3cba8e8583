"""Messages: what openpi's client packs is read to the bit, ours are its bytes, hostile ones are refused by name."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgewright.serve.errors import MessageError
from edgewright.serve.wire import LIMITS, Limits, decode, decode_observation, encode

WIRE = Path(__file__).parents[1] / "goldens" / "wire"
CASES = sorted(path.stem for path in WIRE.glob("*.msgpack"))


def assert_is(found: Any, expected: Any) -> None:
    """Compare with a golden's JSON, types included."""
    if isinstance(expected, dict) and expected.keys() == {"array", "dtype", "shape"}:
        assert isinstance(found, np.ndarray)
        assert (found.dtype.str, list(found.shape)) == (expected["dtype"], expected["shape"])
        assert found.ravel().tolist() == expected["array"]
    elif isinstance(expected, dict) and expected.keys() == {"scalar", "dtype"}:
        assert isinstance(found, np.generic)
        assert (found.item(), found.dtype.str) == (expected["scalar"], expected["dtype"])
    elif isinstance(expected, dict) and expected.keys() == {"bytes"}:
        assert found == expected["bytes"].encode()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, item in expected.items():
            assert_is(found[name], item)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_is(one, other)
    else:
        assert type(found) is type(expected)
        assert found == expected


@pytest.mark.parametrize("case", CASES)
def test_openpi_messages_are_read_and_written_to_the_byte(case: str) -> None:
    message = (WIRE / f"{case}.msgpack").read_bytes()
    value = decode_observation(message)
    assert_is(value, json.loads((WIRE / f"{case}.json").read_text(encoding="utf-8")))
    assert encode(value) == message


def test_there_are_goldens() -> None:
    assert CASES == ["aloha", "answer", "droid", "libero"]


ARRAYS = hnp.arrays(
    st.sampled_from(["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary()
    | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return type(a) is type(b) and (a == b or a != a)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        observation = decode_observation(message)
    except MessageError:
        return
    assert isinstance(observation, dict)


@given(
    st.sampled_from(CASES),
    st.lists(st.tuples(st.integers(0, 800), st.integers(0, 255)), min_size=1, max_size=4),
    st.data(),
)
def test_damaged_messages_are_read_or_refused(case: str, changes: list[tuple[int, int]], data: st.DataObject) -> None:
    message = bytearray((WIRE / f"{case}.msgpack").read_bytes())
    for place, value in changes:
        message[place % len(message)] = value
    end = data.draw(st.integers(1, len(message)))
    for part in (bytes(message), bytes(message[:end])):
        try:
            decode_observation(part)
        except MessageError:
            continue


def array(**changes: Any) -> bytes:
    """An observation of one array with some of its map changed; `...` leaves a key out."""
    parts = {"__ndarray__": True, "data": bytes(24), "dtype": "<f4", "shape": [2, 3], **changes}
    return msgpack.packb({"state": {name.encode(): value for name, value in parts.items() if value is not ...}})


def scalar(value: Any, dtype: Any) -> bytes:
    return msgpack.packb({"state": {b"__npgeneric__": True, b"data": value, b"dtype": dtype}})


def test_the_changed_arrays_are_right_unchanged() -> None:
    assert np.array_equal(decode(array())["state"], np.zeros((2, 3), np.float32))
    assert decode(scalar(3, "|u1"))["state"] == np.uint8(3)


def nested(depth: int) -> bytes:
    return b"\x81\xa1a" + b"\x91" * depth + b"\xc0"


HOSTILE = {
    "nothing": b"",
    "unused tag": b"\x81\xa1a\xc1",
    "two values": b"\x80\x80",
    "list of 4 billion": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "bytes of 4 billion": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "text of 4 billion": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "cut length": b"\x81\xa1a\xdb\xff\xff",
    "cut number": b"\x81\xa1a\xcb\x00",
    "long text": msgpack.packb({"prompt": "x" * (LIMITS.text_bytes + 1)}),
    "deep lists": nested(30),
    "very deep lists": nested(100_000),
    "deep maps": b"\x81\xa1a" * 5000 + b"\xc0",
    "many values": msgpack.packb({"state": [0.5] * (LIMITS.items + 1)}),
    "many empty lists": msgpack.packb({"state": [[[]] * 500] * 500}),
    "extension": msgpack.packb({"a": msgpack.ExtType(42, b"xyz")}),
    "time": msgpack.packb({"a": msgpack.Timestamp(1, 2)}),
    "integer key": msgpack.packb({1: 2}),
    "list as key": b"\x81\x90\xc0",
    "bytes as name": msgpack.packb({b"state": 1}),
    "bytes as inner name": msgpack.packb({"images": {b"top": 1}}),
    "not UTF-8": b"\x81\xa1a\xa2\xff\xfe",
    "a list": b"\x93\x01\x02\x03",
    "a number": b"\x07",
    "an array": encode(np.zeros(3)),
    "object array": array(dtype="|O", data=bytes(48)),
    "object array by letter": array(dtype="O", data=bytes(48)),
    "void array": array(dtype="|V4"),
    "complex array": array(dtype="<c8", data=bytes(48)),
    "date array": array(dtype="<M8[ns]", data=bytes(48)),
    "long double array": array(dtype="<f16", data=bytes(96)),
    "struct array": array(dtype="i4,f4", data=bytes(48)),
    "dtype of subarrays": array(dtype="(9999999,)f8"),
    "dtype as list": array(dtype=[["a", "<f4"]]),
    "dtype as bytes": array(dtype=b"<f4"),
    "dtype by name": array(dtype="float32"),
    "dtype with a new line": array(dtype="<f4\n"),
    "no dtype": array(dtype=...),
    "no data": array(data=...),
    "more keys": array(other=1),
    "marked with 1": array(__ndarray__=1),
    "marked false": array(__ndarray__=False),
    "data as text": array(data="x" * 24),
    "data too short": array(data=bytes(23)),
    "data too long": array(data=bytes(25)),
    "data for another shape": array(shape=[2, 4]),
    "negative lengths": array(shape=[-2, -3]),
    "lengths that wrap around": array(shape=[2**62, 4], data=b"", dtype="|u1"),
    "empty and huge": array(shape=[0, 2**31 - 1, 2**31 - 1, 2**31 - 1], data=b""),
    "lengths beyond 64 bits": array(shape=[0, 2**63], data=b""),
    "float lengths": array(shape=[2.0, 3.0]),
    "true as length": array(shape=[True, 6]),
    "nine dimensions": array(shape=[1] * 7 + [2, 3]),
    "shape as number": array(shape=6),
    "booleans of 2": array(dtype="|b1", data=b"\0\1\2\0\0\0"),
    "array of texts": array(dtype="<U1"),
    "one text with a length": array(dtype="<U2", shape=[1], data=bytes(8)),
    "a text beyond Unicode": array(dtype="<U1", shape=[], data=b"\xff\xff\xff\xff"),
    "a text of another length": array(dtype="<U9", shape=[], data=bytes(8)),
    "scalar object": scalar(1, "|O"),
    "scalar text": scalar("1", "<f4"),
    "scalar text dtype": scalar("1", "<U1"),
    "scalar list": scalar([1], "<i4"),
    "scalar too large": scalar(300, "|u1"),
    "scalar negative": scalar(-1, "<u8"),
    "scalar float as integer": scalar(1.5, "<i4"),
    "scalar true as integer": scalar(True, "<i4"),
    "scalar with more": msgpack.packb({"a": {b"__npgeneric__": True, b"data": 1, b"dtype": "|u1", b"x": 0}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_are_refused(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MessageError) as caught:
            decode_observation(HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 250
    assert peak < 2 << 20


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("two values", "something follows its end"),
        ("cut number", "it ends within a value"),
        ("unused tag", "a byte that no value begins with"),
        ("not UTF-8", "a text in it is not UTF-8"),
        ("integer key", "a key is neither text nor bytes"),
        ("data too long", "25 bytes are not a <f4 of its shape"),
        ("empty and huge", "its shape is too large"),
        ("scalar too large", "beyond |u1"),
    ],
)
def test_the_sentence_says_why(name: str, why: str) -> None:
    with pytest.raises(MessageError) as caught:
        decode_observation(HOSTILE[name])
    assert why in str(caught.value)


def test_empty_lists_by_the_million_make_nothing() -> None:
    """Each container is small, the sum would be a gigabyte."""
    row = b"\xdc" + struct.pack(">H", 4000) + b"\x90" * 4000
    message = b"\x81\xa1a\xdc" + struct.pack(">H", 4000) + row * 4000
    assert len(message) < LIMITS.message_bytes
    tracemalloc.start()
    with pytest.raises(MessageError, match="more than 20,000 values"):
        decode_observation(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_arrays_are_views_that_cannot_be_written() -> None:
    state = decode(encode({"state": np.arange(4.0)}))["state"]
    with pytest.raises(ValueError, match="read-only"):
        state[0] = 1


def test_other_byte_orders_are_turned() -> None:
    values = np.array([1.5, -2.25, 3e7])
    for dtype in (">f4", ">i4", ">f8"):
        sent = values.astype(dtype)
        found = decode(encode(sent))
        assert found.dtype.isnative
        assert np.array_equal(found, sent)
    assert decode(scalar(1.5, ">f4"))["state"].dtype.isnative


def test_a_prompt_out_of_a_data_set_is_a_text() -> None:
    """NumPy has texts as arrays of no dimensions; openpi's packer writes them as such."""
    text = "öffne die Tür 🚪"
    for order in "<>":
        dtype = f"{order}U{len(text) + 2}"
        data = np.array(text, dtype).tobytes()
        assert decode(array(dtype=dtype, data=data, shape=[]))["state"] == text
    assert decode(array(dtype="|S4", data=b"ab\0\0", shape=[]))["state"] == b"ab"
    assert decode(encode({"prompt": np.array(text), "task": np.str_("x")})) == {"prompt": text, "task": "x"}


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.array([1j]),
        np.complex64(1),
        np.array([("a", 1)], dtype="U1,i4"),
        np.array(["a"]),
        np.datetime64("2026-01-01"),
        np.longdouble(1),
        object(),
        {1: 2}.keys(),
        2**64,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_a_number_is_not_sent(value: Any) -> None:
    with pytest.raises(MessageError, match="can't be sent"):
        encode({"a": value})


def test_images_are_counted_and_measured() -> None:
    limits = Limits(images=3, image_pixels=30)
    good = np.zeros((6, 5, 3), np.uint8)
    decode_observation(encode({"images": dict.fromkeys("abc", good), "state": np.zeros((40, 40))}), limits)
    decode_observation(encode({"stack": np.zeros((3, 3, 6, 5), np.uint8)}), limits)
    four = {"images": {"a": good, "b": good}, "more": [good], "x": good.transpose(2, 0, 1)}
    for many in (four, {"stack": np.zeros((4, 3, 6, 5), np.uint8)}, {"stack": np.zeros((2, 2, 6, 5, 3), np.uint8)}):
        with pytest.raises(MessageError, match="more than 3 images"):
            decode_observation(encode(many), limits)
    for large in (np.zeros((31, 1, 3)), np.zeros((3, 1, 31)), np.zeros((7, 5, 1)), np.zeros((2, 3, 6, 6))):
        with pytest.raises(MessageError, match="over the limit of 30"):
            decode_observation(encode({"image": large}), limits)


def test_limits_are_exact() -> None:
    message = encode({"a": ["xyz", 1]})
    size = len(message)
    exact = Limits(message_bytes=size, items=5, depth=2, text_bytes=3)
    assert decode(message, exact) == {"a": ["xyz", 1]}
    for one in ({"message_bytes": size - 1}, {"items": 4}, {"depth": 1}, {"text_bytes": 2}):
        with pytest.raises(MessageError):
            decode(message, Limits(**{**vars(exact), **one}))
