"""The embedding table beside the graph: its file, and what the manifest says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewright.files import require_space
from edgewright.graph.stage import OutsideTable, Stage
from edgewright.graph.writer import write_producers
from edgewright.progress import Advance, Progress
from edgewright.runtime.embedding import SIDECAR, STORED, TENSORS, sidecar_header


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


def write_outside(stage: Stage, sidecars: Path, progress: Progress) -> None:
    """Write a stage's table as a sidecar where it isn't in the graph."""
    if stage.outside is not None:
        require_space(sidecars, table_size(stage.outside), "The build")
        with progress.step("write embedding table", table_size(stage.outside)) as advance:
            write_table(stage.outside, sidecars, advance)


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
