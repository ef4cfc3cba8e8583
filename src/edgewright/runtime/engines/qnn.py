"""Runs a stage on Qualcomm's HTP with ONNX Runtime's QNN provider: graphs of fixed size behind the stage's contract.

There are two graphs of one set of weights: one takes up to `rows` new tokens a call, the other a single one. Their
caches are inputs and outputs in codes; the caller's float32 arrays are what counts, and the rows before the new ones
are rounded from them call by call. On x86-64 the provider's library is a simulator of the HTP.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.bundle import StageEntry
from edgewright.contract import StageContract
from edgewright.errors import (
    BundleError,
    GenerationError,
    MissingExtraError,
    OutOfMemoryError,
    TargetMismatchError,
    first_line,
)
from edgewright.files import inside
from edgewright.quiet_ort import ort
from edgewright.runtime.engine import Array

_MISSING = "ONNX Runtime's QNN provider is not installed: pip install 'edgewright[qnn]'"
#: The name it is registered under, which its devices carry.
_PROVIDER = "QNNExecutionProvider"
PROMPT, TOKEN = "prompt", "token"
_LOGITS = "logits"

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
#: Opens one graph of a part: its description, then whether it is the prompt's or the token's.
Opening = Callable[[Mapping[str, Any], str], Run]


@dataclass(frozen=True)
class Encoding:
    """How floats stand as codes of a dtype: value = (code + offset) * scale, as QNN has it."""

    dtype: str
    scale: float
    offset: int

    def codes(self, values: npt.NDArray[np.float32]) -> Array:
        """Return the nearest codes, ties to even, of values of any shape; what is too large gets the last code."""
        kind = np.dtype(self.dtype)
        codes = np.rint(values / np.float32(self.scale)) - np.float32(self.offset)
        found: Array = np.clip(codes, 0, np.iinfo(kind).max).astype(kind)
        return found

    def values(self, codes: Array) -> npt.NDArray[np.float32]:
        """Return the float32 values of codes."""
        found: npt.NDArray[np.float32] = (codes.astype(np.float32) + np.float32(self.offset)) * np.float32(self.scale)
        return found

    @property
    def zero(self) -> int:
        """The code of 0.0."""
        return -self.offset


def _encoding(told: Mapping[str, Any]) -> Encoding:
    """Read an encoding; raises KeyError, TypeError or ValueError where it is none."""
    found = Encoding(str(told["dtype"]), float(told["scale"]), int(told["offset"]))
    last = {"uint8": 255, "uint16": 65535}.get(found.dtype)
    if last is None or not 0 < np.float32(found.scale) < np.inf or not -last <= found.offset <= 0:
        raise ValueError(f"an encoding ({found.dtype}, {found.scale}, {found.offset})")
    return found


def _rotation(path: Path, context: int) -> npt.NDArray[np.float32]:
    """Read a table of rotation; raises OSError or ValueError where it isn't one for the context."""
    table = np.load(path, allow_pickle=False)
    if not isinstance(table, np.ndarray) or table.dtype != np.float32 or table.ndim != 2 or len(table) < context:
        raise ValueError(f"a table of {context} rows in {path.name}")
    return table


class Shapes:
    """What an engine's description says of its graphs, and the inputs that follow from lengths alone.

    Raises BundleError where the description isn't one.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        try:
            self.context, self.rows = int(description["context"]), int(description["rows"])
            if not 0 < self.rows < self.context:
                raise ValueError(f"rows ({self.rows} of {self.context})")
            self.encodings = {name: _encoding(told) for name, told in description["tensors"].items()}
            self.windows = {
                name: None if window is None else int(window) for name, window in description["windows"].items()
            }
            self.parts = [{kind: dict(part[kind]) for kind in (PROMPT, TOKEN)} for part in description["parts"]]
            self.tables = {
                name: self.encodings[name].codes(_rotation(inside(folder, file), self.context))
                for name, file in description["tables"].items()
            }
            for name in (_LOGITS, *self.windows):
                self.encodings[name]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError, EOFError) as error:
            raise BundleError(
                f"The engine's description lacks or misspells {first_line(error)}: build the bundle again."
            ) from None

    def given(self, rows: int, past: int) -> dict[str, Array]:
        """Return masks `[1, 1, rows, context]` and rows of the tables for `rows` new tokens after `past`."""
        feeds: dict[str, Array] = {
            name: self.encodings[name].codes(np.where(seen, np.float32(0), np.float32(-np.inf)))[None, None]
            for name, seen in masks(self.windows, rows, past, self.context).items()
        }
        places = np.minimum(np.arange(past, past + rows), self.context - 1)
        return feeds | {name: table[places][None, None] for name, table in self.tables.items()}


def masks(windows: Mapping[str, int | None], rows: int, past: int, context: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Return `[rows, context]` for each mask: which slots a new row sees.

    The first `context - rows` slots are the past's, the first `past` of which are filled; the new rows come last.
    """
    before = context - rows
    slots = np.arange(context)
    positions = np.where(slots < before, slots, slots - before + past)
    own = past + np.arange(rows)[:, None]
    seen = ((slots >= before) | (slots < past)) & (positions <= own)
    return {name: seen if window is None else seen & (positions > own - window) for name, window in windows.items()}


class QnnEngine:
    """A stage over its static graphs. `contract` is the stage's, with one sequence a call."""

    def __init__(self, folder: Path, description: Mapping[str, Any], contract: StageContract, opening: Opening) -> None:
        self.contract = contract
        self.shapes = Shapes(folder, description)
        self._check()
        self._parts = {kind: [opening(part, kind) for part in self.shapes.parts] for kind in (PROMPT, TOKEN)}

    def _check(self) -> None:
        """Raise TargetMismatchError unless the description has the contract's caches, and no longer texts."""
        wanted = {f"past_{kind}_{index}_in" for index in range(len(self.contract.kv)) for kind in ("key", "value")}
        found = {name for name in self.shapes.encodings if name.startswith("past_") and name.endswith("_in")}
        if wanted != found:
            odd = ", ".join(sorted(wanted ^ found))
            raise TargetMismatchError(f"The engine's caches are not the manifest's ({odd} differ): compile it again.")
        most = self.contract.bounds["capacity"][1]
        if self.shapes.context != most:
            raise TargetMismatchError(
                f"The engine has a context of {self.shapes.context} where the manifest says {most}: compile it again."
            )

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that feeds the inputs in as many calls as they need; see `Engine.bind`."""
        caches = []
        for index, layer in enumerate(self.contract.kv):
            for name, past, present, axis in (
                ("key", layer.past_key, layer.present_key, 3),
                ("value", layer.past_value, layer.present_value, 2),
            ):
                tensor = f"past_{name}_{index}"
                caches.append(
                    _Cache(tensor, inputs[past], outputs[present], axis, self.shapes.encodings[f"{tensor}_in"])
                )

        def run() -> None:
            self._run(inputs, outputs.get(_LOGITS), caches)

        return run

    def _run(self, inputs: Mapping[str, Array], logits: Array | None, caches: Sequence[_Cache]) -> None:
        ids, past = inputs["input_ids"][0], int(inputs["past_lengths"][0])
        wanted = inputs["logit_positions"] if logits is not None else np.empty(0, dtype=np.int64)
        filled = {PROMPT: 0, TOKEN: 0}
        done = 0
        while done < len(ids):
            left = len(ids) - done
            fits = past + self.shapes.rows <= self.shapes.context
            kind = PROMPT if left > 1 and fits else TOKEN
            count = min(left, self.shapes.rows) if kind == PROMPT else 1
            found = self._call(kind, ids[done : done + count], past, filled[kind], caches)
            filled[kind] = past
            for cache in caches:
                cache.put(found[f"{cache.name}_out"], past, count)
            if logits is not None:
                rows = found[_LOGITS][0]
                for place, position in enumerate(wanted):
                    if done <= position < done + count:
                        logits[0, place] = self.shapes.encodings[_LOGITS].values(rows[position - done])
            done, past = done + count, past + count

    def _call(self, kind: str, ids: Array, past: int, filled: int, caches: Sequence[_Cache]) -> dict[str, Array]:
        """Run the parts of a graph, each on what it takes; returns what all of them give."""
        rows = self.shapes.rows if kind == PROMPT else 1
        tokens = np.zeros((1, rows), dtype=np.int32)
        tokens[0, : len(ids)] = ids
        values: dict[str, Array] = {"input_ids": tokens, **self.shapes.given(rows, past)}
        for cache in caches:
            values[f"{cache.name}_in"] = cache.codes(kind, self.shapes.context - rows, past, filled)
        for part in self._parts[kind]:
            values |= part(values)
        return values


class _Cache:
    """One cache of the caller's, and its codes as the graphs take them."""

    def __init__(self, name: str, past: Array, present: Array, axis: int, encoding: Encoding) -> None:
        self.name = name
        self._past, self._present, self._axis, self._encoding = past, present, axis, encoding
        self._buffers: dict[str, Array] = {}
        self._ends: dict[str, int] = {}

    def codes(self, kind: str, slots: int, past: int, filled: int) -> Array:
        """Return `[kv_heads, 1, width, slots]`, of values `[kv_heads, 1, slots, width]`, whose first `past` are filled.

        The first `filled` have been since the caller's function was called.
        """
        if kind not in self._buffers:
            _, heads, _, width = self._past.shape
            shape = (heads, 1, width, slots) if self._axis == 3 else (heads, 1, slots, width)
            self._buffers[kind] = np.full(shape, self._encoding.zero, dtype=self._encoding.dtype)
            self._ends[kind] = 0
        buffer = self._buffers[kind]
        rows = buffer.transpose(0, 1, 3, 2) if self._axis == 3 else buffer
        rows[:, 0, filled:past] = self._encoding.codes(self._past[0, :, filled:past])
        rows[:, 0, past : self._ends[kind]] = self._encoding.zero  # what a longer text left
        self._ends[kind] = past
        return buffer

    def put(self, codes: Array, past: int, count: int) -> None:
        """Write the first `count` new rows after `past` of the caller's."""
        rows = codes.transpose(0, 1, 3, 2) if self._axis == 3 else codes
        self._present[0, :, past : past + count] = self._encoding.values(rows[:, 0, :count])


def describe(folder: Path, entry: StageEntry) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a stage's engine, and its description; raises BundleError where it can't be read."""
    if entry.engine is None:
        raise BundleError("The stage was not compiled for Qualcomm's HTP: compile it with --target qnn.")
    path = inside(folder, entry.engine)
    try:
        description = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise BundleError(f"The bundle's {path.name} can't be read: copy or build the bundle again.") from None
    if not isinstance(description, dict):
        raise BundleError(f"The bundle's {path.name} holds no object: build the bundle again.")
    return path.parent, description


def open_engine(folder: Path, entry: StageEntry, *, threads: int | None, share_cores: bool) -> QnnEngine:
    """Load a stage's context binaries; see `edgewright.runtime.engine.Opener`. The HTP has no use for threads."""
    root, description = describe(folder, entry)

    def opening(part: Mapping[str, Any], kind: str) -> Run:
        return opened(inside(root, part[kind]["context"]), {})

    return QnnEngine(root, description, entry.contract, opening)


def open_graphs(folder: Path, entry: StageEntry) -> QnnEngine:
    """Load a stage's quantized graphs and prepare them for the chip anew, which in the simulator replaces the binary.

    The simulator can't load a binary whose graphs share weights.
    """
    root, description = describe(folder, entry)
    options = chip_options(description["soc"])

    def opening(part: Mapping[str, Any], kind: str) -> Run:
        return opened(inside(root, part[kind]["graph"]), options)

    return QnnEngine(root, description, entry.contract, opening)


def chip_options(soc: Mapping[str, Any]) -> dict[str, str]:
    """Return the provider's options that name a chip."""
    return {"soc_model": str(soc["soc_model"]), "htp_arch": str(soc["dsp_arch"]).removeprefix("v")}


def simulates() -> bool:
    """Tell whether the HTP is simulated here."""
    return platform.machine() in ("x86_64", "AMD64") and sys.platform.startswith("linux")


def opened(model: Path, options: Mapping[str, str]) -> Run:
    """Return a function that runs a model on the HTP; raises BundleError where it can't be loaded."""
    session_options = htp_session(options)
    try:
        with quiet():
            session = ort.InferenceSession(str(model), session_options)
    except Exception as error:
        raise BundleError(
            f"ONNX Runtime's QNN provider can't load {model.name}: {first_line(error)} Build the bundle again, for the "
            "chip that is here."
        ) from None
    return _runner(session)


def _runner(session: ort.InferenceSession) -> Run:
    taken = [value.name for value in session.get_inputs()]
    given = [value.name for value in session.get_outputs()]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            found = session.run(given, {name: feeds[name] for name in taken})
        except MemoryError:
            raise OutOfMemoryError("There is not enough memory to run the model: use a smaller context.") from None
        except Exception as error:
            raise GenerationError(f"The HTP failed ({first_line(error)}): verify the bundle.") from None
        return dict(zip(given, found, strict=True))

    return run


def htp_session(options: Mapping[str, str], config: Mapping[str, str] | None = None) -> ort.SessionOptions:
    """Return session options for the HTP alone: what it can't take is an error, not done on the CPU.

    Raises MissingExtraError without the provider's package.
    """
    backend, devices = _provider()
    session = ort.SessionOptions()
    session.log_severity_level = 4
    for key, value in {"session.disable_cpu_ep_fallback": "1", **(config or {})}.items():
        session.add_session_config_entry(key, value)
    session.add_provider_for_devices(devices, {"backend_path": backend, **options})
    return session


@functools.cache
def _provider() -> tuple[str, list[Any]]:
    """Return the HTP's library and the device that carries it, of a provider that is registered once a process."""
    try:
        import onnxruntime_qnn
    except ImportError:
        raise MissingExtraError(_MISSING) from None
    with quiet():
        try:
            ort.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
        except Exception as error:
            if not _devices():  # else it is registered already, by a first try or by the program
                raise MissingExtraError(
                    f"ONNX Runtime's QNN provider can't be loaded ({first_line(error)}): install the extra qnn again."
                ) from None
        devices = _devices()
    npus = [device for device in devices if device.device.type == ort.OrtHardwareDeviceType.NPU]
    if not devices:
        raise BundleError("ONNX Runtime's QNN provider finds no device here: run the bundle on its chip.")
    return onnxruntime_qnn.get_qnn_htp_path(), (npus or devices)[:1]


def _devices() -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == _PROVIDER]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what the library prints to standard error: standard output may be a program's JSON."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError):
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
