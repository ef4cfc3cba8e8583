"""How much each module's rounding costs, from one pass over the layers: a second-order estimate.

KL is quadratic in small errors of the hidden states, and errors of different modules add up. So the KL of all of a
layer's rounding is measured once, by sending it through the rest of the model on a few probe rows, and shared out
by the energy that each module and format puts on the layer's output; the head's is measured as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgewright.formats import Array, Format
from edgewright.progress import SILENT, Progress
from edgewright.quant.moments import Moments
from edgewright.quantizer.candidates import Roundings
from edgewright.quantizer.plan import Plan
from edgewright.quantizer.segments import Segment
from edgewright.quantizer.stream import FloatModel, Spool, run_all
from edgewright.verify.metrics import compare

#: A module and a format.
Key = tuple[str, Format]


@dataclass
class Sensitivities:
    """KL in nats that each module costs in each format.

    `work` counts the probing in tokens times segments, `statistics` the pass that learns the inputs' statistics, which
    quantizing needs in any case.
    """

    kl: dict[Key, float] = field(default_factory=dict)
    work: int = 0
    statistics: int = 0


class _Estimator:
    """The pass: calibration rows, clean probe rows, and a noisy copy of the probe rows for every layer behind."""

    def __init__(
        self,
        model: FloatModel,
        plan: Plan,
        rows: Sequence[Array],
        probes: Sequence[Array],
        formats: Mapping[str, Sequence[Format]],
        roundings: Roundings,
        spool: Spool,
        progress: Progress,
    ) -> None:
        self._model, self._plan, self._rows, self._probes = model, plan, rows, probes
        self._formats, self._roundings, self._spool, self._progress = formats, roundings, spool, progress
        self._noisy: list[int] = []  # segments whose noise is on its way
        self._shares: dict[int, dict[Key, float]] = {}
        self.result = Sensitivities()

    def run(self) -> Sensitivities:
        segments = self._plan.segments
        for segment in segments[:-1]:
            with self._progress.step(f"sensitivity, {segment.title}") as advance:
                moments = self._statistics(segment)
                advance(0)
                self._clean(segment)
                self._push(segment)
                self._measure(segment, moments)
                advance(0)
                self._drop(segment)
        with self._progress.step("sensitivity, head"):
            self._finish(segments[-1])
        return self.result

    def _first(self, stream: int) -> int:
        """Return the number under which a stream's first row is spooled; stream 0 is clean, s + 1 has noise of s."""
        return len(self._rows) + stream * len(self._probes)

    def _probed(
        self, segment: Segment, wanted: Sequence[str], stream: int = 0
    ) -> Iterator[tuple[int, Mapping[str, Array]]]:
        """Yield (number of the probe row, values) of a stream's rows."""
        self.result.work += sum(len(row) for row in self._probes)
        first = self._first(stream)
        for sample, values in run_all(self._model, segment, self._spool, self._probes, wanted, first=first):
            yield sample - first, values

    def _statistics(self, segment: Segment) -> dict[str, Moments]:
        """Send the calibration rows through and learn the statistics of the inputs."""
        moments = {}
        for group in self._plan.groups[segment.index]:
            target = group.targets[0]
            if target.op != "Embedding" and not target.inner:
                moments[group.value] = Moments(target.module, target.shape[1], keep_histogram=False)
        gives = () if segment.index == len(self._plan.segments) - 1 else segment.gives
        if not moments and not gives:
            return moments
        self.result.statistics += sum(len(row) for row in self._rows)
        wanted = list(dict.fromkeys([*moments, *gives]))
        for sample, values in run_all(self._model, segment, self._spool, self._rows, wanted):
            for name, seen in moments.items():
                seen.add(values[name].reshape(-1, seen.width))
            for value in gives:
                self._spool.write(value, sample, values[value])
        return moments

    def _clean(self, segment: Segment) -> None:
        """Send the clean probe rows through."""
        for row, values in self._probed(segment, segment.gives):
            for value in segment.gives:
                self._spool.write(value, self._first(0) + row, values[value])

    def _push(self, segment: Segment) -> None:
        """Send the noise of earlier layers through."""
        for stream in self._noisy:
            for row, values in self._probed(segment, segment.gives, stream + 1):
                for value in segment.gives:
                    self._spool.write(value, self._first(stream + 1) + row, values[value])

    def _measure(self, segment: Segment, moments: Mapping[str, Moments]) -> None:
        """Learn what each module and format does to this segment's output; start the noise of all of them together."""
        placed = [(target, group.value) for group in self._plan.groups[segment.index] for target in group.targets]
        if not placed:
            return
        shares: dict[Key, float] = {}
        coarse: dict[str, Array] = {}
        for target, value in placed:
            weight = self._model.weight(target.weight)
            for fmt in self._formats[target.module]:
                rounded = self._roundings.rounded(target, fmt, weight, moments.get(value))
                if fmt == self._formats[target.module][0]:
                    coarse[target.weight] = rounded
                shares[target.module, fmt] = self._energy(segment, {target.weight: rounded})
        whole = self._energy(segment, coarse, keep=segment.index + 1)
        self._copy_clean(segment)
        self._noisy.append(segment.index)
        self._shares[segment.index] = {key: energy / max(whole, 1e-30) for key, energy in shares.items()}

    def _energy(self, segment: Segment, changes: Mapping[str, Array], keep: int | None = None) -> float:
        """Return the energy of the change of a segment's outputs on the probe rows; `keep` spools them as a stream."""
        total = 0.0
        with self._model.changed(changes):
            for row, given in self._probed(segment, segment.gives):
                for value in segment.gives:
                    clean = self._spool.read(value, self._first(0) + row)
                    if clean.dtype == np.float32:
                        total += float(np.square(given[value] - clean, dtype=np.float64).sum())
                    if keep is not None:
                        self._spool.write(value, self._first(keep) + row, given[value])
        return total

    def _copy_clean(self, segment: Segment) -> None:
        """Give the stream that starts here what earlier segments made for later ones; no noise is in that."""
        given = {value for earlier in self._plan.segments[: segment.index] for value in earlier.gives}
        later = {value for other in self._plan.segments[segment.index + 1 :] for value in other.fed}
        for value in sorted(given & later - set(segment.gives)):
            for row in range(len(self._probes)):
                clean = self._spool.read(value, self._first(0) + row)
                self._spool.write(value, self._first(segment.index + 1) + row, clean)

    def _drop(self, segment: Segment) -> None:
        later = {value for other in self._plan.segments[segment.index + 1 :] for value in other.fed}
        self._spool.drop([value for value in segment.fed if value not in later])

    def _finish(self, head: Segment) -> None:
        """Measure the KL of every stream at the logits, and that of the head's own formats."""
        moments = self._statistics(head)
        logits = head.gives[0]
        clean = [values[logits][0] for _, values in self._probed(head, [logits])]
        for stream in self._noisy:
            kl = _kl(self._probed(head, [logits], stream + 1), logits, clean)
            self.result.kl |= {key: kl * share for key, share in self._shares[stream].items()}
        for group in self._plan.groups[head.index]:
            for target in group.targets:
                weight = self._model.weight(target.weight)
                for fmt in self._formats[target.module]:
                    rounded = self._roundings.rounded(target, fmt, weight, moments.get(group.value))
                    with self._model.changed({target.weight: rounded}):
                        kl = _kl(self._probed(head, [logits]), logits, clean)
                    self.result.kl[target.module, fmt] = kl


def _kl(passed: Iterator[tuple[int, Mapping[str, Array]]], logits: str, clean: Sequence[Array]) -> float:
    found = [compare(values[logits][0], clean[row]).kl for row, values in passed]
    return float(np.concatenate(found).mean())


def sensitivities(
    model: FloatModel,
    plan: Plan,
    rows: Sequence[Array],
    probes: Sequence[Array],
    formats: Mapping[str, Sequence[Format]],
    roundings: Roundings,
    spool: Spool,
    *,
    progress: Progress = SILENT,
) -> Sensitivities:
    """Estimate what every module costs in each of its `formats` (coarsest first), by module.

    Statistics come from `rows`, the noise is measured on `probes`, int64 `[tokens]` each. Weights are put back, and
    every rounding is left in `roundings`.
    """
    return _Estimator(model, plan, rows, probes, formats, roundings, spool, progress).run()
