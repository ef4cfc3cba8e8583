"""Reads a graph in the openvino dialect as OpenVINO's own model, whose caches are states."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import openvino as ov
from openvino import opset13 as ops

from edgewright.contract import StageContract
from edgewright.errors import UnsupportedFormatError
from edgewright.targets.openvino.rules import Rules

#: The input that says which of a state's sequences goes on; a request has one, so it is always [0].
BEAMS = "beam_idx"


@dataclass(frozen=True)
class Read:
    """A model, and the longest run of inputs that all products of quantized weights may round as one; 0 for none.

    `memory` is what the model's constants share, the mapped weight file: the model is of use only while it is kept.
    """

    model: ov.Model
    group: int
    memory: list[object] = field(repr=False)


def read_graph(path: Path, contract: StageContract) -> Read:
    """Return the model of a stage's graph; where there are caches, for one sequence at a time.

    Inputs are the contract's without its caches, and `beam_idx` where there are any; outputs the contract's, with the
    rows of the call, `[1, kv_heads, seq, width]`, in the place of whole caches. Raises UnsupportedFormatError.
    """
    core, rules = ov.Core(), Rules()
    for extension in rules.extensions():
        core.add_extension(extension)
    try:
        read = core.read_model(str(path))
        model = _with_states(read, rules, contract, path.parent.name)
    except RuntimeError as error:
        version = ov.__version__.split("-")[0]
        raise UnsupportedFormatError(f"OpenVINO {version} can't take the graph: {_told(path, error)}.") from None
    _name(model)
    weights = rules.compressed
    return Read(model, min(weights.groups, default=0) if weights.rounds else 0, [read, *weights.memory])


def _told(path: Path, error: RuntimeError) -> str:
    """Return what of a reader's error is of use: the op it doesn't know, with the first node that needs it."""
    text = str(error)
    unknown = re.search(r"No conversion rule found for operations: ([\w.]+)", text)
    if unknown:
        kind = unknown[1]
        for node in onnx.load(path, load_external_data=False).graph.node:
            if kind in (f"{node.domain}.{node.op_type}", node.op_type) or kind.startswith(f"{node.op_type}-"):
                return f"it has no op for {kind}, which {node.name} is"
        return f"it has no op for {kind}"
    failed = re.search(r"While validating ONNX node '<Node\((\w+)\): ([^>]*)>': (.*)", text)
    if failed:
        return f"the {failed[1]} of {failed[2].rsplit(':', 1)[0]} fails ({failed[3][:200]})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "its reader gives no reason"


def _with_states(read: ov.Model, rules: Rules, contract: StageContract, title: str) -> ov.Model:
    """Put the state's rows of a call where the graph gave whole caches, and leave the caches out of the inputs."""
    caches = {name for layer in contract.kv for name in (layer.past_key, layer.past_value)}
    parameters = {_name_of(p.output(0)): p for p in read.get_parameters()}
    kept = [parameters[tensor.name] for tensor in contract.inputs if tensor.name not in caches]
    if rules.beams is not None:
        beams = ops.parameter([-1], ov.Type.i32)
        beams.output(0).set_names({BEAMS})
        beams.set_friendly_name(BEAMS)
        rules.beams.output(0).replace(beams.output(0))
        kept.append(beams)
    results = {_name_of(result.output(0)): result for result in read.get_results()}
    made = []
    for tensor in contract.outputs:
        source = results[tensor.name].input_value(0)
        cache = rules.cache_of(source)
        if cache is not None:
            source.get_tensor().set_names(set())
            source = cache.new
        result = ops.result(source)
        made.append((tensor.name, source, result))
    model = ov.Model([result for _, _, result in made], rules.sinks, kept, title)
    for parameter in kept if contract.kv else ():
        if _batched(parameter, contract):
            shape = parameter.get_partial_shape()
            shape[0] = 1
            parameter.set_partial_shape(shape)
    # Compiling joins what is computed twice, and an output would get the other one's name as well.
    for node in model.get_ordered_ops():
        if node.get_type_name() not in ("Parameter", "Result"):
            for output in node.outputs():
                output.get_tensor().set_names(set())
    for name, source, result in made:
        source.get_tensor().set_names({name})
        result.output(0).get_tensor().set_names({name})
        result.set_friendly_name(name)
    model.validate_nodes_and_infer_types()
    return model


def _batched(parameter: ov.Node, contract: StageContract) -> bool:
    name = _name_of(parameter.output(0))
    return any(t.name == name and t.shape[:1] == ("batch",) for t in contract.inputs)


def _name_of(output: ov.Output) -> str:
    names = sorted(output.get_names())
    return str(names[0] if names else output.get_node().get_friendly_name())


def _name(model: ov.Model) -> None:
    """Give every node that has no name of its own one after the module it belongs to, the same in every process."""
    taken = {node.get_friendly_name() for node in model.get_ordered_ops()}
    counts: dict[str, int] = {}
    for node in reversed(model.get_ordered_ops()):
        if node.get_friendly_name() != node.get_name():
            continue
        readers = [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]
        path = min((_path(reader.get_friendly_name()) for reader in readers), default="")
        base = f"{path}/{node.get_type_name()}" if path else str(node.get_type_name())
        while True:
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}_{counts[base]}"
            if name not in taken:
                break
        node.set_friendly_name(name)
        taken.add(name)


def _path(name: str) -> str:
    return name.rsplit("/", 1)[0] if "/" in name else ""
