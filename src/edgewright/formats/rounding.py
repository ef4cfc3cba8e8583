"""Rounding of a linear's inputs, as the op `RoundInput` does it in a graph: the same float32 numbers, bit for bit."""

from __future__ import annotations

import numpy as np

from edgewright.formats.elements import E4M3, INT8, Array, Element
from edgewright.formats.inputs import ActivationFormat
from edgewright.formats.microscale import MxFormat, Nvfp4Format

#: The smallest largest magnitude that counts: the scale made of it is no zero.
TINY = np.float32(2.0**-126)
_PLAIN: dict[str, tuple[Element | None, float]] = {"int8": (INT8, 127.0), "fp8": (E4M3, 448.0), "int4": (None, 7.0)}
_MX = {"mxfp8": MxFormat("e4m3"), "mxfp4": MxFormat("e2m1")}


def round_input(x: Array, fmt: ActivationFormat, scale: Array | None = None, zero_point: Array | None = None) -> Array:
    """Return float32 `[..., width]` rounded to `fmt` and back.

    `scale` float32 `[1]` and `zero_point` int8 `[1]` where the format is static (for nvfp4 the global scale); a static
    int8 reaches down to -128.
    """
    rows = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
    rounded = _plain(rows, fmt, scale, zero_point) if fmt.name in _PLAIN else _blocked(rows, fmt, scale)
    return rounded.reshape(x.shape)


def _plain(rows: Array, fmt: ActivationFormat, scale: Array | None, zero_point: Array | None) -> Array:
    element, largest = _PLAIN[fmt.name]
    if fmt.static:
        assert scale is not None
        steps: Array = scale.reshape(1, 1).astype(np.float32)
    else:
        tops = np.abs(rows).max(axis=1 if fmt.scope == "token" else None, keepdims=True)
        steps = np.maximum(tops, TINY) / np.float32(largest)
    with np.errstate(over="ignore"):
        counted = rows / steps
    if element is E4M3:
        snapped: Array = E4M3.snap(counted) * steps
        return snapped
    zero = 0 if zero_point is None else int(zero_point.reshape(()))
    codes = np.clip(np.rint(counted) + np.float32(zero), -largest - 1, largest)
    rounded: Array = (codes - np.float32(zero)).astype(np.float32) * steps
    return rounded


def _blocked(rows: Array, fmt: ActivationFormat, scale: Array | None) -> Array:
    width = rows.shape[1]
    if fmt.name in _MX:
        mx = _MX[fmt.name]
        return mx.decode(mx.encode(rows, {}), width)
    nvfp4 = Nvfp4Format()
    shared = nvfp4.survey(float(np.abs(rows).max(initial=0.0))) if scale is None else {"global_scale": scale}
    return nvfp4.decode({**shared, **nvfp4.encode(rows, shared)}, width)
