"""Calibration samples on disk: a folder of safetensors shards and a `calibration.json` that names and vouches for them.

Two kinds: `tokens` are sequences of token ids, `arrays` are samples of named arrays (images, states, texts).
A shard of tokens holds `values` int32 [total] and `lengths` int64 [sequences]; `input_ids` [sequences, length] with an
`attention_mask` of 0 and 1 is read as well, without its padding. A shard of arrays holds `000000.NAME` for each array
of its first sample, and so on. No shard needs more memory than `SHARD_BYTES` and one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.safetensors_writer import TensorSpec, array_spec, write_safetensors
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import read_json_object, shown
from edgewright.errors import BundleError, CalibrationDataError, UsageError
from edgewright.files import canonical_json, inside, new_folder, sha256_of

INDEX = "calibration.json"
#: Version of the layout; a reader refuses newer ones.
SCHEMA = 1
KINDS = ("tokens", "arrays")
#: A shard is closed when its samples have this many bytes.
SHARD_BYTES = 64 << 20
REMAKE = "make the set again with `edgewright calibrate`"

Ids = npt.NDArray[np.int64]
Sample = Mapping[str, npt.NDArray[Any]]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class StoredRow:
    """A sequence of a shard: its ids, the padded positions that were dropped from it, and where it stands."""

    ids: Ids
    padding: int
    where: str


@dataclass(frozen=True)
class Shards:
    """A folder of shards whose digests are right; samples are read a shard at a time."""

    folder: Path
    kind: str
    record: Record
    files: Mapping[str, int]

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(self.files.values())

    def rows(self) -> Iterator[StoredRow]:
        """Yield the sequences of a set of tokens; raises CalibrationDataError when a shard isn't laid out so."""
        self._require("tokens")
        for name, count in self.files.items():
            yield from _rows(read_safetensors(self.folder / name), name, count)

    def samples(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the samples of a set of arrays, in their stored dtypes but for small floats, which come as float32."""
        self._require("arrays")
        for name, count in self.files.items():
            yield from _samples(read_safetensors(self.folder / name), name, count)

    def _require(self, kind: str) -> None:
        if self.kind != kind:
            raise CalibrationDataError(
                f"{self.folder.name} holds {self.kind} and {kind} are needed: make a set of {kind} for this model."
            )


def write_shards(
    folder: Path,
    samples: Iterable[npt.NDArray[np.integer[Any]] | Sample],
    record: Record | Callable[[], Record],
    *,
    force: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> Shards:
    """Write samples into a new folder that appears only when it is complete, and return it opened.

    All samples are sequences of ids, or all are dicts of arrays. `record` is asked for after the last sample.
    Raises CalibrationDataError when there are no samples, UsageError when they are mixed, OutputError.
    """
    files: list[dict[str, Any]] = []
    kind = ""
    with new_folder(folder, replace=force, mark=INDEX, kind="calibration set") as work:
        for batch in _batches(samples, shard_bytes):
            name = f"shard-{len(files):05}.safetensors"
            is_kind, specs = _specs(batch)
            if kind not in ("", is_kind):
                raise UsageError("A calibration set holds sequences of ids or dicts of arrays, not both: split it.")
            kind = is_kind
            write_safetensors(work / name, specs, {"format": "edgewright calibration"})
            path = work / name
            files.append({"file": name, "bytes": path.stat().st_size, "sha256": sha256_of(path), "count": len(batch)})
        if not files:
            raise CalibrationDataError("The calibration set is empty: give at least one sample.")
        kept = dict(record() if callable(record) else record)
        index = {"schema": SCHEMA, "kind": kind, "shards": files, "record": kept}
        (work / INDEX).write_bytes(canonical_json(index))
    return Shards(folder, kind, kept, {entry["file"]: entry["count"] for entry in files})


def _batches(samples: Iterable[Any], shard_bytes: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    size = 0
    for sample in samples:
        arrays = sample.values() if isinstance(sample, Mapping) else (sample,)
        batch.append(sample)
        size += sum(array.nbytes for array in arrays)
        if size >= shard_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _specs(batch: Sequence[Any]) -> tuple[str, dict[str, TensorSpec]]:
    """Return the kind of a shard's samples and the tensors that hold them."""
    dicts = [isinstance(sample, Mapping) for sample in batch]
    if all(dicts):
        return "arrays", {
            f"{at:06}.{name}": array_spec(np.asarray(array)) for at, s in enumerate(batch) for name, array in s.items()
        }
    if any(dicts) or not all(row.ndim == 1 and row.dtype.kind in "iu" for row in batch):
        raise UsageError("A calibration set holds one-axis sequences of integers, or dicts of arrays: give only those.")
    values = np.concatenate([row.astype(np.int64) for row in batch])
    narrow = not values.size or -(1 << 31) <= int(values.min()) <= int(values.max()) < 1 << 31
    lengths = np.array([row.size for row in batch], np.int64)
    return "tokens", {
        "values": array_spec(values.astype(np.int32) if narrow else values),
        "lengths": array_spec(lengths),
    }


def is_shards(path: Path) -> bool:
    """Whether a path is a folder that `write_shards` wrote."""
    return (path / INDEX).is_file()


def read_shards(folder: Path) -> Shards:
    """Open a folder of shards after comparing every digest.

    Raises CalibrationDataError (no such folder, a newer schema, a missing or changed shard, a name that leaves the
    folder), MalformedHeaderError when `calibration.json` is not JSON.
    """
    if not is_shards(folder):
        raise CalibrationDataError(f"{folder} has no {INDEX}, so it is no calibration set: give a folder that has one.")
    index = read_json_object(folder / INDEX)
    schema = index.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise CalibrationDataError(
            f"{folder / INDEX} has schema {shown(schema)} and this version reads 1 to {SCHEMA}: update edgewright."
        )
    shards, kind, record = index.get("shards"), index.get("kind"), index.get("record")
    if kind not in KINDS or not isinstance(record, dict) or not isinstance(shards, list) or not shards:
        raise CalibrationDataError(f"{folder / INDEX} lacks its kind, record or shards, or misspells them: {REMAKE}.")
    files: dict[str, int] = {}
    for entry in shards:
        name, count = _checked(folder, entry)
        if name in files:
            raise CalibrationDataError(f"{folder / INDEX} names the shard {shown(name)} twice: {REMAKE}.")
        files[name] = count
    return Shards(folder, kind, record, files)


def _checked(folder: Path, entry: Any) -> tuple[str, int]:
    """Return name and number of samples of an entry whose file has the digest it says."""
    entry = entry if isinstance(entry, dict) else {}
    name, digest, count = entry.get("file"), entry.get("sha256"), entry.get("count")
    if not isinstance(name, str) or not isinstance(digest, str) or type(count) is not int or count < 1:
        raise CalibrationDataError(
            f"{folder / INDEX} has a shard without file, sha256 and a count of at least 1: {REMAKE}."
        )
    try:
        path = inside(folder, name)
    except BundleError:
        raise CalibrationDataError(
            f"{folder / INDEX} names the shard {shown(name)}, which leaves the folder, so it is refused: {REMAKE}."
        ) from None
    if not path.is_file():
        raise CalibrationDataError(f"The shard {shown(name)} of {folder.name} is missing: copy the folder again.")
    if sha256_of(path) != digest:
        raise CalibrationDataError(
            f"The shard {shown(name)} of {folder.name} was changed or damaged after it was written: copy the folder "
            f"again, or {REMAKE}."
        )
    return name, count


def _rows(tensors: Mapping[str, StoredTensor], name: str, count: int) -> Iterator[StoredRow]:
    if set(tensors) == {"values", "lengths"}:
        pairs = _packed(tensors["values"], tensors["lengths"], name)
    elif set(tensors) == {"input_ids", "attention_mask"}:
        pairs = _padded(tensors["input_ids"], tensors["attention_mask"], name)
    else:
        more = ": padding can't be told from text without a mask" if set(tensors) == {"input_ids"} else ""
        raise CalibrationDataError(
            f"{name} holds {shown(', '.join(sorted(tensors)))}{more}; write values with lengths, or input_ids with "
            "attention_mask."
        )
    if len(pairs) != count:
        raise CalibrationDataError(f"{name} holds {len(pairs)} sequences and {INDEX} says {count}: {REMAKE}.")
    for number, (ids, padding) in enumerate(pairs, 1):
        yield StoredRow(ids, padding, f"sequence {number} of {name}")


def _packed(values: StoredTensor, lengths: StoredTensor, name: str) -> list[tuple[Ids, int]]:
    _require_integers(name, values, lengths)
    ids, sizes = values.read().astype(np.int64), lengths.read().astype(np.int64)
    if ids.ndim != 1 or sizes.ndim != 1 or (sizes < 0).any() or (sizes > ids.size).any() or sizes.sum() != ids.size:
        raise CalibrationDataError(f"{name} has lengths that don't add up to its {ids.size} values: {REMAKE}.")
    return [(row, 0) for row in np.split(ids, np.cumsum(sizes)[:-1])]


def _padded(values: StoredTensor, masks: StoredTensor, name: str) -> list[tuple[Ids, int]]:
    _require_integers(name, values)
    ids, mask = values.read().astype(np.int64), masks.read()
    if ids.ndim != 2 or mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
        raise CalibrationDataError(
            f"{name} needs input_ids [sequences, length] and an attention_mask of 0 and 1 of that shape: {REMAKE}."
        )
    pairs = []
    for number, (row, kept) in enumerate(zip(ids, mask.astype(bool), strict=True), 1):
        places = np.flatnonzero(kept)
        if places.size and places[-1] - places[0] + 1 != places.size:
            raise CalibrationDataError(
                f"Sequence {number} of {name} has padding inside its text: keep padding at one end."
            )
        pairs.append((row[kept], int(row.size - places.size)))
    return pairs


def _require_integers(name: str, *tensors: StoredTensor) -> None:
    for tensor in tensors:
        if not tensor.dtype.startswith(("int", "uint")):
            raise CalibrationDataError(f"{name} has {tensor.name} in {tensor.dtype}: token ids are integers.")


def _samples(tensors: Mapping[str, StoredTensor], name: str, count: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
    found: dict[str, dict[str, StoredTensor]] = {}
    for key, tensor in tensors.items():
        number, _, field = key.partition(".")
        found.setdefault(number, {})[field] = tensor
    if sorted(found) != [f"{at:06}" for at in range(count)]:
        raise CalibrationDataError(f"{name} doesn't hold the {count} samples that {INDEX} says: {REMAKE}.")
    for number in sorted(found):
        yield {field: tensor.read() for field, tensor in sorted(found[number].items())}
