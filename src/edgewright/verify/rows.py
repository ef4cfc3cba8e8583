"""Errors of rows of values, and the noise that rounding inputs in blocks is expected to make."""

from __future__ import annotations

import numpy as np

from edgewright.verify.graphs import Array

#: Inputs that are rounded with one scale.
_BLOCK = 32


def blocks_of(values: Array) -> Array:
    """Return `[..., width]` in blocks `[..., blocks, 32]`, padded with zeros."""
    pad = -values.shape[-1] % _BLOCK
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, pad)])
    return padded.reshape(*values.shape[:-1], -1, _BLOCK)


def block_energy(weight: Array) -> Array:
    """Return for each block of inputs the sum of squared weights, as the mean over outputs; weight `[out, in]`."""
    energy: Array = np.square(blocks_of(weight), dtype=np.float64).sum(axis=-1).mean(axis=0)
    return energy


def row_errors(given: Array, wanted: Array, *, mean: bool) -> Array:
    """Return relative errors `[batch, rows]` of arrays `[batch, rows, ...]`; a value that is not finite gives infinity.

    Integers must be equal. With `mean` root mean squares are compared, else largest magnitudes.
    """
    shape = (*given.shape[:2], -1)
    g, w = given.reshape(shape), wanted.reshape(shape)
    if g.shape[2] == 0:
        return np.zeros(g.shape[:2])
    if not np.issubdtype(g.dtype, np.floating):
        return np.where((g != w).any(axis=2), np.inf, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        difference, size = g - w, w
        if not np.isfinite(w).all():  # a score of minus infinity is equal to itself
            difference, size = np.where(g == w, 0, difference), np.where(np.isfinite(w), w, 0)
        if mean:
            error, scale = (np.sqrt(np.einsum("brn,brn->br", a, a) / a.shape[2]) for a in (difference, size))
        else:
            # Adding 0 keeps the largest of nothing but zeros from being a negative one.
            error, scale = (np.maximum(a.max(axis=2), -a.min(axis=2)) + 0 for a in (difference, size))
        floor = max(float(scale[np.isfinite(scale)].max(initial=0.0)) * 1e-3, 1e-30)
        result = (error / np.maximum(scale, floor)).astype(np.float64)
    return np.where(np.isfinite(result), result, np.inf)
