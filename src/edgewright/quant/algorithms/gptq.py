"""GPTQ: round one column after the other and let the columns to come make up for each error.

Source: Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
algorithm 1. Beyond it: ranges are searched with each column's error weighted by what the columns to come can't make
up for, the finished codes are improved one column at a time while that lowers the output error, and scales are
refitted to them. Blocks keep their columns in whatever order these are rounded, so an order costs nothing at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgewright.errors import CalibrationDataError
from edgewright.formats import Array, BlockFormat, Grid, IntFormat, Parts
from edgewright.quant.algorithms.clip import least_error_grid
from edgewright.quant.algorithms.descent import Rounded, improve

#: Columns whose errors are carried on together.
_RUN = 128
_NEAR = 16


@dataclass(frozen=True)
class Prepared:
    """What GPTQ needs of a module's inputs, whatever the weights: made once, used for any rows.

    `hessian` float32 `[width, width]` is damped, `order` the columns as they are rounded, `factor` (float32) the upper
    Cholesky factor of the inverse in that order, `importance` float64 `[width]` what the square of a column's error
    costs when the columns after it have made up for what they can.
    """

    hessian: Array
    order: Array
    factor: Array
    importance: Array


def prepare(second: Array, *, damping: float, activation_order: bool, name: str) -> Prepared:
    """Factorise the second moment of a module's inputs, float32 `[width, width]`.

    `damping` is the share of the mean diagonal that is added to it; with `activation_order` the columns of the largest
    inputs come first. Columns whose inputs were always zero have the damping alone, so they are rounded by themselves.
    Raises CalibrationDataError when the second moment can't be inverted.
    """
    width = len(second)
    hessian = damped(second.astype(np.float64), damping)
    order = np.argsort(-np.diag(hessian), kind="stable") if activation_order else np.arange(width)
    factor = _factor(hessian[np.ix_(order, order)] if activation_order else hessian, name)
    importance = np.empty(width)
    importance[order] = np.diag(factor) ** -2.0
    return Prepared(hessian.astype(np.float32), order, factor.astype(np.float32), importance)


def damped(second: Array, damping: float) -> Array:
    """Return a copy of a second moment with a share of its mean diagonal, zeros left out, added to the diagonal."""
    result = second.copy()
    diagonal = np.diag(second)
    live = diagonal > 0
    mean = diagonal[live].mean(dtype=np.float64) if live.any() else 1.0
    result[np.arange(len(second)), np.arange(len(second))] += damping * mean
    return result


def gptq(weight: Array, fmt: BlockFormat, prepared: Prepared, shared: Mapping[str, Array], *, refit: bool) -> Parts:
    """Return the parts of float32 `[rows, width]`; `refit` improves codes and scales afterwards."""
    grid = least_error_grid(weight, fmt, shared, importance=prepared.importance)
    zeros = np.zeros_like(grid.scale) if grid.zero is None else grid.zero
    rounded = Rounded(_codes(weight, fmt, grid, prepared), grid.scale, zeros)
    if refit:
        rounded = improve(weight, fmt, rounded, prepared.hessian)
        grid = fmt.grid_of(rounded.scale, rounded.zero) if isinstance(fmt, IntFormat) else grid
    return fmt.assemble(np.ascontiguousarray(rounded.codes.T), grid)


def _factor(hessian: Array, name: str) -> Array:
    """Return the upper Cholesky factor of the inverse."""
    try:
        if not np.isfinite(hessian).all():
            raise np.linalg.LinAlgError
        # With rows and columns reversed the lower factor becomes the upper one of hessian = R R^T; its inverse is it.
        upper = np.linalg.cholesky(hessian[::-1, ::-1])[::-1, ::-1]
    except np.linalg.LinAlgError:
        raise CalibrationDataError(
            f"GPTQ can't invert the second moment of the inputs of {name}: calibrate on more tokens, or raise damping."
        ) from None
    return _inverse(np.ascontiguousarray(upper))


def _inverse(upper: Array) -> Array:
    """Return the inverse of an upper triangular matrix, by halves."""
    size = len(upper)
    if size <= 64:
        inverse: Array = np.linalg.inv(upper)
        return inverse
    half = size // 2
    result = np.zeros_like(upper)
    first, last = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    result[:half, :half], result[half:, half:] = first, last
    result[:half, half:] = -(first @ upper[:half, half:]) @ last
    return result


def _codes(weight: Array, fmt: BlockFormat, grid: Grid, prepared: Prepared) -> Array:
    """Round the columns in their order, carrying errors on; returns codes float32 `[width, rows]`."""
    rows, width = weight.shape
    order, factor = prepared.order, prepared.factor
    block = order // fmt.span(width)
    scale = np.ascontiguousarray(grid.scale.T)
    zero = np.zeros_like(scale) if grid.zero is None else np.ascontiguousarray(grid.zero.T)
    left = np.ascontiguousarray(weight.T[order], np.float32)
    codes = np.empty((width, rows), np.float32)
    for start in range(0, width, _RUN):
        stop = min(start + _RUN, width)
        errors = np.empty((stop - start, rows), np.float32)
        for first in range(start, stop, _NEAR):
            last = min(first + _NEAR, stop)
            for j in range(first, last):
                step, offset = scale[block[j]], zero[block[j]]
                code = fmt.snap(left[j], step, offset)
                codes[order[j]] = code
                error = (left[j] - (code - offset) * step) / factor[j, j]
                errors[j - start] = error
                if j + 1 < last:
                    left[j + 1 : last] -= factor[j, j + 1 : last, None] * error[None, :]
            if last < stop:
                left[last:stop] -= factor[first:last, last:stop].T @ errors[first - start : last - start]
        if stop < width:
            left[stop:] -= factor[start:stop, stop:].T @ errors
    return codes
