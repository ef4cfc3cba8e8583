"""Engines that record their calls: what was asked of them, how long it took, and layer by layer where they can."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from edgewright.bundle import StageEntry, this_machine
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import BundleError, ProfileError, first_line
from edgewright.profile.layers import Averages, EngineRun
from edgewright.profile.ort_file import read_onnxruntime
from edgewright.profile.owners import EngineNode
from edgewright.quiet_ort import ort
from edgewright.runtime.engine import Array, Engine, model_file, open_engine
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine, session_options

#: Of larger stages the optimised graph isn't written: widened weights would be on the disk a second time.
_MOST_OPTIMISED_BYTES = 1 << 31


@dataclass(frozen=True)
class Called:
    """One call: the stage, sizes of symbolic dimensions, the tokens its caches held before, and its milliseconds."""

    stage: str
    sizes: Mapping[str, int]
    past: int
    ms: float


class Watched:
    """An engine whose calls are added to `calls`; it is one itself."""

    def __init__(self, stage: str, engine: Engine, calls: list[Called]) -> None:
        self.contract: StageContract = engine.contract
        self._stage, self._engine, self._calls = stage, engine, calls

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Bind the engine; see `Engine.bind`."""
        call = self._engine.bind(inputs, outputs)
        sizes = _sizes(self.contract, {**inputs, **outputs})
        past = inputs.get("past_lengths")

        def run() -> None:
            held = 0 if past is None else int(past.max(initial=0))
            begin = time.perf_counter()
            call()
            self._calls.append(Called(self._stage, sizes, held, 1000 * (time.perf_counter() - begin)))

        return run


def _sizes(contract: StageContract, arrays: Mapping[str, Array]) -> dict[str, int]:
    pairs = (
        pair
        for tensor in (*contract.inputs, *contract.outputs)
        if tensor.name in arrays
        for pair in zip(tensor.shape, arrays[tensor.name].shape, strict=True)
    )
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


class Recorder(Protocol):
    """An engine that times its layers."""

    @property
    def engine(self) -> Engine:
        """The engine to run."""

    def mark(self) -> None:
        """Say that the runs that count begin, or that they end."""

    def finish(self) -> Sequence[EngineRun]:
        """End the recording and return every call since the engine was opened."""

    def averages(self, runs: int) -> Sequence[Averages]:
        """Return the means of layers over `runs` runs between two marks, none where each call has its layers."""

    def nodes(self) -> Sequence[EngineNode]:
        """Return the graph that the engine runs, empty where it can't be had."""

    def close(self) -> None:
        """Remove what the recording left on the disk."""


class OnnxRuntimeRecorder:
    """ONNX Runtime with its session's profiling on.

    A graph that is still optimised when it is loaded is optimised once, and what comes out of it is run, so that its
    nodes are known.
    """

    def __init__(self, folder: Path, entry: StageEntry, threads: int | None, *, share_cores: bool) -> None:
        if entry.machine is not None:
            entry.machine.require(this_machine(entry.machine.engine))
        settings = EngineSettings.from_json(entry.settings)
        settings = settings.sharing() if share_cores else settings
        self._scratch = tempfile.TemporaryDirectory(prefix="edgewright-profile-")
        scratch = Path(self._scratch.name)
        self._model = model_file(folder, entry)
        if settings.optimization != "disabled" and _bytes_beside(self._model) <= _MOST_OPTIMISED_BYTES:
            self._model = _optimised(self._model, settings, scratch)
            settings = replace(settings, optimization="disabled")
        self._final = settings.optimization == "disabled"
        self.engine = OnnxRuntimeEngine(
            self._model, entry.contract, settings, threads=threads, profile=scratch / "profile"
        )

    def mark(self) -> None:
        """Do nothing: every call has its own times."""

    def averages(self, runs: int) -> Sequence[Averages]:
        """Return nothing: every call has its own times."""
        return ()

    def finish(self) -> Sequence[EngineRun]:
        """End the session's profile and read its file."""
        return read_onnxruntime(Path(self.engine.session.end_profiling())).runs

    def nodes(self) -> Sequence[EngineNode]:
        """Return the graph that is run; that of a large one which is optimised at load isn't known."""
        if not self._final:
            return ()
        import onnx_ir as ir

        from edgewright.profile.owners import engine_nodes

        return engine_nodes(ir.load(self._model).graph)

    def close(self) -> None:
        """Remove the folder of the profile."""
        self._scratch.cleanup()


def _bytes_beside(model: Path) -> int:
    return sum(path.stat().st_size for path in model.parent.iterdir() if path.is_file())


def _optimised(model: Path, settings: EngineSettings, scratch: Path) -> Path:
    """Write what ONNX Runtime makes of a graph at load; raises BundleError where it refuses the graph."""
    options = session_options(settings)
    options.optimized_model_filepath = str(scratch / "optimised.onnx")
    for key, value in {
        "session.optimized_model_external_initializers_file_name": "optimised.bin",
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    }.items():
        options.add_session_config_entry(key, value)
    try:
        ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BundleError(
            f"ONNX Runtime {ort.__version__} can't load {model.name}: {first_line(error)} Compile the bundle again on "
            "this machine."
        ) from None
    return scratch / "optimised.onnx"


def open_recorder(folder: Path, entry: StageEntry, threads: int | None, *, share_cores: bool = False) -> Recorder:
    """Open a stage's engine with its layers timed; raises ProfileError for an engine that can't do that here."""
    if entry.runtime == "onnxruntime":
        return OnnxRuntimeRecorder(folder, entry, threads, share_cores=share_cores)
    if entry.runtime == "openvino":
        from edgewright.profile.openvino import OpenVinoRecorder

        return OpenVinoRecorder(folder, entry, threads, share_cores=share_cores)
    raise ProfileError(
        f"The stage runs on {entry.runtime}, whose layers can't be timed here: profile it on its device with the "
        "vendor's tool, and give the file with --file."
    )


def open_plain(
    folder: Path, stage: str, entry: StageEntry, calls: list[Called], threads: int | None, *, share_cores: bool = False
) -> Watched:
    """Open a stage's engine as a run does, with a record of its calls and no more."""
    return Watched(stage, open_engine(folder, entry, threads=threads, share_cores=share_cores), calls)
