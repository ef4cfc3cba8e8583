"""How far a changed model's predictions are from the float model's, on held-out text: KL, perplexity, and how sure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgewright.formats import Array
from edgewright.quantizer.stream import FloatModel

#: Rows of logits compared at once, to bound the float64 copies.
_BLOCK = 64

#: What a model says of one row of ids: logits float32 `[positions, vocab]`, and int64 `[positions]` the ids that follow
#: those positions, -1 where none does.
Pass = tuple[Array, Array]


@dataclass(frozen=True)
class Judgement:
    """KL(float || changed) in nats with its standard error over positions, perplexity of the text, top-1 agreement.

    Positions of a row depend on each other and rows don't, so the errors over the `windows` rows are the careful ones;
    they are None for a single row. `loss_change` is the mean over tokens of changed minus float negative
    log-probability, pairwise, so that its error is far below that of a perplexity.
    """

    kl: float
    kl_error: float
    perplexity: float
    top1: float
    positions: int
    windows: int = 1
    kl_windows_error: float | None = None
    perplexity_error: float | None = None
    loss_change: float | None = None
    loss_change_error: float | None = None

    def to_json(self) -> dict[str, float | int | None]:
        """Return the figures as JSON-compatible values; what is not finite becomes None."""
        return {key: value if value is None or math.isfinite(value) else None for key, value in vars(self).items()}


class Predictions:
    """The float model's log-probabilities of some rows, kept in a file, and the comparison of other models with them.

    `perplexity` is the float model's, with its standard error over rows in `perplexity_error`. Peak memory is a row's
    logits.
    """

    def __init__(self, path: Path, passes: Iterable[Pass]) -> None:
        self._path, self._losses = path, list[Array]()
        self.vocab = 0
        with path.open("wb") as file:
            for logits, following in passes:
                self.vocab = logits.shape[1]
                given = _log_softmax(logits)
                file.write(given.astype(np.float32).data)
                self._losses.append(_losses(given, following))
        self.perplexity, self.perplexity_error = _perplexity(self._losses)

    def compare(self, passes: Iterable[Pass]) -> Judgement:
        """Judge a model by what it says of the same rows, in the same order."""
        with self._path.open("rb") as file:
            rows = [self._row(file, logits, following) for logits, following in passes]
        divergence, agree, losses = zip(*rows, strict=True)
        return self._judgement(divergence, np.concatenate(agree), losses)

    def _row(self, file: BinaryIO, logits: Array, following: Array) -> tuple[Array, Array, Array]:
        """Return KL and agreement of every position of the next row, and the losses of the ids that follow."""
        assert logits.shape[1] == self.vocab, (logits.shape, self.vocab)
        parts = []
        for start in range(0, len(logits), _BLOCK):
            block = logits[start : start + _BLOCK]
            wanted = np.frombuffer(file.read(4 * block.size), np.float32).reshape(block.shape).astype(np.float64)
            given = _log_softmax(block)
            divergence = (np.exp(wanted) * (wanted - given)).sum(axis=1)
            agree = (wanted.argmax(axis=1) == given.argmax(axis=1)) & np.isfinite(divergence)
            parts.append((divergence, agree, _losses(given, following[start : start + _BLOCK])))
        divergences, agreements, losses = (np.concatenate(values) for values in zip(*parts, strict=True))
        return divergences, agreements, losses

    def _judgement(self, divergence: Sequence[Array], agree: Array, losses: Sequence[Array]) -> Judgement:
        every = np.nan_to_num(np.concatenate(divergence), nan=math.inf)
        perplexity, perplexity_error = _perplexity(losses)
        changes = [own - theirs for own, theirs in zip(losses, self._losses, strict=True)]
        known = sum(map(len, changes)) > 0
        return Judgement(
            kl=float(every.mean()),
            kl_error=_spread(every) if len(every) > 1 else math.inf,
            perplexity=perplexity,
            top1=float(agree.mean()),
            positions=len(every),
            windows=len(divergence),
            kl_windows_error=_spread_of_means(divergence),
            perplexity_error=perplexity_error,
            loss_change=float(np.concatenate(changes).mean()) if known else None,
            loss_change_error=_spread_of_means(changes),
        )


class Judge:
    """Compares a float model with itself when some of its parameters are changed, on `rows`.

    Every `stride`-th position of a row counts. `evaluations` counts the passes over all rows, the float model's own
    included. Peak memory is the model and one row's logits.
    """

    def __init__(self, model: FloatModel, rows: Sequence[Array], folder: Path, *, stride: int = 1) -> None:
        self._model, self._rows, self._stride = model, rows, stride
        self.evaluations = 0
        self._predictions = Predictions(folder / "reference.bin", self._passes())
        self.vocab = self._predictions.vocab

    def judge(self, changes: Mapping[str, Array]) -> Judgement:
        """Compare the model with some parameters changed; they are put back afterwards."""
        with self._model.changed(changes):
            return self._predictions.compare(self._passes())

    def _passes(self) -> Iterator[Pass]:
        self.evaluations += 1
        session = self._model.whole()
        for ids in self._rows:
            positions = np.arange(0, len(ids), self._stride)
            yield self._model.logits(session, ids, positions), following_of(ids)[positions]


def following_of(ids: Array) -> Array:
    """Return the ids that follow every position of a row, -1 after the last."""
    return np.append(ids[1:], -1)


def _log_softmax(logits: Array) -> Array:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _losses(log_probabilities: Array, following: Array) -> Array:
    known = np.flatnonzero(following >= 0)
    losses: Array = -log_probabilities[known, following[known]]
    return losses


def _perplexity(losses: Sequence[Array]) -> tuple[float, float | None]:
    """Return exp(mean loss) and its standard error over rows, to first order."""
    every = np.concatenate(losses)
    if not len(every):
        return math.nan, None
    value = float(np.exp(every.mean()))
    spread = _spread_of_means(losses)
    return value, None if spread is None else value * spread


def _spread(values: Array) -> float:
    """Return the standard error of a mean; infinite where a value is."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if np.isfinite(values).all() else math.inf


def _spread_of_means(rows: Sequence[Array]) -> float | None:
    means = np.array([row.mean() for row in rows if len(row)])
    return _spread(means) if len(means) > 1 else None
