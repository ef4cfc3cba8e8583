"""Ahead-of-time compilation for ONNX Runtime's CPU provider: optimise offline, keep the weights where they are.

Products of integers take their weights as this machine's kernels like them (see `signed`).

ONNX Runtime writes its optimised graph with a second copy of every weight. Those that it did not change are pointed
back to `weights.bin`; only what it made anew (folded constants) is kept, in `engine.bin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import onnx

from edgewright.bundle.machine import this_machine
from edgewright.bundle.manifest import StageEntry
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import UnsupportedFormatError, first_line
from edgewright.files import require_space
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE
from edgewright.quiet_ort import ort
from edgewright.targets.backend import StageWork
from edgewright.targets.signed import sign_weights, takes_signed

if TYPE_CHECKING:
    from edgewright.targets.platform import Platform

ENGINE_FILE = "engine.onnx"
_EXTRA_FILE = "engine.bin"
_ALIGNMENT = 64

#: Moving rounded values along a graph would round a cache of one head once more on either side of every reshape, and
#: ONNX Runtime (1.32) ends the process where a loop reads them.
#: Rounded inputs that are int8 stay it: as uint8 their products would saturate on x86 processors without VNNI.
_CONFIG = {
    "optimization.disable_specified_optimizers": "QDQPropagationTransformer",
    "session.qdqisint8allowed": "1",
}

_Place = tuple[int, int, int, tuple[int, ...]]


def settings_for(dialect: str, *, half_weights: bool) -> EngineSettings:
    """Return the run-time settings of a stage.

    A compiled graph is final, so nothing is optimised at load, unless float16 weights must be widened then: widening
    them ahead of time would double the file.
    """
    final = dialect == "onnxruntime" and not half_weights
    return EngineSettings("disabled") if final else EngineSettings("all", config=_CONFIG)


class CpuBackend:
    """ONNX Runtime's CPU provider."""

    name = "cpu"
    dialect = "onnxruntime"
    options: ClassVar[Mapping[str, str]] = {}

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Everything goes."""

    def compile(self, work: StageWork) -> StageEntry:
        """Compile a stage; peak memory is ONNX Runtime's own for one load. See `Backend.compile`."""
        return compile_stage(work.folder, work.prefix, work.contract, half_weights=work.half_weights)

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> None:
        """Return None: the engine runs here."""


BACKEND = CpuBackend()


def compile_stage(folder: Path, prefix: str, contract: StageContract, *, half_weights: bool) -> StageEntry:
    """Compile the stage written in `folder`; returns its manifest entry with paths below `prefix`.

    Raises UnsupportedFormatError when ONNX Runtime refuses the graph.
    """
    settings = settings_for("onnxruntime", half_weights=half_weights)
    options = ort.SessionOptions()
    options.graph_optimization_level = (
        ort.GraphOptimizationLevel.ORT_DISABLE_ALL if half_weights else ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    )
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    scratch, graph, signed = (folder / name for name in ("optimised.onnx", MODEL_FILE, "signed.onnx"))
    options.optimized_model_filepath = str(scratch)
    for key, value in {
        "session.optimized_model_external_initializers_file_name": "optimised.bin",
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
        "session.disable_prepacking": "1",
        **_CONFIG,
    }.items():
        options.add_session_config_entry(key, value)
    try:
        written = onnx.load(graph, load_external_data=False)
        if takes_signed(this_machine()) and sign_weights(written):
            signed.write_bytes(written.SerializeToString(deterministic=True))
            graph = signed
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        require_space(folder, (folder / WEIGHTS_FILE).stat().st_size, "Compiling")
        raise UnsupportedFormatError(
            f"ONNX Runtime {ort.__version__} refuses the graph: {first_line(error)} Please report it."
        ) from None
    else:
        _relink(folder, written, scratch)
    finally:
        scratch.unlink(missing_ok=True)
        signed.unlink(missing_ok=True)
        (folder / "optimised.bin").unlink(missing_ok=True)
    return StageEntry(
        graph=f"{prefix}/{MODEL_FILE}",
        dialect="onnxruntime",
        contract=contract,
        settings=settings.to_json(),
        engine=f"{prefix}/{ENGINE_FILE}",
        machine=this_machine(),
    )


def _relink(folder: Path, written: onnx.ModelProto, optimised: Path) -> None:
    """Write `engine.onnx`: the optimised form of `written` over the weight file we wrote."""
    ours = {tensor.name: _place(tensor) for tensor in _external(written.graph)}
    model = onnx.load(optimised, load_external_data=False)
    theirs = list(_external(model.graph))
    extra = bytearray()
    with (folder / "optimised.bin").open("rb") if theirs else (folder / MODEL_FILE).open("rb") as data:
        for tensor in theirs:
            offset, length, *kind = _place(tensor)
            if tensor.name in ours and [length, *kind] == list(ours[tensor.name][1:]):
                location, offset = WEIGHTS_FILE, ours[tensor.name][0]
            else:
                data.seek(offset)
                extra += bytes(-len(extra) % _ALIGNMENT)
                location, offset = _EXTRA_FILE, len(extra)
                extra += data.read(length)
            del tensor.external_data[:]
            for key, value in (("location", location), ("offset", offset), ("length", length)):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, str(value)
    if extra:
        (folder / _EXTRA_FILE).write_bytes(extra)
    model.producer_name = "edgewright"
    (folder / ENGINE_FILE).write_bytes(model.SerializeToString(deterministic=True))


def _external(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every initializer of a graph and of the graphs in its nodes whose data are in another file."""
    yield from (tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _external(attribute.g)


def _place(tensor: onnx.TensorProto) -> _Place:
    """Return offset, length, dtype and dims of an external initializer."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return int(entries.get("offset", 0)), int(entries["length"]), tensor.data_type, tuple(tensor.dims)
