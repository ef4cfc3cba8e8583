"""`GatedActivation`: y = act(gate) * up, element by element."""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op

#: Activation names of Hugging Face configs, and the one this op knows each by.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

_TEXT = {
    "silu": "s = Sigmoid(gate)\na = Mul(gate, s)\n",
    "gelu": 'a = Gelu<approximate = "none">(gate)\n',
    "gelu_tanh": 'a = Gelu<approximate = "tanh">(gate)\n',
    "relu": "a = Relu(gate)\n",
}


def gated_activation(g: GraphBuilder, gate: ir.Value, up: ir.Value, *, activation: str) -> ir.Value:
    """Append a `GatedActivation` node; `activation` is a value of ACTIVATIONS."""
    result: ir.Value = g.ew("GatedActivation", gate, up, activation=activation)
    return result


def _body(call: Call) -> str:
    return _TEXT[call["activation"]] + "y = Mul(a, up)\n"


GATED_ACTIVATION = Op("GatedActivation", ("gate", "up"), ("y",), _body)
