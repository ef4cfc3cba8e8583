"""How long work takes at least: at every node the longer of its arithmetic and its bytes, one node after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright.plan.work import Work
from edgewright.targets.platform import Platform

#: What MX formats multiply as.
_PEAK_OF = {"mxfp8": "fp8", "mxfp4": "nvfp4"}
COMPUTE, BANDWIDTH = "compute", "bandwidth"


@dataclass(frozen=True)
class Limits:
    """What a platform can do: bytes a second, or None where that isn't known, and peaks, both times `efficiency`."""

    platform: Platform
    bandwidth: float | None
    efficiency: float = 1.0

    def peak(self, multiplies: str) -> float | None:
        """Return operations a second for products of these numbers, None where that isn't known."""
        name = self.platform.float if multiplies == "float" else _PEAK_OF.get(multiplies, multiplies)
        found = self.platform.peak_ops_per_s.get(name)
        return None if found is None else found * self.efficiency

    @property
    def bytes_per_s(self) -> float | None:
        """Return bytes a second."""
        return None if self.bandwidth is None else self.bandwidth * self.efficiency


@dataclass(frozen=True)
class Bound:
    """Seconds at least, None where not even the bandwidth is known; what takes most of them; peaks not known."""

    seconds: float | None
    binding: str | None
    unknown: tuple[str, ...]


def bound(work: Sequence[Work], limits: Limits, *, times: int = 1) -> Bound:
    """Return the least time that work takes, `times` over."""
    spent = {COMPUTE: 0.0, BANDWIDTH: 0.0}
    rate, unknown = limits.bytes_per_s, set()
    for item in work:
        peak = limits.peak(item.multiplies) if item.macs else None
        if item.macs and peak is None:
            unknown.add(limits.platform.float if item.multiplies == "float" else item.multiplies)
        counted = 2 * item.macs / peak if peak else 0.0
        moved = item.bytes / rate if rate else 0.0
        spent[COMPUTE if counted > moved else BANDWIDTH] += max(counted, moved)
    if rate is None:
        return Bound(None, None, tuple(sorted(unknown)))
    binding = COMPUTE if spent[COMPUTE] > spent[BANDWIDTH] else BANDWIDTH
    return Bound(times * sum(spent.values()), binding, tuple(sorted(unknown)))
