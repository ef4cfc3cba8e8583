"""Evaluations of mixes of formats against the float model: on this machine, or by workers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from edgewright.formats import Array, Format
from edgewright.progress import SILENT, Progress
from edgewright.quantizer.candidates import Roundings
from edgewright.quantizer.judge import Judge, Judgement
from edgewright.quantizer.plan import Target
from edgewright.quantizer.stream import FloatModel

#: Modules with the format each of them gets, one module a weight; all others stay as they are.
Mix = Sequence[tuple[Target, Format]]


class Weights(Mapping[str, Array]):
    """The rounded weights of a mix, read one at a time."""

    def __init__(self, mix: Mix, model: FloatModel, roundings: Roundings) -> None:
        self._mix = {target.weight: (target, fmt) for target, fmt in mix}
        self._model, self._roundings = model, roundings

    def __getitem__(self, name: str) -> Array:
        target, fmt = self._mix[name]
        return self._roundings.load(target, fmt, self._model.weight(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._mix)

    def __len__(self) -> int:
        return len(self._mix)


class Evaluator(Protocol):
    """Measures mixes; `evaluations` counts the passes over all rows that were made for them."""

    evaluations: int

    def evaluate(self, mixes: Sequence[Mix]) -> list[Judgement]:
        """Return a judgement of every mix, in order."""


class LocalEvaluator:
    """One mix after the other, in this process."""

    def __init__(
        self,
        model: FloatModel,
        roundings: Roundings,
        rows: Sequence[Array],
        folder: Path,
        *,
        stride: int = 1,
        progress: Progress = SILENT,
    ) -> None:
        self._model, self._roundings, self._progress = model, roundings, progress
        self._rows, self._folder, self._stride = rows, folder, stride
        self._judge: Judge | None = None
        self.evaluations = 0

    def evaluate(self, mixes: Sequence[Mix]) -> list[Judgement]:
        """Return a judgement of every mix, in order."""
        if self._judge is None:
            with self._progress.step("float model's predictions"):
                self._judge = Judge(self._model, self._rows, self._folder, stride=self._stride)
        found = []
        with self._progress.step(f"evaluate {len(mixes)} {'mix' if len(mixes) == 1 else 'mixes'}", len(mixes)) as done:
            for mix in mixes:
                found.append(self._judge.judge(Weights(mix, self._model, self._roundings)))
                self.evaluations += 1
                done(1)
        return found
