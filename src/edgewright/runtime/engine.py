"""Runs one compiled stage with ONNX Runtime: a session with pinned settings, and reusable input/output bindings."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import BundleError, GenerationError, OutOfMemoryError, TargetMismatchError, first_line

_CACHE_LINE = 64
_LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def session_options(settings: EngineSettings, threads: int | None = None) -> ort.SessionOptions:
    """Return ONNX Runtime session options; `threads` overrides the settings' number."""
    options = ort.SessionOptions()
    options.graph_optimization_level = _LEVELS[settings.optimization]
    options.intra_op_num_threads = settings.threads if threads is None else threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    for key, value in settings.config.items():
        options.add_session_config_entry(key, value)
    return options


def _give_back_memory() -> None:
    """Return to the system what widening stored weights at load took; the C library would keep it for later."""
    with suppress(OSError, AttributeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


class Engine:
    """One stage, loaded. `contract` is checked against what the file really takes and gives.

    Raises BundleError when the file can't be loaded or its inputs and outputs are not the contract's.
    """

    def __init__(
        self, model: Path, contract: StageContract, settings: EngineSettings, *, threads: int | None = None
    ) -> None:
        try:
            self.session = ort.InferenceSession(
                str(model), session_options(settings, threads), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            _raise_out_of_memory(error)
            raise BundleError(
                f"ONNX Runtime {ort.__version__} can't load {model.name}: {first_line(error)} "
                "Compile the bundle again on this machine."
            ) from None
        if settings.optimization != "disabled":
            _give_back_memory()
        self.contract = contract
        self._check()

    def _check(self) -> None:
        declared = {t.name: t for t in (*self.contract.inputs, *self.contract.outputs)}
        found = {v.name: v for v in (*self.session.get_inputs(), *self.session.get_outputs())}
        if declared.keys() != found.keys():
            odd = sorted(declared.keys() ^ found.keys())
            raise TargetMismatchError(
                f"The engine's inputs and outputs are not the manifest's: {', '.join(odd)} differ."
            )
        for name, tensor in declared.items():
            rank_ok = len(found[name].shape) == len(tensor.shape)
            fixed_ok = rank_ok and all(
                a == b for a, b in zip(tensor.shape, found[name].shape, strict=True) if isinstance(a, int)
            )
            if found[name].type != _ORT_TYPES[tensor.dtype] or not fixed_ok:
                raise TargetMismatchError(
                    f"The engine's {name} is {found[name].type} {found[name].shape} where the manifest says "
                    f"{tensor.dtype} {list(tensor.shape)}: build the bundle again."
                )

    def binding(self) -> ort.IOBinding:
        """Return a new, empty binding."""
        return self.session.io_binding()

    def run(self, binding: ort.IOBinding) -> None:
        """Run once with everything bound; raises OutOfMemoryError, or GenerationError when the engine fails."""
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:
            _raise_out_of_memory(error)
            raise GenerationError(f"The engine failed ({first_line(error)}): verify the bundle.") from None


def _raise_out_of_memory(error: Exception) -> None:
    words = ("bad_alloc", "Failed to allocate", "out of memory", "BFCArena")
    if isinstance(error, MemoryError) or any(word in str(error) for word in words):
        raise OutOfMemoryError(
            "There is not enough memory to run the model: close other programs, or use a smaller context or recipe."
        ) from None


_ORT_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "int64": "tensor(int64)",
    "int32": "tensor(int32)",
    "int8": "tensor(int8)",
    "float8_e4m3fn": "tensor(float8e4m3fn)",
}
#: dtypes that NumPy lacks: ONNX's number for the type, for arrays of uint8 that hold their codes.
_FOREIGN = {"float8_e4m3fn": 17}


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of the arrays that hold a contract's dtype: uint8 where NumPy has none."""
    return np.dtype(np.uint8) if dtype in _FOREIGN else np.dtype(dtype)


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a zero array whose memory starts on a cache line; kernels read a misaligned one more slowly."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.zeros(size + _CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + size].view(kind).reshape(shape)


def share(array: np.ndarray, dtype: str | None = None) -> ort.OrtValue:
    """Return an OrtValue over the array's own memory; writing the array is seen by the next run.

    `dtype` is the contract's, for arrays that hold the codes of a dtype which NumPy lacks.
    """
    if dtype in _FOREIGN:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _FOREIGN[dtype])
    return ort.OrtValue.ortvalue_from_numpy(array)
