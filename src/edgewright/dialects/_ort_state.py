"""Rules of the onnxruntime dialect for the ops that carry a state.

`CausalConv` and `StateSpace` keep their reference bodies: the kernels for them (`CausalConvWithState`; `GatedDeltaNet`
with the rule "gated") are as exact, but slower in onnxruntime 1.32. On one thread a convolution of 1792 channels takes
5.4 ms instead of 2.1 for 256 tokens and no less for one token; a state of 24 heads of 64 by 128 takes 63 ms instead of
6.4, and 0.30 instead of 0.22 for one token. `LinearAttention` is faster than that, but wants the state transposed.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import make_node
from edgewright.graph.rewrite import replace


def lower_gated_delta(stage: Stage, node: ir.Node) -> None:
    """LinearAttention: its heads may share queries and keys, and its state lies like ours."""
    q, k, v, decay, beta, past = node.inputs
    kernel = make_node(
        "com.microsoft",
        "LinearAttention",
        [q, k, v, past, decay, beta],
        {
            "q_num_heads": node.attributes["key_heads"].value,
            "kv_num_heads": node.attributes["heads"].value,
            "update_rule": "gated_delta",
            "scale": 1.0,
        },
        outputs=2,
        name=node.name or "",
    )
    replace(stage, node, [kernel], kernel.outputs)


#: The rules by semantic op.
STATE_RULES: dict[str, Callable[[Stage, ir.Node], None]] = {"GatedDelta": lower_gated_delta}
