"""Coordinate descent on the output error of a rounded weight: the scales of blocks in turn, then codes by column.

Everything is kept transposed, `[width, rows]`, so that a column of the weight is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgewright.formats import Array, BlockFormat, IntFormat

#: Columns whose changes are carried on together, and those that are carried on at once.
_RUN = 128
_NEAR = 16


@dataclass(frozen=True)
class Rounded:
    """Codes float32 `[width, rows]` on the scales and zeros `[rows, blocks]`."""

    codes: Array
    scale: Array
    zero: Array


def improve(weight: Array, fmt: BlockFormat, rounded: Rounded, hessian: Array) -> Rounded:
    """Return the rounding of float32 `[rows, width]` with refitted scales and codes, the output error being that of
    inputs with the second moment `hessian` float32 `[width, width]`."""
    whole = fmt if isinstance(fmt, IntFormat) else None
    if whole is not None:
        rounded = refit_scales(weight, whole, rounded, hessian)
    rounded = _refit_codes(weight, fmt, rounded, hessian)
    return rounded if whole is None else refit_scales(weight, whole, rounded, hessian)


def _values(fmt: BlockFormat, rounded: Rounded, width: int) -> Array:
    """Return the weights the codes stand for, float32 `[width, rows]`."""
    blocks = np.arange(width) // fmt.span(width)
    result: Array = (rounded.codes - rounded.zero.T[blocks]) * rounded.scale.T[blocks]
    return result


def refit_scales(weight: Array, fmt: IntFormat, rounded: Rounded, hessian: Array) -> Rounded:
    """Return the codes with the scales that minimise the output error, found one block after the other."""
    width = weight.shape[1]
    span = fmt.span(width)
    slope = hessian @ (weight.T - _values(fmt, rounded, width))  # [width, rows]
    scale = rounded.scale.copy()
    for block in range(scale.shape[1]):
        columns = slice(block * span, min((block + 1) * span, width))
        centred = rounded.codes[columns] - rounded.zero[:, block]
        gain = np.einsum("cr,cr->r", centred, slope[columns])
        norm = np.einsum("cr,cr->r", centred, hessian[columns, columns] @ centred)
        step = np.where(norm > 0, gain / np.where(norm > 0, norm, 1), 0).astype(np.float32)
        new = fmt.rounded_scales(scale[:, block] + step)
        new = np.where(new * scale[:, block] > 0, new, scale[:, block])  # a scale keeps its sign and isn't lost
        step, scale[:, block] = new - scale[:, block], new
        if columns.stop < width:  # what lies before isn't looked at again
            slope[columns.stop :] -= hessian[columns.stop :, columns] @ (centred * step)
    return Rounded(rounded.codes, scale, rounded.zero)


def _refit_codes(weight: Array, fmt: BlockFormat, rounded: Rounded, hessian: Array) -> Rounded:
    """Return codes that minimise the output error in their column, given all others."""
    width = weight.shape[1]
    span = fmt.span(width)
    values = _values(fmt, rounded, width)
    slope = hessian @ (weight.T - values)
    codes = rounded.codes.copy()
    scale, zero = np.ascontiguousarray(rounded.scale.T), np.ascontiguousarray(rounded.zero.T)
    for start in range(0, width, _RUN):
        stop = min(start + _RUN, width)
        moved = np.empty((stop - start, values.shape[1]), np.float32)
        for first in range(start, stop, _NEAR):
            last = min(first + _NEAR, stop)
            for j in range(first, last):
                steps, offset = scale[j // span], zero[j // span]
                codes[j] = fmt.snap(values[j] + slope[j] / hessian[j, j], steps, offset)
                moved[j - start] = (codes[j] - offset) * steps - values[j]
                if j + 1 < last:
                    slope[j + 1 : last] -= hessian[j + 1 : last, j, None] * moved[j - start][None, :]
            if last < stop:
                slope[last:stop] -= hessian[last:stop, first:last] @ moved[first - start : last - start]
        if stop < width:
            slope[stop:] -= hessian[stop:, start:stop] @ moved
    return Rounded(codes, rounded.scale, rounded.zero)
