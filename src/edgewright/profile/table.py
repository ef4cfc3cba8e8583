"""Rows of a phase: layers taken together by what part of the model they are, by module, by op, or one by one.

Rows always add up to the whole run: time in layers that lead to no module is a row, and so is time outside of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgewright.plan.roofline import BANDWIDTH, COMPUTE
from edgewright.profile.groups import NONE
from edgewright.profile.profile import Layer, Peaks, Phase

OUTSIDE = "outside of layers"
#: Modules that a label spells; of more it tells the number.
_SPELLED = 2


@dataclass(frozen=True)
class Row:
    """Layers taken together: milliseconds of a run, and what the plan counts for them.

    Percentiles and the standard deviation are over runs, None where the engine gives means alone (`p50_ms` is then the
    median if it is that of one layer). `share` is that of the whole run. Rates are per second of the mean; `of_peak`
    is the share of the time that the machine would need at its peaks, and `bound` what takes it.
    """

    label: str
    layers: int
    calls: float
    mean_ms: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    deviation_ms: float | None
    share: float
    macs: int = 0
    bytes: int = 0
    macs_per_s: float | None = None
    bytes_per_s: float | None = None
    of_peak: float | None = None
    bound: str | None = None


def by_group(layer: Layer) -> str:
    """Return the part of the model a layer is of."""
    return layer.group


def by_module(layer: Layer) -> str:
    """Return the modules that a layer runs."""
    if not layer.modules:
        return NONE
    more = len(layer.modules) - _SPELLED
    return " + ".join(layer.modules[:_SPELLED]) + (f" + {more} more" if more > 0 else "")


def by_op(layer: Layer) -> str:
    """Return the op that a layer is, as its engine calls it."""
    return layer.kind or "not known"


def by_layer(layer: Layer) -> str:
    """Return the layer's own name."""
    return layer.name


VIEWS: Mapping[str, Callable[[Layer], str]] = {
    "group": by_group,
    "module": by_module,
    "op": by_op,
    "layer": by_layer,
}


def rows(phase: Phase, peaks: Peaks, view: str = "group") -> list[Row]:
    """Return the rows of a phase, those that take longest first, what is outside of layers last."""
    parts: dict[str, list[Layer]] = {}
    for layer in phase.layers:
        parts.setdefault(VIEWS[view](layer), []).append(layer)
    found = [_row(label, layers, phase, peaks) for label, layers in parts.items()]
    found.sort(key=lambda row: (-row.mean_ms, row.label))
    return [*found, _outside(phase)]


def total(phase: Phase, peaks: Peaks) -> Row:
    """Return the whole run as a row, with the work of all layers."""
    calls = sum(layer.calls for layer in phase.layers)
    return _figures("total", phase, peaks, phase.totals_ms, phase.mean_ms, None, calls, phase.layers)


def _row(label: str, layers: Sequence[Layer], phase: Phase, peaks: Peaks) -> Row:
    times = _summed(layers)
    mean = sum(layer.mean_ms for layer in layers)
    median = layers[0].median_ms if len(layers) == 1 else None
    calls = sum(layer.calls for layer in layers)
    return _figures(label, phase, peaks, times, mean, median, calls, layers)


def _figures(
    label: str,
    phase: Phase,
    peaks: Peaks,
    times: Sequence[float],
    mean_ms: float,
    median_ms: float | None,
    calls: float,
    layers: Sequence[Layer],
) -> Row:
    macs: dict[str, int] = {}
    for layer in layers:
        for multiplies, number in layer.macs.items():
            macs[multiplies] = macs.get(multiplies, 0) + number
    moved = sum(layer.bytes for layer in layers)
    p50, p95, p99, deviation = percentiles(times)
    seconds = mean_ms / 1000
    least, bound = _least(macs, moved, peaks)
    return Row(
        label=label,
        layers=len(layers),
        calls=calls,
        mean_ms=mean_ms,
        p50_ms=median_ms if p50 is None else p50,
        p95_ms=p95,
        p99_ms=p99,
        deviation_ms=deviation,
        share=mean_ms / phase.mean_ms if phase.mean_ms else 0.0,
        macs=sum(macs.values()),
        bytes=moved,
        macs_per_s=sum(macs.values()) / seconds if macs and seconds else None,
        bytes_per_s=moved / seconds if moved and seconds else None,
        of_peak=least / seconds if least is not None and seconds else None,
        bound=bound,
    )


def _least(macs: Mapping[str, int], moved: int, peaks: Peaks) -> tuple[float | None, str | None]:
    """Return the seconds that work takes at the peaks, and what takes them; None where a peak is not known."""
    if not moved and not macs:
        return None, None
    if peaks.bytes_per_s is None or any(name not in peaks.ops_per_s for name, number in macs.items() if number):
        return None, None
    counted = sum(2 * number / peaks.ops_per_s[name] for name, number in macs.items() if number)
    streamed = moved / peaks.bytes_per_s
    return max(counted, streamed), COMPUTE if counted > streamed else BANDWIDTH


def _outside(phase: Phase) -> Row:
    inner = sum(layer.mean_ms for layer in phase.layers)
    sums = _summed(phase.layers)
    times = tuple(max(0.0, whole - part) for whole, part in zip(phase.totals_ms, sums, strict=False))
    return _figures(OUTSIDE, phase, Peaks(""), times, max(0.0, phase.mean_ms - inner), None, 0, ())


def _summed(layers: Sequence[Layer]) -> tuple[float, ...]:
    """Return the times of layers taken together, run by run; nothing where the times of one are not known."""
    if not layers or not all(layer.times_ms for layer in layers):
        return ()
    return tuple(float(value) for value in np.sum([layer.times_ms for layer in layers], axis=0))


def percentiles(
    times: Sequence[float],
) -> tuple[float, float, float, float | None] | tuple[None, None, None, None]:
    """Return p50, p95, p99 and the standard deviation of times, the last None for one time; None without any."""
    if not len(times):
        return None, None, None, None
    p50, p95, p99 = (float(value) for value in np.percentile(times, [50, 95, 99]))
    return p50, p95, p99, float(np.std(times, ddof=1)) if len(times) > 1 else None
