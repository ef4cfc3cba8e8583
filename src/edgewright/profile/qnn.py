"""QNN's profile: the CSV file that ONNX Runtime's QNN provider and `qnn-profile-viewer` write.

A row is an event: how long, in which unit, on what level, and what it is of. An execution has events of its own (how
long it took, how many cycles the accelerator ran) and, where the level was detailed, one for each node. Nodes come in
cycles on the HTP: they share the time of the accelerator in proportion.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgewright.errors import ProfileError
from edgewright.profile.layers import EngineProfile, EngineRun, Event
from edgewright.profile.reading import MOST_ITEMS, MOST_NAME, printable, read_text

_MESSAGE, _TIME, _UNIT, _NAME = "Message", "Time", "Unit of Measurement", "Event Identifier"
_COLUMNS = (_MESSAGE, _TIME, _UNIT, "Event Level", _NAME)
_ACCELERATOR, _CYCLES = "Accelerator (execute) time", "Accelerator (execute) time (cycles)"
#: What stands behind a node's name, in this order.
_OP, _IN_CYCLES = re.compile(r"OpId_\d{1,18}\Z"), "(cycles)"
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?")


@dataclass
class _Execution:
    """What the file says of one execution; of nodes the value and the unit."""

    executed_us: float | None = None
    named: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, tuple[float, str]] = field(default_factory=dict)


def read_qnn(path: Path) -> EngineProfile:
    """Return the executions of a QNN profile; raises ProfileError."""
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        raise ProfileError(
            f"{path.name} is JSON, whose layout QNN doesn't document: give the CSV file of the provider's "
            "`profiling_file_path`, or of qnn-profile-viewer."
        )
    found = [one for one in _executions(path, text) if one.nodes]
    if not found:
        raise ProfileError(
            f"{path.name} holds no execution with nodes: profile at the level detailed, and run the model."
        )
    runs = tuple(_run(path, one) for one in found)
    cycles = any(unit == "CYCLES" for one in found for _, unit in one.nodes.values())
    notes = ("nodes come in cycles; they share the accelerator's time in proportion",) if cycles else ()
    return EngineProfile("qnn", runs, notes=notes)


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    if reader.fieldnames is None or any(column not in reader.fieldnames for column in _COLUMNS):
        raise ProfileError(f"{path.name} lacks the columns {', '.join(_COLUMNS)}: give QNN's profile as CSV.")
    place = 1
    try:
        for place, row in enumerate(reader, 2):
            if place > MOST_ITEMS:
                raise ProfileError(f"{path.name} has more than {MOST_ITEMS:,} events: profile fewer runs.")
            if any(row.get(column) is None for column in _COLUMNS):
                raise ProfileError(f"{path.name}: line {place} ends too early: give a file that is whole.")
            if len(row[_NAME]) > MOST_NAME:
                raise ProfileError(f"{path.name}: line {place} has a name of {len(row[_NAME]):,} characters.")
            yield place, row
    except csv.Error as error:
        raise ProfileError(f"{path.name}: line {place + 1} is no CSV ({error}): give a file that is whole.") from None


def _executions(path: Path, text: str) -> Iterator[_Execution]:
    """Yield executions: one ends where something comes that it has already."""
    current = _Execution()
    for place, row in _rows(path, text):
        message, name, unit = row[_MESSAGE].strip(), row[_NAME].strip(), row[_UNIT].strip().upper()
        if message not in ("EXECUTE", "BACKEND", "NODE"):
            continue
        if unit not in ("US", "CYCLES", "COUNT", "BYTES"):
            if message == "NODE":
                raise ProfileError(
                    f"{path.name}: line {place} has a time in {unit or 'no unit'}: cycles and US are known."
                )
            continue
        value = row[_TIME].strip()
        if not _NUMBER.fullmatch(value):
            raise ProfileError(f"{path.name}: line {place} has the time {value[:40]!r} where a number is needed.")
        known = current.nodes if message == "NODE" else current.named
        if name in known or (message == "EXECUTE" and current.executed_us is not None):
            yield current
            current = _Execution()
        if message == "NODE":
            current.nodes[name] = (float(value), unit)
        else:
            current.named[name] = float(value)
            if message == "EXECUTE" and unit == "US":
                current.executed_us = float(value)
    yield current


def _node(name: str) -> str:
    """Return a node's name without what the provider puts behind it; one that had none keeps that."""
    start = name.removesuffix(_IN_CYCLES).rstrip()
    match = _OP.search(start, max(0, len(start) - 32))
    bare = start if match is None else start[: match.start()].rstrip().removesuffix(":")
    return printable(bare or name)


def _run(path: Path, one: _Execution) -> EngineRun:
    """Return an execution with times in microseconds, nodes one after the other."""
    cycles = sum(value for value, unit in one.nodes.values() if unit == "CYCLES")
    accelerator = one.named.get(_ACCELERATOR, one.executed_us)
    if cycles and accelerator is None:
        raise ProfileError(
            f"{path.name} has cycles and no time of the accelerator to share among them: give a file that is whole."
        )
    each = (accelerator or 0.0) / max(one.named.get(_CYCLES, 0.0), cycles) if cycles else 0.0
    events, at = [], 0.0
    for name, (value, unit) in one.nodes.items():
        us = value * each if unit == "CYCLES" else value if unit == "US" else 0.0
        events.append(Event(_node(name), "", at, us, us))
        at += us
    total = max(at, accelerator or 0.0, one.executed_us or 0.0)
    return EngineRun(total, tuple(events), tuple(sorted(event.name for event in events)))
