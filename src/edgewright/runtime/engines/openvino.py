"""Runs a compiled stage with OpenVINO: requests whose states mirror the caller's key/value caches.

A request keeps keys and values of its own. They are those of the caller's arrays as long as only this engine wrote
rows before `past_lengths`; else they are loaded from the arrays first. The new rows of a call are copied into the
arrays, so these are always whole.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle import StageEntry
from edgewright.contract import StageContract
from edgewright.errors import BundleError, GenerationError, MissingExtraError, UsageError
from edgewright.runtime.engine import Array, model_file, raise_out_of_memory, require_contract

WEIGHTS_FILE = "weights.bin"
#: Requests that are kept: sequences beyond that many take turns, and their caches are loaded again at every turn.
_REQUESTS = 16
_BEAMS = "beam_idx"
#: What the library says when there is no memory left.
_OUT_OF_MEMORY = ("bad_alloc", "Failed to allocate", "out of memory", "Cannot allocate memory")
_PRECISIONS = ("f32", "f16", "u8")
_MOST_THREADS = 4096
#: Names a folder in which OpenVINO keeps what it makes of a model when it is loaded.
CACHE_VARIABLE = "EDGEWRIGHT_OPENVINO_CACHE"
#: Contracts' names of OpenVINO's types.
_DTYPES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "i64": "int64", "i32": "int32",
    "i8": "int8", "u8": "uint8", "boolean": "bool",
}  # fmt: skip
#: OpenVINO's names of the types that NumPy lacks.
_FOREIGN = {"float8_e4m3fn": "f8e4m3", "bfloat16": "bf16"}


class OpenVinoEngine:
    """One stage, loaded. `contract` is checked against what the file really takes and gives.

    With `watch` the layers are timed, and it is given the request after every sequence of a call. Raises BundleError
    when the file can't be loaded, TargetMismatchError when its inputs and outputs are not the
    contract's.
    """

    def __init__(
        self,
        model: Path,
        contract: StageContract,
        settings: Mapping[str, Any],
        *,
        threads: int | None = None,
        share_cores: bool = False,
        watch: Callable[[Any], None] | None = None,
    ) -> None:
        self._watch = watch
        self._ov = ov = _package()
        properties = _properties(settings, threads, share_cores=share_cores) | {"PERF_COUNT": watch is not None}
        if watch is None:  # what comes from a cache doesn't say which layers were fused
            properties |= _model_cache()
        try:
            core = ov.Core()
            read = core.read_model(str(model), str(model.parent / WEIGHTS_FILE))
            self.compiled = core.compile_model(read, "CPU", properties)
        except Exception as error:
            raise_out_of_memory(error, _OUT_OF_MEMORY)
            raise BundleError(
                f"OpenVINO {ov.__version__.split('-')[0]} can't load {model.name}: {_last_line(error)} "
                "Compile the bundle again on this machine."
            ) from None
        self.contract = contract
        self.caches = [
            (past, present)
            for layer in contract.kv
            for past, present in ((layer.past_key, layer.present_key), (layer.past_value, layer.present_value))
        ]
        self._check()
        self._requests: list[_Request] = []
        self._lock = threading.Lock()

    def _check(self) -> None:
        ports = {port.any_name: port for port in (*self.compiled.inputs, *self.compiled.outputs)}
        found = {
            name: (
                _DTYPES.get(kind := port.get_element_type().get_type_name(), kind),
                [size.get_length() if size.is_static else None for size in port.get_partial_shape()],
            )
            for name, port in ports.items()
            if name != _BEAMS
        }
        # Caches that come in are states.
        require_contract(self.contract, found, kept=frozenset(name for name, _ in self.caches))

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that runs on these arrays, each sequence for itself; see `Engine.bind`."""
        rows = _rows_of(self, inputs, outputs)

        def run() -> None:
            with self._lock:
                for row in rows:
                    self._run(row)

        return run

    def _run(self, row: _Row) -> None:
        request = None
        try:
            request = self._request(row)
            row.run(request)
            if self._watch is not None:
                self._watch(request.infer)
        except Exception as error:
            # What a failed run leaves in the states is not known.
            self._requests = [kept for kept in self._requests if kept is not request]
            raise_out_of_memory(error, _OUT_OF_MEMORY)
            raise GenerationError(f"The engine failed ({_last_line(error)}): verify the bundle.") from None

    def overwritten(self, cache: Array, lengths: Array) -> None:
        """Forget what another one writes; see `Mirror.overwritten`."""
        memory = _memory_of(cache)
        with self._lock:
            for row, length in zip(cache, lengths, strict=True):
                for request in self._requests:
                    if request.mirrors(memory, row.ctypes.data) and request.length > length:
                        request.owner = None

    def _request(self, row: _Row) -> _Request:
        """Return the request that has a row's caches, or a free one, or the one that was not used for longest."""
        found = next((request for request in self._requests if request.mirrors(row.memory, row.place)), None)
        found = found or next((request for request in self._requests if request.free), None)
        if found is None and len(self._requests) >= _REQUESTS:
            found = self._requests[0]
        # A tensor that a row doesn't give would be that of a row before, whose memory may be gone.
        if found is None or found.names - row.names:
            self._requests = [request for request in self._requests if request is not found]
            infer = self.compiled.create_infer_request()
            found = _Request(infer, {state.name: state for state in infer.query_state()}, row.names)
        self._requests = [*(request for request in self._requests if request is not found), found]
        return found

    def tensor(self, array: Array, dtype: str) -> Any:
        """Return a tensor over an array's own memory, which holds the codes of dtypes that NumPy lacks.

        It doesn't keep the array alive. An array without elements has no memory that could be shared.
        """
        foreign = dtype in _FOREIGN
        kind = getattr(self._ov.Type, _FOREIGN[dtype]) if foreign else self._ov.Type(array.dtype)
        shape = self._ov.Shape(list(array.shape))
        if not array.size:
            return self._ov.Tensor(kind, shape)
        return self._ov.Tensor(array, shape, kind) if foreign else self._ov.Tensor(array, shared_memory=True)


@dataclass
class _Request:
    """An OpenVINO request, and what its states hold: the first `length` rows of the caches of `owner`."""

    infer: Any
    states: dict[str, Any]
    #: The tensors that are its caller's.
    names: frozenset[str]
    owner: weakref.ref[Any] | None = None
    place: int = 0
    length: int = 0
    #: The sequence whose tensors it has.
    bound: weakref.ref[_Row] | None = None
    #: The newest rows of the first and the last layer, to see whether the caller's arrays have them still.
    ends: list[Array] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """Whether the caches it mirrors are gone, or there are none."""
        return self.owner is None or self.owner() is None

    def mirrors(self, memory: Array | None, place: int) -> bool:
        """Tell whether it mirrors the caches at a place in memory, or once did."""
        return self.owner is not None and self.owner() is memory and self.place == place


class _Row:
    """One sequence of a binding: `inputs` and `outputs` by name, and its caches with the arrays of their new rows."""

    def __init__(
        self,
        engine: OpenVinoEngine,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        caches: Mapping[str, Array],
        length: Array | None,
    ) -> None:
        self._engine, self._caches, self._length = engine, caches, length
        kinds = {t.name: t.dtype for t in (*engine.contract.inputs, *engine.contract.outputs)}
        self._kind = engine.contract.kv_dtype
        self._count = inputs[next(iter(inputs))].shape[1] if caches else 0
        self._new = {
            name: np.empty((1, array.shape[1], self._count, array.shape[3]), array.dtype)
            for name, array in caches.items()
        }
        present = dict(engine.caches)
        beams = {_BEAMS: np.zeros(1, np.int32)} if caches else {}
        self._arrays = {**inputs, **beams, **outputs, **{present[name]: array for name, array in self._new.items()}}
        self._tensors = {name: engine.tensor(array, kinds.get(name, "")) for name, array in self._arrays.items()}
        self.names = frozenset(self._tensors)
        first = next(iter(caches.values()), None)
        self.memory = None if first is None else _memory_of(first)
        self.place = 0 if first is None else first.ctypes.data
        names = list(caches)
        self._ends = [caches[name] for name in (*names[:2], *names[-2:])] if names else []

    def run(self, request: _Request) -> None:
        """Run on a request; the caches have the new rows then."""
        past = 0 if self._length is None else int(self._length[0])
        if self._caches and not self._holds(request, past):
            self._load(request, past)
        if request.bound is None or request.bound() is not self:
            for name, tensor in self._tensors.items():
                request.infer.set_tensor(name, tensor)
            request.bound, request.names = weakref.ref(self), self.names
        request.infer.start_async()
        request.infer.wait()
        if not self._caches:
            return
        total = past + self._count
        for name, rows in self._new.items():
            self._caches[name][:, :, past:total] = rows
        self._remember(request, total)

    def _holds(self, request: _Request, past: int) -> bool:
        """Tell whether the states have the first `past` rows of the caches."""
        if not request.mirrors(self.memory, self.place) or request.length != past:
            return False
        return past == 0 or all(
            np.array_equal(end, cache[0, :, past - 1]) for end, cache in zip(request.ends, self._ends, strict=True)
        )

    def _load(self, request: _Request, past: int) -> None:
        request.owner = None
        request.infer.reset_state()
        for name, cache in self._caches.items() if past else ():
            held = np.ascontiguousarray(cache[:, :, :past])
            request.states[name].state = self._engine.tensor(held, self._kind)

    def _remember(self, request: _Request, length: int) -> None:
        request.owner, request.place, request.length = weakref.ref(self.memory), self.place, length
        request.ends = [cache[0, :, length - 1].copy() for cache in self._ends]


def _rows_of(engine: OpenVinoEngine, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> list[_Row]:
    """Return the sequences of a binding; a stage without caches runs all of them as one."""
    contract = engine.contract
    if not contract.kv:
        return [_Row(engine, inputs, outputs, {}, None)]
    by_row = {t.name for t in (*contract.inputs, *contract.outputs) if t.shape[:1] == ("batch",)}
    cached = {name for pair in engine.caches for name in pair}

    def part(arrays: Mapping[str, Array], row: int) -> dict[str, Array]:
        return {
            name: array[row : row + 1] if name in by_row else array
            for name, array in arrays.items()
            if name not in cached
        }

    lengths = inputs["past_lengths"]
    return [
        _Row(
            engine,
            part(inputs, row),
            part(outputs, row),
            {past: inputs[past][row : row + 1] for past, _ in engine.caches},
            lengths[row : row + 1],
        )
        for row in range(len(lengths))
    ]


def _memory_of(array: Array) -> Array:
    """Return the array that owns an array's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _properties(settings: Mapping[str, Any], threads: int | None, *, share_cores: bool) -> dict[str, Any]:
    """Return OpenVINO's properties; float32 is computed as float32, whatever the processor likes better."""
    kv, group, known = (settings.get(name) for name in ("kv", "group", "threads"))
    numbers = all(isinstance(value, int) and 0 <= value <= _MOST_THREADS for value in (group, known))
    if kv not in _PRECISIONS or not numbers:
        raise BundleError(f"The engine's settings {dict(settings)} are none of this version: build the bundle again.")
    number = known if threads is None else threads
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": kv,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
    }
    if number:
        properties["INFERENCE_NUM_THREADS"] = number
    if share_cores:
        properties["ENABLE_CPU_PINNING"] = False
    return properties


def _model_cache() -> dict[str, Any]:
    """Return the properties of the model cache that the user asks for; raises UsageError where it can't be written."""
    place = os.environ.get(CACHE_VARIABLE, "").strip()
    if not place:
        return {}
    folder = Path(place)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{CACHE_VARIABLE} is {place!r}: name a folder that can be written, or leave it out.")
    return {"CACHE_DIR": str(folder), "CACHE_MODE": "OPTIMIZE_SPEED"}


def _package() -> Any:
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("OpenVINO is not installed: pip install 'edgewright[openvino]'.") from None
    return openvino


def _last_line(error: Exception) -> str:
    """Return the line of an OpenVINO error that says what is wrong: those before it are about its own source."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    return (told[0] if told else lines[0] if lines else type(error).__name__)[:300]


def open_engine(folder: Path, entry: StageEntry, *, threads: int | None, share_cores: bool) -> OpenVinoEngine:
    """Load a stage; see `edgewright.runtime.engine.Opener`."""
    return OpenVinoEngine(
        model_file(folder, entry), entry.contract, entry.settings, threads=threads, share_cores=share_cores
    )
