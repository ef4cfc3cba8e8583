"""A smaller vocabulary: only some rows of the tables that token ids index, and of the head, stay in a stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgewright.errors import ModelError
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.graph.stage import Stage, placeholder
from edgewright.graph.weights import FloatProducer, Rows, StoredWeight, Weight
from edgewright.graph.writer import unique_producers

Ids = npt.NDArray[np.int64]
#: Picked rows that lie no further apart are read in one piece: decoding a row more costs less than another call.
_GAP = 32


class PickedRows:
    """Some rows of a stored tensor, ascending, read when they are asked for.

    Codes stay available, so that they can be taken over bit-exactly: those of GGUF blocks (`format`, `parts`) and those
    of other tools (`encoding`, `encoded`), unless several rows share a scale.
    """

    #: How another tool quantized it, and what the input of its linear goes through; as a stored tensor says it.
    encoding: Any = None
    input: Any = None

    def __init__(self, source: Rows, picked: Ids) -> None:
        self.name, self.dtype = source.name, source.dtype
        self.shape = (len(picked), *source.shape[1:])
        self._source, self._picked = source, picked
        self.input = getattr(source, "input", None)
        blocks = getattr(source, "format", None)
        if blocks is not None:
            self.format = blocks
        encoding = getattr(source, "encoding", None)
        if encoding is not None and encoding.row_step == 1:
            self.encoding = encoding

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows `[start, stop)` as the source gives them."""
        return _joined([self._source.rows(a, b)[at] for a, b, at in self._runs(start, stop)])

    def raw(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of rows `[start, stop)`, uint8 `[rows, row_bytes]`."""
        return _joined([self._source.raw(a, b)[at] for a, b, at in self._runs(start, stop)])

    def parts(self, start: int, stop: int) -> Any:
        """Return the codes of rows of a block format, as the source does."""
        read: Callable[[int, int], Any] = self._source.parts  # type: ignore[attr-defined]
        pieces = [(read(a, b), at) for a, b, at in self._runs(start, stop)]
        first = pieces[0][0]
        fields = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
        joined = {
            name: value if value is None else _joined([getattr(piece, name)[at] for piece, at in pieces])
            for name, value in fields.items()
        }
        return dataclasses.replace(first, **joined)

    def encoded(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Return the parts of rows of an `encoding`, as the source does; those that belong to all rows are whole."""
        read: Callable[[int, int], dict[str, npt.NDArray[Any]]] = self._source.encoded  # type: ignore[attr-defined]
        pieces = [(read(a, b), at) for a, b, at in self._runs(start, stop)]
        shared: frozenset[str] = self.encoding.shared
        return {
            kind: part if kind in shared else _joined([piece[kind][at] for piece, at in pieces])
            for kind, part in pieces[0][0].items()
        }

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int, Ids]]:
        """Yield runs of rows of the source, and which of each run's rows are picked; one for an empty range."""
        picked = self._picked[start:stop]
        cuts = np.flatnonzero(np.diff(picked) > _GAP) + 1
        for run in np.split(picked, cuts):
            first = int(run[0]) if run.size else 0
            yield first, int(run[-1]) + 1 if run.size else 0, run - first


class PickedWeight(Weight):
    """Some rows of a weight that is not a stored tensor as it stands."""

    def __init__(self, source: Weight, picked: Ids) -> None:
        self.name = source.name
        self.shape = (len(picked), *source.shape[1:])
        self._rows = PickedRows(_AsRows(source), picked)

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self._rows.rows(start, stop)


class _AsRows:
    """A weight seen as a stored float32 tensor."""

    dtype = "float32"

    def __init__(self, weight: Weight) -> None:
        self.name, self.shape = weight.name, weight.shape
        self.rows = weight.rows

    def raw(self, start: int, stop: int) -> np.ndarray:
        """Return the bytes of rows."""
        return np.ascontiguousarray(self.rows(start, stop)).view(np.uint8).reshape(stop - start, -1)


def reduce_vocabulary(stage: Stage, kept: Ids) -> dict[str, int]:
    """Keep only the rows `kept` (ascending ids) of everything a token id indexes, in place; before quantization.

    Those are the tables that `input_ids` index (the embedding, and a table of inputs for each layer where there is
    one), and the head with its bias. Afterwards `input_ids` are places in `kept`, and column j of the logits is token
    `kept[j]`. Returns the names of the weights that were cut, and how many rows each had. Raises ModelError when a
    graph uses ids in another way.
    """
    rows = {name: stage.weights[name].shape[0] for name in _tables(stage)}
    for name in rows:
        weight = stage.weights[name]
        stored = weight.stored()
        smaller = PickedWeight(weight, kept) if stored is None else StoredWeight(PickedRows(stored, kept), name)
        stage.weights[name] = smaller
        stage.producers[name] = FloatProducer(smaller, "float32")
        value = stage.graph.initializers[name]
        value.shape = ir.Shape(smaller.shape)
        placeholder(value)
    logits = stage.contract.outputs[0]
    smaller_logits = dataclasses.replace(logits, shape=(*logits.shape[:-1], len(kept)))
    stage.contract = dataclasses.replace(stage.contract, outputs=(smaller_logits, *stage.contract.outputs[1:]))
    stage.graph.outputs[0].shape = ir.Shape(smaller_logits.shape)
    return rows


def table_bytes(stage: Stage, rows: Mapping[str, int]) -> tuple[int, int]:
    """Return the bytes of the tables that were cut, in the formats they have now, and what all their rows would take.

    `rows` is what `reduce_vocabulary` returned. Whatever is stored with a table is stored by rows.
    """
    cut = full = 0
    for producer in unique_producers(stage):
        for part in (producer, *producer.parts):
            weight: Weight | None = getattr(part, "weight", None)
            if weight is not None and weight.name in rows:
                size = sum(spec.nbytes for spec in part.specs)
                cut += size
                full += size * rows[weight.name] // weight.shape[0]
    return cut, full


def _tables(stage: Stage) -> tuple[str, ...]:
    """Return the names of the weights with one row for each token id, those of the inputs first."""
    readers: list[tuple[ir.Node, int]] = []
    ids = next(value for value in stage.graph.inputs if value.name == "input_ids")
    for node, place in ids.uses():
        if (node.domain, node.op_type, place) == (EW, "Embedding", 0):
            readers.append((node, 1))
        elif node.op_type != "Shape":
            raise ModelError(f"The vocabulary can't be reduced: {node.name} computes with token ids themselves.")
    heads = [n for n in stage.graph if (n.domain, n.op_type, module_of(n)) == (EW, "Linear", "lm_head")]
    if len(heads) != 1:
        raise ModelError(f"The vocabulary can't be reduced: the graph has {len(heads)} heads where one is needed.")
    readers += [(heads[0], place) for place in range(1, len(heads[0].inputs))]
    names: dict[str, None] = {}
    for node, place in readers:
        value = node.inputs[place]
        if value is None:
            continue
        if others := [use for use, at in value.uses() if (use, at) not in readers]:
            raise ModelError(f"The vocabulary can't be reduced: {others[0].name} reads {value.name} as well.")
        names[str(value.name)] = None
    return tuple(names)


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
