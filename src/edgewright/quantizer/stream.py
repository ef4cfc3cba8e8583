"""Runs a float stage segment by segment over all samples; what passes between segments waits on the disk."""

from __future__ import annotations

import math
import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.dialects import portable
from edgewright.formats import Array
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE, plan_layout, write_stage
from edgewright.quantizer.segments import Segment
from edgewright.quiet_ort import ort
from edgewright.verify.graphs import AGAIN, Fed, Graph, run

#: What a stage is run on: a sequence of token ids, or its inputs by name, which may be read when they are asked for.
Row = Array | Mapping[str, Array]
#: Folding would hold transposed copies of all weights; without it the transpositions fuse into the products.
_SETTINGS = EngineSettings("all", config={"optimization.disable_specified_optimizers": "ConstantFolding"})


class Spool:
    """Values of samples in files, one a value; written and read in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[tuple[str, int], tuple[int, tuple[int, ...], np.dtype]] = {}
        self._files: dict[str, Path] = {}
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, value: str, sample: int, array: Array) -> None:
        """Keep an array; writing a sample again replaces it."""
        if value not in self._files:
            self._files[value] = self._folder / f"value-{self._count}.bin"
            self._files[value].unlink(missing_ok=True)
            self._count += 1
        path = self._files[value]
        data = np.ascontiguousarray(array)
        old = self._places.get((value, sample))
        with path.open("r+b" if path.exists() else "w+b") as file:
            offset = old[0] if old is not None and old[1:] == (data.shape, data.dtype) else file.seek(0, 2)
            file.seek(offset)
            file.write(data.reshape(-1).view(np.uint8).data)
        self._places[value, sample] = (offset, data.shape, data.dtype)

    def read(self, value: str, sample: int) -> Array:
        """Return an array that was kept."""
        offset, shape, dtype = self._places[value, sample]
        values = np.fromfile(self._files[value], dtype, math.prod(shape), offset=offset)
        return values.reshape(shape)

    def kind(self, value: str) -> Fed:
        """Return what is known of a value before it is fed."""
        _, shape, dtype = next(place for (name, _), place in self._places.items() if name == value)
        return Fed(dtype, (None,) * len(shape))

    def state(self) -> dict[str, Any]:
        """Return what is needed to find the values again."""
        places = [
            [value, sample, o, list(shape), str(kind)] for (value, sample), (o, shape, kind) in self._places.items()
        ]
        return {"files": {value: path.name for value, path in self._files.items()}, "places": places}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what another run kept; raises ValueError when a file isn't there any more."""
        files = {str(value): self._folder / Path(str(name)).name for value, name in state["files"].items()}
        places = {(str(v), int(i)): (int(o), tuple(shape), np.dtype(kind)) for v, i, o, shape, kind in state["places"]}
        for (value, _), (offset, shape, kind) in places.items():
            if files[value].stat().st_size < offset + math.prod(shape) * kind.itemsize:
                raise ValueError(f"the file of {value} is too short")
        for path in set(self._folder.iterdir()) - set(files.values()):
            path.unlink()  # of a segment that was interrupted, or read for the last time
        self._files, self._places = files, places
        self._count = 1 + max((int(path.stem.rpartition("-")[2]) for path in files.values()), default=-1)

    def forget(self, values: Sequence[str]) -> list[Path]:
        """Let go of values that nobody reads any more; returns their files, for the caller to delete."""
        paths = [self._files.pop(value) for value in values if value in self._files]
        for key in [key for key in self._places if key[0] in set(values)]:
            del self._places[key]
        return paths

    def drop(self, values: Sequence[str]) -> None:
        """Delete values that nobody reads any more."""
        for path in self.forget(values):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete everything."""
        for path in self._folder.iterdir():
            path.unlink()
        self._files, self._places, self._count = {}, {}, 0


@dataclass(frozen=True)
class _Place:
    offset: int
    shape: tuple[int, ...]


class FloatModel:
    """A float32 stage on the disk whose segments can be run and whose weights can be changed.

    `stage` is lowered here and must not be used afterwards. Peak memory is one segment's weights and one sample.
    """

    def __init__(self, stage: Stage, folder: Path, progress: Callable[[int], None] | None, threads: int | None) -> None:
        self.contract: StageContract = stage.contract
        lowered = portable.lower(stage)
        self._places = {name: _Place(offset, spec.shape) for name, (offset, spec) in plan_layout(lowered).items()}
        write_stage(lowered, folder, progress=progress)
        self._weights = folder / WEIGHTS_FILE
        self._graph = Graph(folder / MODEL_FILE, _SETTINGS)
        self._threads = threads

    def holds(self, name: str) -> bool:
        """Tell whether the model has a parameter of that name."""
        return name in self._places

    def weight(self, name: str) -> Array:
        """Return a parameter as it is now."""
        place = self._places[name]
        values = np.fromfile(self._weights, np.float32, math.prod(place.shape), offset=place.offset)
        return values.reshape(place.shape)

    def set_weight(self, name: str, values: Array) -> None:
        """Change a parameter for the sessions that are made from now on."""
        place = self._places[name]
        assert values.shape == place.shape, (name, values.shape, place.shape)
        with self._weights.open("r+b") as file:
            file.seek(place.offset)
            file.write(np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8).data)

    @contextmanager
    def changed(self, changes: Mapping[str, Array]) -> Iterator[None]:
        """Let sessions that are made inside compute with some parameters changed; they are put back afterwards.

        `changes` is asked for one parameter at a time; what was there waits on the disk.
        """
        with tempfile.TemporaryFile(dir=self._weights.parent) as kept:
            places = [self._places[name] for name in changes]
            for name in changes:
                kept.write(self.weight(name).reshape(-1).view(np.uint8).data)
            try:
                for name in changes:
                    self.set_weight(name, changes[name])
                yield
            finally:
                kept.seek(0)
                for name, place in zip(changes, places, strict=True):
                    values = np.frombuffer(kept.read(4 * math.prod(place.shape)), np.float32)
                    self.set_weight(name, values.reshape(place.shape))

    def session(self, segment: Segment, spool: Spool, wanted: Sequence[str]) -> ort.InferenceSession:
        """Load a segment that gives the values `wanted`."""
        return self._graph.cut({value: spool.kind(value) for value in segment.fed}, list(wanted), self._threads)

    def whole(self) -> ort.InferenceSession:
        """Load the whole model with its weights as they are now."""
        return self._graph.load(self._graph.model, self._threads)

    def logits(self, session: ort.InferenceSession, ids: Array, positions: Array) -> Array:
        """Return float32 logits `[positions, vocab]` of one sequence, from a session of the whole model."""
        feeds = self._feeds(ids) | {"logit_positions": positions.astype(np.int64)}
        taken = {value.name: feeds[value.name] for value in session.get_inputs()}
        result: Array = session.run([self.contract.outputs[0].name], taken)[0][0]
        return result

    def feeds(self, segment: Segment, spool: Spool, sample: int, row: Row) -> Mapping[str, Array]:
        """Return what a segment is fed for one sample: the stage's inputs, and what earlier segments gave.

        Of a sequence of ids the inputs are made here, with an empty cache.
        """
        inputs = row if isinstance(row, Mapping) else self._feeds(row)
        return ChainMap({value: spool.read(value, sample) for value in segment.fed}, inputs)  # type: ignore[arg-type]

    def _feeds(self, ids: Array) -> dict[str, Array]:
        count = len(ids)
        sizes = {"batch": 1, "seq": count, "positions": count, "capacity": count}
        feeds: dict[str, Array] = {}
        for tensor in self.contract.inputs:
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
            feeds[tensor.name] = np.zeros(shape, tensor.dtype)
        feeds["input_ids"] = ids[None].astype(np.int64)
        feeds["logit_positions"] = np.arange(count, dtype=np.int64)
        if "total_lengths" in feeds:
            feeds["total_lengths"][:] = count
        return feeds


def run_all(
    model: FloatModel,
    segment: Segment,
    spool: Spool,
    rows: Sequence[Row],
    wanted: Sequence[str],
    *,
    first: int = 0,
) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """Yield (sample, values by name) of a segment for every row; the spool knows row i as sample `first` + i.

    Of the values wanted, those that are inputs of the stage come as the row has them.
    """
    given = {tensor.name for tensor in model.contract.inputs}
    made = [value for value in wanted if value not in given]
    session = model.session(segment, spool, made) if made else None
    for sample, row in enumerate(rows, first):
        feeds = model.feeds(segment, spool, sample, row)
        values = {} if session is None else run(session, feeds)
        found = {name.removesuffix(AGAIN): value for name, value in values.items()}
        yield sample, found | {name: feeds[name] for name in wanted if name in given}
