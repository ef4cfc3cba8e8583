"""What runs a stage: engines as the runtime sees them, how one is opened, and the memory it is bound to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgewright.bundle import StageEntry, this_machine
from edgewright.contract import StageContract
from edgewright.errors import OutOfMemoryError, TargetMismatchError
from edgewright.files import inside
from edgewright.plugins import ENGINES, load_plugin, plugin_names

Array = npt.NDArray[Any]
_CACHE_LINE = 64


class Engine(Protocol):
    """A stage that is loaded."""

    @property
    def contract(self) -> StageContract:
        """What the stage takes and gives."""

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that reads the inputs as they then are and fills the outputs, any number of times.

        The arrays are those of the contract, C-contiguous and of the dtypes that `array_dtype` gives; tensors that are
        not given are not asked for. Where the contract's caches are in place, past and present of a layer are one
        array, of which the function reads the rows before each sequence's `past_lengths` and writes those after. The
        function raises OutOfMemoryError, or GenerationError when the engine fails.
        """


@runtime_checkable
class Mirror(Protocol):
    """An engine that keeps rows of its caller's caches besides, and has to be told who else writes them."""

    def overwritten(self, cache: Array, lengths: Array) -> None:
        """Take note that the rows from each sequence's `lengths` on are about to become others.

        `cache` `[batch, kv_heads, capacity, width]` is the contract's first one and stands for all; `lengths` is
        int64 `[batch]`.
        """


class Opener(Protocol):
    """What opens the engines of one kind; `open_engine` finds it by the kind's name."""

    def __call__(self, folder: Path, entry: StageEntry, *, threads: int | None, share_cores: bool) -> Engine:
        """Load a stage of the bundle in `folder`.

        `threads` and `share_cores` are those of `open_engine`. Raises BundleError when a file can't be loaded or isn't
        what the entry says, MissingExtraError when the engine's package isn't installed.
        """


#: The engines that come with the toolkit, and the modules that open them.
_OPENERS = {
    "onnxruntime": "edgewright.runtime.engines.onnxruntime",
    "openvino": "edgewright.runtime.engines.openvino",
    "qnn": "edgewright.runtime.engines.qnn",
}


def engine_names() -> tuple[str, ...]:
    """Return the kinds of engines: those that come with the toolkit, then those of installed packages."""
    return tuple(dict.fromkeys((*_OPENERS, *plugin_names(ENGINES))))


def open_engine(
    folder: Path, entry: StageEntry, *, threads: int | None = None, share_cores: bool = False, check: bool = True
) -> Engine:
    """Load a stage with the engine that its entry names.

    `threads` is the number of cores to use, by default one per physical core. `share_cores` suits several engines in
    a process: see `EngineSettings.sharing`. With `check` a stage is refused that was compiled for another machine, or
    by another version of its compiler: TargetMismatchError.
    """
    if check and entry.machine is not None:
        entry.machine.require(this_machine(entry.machine.engine))
    return _opener(entry.runtime)(folder, entry, threads=threads, share_cores=share_cores)


def _opener(name: str) -> Opener:
    if name in _OPENERS:
        opener: Opener = import_module(_OPENERS[name]).open_engine
        return opener
    found = load_plugin(ENGINES, name)
    if found is None:
        raise TargetMismatchError(
            f"The bundle's stage runs on {name}, for which nothing is installed here: run it on its device, or install "
            "the package that brings it."
        )
    from edgewright.runtime.plugged import opener_of

    return opener_of(name, found)


def raise_out_of_memory(error: Exception, words: Sequence[str]) -> None:
    """Raise OutOfMemoryError where an engine's error is about memory; `words` are what its library says then."""
    if isinstance(error, MemoryError) or any(word in str(error) for word in words):
        raise OutOfMemoryError(
            "There is not enough memory to run the model: close other programs, or use a smaller context or recipe."
        ) from None


def model_file(folder: Path, entry: StageEntry) -> Path:
    """Return the file of a stage that is loaded: the compiled engine, or the graph where none was compiled."""
    return inside(folder, entry.engine or entry.graph)


def require_contract(
    contract: StageContract, found: Mapping[str, tuple[str, Sequence[Any]]], *, kept: frozenset[str] = frozenset()
) -> None:
    """Raise TargetMismatchError unless an engine takes and gives what the contract says.

    `found` is the dtype, as contracts spell it, and the shape of each of the engine's tensors by name, with None for
    sizes that the engine leaves open. The tensors in `kept` are the engine's own affair.
    """
    declared = {t.name: t for t in (*contract.inputs, *contract.outputs) if t.name not in kept}
    if declared.keys() != found.keys():
        odd = ", ".join(sorted(declared.keys() ^ found.keys()))
        raise TargetMismatchError(
            f"The engine's inputs and outputs are not the manifest's ({odd} differ): compile the bundle again."
        )
    for name, tensor in declared.items():
        dtype, shape = found[name]
        same = len(shape) == len(tensor.shape) and all(
            size in (wanted, None) for wanted, size in zip(tensor.shape, shape, strict=True) if isinstance(wanted, int)
        )
        if dtype != tensor.dtype or not same:
            raise TargetMismatchError(
                f"The engine's {name} is {dtype} {list(shape)} where the manifest says {tensor.dtype} "
                f"{list(tensor.shape)}: compile the bundle again."
            )


#: dtypes that NumPy lacks: ONNX's number for the type, for arrays of whole numbers that hold their bits.
FOREIGN = {"float8_e4m3fn": 17, "bfloat16": 16}


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of arrays of a contract's dtype: whole numbers of its size where NumPy has none."""
    if dtype in FOREIGN:
        return np.dtype(np.uint16 if dtype == "bfloat16" else np.uint8)
    return np.dtype(dtype)


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a zero array whose memory starts on a cache line; kernels read a misaligned one more slowly."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.zeros(size + _CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + size].view(kind).reshape(shape)
