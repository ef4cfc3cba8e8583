"""The graph that a program is given: fixed sizes, an operator set that it knows, only ops that it knows, checked."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx

from edgewright.errors import UnsupportedFormatError, first_line
from edgewright.files import require_space
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE
from edgewright.targets.external.folding import drop_unread, fold_shapes
from edgewright.targets.external.older import graphs_in, lower_opset, nodes_of
from edgewright.targets.external.tool import Tool


def write_graph(source: Path, folder: Path, sizes: Mapping[str, int], tool: Tool) -> None:
    """Write the stage's graph into `folder` as the tool takes it; the weights are copied.

    Raises UnsupportedFormatError naming op and layer of what the tool has no op for, or its operator set can't say.
    """
    model = onnx.load(source / MODEL_FILE, load_external_data=False)
    _fix(model.graph, sizes)
    if tool.opset is not None:
        lower_opset(model, tool.opset, tool.title)
    if tool.static:
        fold_shapes(model, source.name)
    _check_ops(model, tool)
    drop_unread(model.graph)
    (folder / MODEL_FILE).write_bytes(model.SerializeToString(deterministic=True))
    if (source / WEIGHTS_FILE).is_file():
        # A copy, not a link: the program can't spoil ours, and the onnx package reads no weights that have two names.
        require_space(folder, (source / WEIGHTS_FILE).stat().st_size, "Compiling")
        shutil.copyfile(source / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    try:
        onnx.checker.check_model(str(folder / MODEL_FILE))
    except onnx.checker.ValidationError as error:
        raise UnsupportedFormatError(
            f"The stage {source.name} can't be spelled for {tool.title} ({first_line(error)}): use another target."
        ) from None


def _fix(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    for node in graph.node:
        for inner in graphs_in(node):
            _fix(inner, sizes)


def _check_ops(model: onnx.ModelProto, tool: Tool) -> None:
    for node in nodes_of(model.graph):
        if tool.ops and node.op_type not in tool.ops:
            raise UnsupportedFormatError(f"{tool.title} has no op {node.op_type}, which {node.name} is made of.")
