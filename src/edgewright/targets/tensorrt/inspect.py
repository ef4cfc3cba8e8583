"""What of an engine can be checked without its GPU: types and shapes, tensor by tensor, and what products compute on.

Three things are compared with the graph that is shipped: what the parser made of it, whose types the builder must keep
in a strongly typed network; the interface; and the program in an engine of TensorRT for RTX, which names for every
product the tensors it reads, with their types. That text is no documented format: where it isn't found, the report says
so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx.shape_inference

from edgewright.contract import StageContract
from edgewright.errors import ToolError

if TYPE_CHECKING:
    from edgewright.targets.tensorrt.plan import BuildPlan
    from edgewright.targets.tensorrt.rtx import Network

Proto = onnx.TensorProto
#: Types of codes: what the text of an engine calls them.
_CODES = {Proto.INT4: "int4", Proto.INT8: "int8", Proto.FLOAT8E4M3FN: "fp8_e4m3", Proto.FLOAT4E2M1: "fp4_e2m1"}
_DTYPES = {"float8_e4m3fn": "FLOAT8E4M3FN", "float32": "FLOAT"}
#: What only moves a weight on its way to a product.
_PASSED = frozenset({"Cast", "Transpose", "Reshape", "Slice", "Identity"})
_DESCRIBED = re.compile(rb'tensor=\{([^\n]*?)name="([^"]+)"([^\n]*?)type=(\w+) \}')
_BYTES = re.compile(rb"const_payload_size=(\d+)")
#: A product of its own, named after the layers that it joins, and one that other arithmetic was drawn into.
_PRODUCT = re.compile(rb'fully_connected=\{ name="([^"]+)" output=\{[^}]*\} input=\{([^}]*)\}')
_FUSION = re.compile(rb'runtime_fusion=\{[^\n]*?input_args=\{([^}]*)\}[^\n]*?layers="([^"]*)" backbone=gemm')
_PROFILE = re.compile(rb" \[profile \d+\]")
_QUOTED = re.compile(rb'"([^"]+)"')
_LAYER = re.compile(rb"\[ONNX Layer: ([^\]]+)\]")
_MADE_FOR = re.compile(rb"accelerators=\{(sm\d+)")


@dataclass
class Report:
    """What was compared, and what could not be; `products` counts those on codes by what they compute on."""

    tensors: int = 0
    products: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        return {
            "tensors_compared": self.tensors,
            "products_on_codes": dict(sorted(self.products.items())),
            "bytes_of_codes_in_engine": dict(sorted(self.weights.items())),
            "not_checked": self.unchecked,
        }


def inspect(folder: Path, plan: BuildPlan, contract: StageContract, network: Network, engine: bytes) -> Report:
    """Compare graph, contract, network and engine exactly; raises ToolError with the tensor or product that differs."""
    model = onnx.load(folder / plan.graph, load_external_data=False)
    report = Report()
    _interface(contract, network)
    _types(model, network, report)
    _program(model, engine, plan, report)
    report.unchecked.append("the engine was not run: there is no GPU of its kind here")
    return report


def _interface(contract: StageContract, network: Network) -> None:
    """Compare inputs and outputs with the contract."""
    for tensors, found in ((contract.inputs, network.inputs), (contract.outputs, network.outputs)):
        if {tensor.name for tensor in tensors} != found.keys():
            odd = sorted({tensor.name for tensor in tensors} ^ found.keys())
            raise ToolError(f"TensorRT's inputs and outputs are not the contract's: {', '.join(odd)} differ.")
        for tensor in tensors:
            kind, shape = found[tensor.name]
            wanted = _DTYPES.get(tensor.dtype, tensor.dtype.upper())
            fixed = [contract.bounds.get(d, (0, 1)) if isinstance(d, str) else (d, d) for d in tensor.shape]
            sizes = [low if low == high else -1 for low, high in fixed]
            # A size that never changes may be open in the graph; one that does can't be fixed there.
            same = len(sizes) == len(shape) and all(b in (a, -1) for a, b in zip(sizes, shape, strict=True))
            if kind != wanted or not same:
                raise ToolError(
                    f"TensorRT reads {tensor.name} as {kind} {list(shape)} where the contract says {wanted} "
                    f"{list(tensor.shape)}."
                )


def _types(model: onnx.ModelProto, network: Network, report: Report) -> None:
    """Compare the type of every tensor that a layer of the network gives, inside of loops, too."""
    told = onnx.ModelProto()
    told.CopyFrom(model)
    for graph in _graphs(told.graph):
        for node in graph.node:
            for name, number in zip(node.output, _told(node), strict=False):
                graph.value_info.append(onnx.helper.make_tensor_value_info(name, number, None))
    graphs = list(_graphs(onnx.shape_inference.infer_shapes(told).graph))
    values = (value for graph in graphs for value in (*graph.value_info, *graph.output))
    known = {value.name: value.type.tensor_type.elem_type for value in values}
    for name in (name for graph in graphs for node in graph.node for name in node.output):
        kind = network.types.get(name)
        if kind is None:  # constants are no layers
            continue
        if not known.get(name):
            report.unchecked.append(f"{name}: the graph says no type of it")
            continue
        wanted = Proto.DataType.Name(known[name])
        if kind != wanted:
            raise ToolError(f"TensorRT computes {name} in {kind} where the graph says {wanted}.")
        report.tensors += 1


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _told(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the types that one of TensorRT's own ops gives, which ONNX can't infer."""
    said = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type == "TRT_FP4DynamicQuantize":
        return Proto.FLOAT4E2M1, said["scale_type"]
    if node.op_type == "TRT_MXFP8DynamicQuantize":
        return said["output_dtype"], Proto.FLOAT8E8M0
    return (said["output_dtype"],) if node.op_type == "TRT_MXFP8DequantizeLinear" else ()


def _program(model: onnx.ModelProto, engine: bytes, plan: BuildPlan, report: Report) -> None:
    """Compare the codes in the engine with the graph's, and what its products on codes read."""
    targets = set(_MADE_FOR.findall(engine))
    if not targets:
        report.unchecked.append("the engine's program holds no text, so its products' types were not read there")
        return
    wanted = f"sm{plan.capability.replace('.', '')}".encode()
    if targets != {wanted}:
        raise ToolError(f"The engine is made for {b', '.join(sorted(targets)).decode()}, not {wanted.decode()}.")
    # Every profile has programs of its own, over the same weights.
    profiles = max(1, len(plan.profiles))
    report.weights = {kind: size // profiles for kind, size in _held(engine).items()}
    for number, kind in _CODES.items():
        stored = _stored(model, number)
        if report.weights.get(kind, 0) < stored:
            raise ToolError(
                f"The engine holds {report.weights.get(kind, 0)} bytes of {kind} where the graph has {stored}: the "
                "builder widened weights."
            )
    reads = _reads(engine)
    for name, kind in _on_codes(model):
        found = reads.get(name)
        if found is None:
            report.unchecked.append(f"{name}: the engine's program doesn't name it as a product")
        elif any(read.count(kind) < 2 for read in found):
            raise ToolError(
                f"The engine computes {name} on {', '.join(sorted(set(found[0])))} where the graph has {kind} on both "
                "sides."
            )
        else:
            report.products[kind] = report.products.get(kind, 0) + 1


def _held(engine: bytes) -> dict[str, int]:
    """Return the bytes of constants of each type of codes that the engine's programs read, all of them together."""
    held: dict[str, int] = {}
    for program in _programs(engine):
        sizes = {}
        for before, name, after, kind in _DESCRIBED.findall(program):
            size = _BYTES.search(before + after)
            if size is not None and kind.decode() in _CODES.values():
                sizes[name] = (kind.decode(), int(size[1]))
        for code, count in sizes.values():
            held[code] = held.get(code, 0) + count
    return held


def _programs(engine: bytes) -> list[bytes]:
    """Return the parts of an engine that are a program each; each has names of its own."""
    return engine.split(b"header {\n")[1:]


def _stored(model: onnx.ModelProto, number: int) -> int:
    """Return the bytes of codes of a type that the graph's weights have, scales of blocks not counted."""
    nodes = (node for graph in _graphs(model.graph) for node in graph.node)
    read = {node.input[0] for node in nodes if node.op_type.endswith("DequantizeLinear")}
    halves = 2 if number in (Proto.INT4, Proto.FLOAT4E2M1) else 1
    total = 0
    for tensor in model.graph.initializer:
        if tensor.name in read and tensor.data_type == number and len(tensor.dims) > 1:
            count = 1
            for dim in tensor.dims:
                count *= dim
            total += count // halves
    return total


def _reads(engine: bytes) -> dict[str, list[list[str]]]:
    """Return the types of what every product reads, by layer, once for each of the engine's programs."""
    found: dict[str, list[list[str]]] = {}
    fused: dict[str, list[list[str]]] = {}
    for program in _programs(engine):
        types = {name: kind.decode() for _, name, _, kind in _DESCRIBED.findall(program)}
        for names, read in _PRODUCT.findall(program):
            for name in _PROFILE.sub(b"", names).split(b"+"):
                found.setdefault(name.decode(), []).append(_types_of(read, types))
        for read, layers in _FUSION.findall(program):
            for name in _LAYER.findall(layers):
                fused.setdefault(_PROFILE.sub(b"", name).decode(), []).append(_types_of(read, types))
    return {**fused, **found}


def _types_of(read: bytes, types: Mapping[bytes, str]) -> list[str]:
    return [types[name] for name in _QUOTED.findall(read) if name in types]


def _on_codes(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Yield name and type of every product of which both factors are dequantized from codes of one type."""
    nodes = [node for graph in _graphs(model.graph) for node in graph.node]
    made = {name: node for node in nodes for name in node.output}
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    for node in nodes:
        if node.op_type not in ("MatMul", "Conv", "Gemm"):
            continue
        found = [_codes_behind(name, made, kinds) for name in node.input[:2]]
        if found[0] is not None and found[0] == found[1]:
            yield node.name, _CODES[found[0]]


def _codes_behind(name: str, made: Mapping[str, onnx.NodeProto], kinds: Mapping[str, int]) -> int | None:
    """Return the type of the codes that a value is dequantized from, None where it isn't."""
    node = made.get(name)
    while node is not None and node.op_type in _PASSED:
        node = made.get(node.input[0])
    if node is None or not node.op_type.endswith("DequantizeLinear"):
        return None
    codes = node.input[0]
    if codes in kinds:
        return kinds[codes] if kinds[codes] in _CODES else None
    maker = made.get(codes)
    if maker is None:
        return None
    if maker.op_type == "TRT_FP4DynamicQuantize":
        return int(Proto.FLOAT4E2M1)
    said: Sequence[int] = [attribute.i for attribute in maker.attribute if attribute.name == "output_dtype"]
    if maker.op_type == "QuantizeLinear":
        return said[0] if said else (kinds.get(maker.input[2]) if len(maker.input) > 2 else None)
    return said[0] if said else None
