"""The tables of `edgewright profile`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgewright.cli._output import size, table

if TYPE_CHECKING:
    from edgewright.profile.diff import Change, PhaseDiff
    from edgewright.profile.profile import Phase, Profile
    from edgewright.profile.table import Row

_HEADER = ("layers", "mean ms", "p50", "p95", "p99", "share", "MACs", "bytes", "GMAC/s", "GB/s", "of peak", "bound by")


def profile_lines(profile: Profile, view: str, top: int) -> list[str]:
    """Return a profile as lines: what was run, then a table for each phase."""
    engines = ", ".join(f"{stage} on {engine}" for stage, engine in profile.engines.items())
    lines = [f"{profile.bundle} ({profile.kind}): {engines}" if profile.bundle else engines]
    if profile.peaks.title:
        lines.append(f"peaks     {_peaks(profile)}")
    if profile.peak_rss_bytes is not None:
        anonymous = profile.peak_anonymous_bytes
        rest = "" if anonymous is None else f", {size(anonymous)} of it not mapped from files"
        lines.append(f"memory    {size(profile.peak_rss_bytes)} at the peak of a process of its own{rest}")
    for phase in profile.phases:
        lines += ["", *_phase(phase, profile, view, top)]
    return lines


def _peaks(profile: Profile) -> str:
    peaks = profile.peaks
    known = [] if peaks.bytes_per_s is None else [f"{_rate(peaks.bytes_per_s)} GB/s"]
    known += [f"{_rate(ops / 2)} GMAC/s of {name}" for name, ops in peaks.ops_per_s.items()]
    return f"{peaks.title}: {', '.join(known) or 'not known'}"


def _phase(phase: Phase, profile: Profile, view: str, top: int) -> Iterable[str]:
    from edgewright.profile.table import percentiles, rows, total

    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in phase.sizes.items())
    yield f"{phase.name}    {sizes}" if sizes else phase.name
    for what, times in (("whole runs", phase.latencies_ms), ("profiled", phase.totals_ms)):
        p50, p95, p99, _ = percentiles(times)
        if p50 is not None:
            yield f"  {what:<11}{_ms(p50)} ms p50, {_ms(p95)} p95, {_ms(p99)} p99, of {len(times)}"
    if phase.unplaced_macs or phase.unplaced_bytes:
        yield (
            f"  not placed {_count(phase.unplaced_macs)} MACs and {size(phase.unplaced_bytes)} of the plan: no layer "
            "was found for their modules"
        )
    found = rows(phase, profile.peaks, view)
    inner, outside = found[:-1], found[-1]
    shown = [_cells(row) for row in inner[:top]]
    if hidden := inner[top:]:
        mean, share = sum(row.mean_ms for row in hidden), sum(row.share for row in hidden)
        blank = ["-"] * 3
        shown.append([f"{len(hidden)} more", _layers(hidden), _ms(mean), *blank, f"{share:.1%}", *["-"] * 6])
    shown += [_cells(outside), _cells(total(phase, profile.peaks))]
    yield table((view if view != "group" else "part", *_HEADER), shown)


def _layers(found: Sequence[Row]) -> str:
    return str(sum(row.layers for row in found))


def _cells(row: Row) -> list[str]:
    return [
        row.label,
        str(row.layers) if row.layers else "-",
        *(_ms(value) for value in (row.mean_ms, row.p50_ms, row.p95_ms, row.p99_ms)),
        f"{row.share:.1%}",
        _count(row.macs) if row.macs else "-",
        size(row.bytes) if row.bytes else "-",
        _rate(row.macs_per_s),
        _rate(row.bytes_per_s),
        "-" if row.of_peak is None else f"{row.of_peak:.0%}",
        row.bound or "-",
    ]


def diff_lines(phases: Sequence[PhaseDiff], top: int) -> list[str]:
    """Return the changes of phases as lines, those above the noise marked."""
    lines: list[str] = []
    for phase in phases:
        shown = [_change(change) for change in phase.changes[:top]]
        if hidden := phase.changes[top:]:
            change = sum(one.change_ms for one in hidden)
            shown.append([f"{len(hidden)} more", "-", "-", f"{change:+.4g}", "-", "-", "-"])
        head = (phase.name, "before ms", "after ms", "change ms", "change", "noise ms", "")
        lines += [*([""] if lines else []), table(head, [*shown, _change(phase.total)])]
    return lines


def _change(change: Change) -> list[str]:
    verdict = {None: "spread not known", False: "noise", True: "slower" if change.change_ms > 0 else "faster"}
    return [
        change.label,
        _ms(change.before_ms),
        _ms(change.after_ms),
        f"{change.change_ms:+.4g}",
        "-" if change.relative is None else f"{change.relative:+.1%}",
        _ms(change.noise_ms),
        verdict[change.certain],
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.3g}"


def _count(number: float) -> str:
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"
