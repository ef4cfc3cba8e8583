"""Writes a stage: the graph as ONNX, its weights as one external file, a block of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from edgewright.graph.stage import Stage
from edgewright.graph.weights import ComputedWeight, Producer, TensorSpec

#: Tensors start at multiples of this many bytes, so that a mapped file gives aligned, page-wise shareable tensors.
ALIGNMENT = 4096
#: Tensors below this size share pages; aligning them would only grow the file.
_SMALL = 64 * 1024
_SMALL_ALIGNMENT = 64

Progress = Callable[[int], None]


MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "weights.bin"

Layout = dict[str, tuple[int, TensorSpec]]


def write_stage(stage: Stage, folder: Path, *, progress: Progress | None = None, threads: int = 2) -> None:
    """Write `folder/model.onnx` and `folder/weights.bin`; `progress` is told of every written run of bytes.

    Peak memory is a few row blocks. Raises OSError when the disk refuses.
    """
    layout = plan_layout(stage)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        file.truncate(layout_size(layout))
        write_producers(unique_producers(stage), layout, file, progress or (lambda _: None), threads)
    write_graph(stage, layout, folder)


def write_graph(stage: Stage, layout: Layout, folder: Path) -> None:
    """Write `folder/model.onnx` alone; its weights are said to lie in `folder/weights.bin` as `layout` says."""
    for name, value in stage.graph.initializers.items():
        stored = stage.aliases.get(name, name)
        if stored in layout:
            offset, spec = layout[stored]
            value.const_value = ir.ExternalTensor(
                WEIGHTS_FILE,
                offset,
                spec.nbytes,
                value.dtype,  # type: ignore[arg-type]
                shape=value.shape,  # type: ignore[arg-type]
                name=name,
                base_dir=folder,
            )
    ir.save(stage.model(), folder / MODEL_FILE)


def plan_layout(stage: Stage) -> Layout:
    """Return offset and spec of every tensor of the weight file, in file order."""
    layout: Layout = {}
    cursor = 0
    for producer in unique_producers(stage):
        for spec in producer.specs:
            if spec.name not in stage.producers:
                continue
            step = ALIGNMENT if spec.nbytes >= _SMALL else _SMALL_ALIGNMENT
            cursor = -(-cursor // step) * step
            layout[spec.name] = (cursor, spec)
            cursor += spec.nbytes
    return layout


def layout_size(layout: Layout) -> int:
    """Return the weight file's size in bytes."""
    return max((offset + spec.nbytes for offset, spec in layout.values()), default=0)


def unique_producers(stage: Stage) -> Iterator[Producer]:
    """Yield each producer once, in graph order of its first tensor."""
    seen: set[int] = set()
    for producer in stage.producers.values():
        if id(producer) not in seen:
            seen.add(id(producer))
            yield producer


def write_producers(
    producers: Iterable[Producer], layout: Layout, file: BinaryIO, progress: Progress, threads: int
) -> None:
    """Compute chunks on threads, a few ahead, and write each at its tensors' places, those `layout` has."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        waiting: list[tuple[dict[str, int], Producer, Future[tuple[np.ndarray, ...]]]] = []

        def drain(limit: int) -> None:
            while len(waiting) > limit:
                cursors, producer, future = waiting.pop(0)
                for spec, array in zip(producer.specs, future.result(), strict=True):
                    if spec.name not in layout:
                        continue
                    assert array.dtype == spec.numpy_dtype, (spec, array.dtype)
                    data = np.ascontiguousarray(array)
                    file.seek(layout[spec.name][0] + cursors[spec.name])
                    file.write(data.reshape(-1).view(np.uint8).data)
                    cursors[spec.name] += data.nbytes
                    progress(data.nbytes)

        finished = []
        for producer in producers:
            cursors = {spec.name: 0 for spec in producer.specs}
            finished.append((producer, cursors))
            for chunk in producer.chunks():
                waiting.append((cursors, producer, pool.submit(chunk)))
                drain(threads)
        drain(0)
        for producer, cursors in finished:
            for spec in producer.specs:
                assert spec.name not in layout or cursors[spec.name] == spec.nbytes, (spec, cursors)


def parameter_count(stage: Stage) -> int:
    """Return the number of elements of the checkpoint's weights in this stage; tables made here don't count."""
    return sum(math.prod(w.shape) for w in stage.weights.values() if not isinstance(w, ComputedWeight))
