"""Runs a compiled stage with ONNX Runtime: a session with pinned settings, bound to the caller's own memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from edgewright.bundle import StageEntry
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import BundleError, GenerationError, first_line
from edgewright.quiet_ort import ort
from edgewright.runtime.engine import FOREIGN, Array, model_file, raise_out_of_memory, require_contract

#: What the library says when there is no memory left.
_OUT_OF_MEMORY = ("bad_alloc", "Failed to allocate", "out of memory", "BFCArena")
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


class OnnxRuntimeEngine:
    """One stage, loaded. `contract` is checked against what the file really takes and gives.

    `profile` begins the name of the file that the session writes its profile to when it is told to end it. Raises
    BundleError when the file can't be loaded or its inputs and outputs are not the contract's.
    """

    def __init__(
        self,
        model: Path,
        contract: StageContract,
        settings: EngineSettings,
        *,
        threads: int | None = None,
        profile: Path | None = None,
    ) -> None:
        options = session_options(settings, threads)
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
        try:
            self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise_out_of_memory(error, _OUT_OF_MEMORY)
            raise BundleError(
                f"ONNX Runtime {ort.__version__} can't load {model.name}: {first_line(error)} "
                "Compile the bundle again on this machine."
            ) from None
        if settings.optimization != "disabled":
            _give_back_memory()
        self.contract = contract
        self._check()

    def _check(self) -> None:
        values = (*self.session.get_inputs(), *self.session.get_outputs())
        require_contract(self.contract, {v.name: (_DTYPES.get(v.type, v.type), v.shape) for v in values})

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that runs the session on these arrays' own memory; see `Engine.bind`."""
        binding = self.session.io_binding()
        # The binding does not keep the arrays alive, so the values are kept in the function.
        kept: list[ort.OrtValue] = []
        for tensors, arrays, bound in (
            (self.contract.inputs, inputs, binding.bind_ortvalue_input),
            (self.contract.outputs, outputs, binding.bind_ortvalue_output),
        ):
            for tensor in tensors:
                if tensor.name in arrays:
                    kept.append(share(arrays[tensor.name], tensor.dtype))
                    bound(tensor.name, kept[-1])

        def run(_kept: Sequence[ort.OrtValue] = kept) -> None:
            self._run(binding)

        return run

    def _run(self, binding: ort.IOBinding) -> None:
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:
            raise_out_of_memory(error, _OUT_OF_MEMORY)
            raise GenerationError(f"The engine failed ({first_line(error)}): verify the bundle.") from None


#: Contracts' names of ONNX Runtime's types.
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
}


def share(array: np.ndarray, dtype: str | None = None) -> ort.OrtValue:
    """Return an OrtValue over the array's own memory; writing the array is seen by the next run.

    `dtype` is the contract's, for arrays that hold the codes of a dtype which NumPy lacks.
    """
    if dtype in FOREIGN:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, FOREIGN[dtype])
    return ort.OrtValue.ortvalue_from_numpy(array)


def open_engine(folder: Path, entry: StageEntry, *, threads: int | None, share_cores: bool) -> OnnxRuntimeEngine:
    """Load a stage; see `edgewright.runtime.engine.Opener`."""
    settings = EngineSettings.from_json(entry.settings)
    settings = settings.sharing() if share_cores else settings
    return OnnxRuntimeEngine(model_file(folder, entry), entry.contract, settings, threads=threads)
