"""The back end: a plan, then an engine from a builder that is here, or scripts that build it on the device."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import onnx

from edgewright._version import __version__
from edgewright.bundle.machine import Machine
from edgewright.bundle.manifest import StageEntry
from edgewright.errors import UnsupportedFormatError, UsageError
from edgewright.files import canonical_json, inside, sha256_of
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE
from edgewright.targets.backend import StageWork
from edgewright.targets.tensorrt import tool
from edgewright.targets.tensorrt.plan import ENGINE_FILE, PLAN_FILE, REPORT_FILE, BuildPlan, plan_of, within
from edgewright.targets.tensorrt.script import FOLDER, write_scripts

if TYPE_CHECKING:
    from edgewright.runtime.engine import Engine
    from edgewright.targets.platform import Platform

#: The kind of engine in manifests.
RUNTIME = "tensorrt"
NOT_RUN = (
    "The engine never ran: the graph and weights that it is made of were computed on the CPU, with sums in float32 and "
    "TensorRT's own ops as arithmetic."
)


class TensorRTBackend:
    """TensorRT, strongly typed, of standard ops and Q/DQ."""

    name = "tensorrt"
    dialect = "tensorrt"
    options: ClassVar[Mapping[str, str]] = tool.OPTIONS

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Raise unless the GPU is known and the builder that is asked for is here; see `Backend.require`."""
        tool.asked_of(platform, options)

    def decides(self, platform: Platform | None, options: Mapping[str, str]) -> dict[str, str] | None:
        """Return the builder and its version; None for trtexec, whose version is known when it has run."""
        builder = tool.asked_of(platform, options).builder
        if builder == tool.TRTEXEC:
            return None
        return {"builder": builder, "version": tool.rtx_version() if builder == tool.RTX else ""}

    def compile(self, work: StageWork) -> StageEntry:
        """Write a stage's plan, and build its engine or write scripts that do; see `Backend.compile`.

        Raises UsageError for a batch that the stage doesn't take.
        """
        asked = tool.asked_of(work.platform, work.options)
        most = work.contract.bounds.get("batch", (1, asked.batch))[1]
        if "batch" in work.options and asked.batch > most:
            raise UsageError(f"batch={asked.batch} is more than the stage {work.name} takes at once, which is {most}.")
        folder, contract = work.folder, within(work.contract, asked.batch)
        _refuse(folder / MODEL_FILE, asked.capability)
        versions = {"edgewright": __version__}
        if asked.builder == tool.RTX:
            versions["tensorrt-rtx"] = tool.rtx_version()
        plugins = _copied(asked, folder)
        plan = plan_of(
            work.name,
            contract,
            asked.capability,
            workspace_bytes=asked.workspace_bytes,
            plugins=plugins,
            versions=versions,
            sha256={name: sha256_of(folder / name) for name in (MODEL_FILE, WEIGHTS_FILE, *plugins)},
        )
        version, report = _built(plan, folder, asked.builder, contract)
        (folder / PLAN_FILE).write_bytes(canonical_json(plan.to_json()))
        report |= {"plan_sha256": sha256_of(folder / PLAN_FILE)}
        (folder / REPORT_FILE).write_bytes(canonical_json(report))
        built = asked.builder != tool.SCRIPT
        return StageEntry(
            graph=f"{work.prefix}/{MODEL_FILE}",
            dialect=self.dialect,
            contract=contract,
            settings={
                "builder": asked.builder,
                "computes": _computes(folder / MODEL_FILE),
                "plan": PLAN_FILE,
                "profiles": [profile.name for profile in plan.profiles],
            },
            engine=f"{work.prefix}/{ENGINE_FILE}" if built else None,
            machine=Machine(asked.arch, (), version, "tensorrt-rtx" if asked.builder == tool.RTX else RUNTIME),
            runtime=RUNTIME,
        )

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> tuple[Engine, str]:
        """Return the shipped graph and weights on the CPU; see `Backend.stand_in`. Raises BundleError."""
        from edgewright.targets.tensorrt.emulate import EmulatedEngine

        return EmulatedEngine(inside(root, entry.graph), entry.contract, threads=threads), NOT_RUN


BACKEND = TensorRTBackend()


def _copied(asked: tool.Asked, folder: Path) -> tuple[str, ...]:
    """Copy plug-in libraries into the stage; returns their places in it, in the order they are loaded."""
    names = []
    for path in asked.plugins:
        (folder / FOLDER).mkdir(exist_ok=True)
        names.append(f"{FOLDER}/{path.name}")
        shutil.copyfile(path, folder / names[-1])
    return tuple(names)


def _built(plan: BuildPlan, folder: Path, builder: str, contract: Any) -> tuple[str, dict[str, Any]]:
    """Execute a plan; returns the builder's version, empty where it isn't known yet, and the report."""
    if builder == tool.RTX:
        from edgewright.targets.tensorrt.inspect import inspect
        from edgewright.targets.tensorrt.rtx import build_engine

        network = build_engine(plan, folder)
        found = inspect(folder, plan, contract, network, (folder / plan.engine).read_bytes())
        return tool.rtx_version(), found.to_json()
    if builder == tool.TRTEXEC:
        from edgewright.targets.tensorrt import trtexec

        version = trtexec.build_engine(plan, folder)
        return version, {"not_checked": ["types of the engine: trtexec tells them on its own machine alone"]}
    write_scripts(plan, folder)
    return "", {"not_checked": ["the engine isn't built yet: run engine/build_engine.py on the device"]}


def _computes(graph: Path) -> str:
    """Return the type that products without codes have: float32 where no other float is in the graph."""
    model = onnx.load(graph, load_external_data=False)
    found = {tensor.data_type for tensor in model.graph.initializer}
    found |= {a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    for kind in ("bfloat16", "float16"):
        if onnx.TensorProto.DataType.Value(kind.upper()) in found:
            return kind
    return "float32"


def _refuse(graph: Path, capability: str) -> None:
    """Raise UnsupportedFormatError, with the layer or tensor, for a type that the GPU's tensor cores lack."""
    has = tuple(int(part) for part in capability.split("."))
    for where, name in _narrow_types(onnx.load(graph, load_external_data=False).graph):
        first = tool.FIRST_WITH.get(name)
        if first is not None and has < first:
            raise UnsupportedFormatError(
                f"{where} has numbers of the type {name}, which GPUs compute on from compute capability "
                f"{first[0]}.{first[1]} on, and this is {capability}: use a recipe with int8 or int4 weights, and a "
                "cache of floats or int8."
            )


def _narrow_types(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield what has a type and the type's name: of weights by the layer that reads them, of caches, of inputs."""
    readers = {name: node.name for node in reversed(graph.node) for name in node.input}
    for tensor in graph.initializer:
        yield readers.get(tensor.name, tensor.name), _name(tensor.data_type)
    for value in (*graph.input, *graph.output):
        yield value.name, _name(value.type.tensor_type.elem_type)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _narrow_types(attribute.g)
        if node.op_type.startswith("TRT_MXFP8"):  # whose scales are stored as bytes
            yield node.name, _name(onnx.TensorProto.FLOAT8E8M0)
        elif node.op_type.startswith("TRT_FP4"):
            yield node.name, _name(onnx.TensorProto.FLOAT4E2M1)
        for attribute in node.attribute:
            if attribute.name in ("to", "output_dtype"):
                yield node.name, _name(attribute.i)


def _name(number: int) -> str:
    return str(onnx.TensorProto.DataType.Name(number))


__all__ = ["BACKEND", "RUNTIME", "TensorRTBackend"]
