"""The embedding table beside the graph: its file, and what the manifest says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewright.errors import UsageError
from edgewright.graph.stage import OutsideTable
from edgewright.graph.writer import write_producers
from edgewright.progress import Advance
from edgewright.runtime.embedding import SIDECAR, STORED, TENSORS, sidecar_header

#: Where the embedding table may be.
PLACES = ("inside", "outside")


def check_place(place: str) -> None:
    """Raise UsageError unless `place` is one of PLACES."""
    if place not in PLACES:
        raise UsageError(f"The embedding table can be inside or outside the graph, not {place!r}.")


def table_record(table: OutsideTable) -> dict[str, Any]:
    """Return the manifest's `model.embedding`."""
    producer = table.producer
    vocab, hidden = producer.weight.shape  # type: ignore[attr-defined]
    fmt = getattr(producer, "format", None)
    return {
        "file": f"sidecars/{SIDECAR}",
        "format": {"dtype": producer.specs[0].dtype} if fmt is None else fmt.to_json(),
        "vocab": vocab,
        "hidden": hidden,
        "multiplier": table.multiplier,
        "bytes": table_size(table),
        "module": table.module,
        "value": table.value,
    }


def table_size(table: OutsideTable) -> int:
    """Return the bytes of the table's tensors."""
    return sum(spec.nbytes for spec in table.producer.specs)


def write_table(table: OutsideTable, sidecars: Path, progress: Advance) -> None:
    """Write the table as a sidecar, a block of rows at a time; wide elements first, so that all are aligned."""
    specs = sorted(table.producer.specs, key=lambda spec: -spec.numpy_dtype.itemsize)
    quantized = hasattr(table.producer, "format")
    names = {spec.name: TENSORS[spec.name.rsplit(".", 1)[-1] if quantized else "codes"] for spec in specs}
    header = sidecar_header(
        [(names[spec.name], STORED.get(spec.dtype, "U8"), spec.array_shape, spec.nbytes) for spec in specs]
    )
    layout, cursor = {}, len(header)
    for spec in specs:
        layout[spec.name] = cursor, spec
        cursor += spec.nbytes
    with (sidecars / SIDECAR).open("wb") as file:
        file.truncate(cursor)
        file.write(header)
        write_producers([table.producer], layout, file, progress, threads=2)
