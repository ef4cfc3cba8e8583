"""Samples of named arrays (images, states, actions, texts): chosen by a seed, watched for coverage, streamed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.calibration.coverage import FieldCoverage
from edgewright.calibration.order import shuffled
from edgewright.errors import CalibrationDataError, UsageError

Sample = dict[str, npt.NDArray[Any]]
#: The field of a sample's text: its UTF-8 bytes. Tokenized, it is INPUT_IDS.
TEXT = "text"
INPUT_IDS = "input_ids"


class ArraySamples:
    """Samples that are read one at a time while somebody iterates; once they are all read, `record` describes them.

    `kinds` maps the fields that coverage is reported of to `image`, `vector` or `tokens`. `load` gives a sample by its
    number. Each sample is used once: one that repeats another is dropped and counted.
    """

    def __init__(
        self,
        kind: str,
        sources: Sequence[dict[str, Any]],
        kinds: Mapping[str, str],
        count: int,
        load: Callable[[int], Sample],
        *,
        sequences: int | None = None,
        seed: int = 0,
        notes: Sequence[str] = (),
    ) -> None:
        if sequences is not None and sequences < 1:
            raise UsageError(f"The number of samples is {sequences} and must be at least 1 for a calibration.")
        if not count:
            raise CalibrationDataError("The calibration set is empty: give at least one sample.")
        self.kind = kind
        self.available = count
        self._sources = list(sources)
        self._kinds = dict(kinds)
        self._load = load
        self._wanted = sequences
        self._seed = seed
        self._notes = list(notes)
        self._record: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples in an order that the seed decides.

        Raises CalibrationDataError when all are identical, a camera shows one colour only, or a value isn't finite.
        """
        coverage = {name: FieldCoverage(name, kind) for name, kind in self._kinds.items()}
        seen: set[bytes] = set()
        duplicates = 0
        for index in shuffled(self.available, self._seed, "samples"):
            sample = self._load(index)
            key = _digest(sample)
            if key in seen:
                duplicates += 1
                continue
            seen.add(key)
            for name, field in coverage.items():
                field.add(sample[name])
            yield sample
            if len(seen) == self._wanted:
                break
        if len(seen) == 1 and duplicates:
            raise CalibrationDataError(
                f"All {duplicates + 1} calibration samples are identical, so there is too little to learn from: give "
                "different ones."
            )
        self._record = self._finish(coverage, len(seen), duplicates)

    @property
    def record(self) -> dict[str, Any]:
        """What was read, as JSON-compatible values; raises UsageError before the last sample was read."""
        if self._record is None:
            raise UsageError("The record of calibration samples exists once all were read: iterate over them first.")
        return self._record

    def _finish(self, coverage: Mapping[str, FieldCoverage], used: int, duplicates: int) -> dict[str, Any]:
        fields = {name: field.report() for name, field in coverage.items()}
        notes = list(self._notes)
        for name, report in fields.items():
            if report["kind"] == "image" and report["one_colour"] == used:
                raise CalibrationDataError(
                    f"{name} shows a single colour in every sample, as a camera does that is off: give samples with "
                    "real images."
                )
            if report.get("degenerate") and used > 1:
                dims = ", ".join(map(str, report["degenerate"]))
                notes.append(f"{name}: dimension {dims} never changes")
        if self._wanted is not None and used < self._wanted:
            notes.append(f"{self._wanted} samples were wanted and {used} are there")
        return {
            "kind": self.kind,
            "sources": self._sources,
            "seed": self._seed,
            "requested": {"sequences": self._wanted},
            "available": self.available,
            "samples": used,
            "duplicates_dropped": duplicates,
            "coverage": fields,
            "notes": notes,
        }


def text_array(text: str) -> npt.NDArray[np.uint8]:
    """Return a text as an array of its UTF-8 bytes."""
    return np.frombuffer(text.encode("utf-8"), np.uint8)


def text_of(sample: Mapping[str, npt.NDArray[Any]], field: str = TEXT) -> str:
    """Return a sample's text; raises CalibrationDataError when its bytes are none."""
    try:
        return sample[field].astype(np.uint8).tobytes().decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        raise CalibrationDataError(f"A calibration sample has no {field} in UTF-8: make the set again.") from None


def _digest(sample: Sample) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(sample):
        array = np.ascontiguousarray(sample[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()
