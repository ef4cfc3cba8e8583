"""The range of a static activation, from its statistics."""

from __future__ import annotations

import numpy as np

from edgewright.errors import CalibrationDataError
from edgewright.formats import E2M1, E4M3, ActivationFormat, Array
from edgewright.quant.moments import BINS, Moments
from edgewright.quant.recipe import Range

#: The smallest scale that is a normal number.
_SMALLEST = np.float32(2.0**-126)


def static_scale(moments: Moments, fmt: ActivationFormat, wish: Range) -> tuple[Array, Array | None]:
    """Return scale float32 `[1]` and, for an asymmetric int8 format, the zero point int8 `[1]`.

    nvfp4's scale is the global one. Raises CalibrationDataError when the input was never anything but zero.
    """
    largest = _largest(moments, wish, fmt)
    if not largest > 0:
        raise CalibrationDataError(
            f"The input of {moments.name} was zero in all {moments.tokens} tokens, so it has no range: calibrate on "
            "data that uses it, or keep its activations in float."
        )
    if fmt.symmetric:
        top = {"int8": 127.0, "fp8": E4M3.largest, "nvfp4": E4M3.largest * E2M1.largest}[fmt.name]
        return np.maximum(np.array([largest / top], np.float32), _SMALLEST), None
    low, high = min(max(moments.low, -largest), 0.0), max(min(moments.high, largest), 0.0)
    scale = np.maximum(np.float32((high - low) / 255), _SMALLEST)
    zero = int(np.clip(np.rint(-128 - low / float(scale)), -128, 127))
    return np.array([scale], np.float32), np.array([zero], np.int8)


def _largest(moments: Moments, wish: Range, fmt: ActivationFormat) -> float:
    """Return the largest magnitude that is to be told from larger ones."""
    whole = float(moments.largest.max())
    # Blocks of nvfp4 have scales of their own below the global one: a smaller range only cuts, and makes nothing finer.
    if wish.name == "minmax" or whole == 0 or (wish.name == "mse" and fmt.name == "nvfp4"):
        return whole
    assert moments.histogram.any(), "scaled statistics have a histogram only where columns were counted"
    edges = (np.arange(BINS) + 1) * (moments.limit / BINS)
    if wish.name == "percentile":
        share = np.cumsum(moments.histogram) / int(moments.histogram.sum())
        return min(whole, float(edges[np.searchsorted(share, wish.percentile / 100)]))
    return min(whole, _least_error(moments, fmt, edges))


def _least_error(moments: Moments, fmt: ActivationFormat, edges: Array) -> float:
    """Return the limit with the smallest mean square error of rounding the histogram's bin centres."""
    centres, counts = edges - edges[0] / 2, moments.histogram.astype(np.float64)
    best, chosen = np.inf, float(edges[-1])
    for limit in np.linspace(edges[-1] / 128, edges[-1], 128):
        if fmt.name == "int8":
            low, high = min(max(moments.low, -limit), 0.0), max(min(moments.high, limit), 0.0)
            span = limit * 2 if fmt.symmetric else high - low
            step = span / (254 if fmt.symmetric else 255)
            rounded = np.rint(np.minimum(centres, limit) / step) * step
        else:
            step = limit / E4M3.largest
            rounded = E4M3.snap((centres / step).astype(np.float32)) * step
        loss = float((np.square(rounded - centres) * counts).sum())
        if loss < best:
            best, chosen = loss, float(limit)
    return chosen
