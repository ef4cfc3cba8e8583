"""How the example target spells a graph: standard ONNX ops, without those that compute nothing.

A dialect is a function that takes a stage in semantic ops and spells it, in place. This one begins with a dialect that
edgewright has; one that has kernels of its own replaces `ew::` nodes before that.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.dialects import onnx_qdq
from edgewright.errors import UnsupportedFormatError
from edgewright.graph import Stage

#: Ops that the device has no control flow for.
_NO_LOWERING = ("If", "Loop", "Scan")


def lower(stage: Stage) -> Stage:
    """Spell a stage; raises UnsupportedFormatError naming op and layer of what there is no lowering for."""
    onnx_qdq.lower(stage)
    for node in list(stage.graph):
        if node.op_type in _NO_LOWERING:
            raise UnsupportedFormatError(
                f"The example target has no {node.op_type}, which {node.name} is made of: use another target."
            )
        if node.op_type == "Identity":
            _drop(stage, node)
    return stage


def _drop(stage: Stage, node: ir.Node) -> None:
    """Let everything read an Identity's input; one that gives an output of the stage its name has to stay."""
    source, copy = node.inputs[0], node.outputs[0]
    if source is None or copy in stage.graph.outputs:
        return
    ir.convenience.replace_all_uses_with(copy, source)
    stage.graph.remove(node, safe=True)
