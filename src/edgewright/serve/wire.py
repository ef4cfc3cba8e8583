"""Messages between a robot and a policy server: msgpack, arrays as openpi writes them.

An array is a map with byte keys: `b"__ndarray__"` true, `b"data"` its bytes in C order, `b"dtype"` NumPy's spelling
such as `"<f4"`, `b"shape"` a list. A NumPy scalar is `b"__npgeneric__"` true, `b"data"` the plain number, `b"dtype"`.
Object, complex, void and date arrays don't exist here, in either direction: nothing is pickled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from edgewright.serve._scan import scan
from edgewright.serve.errors import MessageError

_NUMBER = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248])")
_STRING = re.compile(r"[<>|=]?([US])(\d{1,7})")
_ARRAY_KEYS = {b"__ndarray__", b"data", b"dtype", b"shape"}
_SCALAR_KEYS = {b"__npgeneric__", b"data", b"dtype"}
_MAX_RANK = 8
_MAX_LENGTH = 1 << 31
_CODE_POINT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of what a message may hold."""

    message_bytes: int = 32 << 20
    items: int = 20_000
    depth: int = 16
    text_bytes: int = 64 << 10
    images: int = 8
    #: Height times width of one image.
    image_pixels: int = 2048 * 2048


LIMITS = Limits()


def encode(value: Any) -> bytes:
    """Return a value of plain types, arrays and NumPy scalars as msgpack; raises MessageError for any other type."""
    try:
        packed: bytes = msgpack.packb(value, default=_pack)
    except (ValueError, TypeError, OverflowError) as error:
        raise MessageError(
            f"This can't be sent ({error}): use numbers, texts, lists, maps and arrays of numbers."
        ) from None
    return packed


def decode(message: bytes, limits: Limits = LIMITS) -> Any:
    """Return what a message holds; arrays are read-only views of it. Raises MessageError."""
    if len(message) > limits.message_bytes:
        raise MessageError(f"The message has {len(message):,} bytes; at most {limits.message_bytes:,} are taken.")
    scan(message, items=limits.items, depth=limits.depth, text_bytes=limits.text_bytes)
    try:
        return msgpack.unpackb(message, object_hook=lambda found: _unpack(found, limits))
    except (ValueError, TypeError) as error:
        why = "a text in it is not UTF-8" if isinstance(error, UnicodeError) else "a key is neither text nor bytes"
        raise MessageError(f"The message is not taken ({why}): send what the client library packs.") from None


def decode_observation(message: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """Return the observation in a message: a map with text keys.

    Raises MessageError, also for too many or too large images. An array of three dimensions is an image, its smallest
    dimension the channels; more dimensions are a stack.
    """
    observation = decode(message, limits)
    if not isinstance(observation, dict):
        raise MessageError("The message is not an observation, which is a map of names: see the server's metadata.")
    images = 0
    for array in _arrays(observation):
        if array.ndim < 3:
            continue
        images += math.prod(array.shape[:-3])
        if images > limits.images:
            raise MessageError(f"The observation has more than {limits.images} images, the most this server takes.")
        height, width = sorted(array.shape[-3:])[1:]
        if height * width > limits.image_pixels:
            raise MessageError(
                f"An image of {height} x {width} pixels is over the limit of {limits.image_pixels:,}: "
                f"resize images before sending them."
            )
    return observation


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise MessageError("The observation has a name that is bytes: names are texts.")
            yield from _arrays(item)


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and not _NUMBER.fullmatch(value.dtype.str):
        if value.dtype.kind == "U" and not value.ndim:
            return str(value.item())
        raise TypeError(f"an array of dtype {value.dtype} is not taken")
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": list(value.shape),
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not taken")


def _unpack(found: dict[Any, Any], limits: Limits) -> Any:
    if b"__ndarray__" in found:
        if found.keys() != _ARRAY_KEYS or found[b"__ndarray__"] is not True:
            raise _bad_array("its map has other keys than an array's")
        return _array(found[b"data"], found[b"dtype"], found[b"shape"], limits)
    if b"__npgeneric__" in found:
        if found.keys() != _SCALAR_KEYS or found[b"__npgeneric__"] is not True:
            raise _bad_array("its map has other keys than a scalar's")
        return _scalar(found[b"data"], found[b"dtype"])
    return found


def _array(data: Any, dtype: Any, shape: Any, limits: Limits) -> Any:
    if not isinstance(data, bytes) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise _bad_array("data, dtype or shape have another type")
    if len(shape) > _MAX_RANK or not all(type(n) is int and 0 <= n < _MAX_LENGTH for n in shape):
        raise _bad_array(f"its shape is not at most {_MAX_RANK} lengths")
    if string := _STRING.fullmatch(dtype):
        return _text(data, string[1], int(string[2]), dtype, shape, limits)
    if not _NUMBER.fullmatch(dtype):
        raise _bad_array(f"its dtype {dtype[:16]!r} is not one of numbers or booleans")
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(data):
        raise _bad_array(f"{len(data):,} bytes are not a {dtype} of its shape")
    if kind.kind == "b" and data.translate(None, b"\0\1"):
        raise _bad_array("it has booleans other than 0 and 1")
    try:
        array = np.frombuffer(data, kind).reshape(shape)
    except ValueError:  # no values, and lengths whose product NumPy can't hold
        raise _bad_array("its shape is too large") from None
    return array if kind.isnative else array.astype(kind.newbyteorder("="))


def _text(data: bytes, kind: str, length: int, dtype: str, shape: list[int], limits: Limits) -> str | bytes:
    """Return the one text that an array of no dimensions is: a prompt out of a data set comes like that."""
    size = length * (_CODE_POINT_BYTES if kind == "U" else 1)
    if shape or size != len(data) or size > limits.text_bytes * _CODE_POINT_BYTES:
        raise _bad_array("arrays of texts are not taken, only one text")
    if kind == "S":
        return data.rstrip(b"\0")
    try:
        return data.decode("utf-32-be" if dtype[0] == ">" else "utf-32-le").rstrip("\0")
    except UnicodeError:
        raise _bad_array("its text is not Unicode") from None


def _scalar(value: Any, dtype: Any) -> Any:
    if not isinstance(dtype, str) or not _NUMBER.fullmatch(dtype):
        raise _bad_array("a scalar's dtype is not one of numbers or booleans")
    kind = np.dtype(dtype)
    taken = {"b": (bool,), "f": (int, float)}.get(kind.kind, (int,))
    if type(value) not in taken:
        raise _bad_array(f"a scalar's value is no {dtype}")
    try:
        with np.errstate(over="ignore"):  # a float beyond its dtype is infinite, as on the other side
            return kind.newbyteorder("=").type(value)
    except (OverflowError, ValueError):
        raise _bad_array(f"a scalar's value is beyond {dtype}") from None


def _bad_array(why: str) -> MessageError:
    return MessageError(f"The message holds an array that is not taken ({why}): send what the client library packs.")
