"""`Activation` and `GatedActivation`: y = act(x), and y = act(gate) * up, element by element."""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, scalar

#: Activation names of Hugging Face configs, and the one these ops know each by.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


def activation_text(kind: str, x: str, y: str) -> str:
    """Statements that define `y` as the activation of `x`."""
    return {
        "silu": f"{y}_s = Sigmoid({x})\n{y} = Mul({x}, {y}_s)\n",
        "gelu": f'{y} = Gelu<approximate = "none">({x})\n',
        "gelu_tanh": f'{y} = Gelu<approximate = "tanh">({x})\n',
        "quick_gelu": scalar(f"{y}_k", 1.702) + f"{y}_t = Mul({x}, {y}_k)\n{y}_s = Sigmoid({y}_t)\n"
        f"{y} = Mul({x}, {y}_s)\n",
        "relu": f"{y} = Relu({x})\n",
        "relu2": f"{y}_r = Relu({x})\n{y} = Mul({y}_r, {y}_r)\n",
        "sigmoid": f"{y} = Sigmoid({x})\n",
        "tanh": f"{y} = Tanh({x})\n",
    }[kind]


def activation(g: GraphBuilder, x: ir.Value, *, activation: str) -> ir.Value:
    """Append an `Activation` node; `activation` is a value of ACTIVATIONS."""
    result: ir.Value = g.ew("Activation", x, activation=activation)
    return result


def gated_activation(g: GraphBuilder, gate: ir.Value, up: ir.Value, *, activation: str) -> ir.Value:
    """Append a `GatedActivation` node; `activation` is a value of ACTIVATIONS."""
    result: ir.Value = g.ew("GatedActivation", gate, up, activation=activation)
    return result


def _body(call: Call) -> str:
    return activation_text(call["activation"], "x", "y")


def _gated_body(call: Call) -> str:
    return activation_text(call["activation"], "gate", "a") + "y = Mul(a, up)\n"


ACTIVATION = Op("Activation", ("x",), ("y",), _body)
GATED_ACTIVATION = Op("GatedActivation", ("gate", "up"), ("y",), _gated_body)
