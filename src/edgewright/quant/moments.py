"""What calibration remembers of a linear's input: enough for every algorithm, independent of the number of tokens."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from edgewright.errors import CalibrationDataError
from edgewright.formats import Array

#: Tokens whose products are taken at once: a product of few tokens costs more in passes over its result than in sums.
_PORTION = 4096
#: Bins of the histogram of magnitudes; it covers [0, limit) and doubles its limit when a larger one comes.
BINS = 2048

# A column's own histogram has 16 bins an octave: a float's exponent and the first four bits of its mantissa. It spans
# 2^-24 to 2^24; what is smaller counts as nothing, what is larger is in the last bin.
_SHIFT = 23 - 4
_FIRST = (127 - 24) << 4
_OWN_BINS = 48 << 4


@dataclass
class Moments:
    """Statistics of inputs x `[tokens, width]`.

    `total`, `magnitude` are sums of x and |x| by column (float64 `[width]`), `lows` and `highs` the extremes by column
    (float32 `[width]`). `histogram` counts |x| in BINS bins of [0, `limit`),
    with `keep_histogram`. With `keep_columns` every column has a coarse
    histogram of its own (int64 `[width, bins]`), from which `scaled` makes the histogram of scaled inputs.
    """

    name: str
    width: int
    keep_second: bool = True
    keep_columns: bool = False
    keep_histogram: bool = True
    tokens: int = 0
    limit: float = 0.0

    def __post_init__(self) -> None:
        self.total = np.zeros(self.width)
        self.magnitude = np.zeros(self.width)
        self.lows = np.zeros(self.width, np.float32)
        self.highs = np.zeros(self.width, np.float32)
        self._second = np.zeros((self.width, self.width), np.float32) if self.keep_second else None
        self._waiting: list[Array] = []
        self._lock = threading.Lock()  # modules that share an input are rounded at once
        self.histogram = np.zeros(BINS, np.int64)
        self.columns = np.zeros((self.width, _OWN_BINS), np.int64) if self.keep_columns else None

    def add(self, x: Array) -> None:
        """Add inputs float32 `[tokens, width]`; raises CalibrationDataError when they aren't finite."""
        if not len(x):
            return
        lows, highs = x.min(axis=0), x.max(axis=0)
        if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
            raise CalibrationDataError(
                f"The input of {self.name} is not finite on the calibration data: the model overflows there; look at "
                "its weights, or calibrate on other data."
            )
        magnitude = np.abs(x)
        self.lows = np.minimum(self.lows, lows) if self.tokens else lows
        self.highs = np.maximum(self.highs, highs) if self.tokens else highs
        self.tokens += len(x)
        self.total += x.sum(axis=0, dtype=np.float64)
        self.magnitude += magnitude.sum(axis=0, dtype=np.float64)
        if self.keep_histogram:
            self._count(magnitude, float(magnitude.max()))
        if self.columns is not None:
            self._count_columns(magnitude, self.columns)
        if self._second is not None:
            self._waiting.append(x.copy())
            if sum(map(len, self._waiting)) >= _PORTION:
                self._multiply()

    def _multiply(self) -> None:
        with self._lock:
            if self._waiting and self._second is not None:
                x = np.concatenate(self._waiting)
                self._waiting = []
                self._second += x.T @ x

    @property
    def second(self) -> Array | None:
        """The sum of x x^T, float32 `[width, width]`, or None where it wasn't asked for."""
        self._multiply()
        return self._second

    @second.setter
    def second(self, value: Array | None) -> None:
        self._waiting, self._second = [], value

    def _count(self, magnitude: Array, largest: float) -> None:
        if self.limit == 0.0:
            self.limit = largest or 1.0
        while largest > self.limit:
            pairs = self.histogram.reshape(-1, 2).sum(axis=1)
            self.histogram = np.concatenate([pairs, np.zeros(BINS - len(pairs), np.int64)])
            self.limit *= 2
        index = np.minimum(magnitude.ravel() / np.float32(self.limit) * np.float32(BINS), BINS - 1).astype(np.int32)
        self.histogram += np.bincount(index, minlength=BINS)

    def _count_columns(self, magnitude: Array, columns: Array) -> None:
        bins = np.clip((np.ascontiguousarray(magnitude).view(np.int32) >> _SHIFT) - _FIRST, 0, _OWN_BINS - 1)
        bins += np.arange(self.width, dtype=np.int32) * np.int32(_OWN_BINS)
        columns += np.bincount(bins.ravel(), minlength=columns.size).reshape(columns.shape)

    def scaled(self, factors: Array) -> Moments:
        """Return the statistics of x * factors (positive, `[width]`); the histogram only with `keep_columns`, and as
        fine as the columns' own."""
        other = Moments(self.name, self.width, keep_second=False, tokens=self.tokens)
        other.total, other.magnitude = self.total * factors, self.magnitude * factors
        other.lows = (self.lows * factors).astype(np.float32)
        other.highs = (self.highs * factors).astype(np.float32)
        if self.second is not None:
            other.second = (self.second * factors[:, None] * factors[None, :]).astype(np.float32)
        if self.columns is not None:
            edges = ((np.arange(_OWN_BINS + 1, dtype=np.int32) + _FIRST) << _SHIFT).view(np.float32).astype(np.float64)
            centres = (edges[:-1] + edges[1:]) / 2
            centres[0] = 0.0
            other.limit = float(other.largest.max()) or 1.0
            values = np.minimum(centres[None, :] * np.abs(factors)[:, None], other.largest[:, None]) / other.limit
            index = np.minimum((values * BINS).astype(np.int64), BINS - 1)
            counted = np.bincount(index.ravel(), self.columns.ravel().astype(np.float64), BINS)
            other.histogram = np.rint(counted).astype(np.int64)
        return other

    @property
    def largest(self) -> Array:
        """The largest |x| by column, float32 `[width]`."""
        largest: Array = np.maximum(np.abs(self.lows), np.abs(self.highs))
        return largest

    @property
    def low(self) -> float:
        """The smallest x."""
        return float(self.lows.min())

    @property
    def high(self) -> float:
        """The largest x."""
        return float(self.highs.max())

    @property
    def mean(self) -> Array:
        """Mean input, float64 `[width]`."""
        mean: Array = self.total / max(self.tokens, 1)
        return mean

    @property
    def mean_magnitude(self) -> Array:
        """Mean magnitude, float64 `[width]`."""
        mean: Array = self.magnitude / max(self.tokens, 1)
        return mean

    @property
    def dead(self) -> Array:
        """Which columns were zero in every token."""
        dead: Array = self.largest == 0
        return dead

    def output_error(self, error: Array, reference: Array | None = None) -> float:
        """Return the sum of squares of x error^T over all tokens, `error` being `[rows, width]`; relative to that of
        `reference` if given."""
        assert self.second is not None
        value = _energy(error, self.second)
        if reference is None:
            return value
        whole = _energy(reference, self.second)
        return value / whole if whole > 0 else 0.0


def _energy(matrix: Array, second: Array) -> float:
    """Return the trace of matrix second matrix^T, some rows at a time."""
    step = max(1, (1 << 22) // max(matrix.shape[1], 1))
    return sum(
        float(np.einsum("ij,ij->", matrix[start : start + step] @ second, matrix[start : start + step], dtype=float))
        for start in range(0, len(matrix), step)
    )
