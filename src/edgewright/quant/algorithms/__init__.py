"""Algorithms that find a weight's codes; NumPy on one matrix and the statistics of its inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgewright.formats import Array, BlockFormat, Parts
from edgewright.quant.algorithms.clip import for_outputs, least_error_grid, on_grid, percentile_grid, tensor_wide
from edgewright.quant.algorithms.gptq import damped, gptq, prepare
from edgewright.quant.algorithms.ranges import static_scale
from edgewright.quant.algorithms.scaling import Rounder, awq_factors, smoothing_factors, tied_by_head
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Algorithm

#: Numbers that are rounded at once: what algorithms hold besides the weight is a small multiple of it.
_PORTION = 1 << 22

Rows = Callable[[Array], Parts]


def effective(algorithm: Algorithm, moments: Moments | None) -> Algorithm:
    """Return the algorithm that `solve` uses where another is asked for.

    Algorithms that look at inputs fall back to mse where there are no statistics (`moments` None or without a second
    moment): nothing is known of the inputs of a lookup, nor inside experts.
    """
    known = moments is not None and moments.tokens and moments.second is not None
    return Algorithm("mse") if algorithm.needs_data and not known else algorithm


def solve(weight: Array, fmt: BlockFormat, algorithm: Algorithm, moments: Moments | None, name: str) -> Parts:
    """Return the parts of float32 `[rows, width]` in a format.

    `effective` says which algorithm is used. Raises FloatingPointError on weights that aren't finite or whose scales
    the format can't hold, CalibrationDataError on statistics GPTQ can't use.
    """
    if not np.isfinite(limit := largest(weight)):
        raise FloatingPointError("a weight is not finite")
    rows = _rounding(limit, fmt, algorithm, moments, name)
    step = _step(fmt, weight.shape[1])
    if tensor_wide(fmt) or len(weight) <= step:
        return rows(weight)
    runs = [rows(weight[start : start + step]) for start in range(0, len(weight), step)]
    whole = {kind: part for kind, part in runs[0].items() if kind in fmt.shared}
    return {kind: np.concatenate([run[kind] for run in runs]) for kind in runs[0] if kind not in whole} | whole


def largest(values: Array) -> float:
    """Return the largest magnitude, without a second matrix; NaN where there is one."""
    return float(np.maximum(values.max(), -values.min()))


def decoded(parts: Parts, fmt: BlockFormat, shape: tuple[int, int]) -> Array:
    """Return float32 `[rows, width]` of a matrix's parts, decoded in portions."""
    rows, width = shape
    step = _step(fmt, width)
    if tensor_wide(fmt) or rows <= step:
        return fmt.decode(parts, width)
    values = np.empty(shape, np.float32)
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        run = {}
        for kind, part in parts.items():
            lines = 1 if len(part) == rows else fmt.row_step  # rows that have one line of the part
            run[kind] = part if kind in fmt.shared else part[start // lines : -(-stop // lines)]
        values[start:stop] = fmt.decode(run, width)
    return values


def _step(fmt: BlockFormat, width: int) -> int:
    """Return how many rows are a portion."""
    return max(1, _PORTION // width // fmt.row_step) * fmt.row_step


def _rounding(limit: float, fmt: BlockFormat, algorithm: Algorithm, moments: Moments | None, name: str) -> Rows:
    """Return what rounds some rows of a matrix whose largest magnitude is given."""
    shared = fmt.survey(limit)
    second = moments.second if moments is not None and moments.tokens else None
    algorithm = effective(algorithm, moments)
    if algorithm.name == "minmax":
        return lambda rows: fmt.encode(rows, shared)
    if algorithm.name == "percentile":
        return lambda rows: on_grid(rows, fmt, percentile_grid(rows, fmt, algorithm.percentile, shared))
    if algorithm.name == "gptq" and second is not None:
        order = algorithm.activation_order
        prepared = prepare(second, damping=algorithm.damping, activation_order=order, name=name)
        return lambda rows: gptq(rows, fmt, prepared, shared, refit=algorithm.refit)
    if algorithm.name == "awq" and second is not None:
        products = damped(second, algorithm.damping)
        return lambda rows: for_outputs(rows, fmt, products, shared, clip=algorithm.clip)
    return lambda rows: on_grid(rows, fmt, least_error_grid(rows, fmt, shared))


__all__ = [
    "Rounder",
    "awq_factors",
    "damped",
    "decoded",
    "effective",
    "for_outputs",
    "gptq",
    "largest",
    "least_error_grid",
    "on_grid",
    "prepare",
    "smoothing_factors",
    "solve",
    "static_scale",
    "tied_by_head",
]
