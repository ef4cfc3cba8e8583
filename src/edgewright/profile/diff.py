"""Two profiles beside each other: how much longer each part takes, and whether that is more than chance.

A change of means is called noise where it is smaller than twice its standard error, which follows from the spread of
the runs of both (Welch). Without a spread, of files of means alone, nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgewright.errors import ProfileError
from edgewright.profile.profile import Peaks, Phase, Profile
from edgewright.profile.table import Row, rows, total

#: Standard errors that a change must be larger than.
_ERRORS = 2.0


@dataclass(frozen=True)
class Change:
    """A part of a phase before and after, in milliseconds of the mean; None where it isn't there.

    `relative` is the change over what was before. `noise_ms` is what chance explains, None where no spread is known;
    `certain` tells that the change is larger.
    """

    label: str
    before_ms: float | None
    after_ms: float | None
    change_ms: float
    relative: float | None
    noise_ms: float | None
    certain: bool | None


@dataclass(frozen=True)
class PhaseDiff:
    """The changes of a phase, the largest first, and that of the whole run."""

    name: str
    changes: tuple[Change, ...]
    total: Change


def diff(before: Profile, after: Profile, view: str = "module") -> list[PhaseDiff]:
    """Return the changes of every phase that both have; raises ProfileError when there is none, or sizes differ."""
    known = {phase.name: phase for phase in before.phases}
    pairs = [(known[phase.name], phase) for phase in after.phases if phase.name in known]
    if not pairs:
        raise ProfileError(
            f"The profiles have no phase in common ({_names(before)}; {_names(after)}): compare the same stages."
        )
    for one, other in pairs:
        if dict(one.sizes) != dict(other.sizes):
            raise ProfileError(
                f"The phase {one.name} ran at other sizes ({_spelled(one)}; {_spelled(other)}): profile both alike."
            )
    return [_phase(one, other, view) for one, other in pairs]


def _phase(before: Phase, after: Phase, view: str) -> PhaseDiff:
    old, new = ({row.label: row for row in rows(phase, Peaks(""), view)} for phase in (before, after))
    counts = (len(before.totals_ms), len(after.totals_ms))
    found = [_change(label, old.get(label), new.get(label), counts) for label in dict.fromkeys([*old, *new])]
    found.sort(key=lambda change: (-abs(change.change_ms), change.label))
    whole = _change("total", total(before, Peaks("")), total(after, Peaks("")), counts)
    return PhaseDiff(after.name, tuple(found), whole)


def _change(label: str, before: Row | None, after: Row | None, runs: tuple[int, int]) -> Change:
    old, new = (None if row is None else row.mean_ms for row in (before, after))
    change = (new or 0.0) - (old or 0.0)
    noise = _noise((before, after), runs)
    return Change(
        label,
        old,
        new,
        change,
        change / old if old else None,
        noise,
        None if noise is None else abs(change) > noise,
    )


def _noise(both: Sequence[Row | None], runs: tuple[int, int]) -> float | None:
    """Return what chance explains of a change of means; a part that isn't there has no spread."""
    error = 0.0
    for row, count in zip(both, runs, strict=True):
        if row is None:
            continue
        if row.deviation_ms is None:
            return None
        error += row.deviation_ms**2 / count
    return _ERRORS * math.sqrt(error)


def _names(profile: Profile) -> str:
    return ", ".join(phase.name for phase in profile.phases) or "none"


def _spelled(phase: Phase) -> str:
    return ", ".join(f"{name} {size}" for name, size in phase.sizes.items()) or "not known"
