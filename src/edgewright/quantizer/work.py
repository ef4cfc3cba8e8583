"""A calibration's work on the disk: what is finished stays, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.safetensors_writer import array_spec, write_safetensors
from edgewright.checkpoint.tensor import DTYPES, StoredTensor
from edgewright.errors import CheckpointError, OutputError
from edgewright.files import cache_home, canonical_json, os_errors
from edgewright.formats import Array, BlockFormat, LinearInput, Parts
from edgewright.locks import try_lock
from edgewright.quantizer.layer import Outcome
from edgewright.quantizer.stream import Spool

_STATE = "state.json"
#: How the temporary folders of float weights begin.
FLOATS = "floats-"


class Work:
    """The folder of one run, named after all that decides over its result.

    `segments` are the JSON records of the segments that are done; their tensors are in `tensors`. The folder is locked
    until `close` or `remove`, or the end of a `with`; raises OutputError when another run has it, or when it can't be
    written.
    """

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.key = hashlib.sha256(canonical_json(dict(parts))).hexdigest()
        self.folder = cache_home() / "quantizing" / self.key[:24]
        self.segments: list[dict[str, Any]] = []
        with os_errors("the calibration's work"):
            self._lock = _locked(self.folder)
            try:
                self.spool = Spool(self.folder / "spool")
                self._load()
            except BaseException:
                self.close()
                raise

    def _load(self) -> None:
        """Take up what an earlier run left, if it is whole, and delete what it can't have finished."""
        for left in self.folder.glob(f"{FLOATS}*"):
            shutil.rmtree(left, ignore_errors=True)
        try:
            state = json.loads((self.folder / _STATE).read_text(encoding="ascii"))
            segments = list(state["segments"])
            for index in range(len(segments)):
                read_safetensors(self._file(index))
            self.spool.restore(state["spool"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError):
            self.spool.clear()  # a file is missing or broken: everything is made again
            return
        self.segments = segments

    def _file(self, index: int) -> Path:
        return self.folder / f"segment-{index:04d}.safetensors"

    def finish(
        self,
        outcome: Outcome,
        caches: Mapping[str, tuple[Array, Array]],
        done_with: Sequence[str] = (),
        ranges: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the results of the next segment; the values `done_with` are read by no later one.

        `ranges` are those of the modules' inputs, by step of a loop.
        """
        tensors: dict[str, Array] = {f"changed/{name}": values for name, values in outcome.changed.items()}
        modules = []
        for done in outcome.modules:
            name = done.target.module
            encoded = isinstance(done.format, BlockFormat)
            modules.append(
                {
                    "module": name,
                    "weight": done.target.weight,
                    "codes_of": done.target.codes_of,
                    "stored": done.target.stored,
                    "taken": done.target.taken is not None,
                    "shape": list(done.target.shape),
                    "format": done.format.to_json(),
                    "encoded": encoded,
                    "activation": _activation(done.input),
                    "report": done.report.to_json(),
                }
            )
            if encoded:
                tensors |= {f"{name}/{kind}": np.ascontiguousarray(part) for kind, part in done.parts.items()}
            for kind in ("multiply", "scale", "zero_point"):
                value = getattr(done.input, kind, None)
                if value is not None:
                    tensors[f"{name}/input.{kind}"] = value
        for name, (key, value) in caches.items():
            tensors |= {f"cache/{name}/key": key, f"cache/{name}/value": value}
        record = {"modules": modules, "biases": outcome.biases, "caches": list(caches)}
        record |= {} if ranges is None else {"ranges": dict(ranges)}
        write_safetensors(self._file(len(self.segments)), {name: array_spec(array) for name, array in tensors.items()})
        self.segments.append(record)
        unread = self.spool.forget(done_with)
        self._save()
        for path in unread:  # until here an interrupted run could still need them
            path.unlink(missing_ok=True)

    def _save(self) -> None:
        """Write down how far the run is."""
        scratch = self.folder / f"{_STATE}.tmp"
        with os_errors("the calibration's work"):
            state = {"segments": self.segments, "spool": self.spool.state()}
            scratch.write_text(json.dumps(state), encoding="ascii")
            scratch.replace(self.folder / _STATE)

    def tensors(self, index: int) -> Mapping[str, StoredTensor]:
        """Return the tensors of a finished segment."""
        return read_safetensors(self._file(index))

    def parts(self, module: str) -> Parts:
        """Return the parts of a module of a finished segment that has codes."""
        for index, segment in enumerate(self.segments):
            if any(done["module"] == module for done in segment["modules"]):
                found = self.tensors(index)
                parts = {name.removeprefix(f"{module}/"): name for name in found if name.startswith(f"{module}/")}
                return {kind: _array(found[name]) for kind, name in parts.items() if not kind.startswith("input.")}
        raise KeyError(module)

    def remove(self) -> None:
        """Delete the folder; the result stands elsewhere."""
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            self.close()

    def close(self) -> None:
        """Let another run have the folder."""
        self._lock.close()


def _locked(folder: Path) -> IO[bytes]:
    """Make a folder and return its lock file, which is held until it is closed or the process ends."""
    lock = try_lock(folder / "lock")
    if lock is None:
        raise OutputError(
            f"Another run is making the same quantized checkpoint (its work is in {folder}): wait until it has "
            "finished, or stop it; what it has done is taken up."
        )
    return lock


def _array(tensor: StoredTensor) -> Array:
    """Return a tensor as it is stored."""
    data = np.ascontiguousarray(tensor.raw(0, tensor.row_count)).reshape(-1)
    values: Array = data.view(DTYPES[tensor.dtype]).reshape(tensor.shape)
    return values


def _activation(given: LinearInput | None) -> dict[str, Any] | None:
    return None if given is None or given.activation is None else given.activation.to_json()
