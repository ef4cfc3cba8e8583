"""Other ranges than the whole one: what is lost at the few largest weights of a block is won by finer steps for all.

The error that is minimised is the sum of squares over what shares a scale, with each column's square weighted, or
with the products between the columns of a block as their inputs make them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgewright.formats import Array, BlockFormat, Grid, IntFormat, MxFormat, Nvfp4Format, Parts, to_blocks
from edgewright.quant.algorithms.descent import Rounded, refit_scales

#: Shares of a block's range that are tried, from all of it downwards.
RATIOS = tuple(1.0 - 0.05 * step for step in range(10))
#: NVFP4 as well: a block whose largest number is 4 instead of 6 has steps of another kind.
_NVFP4_RATIOS = (*RATIOS, 1.1, 1.2, 1.3, 1.4, 1.5)
#: MX: a power of two more, so that nothing saturates, or less.
_MX_RATIOS = (1.0, 2.0, 0.5)
#: Moves of the two ends of a range around the best share: both together, one alone (which needs a zero point).
_TOGETHER = ((0.025, 0.025), (-0.025, -0.025))
_APART = ((0.05, 0.0), (-0.05, 0.0), (0.0, 0.05), (0.0, -0.05))


def percentile_grid(weight: Array, fmt: BlockFormat, percent: float, shared: Mapping[str, Array]) -> Grid:
    """Return the grid of float32 `[rows, width]` with every range cut at that percentile of the magnitudes in it."""
    if tensor_wide(fmt):
        limit = float(np.percentile(np.abs(weight), percent, method="higher"))
        return fmt.grid(weight, fmt.survey(limit or float(np.abs(weight).max())))
    span = fmt.span(weight.shape[1])
    blocks = to_blocks(weight, span)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    limits = np.empty_like(low)
    for start in range(0, len(weight), fmt.row_step):
        rows = slice(start, start + fmt.row_step)
        for block in range(blocks.shape[1]) if fmt.row_step > 1 else ():
            part = weight[rows, block * span : (block + 1) * span]
            limits[rows, block] = np.percentile(np.abs(part), percent, method="higher")
    if fmt.row_step == 1:
        whole = weight.shape[1] // span  # the last block may be short: what fills it up is no weight
        limits[:, :whole] = np.percentile(np.abs(blocks[:, :whole]), percent, axis=2, method="higher")
        if whole < limits.shape[1]:
            limits[:, whole] = np.percentile(np.abs(weight[:, whole * span :]), percent, axis=1, method="higher")
    limits = np.where(limits > 0, limits, np.maximum(-low, high))  # a few numbers among zeros are kept
    return fmt.grid_between(np.maximum(low, -limits), np.minimum(high, limits), shared)


def least_error_grid(
    weight: Array,
    fmt: BlockFormat,
    shared: Mapping[str, Array],
    *,
    importance: Array | None = None,
    second: Array | None = None,
) -> Grid:
    """Return the grid of float32 `[rows, width]` with the ranges that give the smallest error.

    The error is the sum of squares, each column's times `importance` `[width]`, or with `second`, the second moment of
    the inputs `[width, width]`, the sum of squares of what a block adds to the outputs. Source: AWQ (Lin et al. 2023,
    section 3) for the search over output errors of a group.
    """
    search = _Search(weight, fmt, importance, second)
    if tensor_wide(fmt):
        return _tensor_grid(search, fmt, weight)
    low, high = search.low, search.high
    ratios = _MX_RATIOS if isinstance(fmt, MxFormat) else _NVFP4_RATIOS if isinstance(fmt, Nvfp4Format) else RATIOS
    best = np.full(low.shape, np.inf, np.float32)
    lower, upper = np.ones_like(low), np.ones_like(low)

    def look(down: Array, up: Array) -> None:
        loss = search.loss(fmt.grid_between(low * down, high * up, shared))
        better = loss < best
        for kept, new in ((best, loss), (lower, down), (upper, up)):
            np.copyto(kept, new, where=better)

    for share in ratios:
        look(np.full_like(low, share), np.full_like(low, share))
    if isinstance(fmt, IntFormat):
        for down, up in (*_TOGETHER, *(_APART if fmt.zero_point else ())):
            look(np.maximum(lower + np.float32(down), 0), np.maximum(upper + np.float32(up), 0))
    return fmt.grid_between(low * lower, high * upper, shared)


def for_outputs(
    weight: Array, fmt: BlockFormat, second: Array, shared: Mapping[str, Array], *, clip: bool = True
) -> Parts:
    """Return the parts of float32 `[rows, width]`, each block's range searched for the smallest error of what it adds
    to the outputs (with `clip`; else the whole range); scales of integers are refitted for the error of all blocks."""
    grid = least_error_grid(weight, fmt, shared, second=second) if clip else fmt.grid(weight, shared)
    width = weight.shape[1]
    codes = fmt.snap(weight, *grid.along(0, width, fmt.span(width)))
    if isinstance(fmt, IntFormat) and grid.zero is not None:
        rounded = Rounded(np.ascontiguousarray(codes.T), grid.scale, grid.zero)
        refitted = refit_scales(weight, fmt, rounded, second)
        grid = fmt.grid_of(refitted.scale, refitted.zero)
    return fmt.assemble(codes, grid)


def on_grid(weight: Array, fmt: BlockFormat, grid: Grid) -> Parts:
    """Return the parts of float32 `[rows, width]` rounded to a grid."""
    return fmt.assemble(fmt.snap(weight, *grid.along(0, weight.shape[1], fmt.span(weight.shape[1]))), grid)


def tensor_wide(fmt: BlockFormat) -> bool:
    """Tell whether all of a matrix has one scale."""
    return bool(fmt.shared) and fmt.columns is None


def _tensor_grid(search: _Search, fmt: BlockFormat, weight: Array) -> Grid:
    whole = float(np.abs(weight).max())
    grids = [fmt.grid_between(search.low, search.high, fmt.survey(whole * share)) for share in RATIOS]
    return min(grids, key=lambda grid: float(search.loss(grid).sum(dtype=np.float64)))


class _Search:
    """The blocks of a matrix and what an error in them costs."""

    def __init__(self, weight: Array, fmt: BlockFormat, importance: Array | None, second: Array | None) -> None:
        self._fmt = fmt
        width = weight.shape[1]
        span = fmt.span(width)
        # Blocks first: then everything below runs over contiguous memory.
        self._blocks = np.ascontiguousarray(to_blocks(weight, span).transpose(1, 0, 2))
        self.low, self.high = self._blocks.min(axis=2).T, self._blocks.max(axis=2).T
        self._products = None if second is None else diagonal_blocks(second, span)
        self._squares = None
        if importance is not None:
            # Losses are compared, so their unit is free; without one they could leave float32.
            even = importance / max(float(importance.max()), 1e-300)
            self._squares = to_blocks(even[None].astype(np.float32), span)[0][:, :, None]

    def loss(self, grid: Grid) -> Array:
        """Return what rounding to a grid costs, float32 `[rows, blocks]`, the same for all that shares a scale."""
        scale = grid.scale.T[:, :, None]
        zero: Array | float = 0.0 if grid.zero is None else grid.zero.T[:, :, None]
        error = self._fmt.snap(self._blocks, scale, zero)
        error -= zero
        error *= scale
        error -= self._blocks
        if self._products is not None:
            loss = np.einsum("brs,brs->rb", np.matmul(error, self._products), error)
        elif self._squares is not None:
            np.square(error, out=error)
            loss = np.matmul(error, self._squares)[:, :, 0].T
        else:
            loss = np.einsum("brs,brs->rb", error, error)
        step = self._fmt.row_step
        if step > 1:
            starts = np.arange(0, len(loss), step)
            loss = np.repeat(np.add.reduceat(loss, starts, axis=0), step, axis=0)[: len(loss)]
        result: Array = loss
        return result


def diagonal_blocks(second: Array, span: int) -> Array:
    """Return the blocks on the diagonal of `[width, width]` as `[blocks, span, span]`, the last padded with zeros."""
    width = len(second)
    blocks = -(-width // span)
    result = np.zeros((blocks, span, span), np.float32)
    for index in range(blocks):
        part = second[index * span : (index + 1) * span, index * span : (index + 1) * span]
        result[index, : len(part), : len(part)] = part
    return result
