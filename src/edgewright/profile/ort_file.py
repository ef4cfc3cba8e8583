"""ONNX Runtime's profile: a JSON list of trace events, times in whole microseconds.

Of a session there are `model_run` spans, and inside of each a `NAME_kernel_time` span for every node that ran. The
body of a loop runs inside of the loop's own span, so a node's own time is what its inner nodes leave.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewright.errors import ProfileError
from edgewright.profile.layers import EngineProfile, EngineRun, Event, own_times
from edgewright.profile.reading import items, number, read_json, text, word

_SUFFIX = "_kernel_time"
#: A shape has fewer axes and smaller sizes.
_MOST_AXES, _MOST_SIZE = 16, 1 << 48
_Span = tuple[float, float, str, Mapping[str, Any]]


def read_onnxruntime(path: Path) -> EngineProfile:
    """Return the runs of a file that ONNX Runtime's session profiling wrote; raises ProfileError."""
    entries = items(path, read_json(path), "trace events")
    runs: list[tuple[float, float]] = []
    spans: list[_Span] = []
    for place, entry in enumerate(entries):
        name = entry.get("name")
        if entry.get("ph") != "X" or not isinstance(name, str):
            continue
        is_run = entry.get("cat") == "Session" and name == "model_run"
        if not is_run and (entry.get("cat") != "Node" or not name.endswith(_SUFFIX)):
            continue
        start, length = number(path, entry, "ts", place), number(path, entry, "dur", place)
        if is_run:
            runs.append((start, length))
            continue
        given = entry.get("args")
        spans.append((start, length, text(path, entry, "name", place).removesuffix(_SUFFIX),
                      given if isinstance(given, dict) else {}))  # fmt: skip
    if not runs:
        raise ProfileError(
            f"{path.name} holds no run of a model: give the JSON file of a session that had `enable_profiling` set and "
            "ran at least once."
        )
    return EngineProfile("onnxruntime", tuple(_runs(path, sorted(runs), spans)))


def _runs(path: Path, runs: Sequence[tuple[float, float]], spans: list[_Span]) -> list[EngineRun]:
    starts = [start for start, _ in runs]
    of: list[list[_Span]] = [[] for _ in runs]
    for span in spans:
        index = bisect_right(starts, span[0]) - 1
        if index < 0 or span[0] + span[1] > runs[index][0] + runs[index][1]:
            raise ProfileError(
                f"{path.name}: {span[2]} ran outside of any run of the model: give a whole file, of one session that "
                "one thread used."
            )
        of[index].append(span)
    return [_run(path, start, length, found) for (start, length), found in zip(runs, of, strict=True)]


def _run(path: Path, start: float, length: float, spans: list[_Span]) -> EngineRun:
    spans.sort(key=lambda span: (span[0], -span[1]))
    own, inside = own_times([(span[0], span[1]) for span in spans])
    if sum(own) > length + len(spans):  # each is cut to whole microseconds
        raise ProfileError(f"{path.name}: the nodes of a run took longer than the run: it is no file of one thread.")
    events = tuple(
        Event(name, word(given, "op_name"), begin - start, us, whole, _index(given) if parent < 0 else -1, parent)
        for (begin, whole, name, given), us, parent in zip(spans, own, inside, strict=True)
    )
    shapes = list(_shapes(spans))
    return EngineRun(length, events, tuple(f"{name} {shape}" for name, shape in shapes), _rows(shapes))


def _index(given: Mapping[str, Any]) -> int:
    value = word(given, "node_index")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1


def _shapes(spans: Sequence[_Span]) -> Iterator[tuple[str, list[int]]]:
    """Yield the shapes that nodes with weights give first: they tell sizes of runs apart, whatever a cache holds."""
    for _, _, name, given in spans:
        outputs = given.get("output_type_shape")
        if word(given, "parameter_size") in ("", "0") or not isinstance(outputs, list) or not outputs:
            continue
        shape = next(iter(outputs[0].values()), None) if isinstance(outputs[0], dict) else None
        sizes = shape if isinstance(shape, list) and len(shape) <= _MOST_AXES else [-1]
        if all(isinstance(size, int) and 0 <= size < _MOST_SIZE for size in sizes):
            yield name, sizes


def _rows(shapes: Sequence[tuple[str, list[int]]]) -> int | None:
    return next((math.prod(shape[:-1]) for _, shape in shapes if len(shape) > 1), None)
