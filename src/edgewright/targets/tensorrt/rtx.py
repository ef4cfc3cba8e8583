"""Executes a plan with TensorRT for RTX, whose builder needs no GPU: the engine is made for one that is named."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from edgewright.errors import MissingExtraError, ToolError, UnsupportedFormatError
from edgewright.targets.tensorrt.plan import BuildPlan
from edgewright.targets.tensorrt.tool import rtx_version

#: Lines of its log that an error message takes up.
_LINES = 3
#: It says so of every int64 input; the runtime gives int64.
_EXPECTED = ("Int64 binding", "cudaError 35", "CUDA driver version is insufficient")


def build_engine(plan: BuildPlan, folder: Path) -> Network:
    """Build `folder / plan.engine` from the graph beside it; returns what the parser made of the graph.

    Peak memory is about four times the weights. Raises UnsupportedFormatError, with the node, where the parser refuses
    the graph, ToolError in its own words where the builder fails, MissingExtraError without the package.
    """
    trt = _module()
    log = _log(trt)
    log.errors.clear()
    builder = trt.Builder(log)
    _load_plugins(trt, plan, folder, log)
    network = _parsed(trt, builder, folder / plan.graph, log)
    config = _config(trt, builder, network, plan)
    log.errors.clear()
    data = builder.build_serialized_network(network, config)
    if data is None:
        raise ToolError(f"TensorRT for RTX {rtx_version()} can't build {plan.stage}: {_words(log)}")
    (folder / plan.engine).write_bytes(memoryview(data))
    return Network(trt, network, [builder, log])


class Network:
    """What the parser made of a graph: types and shapes, by tensor."""

    def __init__(self, trt: Any, network: Any, kept: list[Any]) -> None:
        self._kept = [network, *kept]
        self.types: dict[str, str] = {}
        self.inputs, self.outputs = (
            {tensor.name: (_TYPES.get(tensor.dtype.name, tensor.dtype.name), tuple(tensor.shape)) for tensor in tensors}
            for tensors in (
                [network.get_input(index) for index in range(network.num_inputs)],
                [network.get_output(index) for index in range(network.num_outputs)],
            )
        )
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            for place in range(layer.num_outputs):
                tensor = layer.get_output(place)
                if tensor is not None:
                    self.types[tensor.name] = _TYPES.get(tensor.dtype.name, tensor.dtype.name)


#: TensorRT's names of types, and ONNX's.
_TYPES = {
    "FLOAT": "FLOAT",
    "HALF": "FLOAT16",
    "BF16": "BFLOAT16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
    "FP8": "FLOAT8E4M3FN",
    "FP4": "FLOAT4E2M1",
    "INT4": "INT4",
    "E8M0": "FLOAT8E8M0",
}


def _module() -> Any:
    try:
        import tensorrt_rtx_bindings as trt
    except ImportError:
        raise MissingExtraError("TensorRT for RTX is not installed: pip install 'edgewright[tensorrt]'") from None
    return trt


@cache
def _log(trt: Any) -> Any:
    """Return what keeps the tool's messages; TensorRT knows one such object a process, the first it is given."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR and not any(words in message for words in _EXPECTED):
                self.errors.append(message)

    return Log()


def _load_plugins(trt: Any, plan: BuildPlan, folder: Path, log: Any) -> None:
    for name in plan.plugins:
        if trt.get_plugin_registry().load_library(str(folder / name)) is None:
            raise ToolError(f"TensorRT for RTX can't load the plug-in library {Path(name).name}: {_words(log)}")


def _parsed(trt: Any, builder: Any, graph: Path, log: Any) -> Any:
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(graph)):
        error = parser.get_error(0)
        where = f"{error.node_name() or 'the graph'} ({error.node_operator() or 'initializers'})"
        words = next((line for line in error.desc().splitlines() if line.strip()), "no reason given")
        raise UnsupportedFormatError(f"TensorRT refuses {where}: {words.rstrip('.')}. Please report it.")
    return network


def _config(trt: Any, builder: Any, network: Any, plan: BuildPlan) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{plan.capability.replace('.', '')}"), 0)
    # Names of layers go into the engine, so that what it computes in which type can be read there and on the device.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    if plan.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, plan.workspace_bytes)
    for profile in plan.profiles:
        shapes = builder.create_optimization_profile()
        for name, bounds in profile.shapes.items():
            shapes.set_shape(name, bounds.min, bounds.opt, bounds.max)
        config.add_optimization_profile(shapes)
    return config


def _words(log: Any) -> str:
    """Return the builder's own words, shortened."""
    lines = [line.strip() for message in log.errors for line in message.splitlines() if line.strip()]
    return " ".join(lines[:_LINES])[:600] or "it gives no reason."
