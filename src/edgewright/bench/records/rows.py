"""The rows of a run folder's `steps.jsonl`, `jobs.jsonl` and `events.jsonl`: one JSON object a line.

A run has parts: "warmup", "solo:<dialog>" and "run" (with its repeats). All times of a row are nanoseconds since the
part's own start, when every task of it was ready.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import itemgetter
from sys import intern
from typing import Any, NamedTuple

from edgewright.runtime.scheduling.work import JobRecord, StepRecord

RUN, WARMUP, SOLO = "run", "warmup", "solo:"
#: The latest time and the largest count that are believed: sums of them can still be computed with.
LATEST_NS, MOST = 1 << 60, 1 << 53


class StepRow(NamedTuple):
    """A quantum that ran: a `StepRecord` with its part, its repeat, and its dialog by name."""

    part: str
    repeat: int
    dialog: str
    iteration: int
    index: int  # type: ignore[assignment]  # a field that hides a method of tuples
    phase: str
    tokens: int
    padded: int | None
    held: int
    emits: bool
    ready_ns: int
    start_ns: int
    end_ns: int
    done_ns: int
    weight: float

    @classmethod
    def of(cls, record: StepRecord, part: str, repeat: int, dialog: str) -> StepRow:
        """Name what a run recorded by number."""
        return cls(part, repeat, dialog, *(getattr(record, name) for name in _SHARED_STEP))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepRow:
        """Read a row; raises KeyError, TypeError or ValueError where it is none."""
        values = _PICK_STEP(data)
        if tuple(map(type, values)) not in _STEP_TYPES:
            raise TypeError("a field of a step has another type than it must have")
        # The names are a few, and a run may have millions of rows.
        part, repeat, dialog, iteration, index, phase, *rest = values
        row = cls(intern(part), repeat, intern(dialog), iteration, index, intern(phase), *rest)
        if not 0 <= row.ready_ns <= row.start_ns <= row.end_ns <= row.done_ns <= LATEST_NS:
            raise ValueError("the times of a step go backwards, or too far")
        numbers = (row.iteration, row.index, row.tokens, row.held, row.padded or 0, row.repeat)
        if min(numbers) < 0 or max(numbers) > MOST:
            raise ValueError("a count of a step is none")
        if not 0 <= row.weight <= MOST:
            raise ValueError("the weight of a step is none")
        return row


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job that ended: a `JobRecord` with its part, its repeat, and its dialog by name."""

    part: str
    repeat: int
    dialog: str
    iteration: int
    release_ns: int
    ready_ns: int | None
    eligible_ns: int | None
    end_ns: int
    deadline_ns: int | None
    finish: str
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: JobRecord, part: str, repeat: int, dialog: str) -> JobRow:
        """Name what a run recorded by number."""
        return cls(part, repeat, dialog, **{name: getattr(record, name) for name in (*_SHARED_JOB, "facts")})

    def to_json(self) -> dict[str, Any]:
        """Return the row with its facts beside the rest; a fact never hides a field."""
        own = {name: getattr(self, name) for name in _JOB}
        return {**own, **{name: value for name, value in self.facts.items() if name not in own}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRow:
        """Read a row; raises KeyError, TypeError or ValueError where it is none."""
        facts = {name: value for name, value in data.items() if name not in _JOB}
        row = cls(**{name: data[name] for name in _JOB}, facts=facts)
        if not all(isinstance(text, str) for text in (row.part, row.dialog, row.finish, row.error or "")):
            raise TypeError("a name of a job is not text")
        if any(type(number) is not int for number in (row.repeat, row.iteration)):
            raise TypeError("a count of a job is not an integer")
        times = (
            row.release_ns,
            row.end_ns,
            *(t for t in (row.ready_ns, row.eligible_ns, row.deadline_ns) if t is not None),
        )
        if any(type(time) is not int or not 0 <= time <= LATEST_NS for time in times):
            raise ValueError("a time of a job is none")
        return row


_SHARED_STEP = StepRow._fields[3:]
_PICK_STEP: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*StepRow._fields)
#: The types of a step's fields; read hundreds of thousands of times, so they are compared all at once.
_STEP_TYPES = frozenset(
    (str, int, str, int, int, str, int, padded, int, bool, int, int, int, int, weight)
    for padded in (int, type(None))
    for weight in (int, float)
)
_JOB = tuple(one.name for one in fields(JobRow) if one.name != "facts")
_SHARED_JOB = _JOB[3:]


def step_prefix(part: str, repeat: int) -> str:
    """Return the beginning of the lines of a part's steps."""
    return f'{{"part":{json.dumps(part)},"repeat":{repeat},"dialog":'


def step_line(prefix: str, dialog: str, record: StepRecord) -> str:
    """Return a step's line; `dialog` is its name as JSON. Spelled here because it is done while the dialogs run."""
    padded = "null" if record.padded is None else record.padded
    emits = "true" if record.emits else "false"
    return (
        f'{prefix}{dialog},"iteration":{record.iteration},"index":{record.index},"phase":"{record.phase}",'
        f'"tokens":{record.tokens},"padded":{padded},"held":{record.held},"emits":{emits},'
        f'"ready_ns":{record.ready_ns},"start_ns":{record.start_ns},"end_ns":{record.end_ns},'
        f'"done_ns":{record.done_ns},"weight":{record.weight!r}}}\n'
    )


def line(data: Mapping[str, Any]) -> str:
    """Return one compact line of JSON; what JSON has no number for becomes null."""
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain) + "\n"
    except ValueError:
        return json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), default=_plain) + "\n"


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's; anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _finite(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
