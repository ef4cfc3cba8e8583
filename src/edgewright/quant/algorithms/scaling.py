"""Factors on the columns of weights and, inverted, on their inputs: SmoothQuant and AWQ.

Sources: Xiao et al. 2022 (SmoothQuant, equation 4), Lin et al. 2023 (AWQ, section 3.2: s = mean|x|^a, a searched; its
second form divides by mean|w|^(1 - a), |w| relative to its block's largest).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgewright.formats import Array, to_blocks
from edgewright.quant.moments import Moments

#: Exponents that AWQ tries first, of the inputs alone and with the weights; the best one's neighbours follow.
EXPONENTS = tuple(step / 10 for step in range(9))
_FINER = 0.05
#: Rows of a weight that the search looks at; more hardly change which exponent is best.
_ROWS = 128
_FLOOR = 1e-4

#: Rounds rows `[rows, width]` of a scaled weight, given the second moment of the scaled inputs, and restores them.
Rounder = Callable[[Array, Array], Array]


def smoothing_factors(weights: Sequence[Array], moments: Moments, alpha: float) -> Array:
    """Return SmoothQuant's factors float32 `[width]`: largest|x|^alpha / largest|w|^(1 - alpha), by column.

    The weights that read the input are multiplied by it, the input is divided. Columns that are always zero keep 1.
    """
    inputs = np.maximum(moments.largest.astype(np.float64), 1e-5)
    largest = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0).astype(np.float64)
    factors = inputs**alpha / np.maximum(largest, 1e-5) ** (1 - alpha)
    return _usable(factors, moments)


def awq_factors(
    weights: Sequence[Array],
    moments: Moments,
    rounders: Sequence[Rounder],
    spans: Sequence[int],
    tie: Callable[[Array], Array] | None = None,
) -> tuple[Array, float]:
    """Return the factors float32 `[width]` with the smallest output error, and the exponent that made them.

    `rounders` round a scaled weight as it will be, with its ranges searched; `spans` are their blocks' columns; `tie`
    makes factors equal where the graph needs it. The exponent 0 of the inputs alone leaves everything as it is.
    """
    assert moments.second is not None
    second = moments.second
    inputs = np.maximum(moments.mean_magnitude, _FLOOR * moments.mean_magnitude.max())
    sampled = [weight[:: -(-len(weight) // _ROWS)] for weight in weights]
    sizes = _relative_sizes(sampled, spans)
    tried: dict[tuple[bool, float], tuple[float, Array]] = {}

    def attempt(form: bool, exponent: float) -> None:
        factors = inputs**exponent
        if form:
            factors = factors / sizes ** (1 - exponent)
        factors = _usable(factors, moments)
        factors = factors if tie is None else tie(factors)
        scaled = second / factors[:, None] / factors[None, :]
        loss = 0.0
        for rows, whole, rounder in zip(sampled, weights, rounders, strict=True):
            error = rounder(rows * factors, scaled) / factors - rows
            loss += moments.output_error(error) * len(whole) / len(rows)
        tried[form, exponent] = (loss, factors)

    for form in (False, True):
        for exponent in EXPONENTS:
            attempt(form, exponent)
    form, exponent = min(tried, key=lambda key: tried[key][0])
    for step in (-_FINER, _FINER):
        if exponent + step > 0:
            attempt(form, exponent + step)
    form, exponent = min(tried, key=lambda key: tried[key][0])
    return tried[form, exponent][1], exponent


def _relative_sizes(weights: Sequence[Array], spans: Sequence[int]) -> Array:
    """Return the mean over all rows of |w| relative to the largest of its block, float64 `[width]`, never quite 0."""
    total, count = 0.0, 0
    for weight, span in zip(weights, spans, strict=True):
        blocks = to_blocks(np.abs(weight), span)
        largest = blocks.max(axis=2, keepdims=True)
        relative = blocks / np.where(largest > 0, largest, 1)
        total = total + relative.reshape(len(weight), -1)[:, : weight.shape[1]].sum(axis=0, dtype=np.float64)
        count += len(weight)
    sizes: Array = np.asarray(total) / count
    floored: Array = np.maximum(sizes, max(_FLOOR * float(sizes.max()), 1e-30))
    return floored


def tied_by_head(factors: Array, heads: int, kv_heads: int) -> Array:
    """Return factors `[heads * dim]` made equal (geometric mean) for the query heads that read one value head."""
    grouped = np.log(factors.astype(np.float64)).reshape(kv_heads, heads // kv_heads, -1)
    tied = np.exp(np.repeat(grouped.mean(axis=1, keepdims=True), heads // kv_heads, axis=1))
    result: Array = tied.reshape(-1).astype(np.float32)
    return result


def _usable(factors: Array, moments: Moments) -> Array:
    """Return factors around 1 (geometric mean of the extremes), 1 for dead columns, within what float32 bears."""
    factors = np.where(moments.dead, 1.0, factors)
    live = factors[~moments.dead]
    if len(live):
        factors = np.where(moments.dead, 1.0, factors / np.sqrt(live.max() * live.min()))
    result: Array = np.clip(factors, 1e-4, 1e4).astype(np.float32)
    return result
