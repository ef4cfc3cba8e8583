"""`Experts` in ONNX Runtime: the MoE and QMoE kernels where they fit, else a loop over the experts that were chosen.

Both kernels choose and weigh experts themselves. QMoE takes the weights as an input of its own (`router_weights`). MoE
takes a softmax of its input: given log(routing) it returns the sum in shares, to be multiplied by the routing's total.
Gate and up are one matrix there, row by row in turn.

ONNX Runtime 1.32 on the CPU, against the reference body: MoE within 4e-7 of the largest output, QMoE likewise with 4
bits and float activations, codes, scales and zero points exactly as they are stored here. What is not there, and goes
to the loop: gelu, sigmoid and tanh with a gate; formats that differ between projections; rows of no whole blocks;
offsets; 8 bits with float activations, since QMoE's 8-bit path always rounds its inputs; FP8, FP4, and int8 of whole
rows, which are decoded expert by expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.graph import Producer, Stage, TensorSpec
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import int64_constant, made_by, replace, scalar_constant
from edgewright.ops.experts import EXPERT_BIASES, EXPERT_WEIGHTS

MICROSOFT = "com.microsoft"

#: The kernels' names of activations without a gate.
_PLAIN = {"relu": "relu", "silu": "silu", "gelu_tanh": "gelu"}
#: SwiGLU's alpha for gates that are g * sigmoid(alpha * g); a steep sigmoid is a step, which makes it relu.
_STEEP = 1e10
_ALPHAS = {"silu": 1.0, "quick_gelu": 1.702, "relu": _STEEP}


class InterleavedProducer(Producer):
    """Several producers of equal specs joined row by row in turn."""

    def __init__(self, parts: Sequence[Producer], names: Sequence[str]) -> None:
        self.parts = tuple(parts)
        specs = []
        for index, name in enumerate(names):
            columns = [part.specs[index] for part in parts]
            assert len({(c.dtype, c.shape) for c in columns}) == 1, columns
            shape = columns[0].shape
            specs.append(TensorSpec(name, columns[0].dtype, (shape[0] * len(parts), *shape[1:])))
        self.specs = tuple(specs)

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for makers in zip(*(part.chunks() for part in self.parts), strict=True):
            yield lambda m=makers: _in_turn([make() for make in m])  # type: ignore[misc]


def _in_turn(parts: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    columns = zip(*parts, strict=True)
    return tuple(np.stack(arrays, axis=1).reshape(-1, *arrays[0].shape[1:]) for arrays in columns)


@dataclass(frozen=True)
class _Stored:
    """How a weight is stored: a float tensor, or codes, scales, zero points and offsets in the format `a`.

    `dtype` is float32, float16, codes (of an integer format) or decoded (of another, with what `Decode` takes).
    """

    dtype: str
    tensors: tuple[ir.Value | None, ...]
    a: dict[str, Any]

    @property
    def half_scales(self) -> bool:
        """Whether the scales are float16, which the kernels don't take along with float32 inputs."""
        return self.a.get("scales") == "float16"

    @property
    def kind(self) -> tuple[object, ...]:
        """What weights must have in common to be one matrix."""
        shapes = [None if t is None or t.shape is None else tuple(t.shape) for t in self.tensors]
        return (self.dtype, tuple(sorted(self.a.items())), tuple(shapes))


def _stored(value: ir.Value) -> _Stored:
    codes = made_by(value, "Dequantize")
    if codes is not None:
        tensors = (*codes.inputs, None, None)[:4]
        return _Stored("codes", tensors, {name: attribute.value for name, attribute in codes.attributes.items()})
    decoded = made_by(value, "Decode")
    if decoded is not None:
        a = {name: attribute.value for name, attribute in decoded.attributes.items()}
        return _Stored("decoded", tuple(decoded.inputs), a)
    half = made_by(value, "Cast", "")
    return _Stored("float32", (value,), {}) if half is None else _Stored("float16", (half.inputs[0],), {})


def lower_experts(stage: Stage, node: ir.Node) -> None:
    """Put the MoE or QMoE kernel in the node's place where one fits, else a loop over the chosen experts.

    Weights that are no initializers keep the reference body.
    """
    inputs = _given(node)
    values = [inputs[place] for place in EXPERT_BIASES]
    values += [tensor for place in EXPERT_WEIGHTS if (w := inputs[place]) is not None for tensor in _stored(w).tensors]
    if any(value is not None and value.name not in stage.producers for value in values):
        return
    if not _kernel(stage, node):
        _loop(stage, node)


def _given(node: ir.Node) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * (8 - len(node.inputs))]


def _kernel(stage: Stage, node: ir.Node) -> bool:
    """Put a kernel in the node's place if one fits."""
    inputs = _given(node)
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    gated = inputs[2] is not None
    activation = _activation(a, gated=gated)
    if activation is None:
        return False
    places = [place for place in EXPERT_WEIGHTS if inputs[place] is not None]
    if not gated and a["activation"] == "relu2":
        # relu(u)^2 is SwiGLU with up as its own gate: half as much again to store, but a token takes 0.1 ms and not 2
        # (int4, 4 of 32 experts, hidden 512, inner 256). On floats the loop is as fast.
        if made_by(inputs[3], "Dequantize") is None:
            return False
        inputs[2], inputs[5], places = inputs[3], inputs[6], list(EXPERT_WEIGHTS)
    *first, down = [_stored(value) for value in inputs[2:5] if value is not None]
    *fc1_biases, fc2_bias = [inputs[place + 3] for place in places]
    if len({weight.kind for weight in first}) != 1 or len({bias is None for bias in fc1_biases}) != 1:
        return False
    if (first[0].dtype == "codes") != (down.dtype == "codes") or "decoded" in (first[0].dtype, down.dtype):
        return False
    quantized = _quantized(first[0], down) if down.dtype == "codes" else None
    if down.dtype == "codes" and quantized is None:
        return False

    experts, name = a["experts"], node.name or ""
    new: list[ir.Node] = []

    def add(op_type: str, given: Sequence[ir.Value | None], domain: str = "", **attributes: Any) -> ir.Value:
        new.append(make_node(domain, op_type, given, attributes, name=f"{name}/{op_type}_{len(new)}"))
        return new[-1].outputs[0]

    def by_expert(value: ir.Value | None) -> ir.Value | None:
        return None if value is None else stage.alias(value, lambda shape: _split(shape, experts))

    def matrix(weight: _Stored, place: int) -> ir.Value | None:
        value = by_expert(weight.tensors[place]) if place < len(weight.tensors) else None
        half = weight.dtype == "float16" or (place == 1 and weight.half_scales)
        return add("Cast", [value], to=int(ir.DataType.FLOAT)) if half else value

    fc1 = _joined(stage, first)
    fc1_bias = by_expert(_joined_values(stage, fc1_biases))
    fc2_bias = by_expert(fc2_bias)
    flat = int64_constant(stage, [-1, experts], f"flat_{experts}")
    routing = add("Reshape", [inputs[1], flat])
    if quantized is not None:
        # Weights at most 1e-8 are left out by the kernel.
        y = add(
            "QMoE",
            [
                inputs[0], routing, matrix(fc1, 0), matrix(fc1, 1), fc1_bias,
                matrix(down, 0), matrix(down, 1), fc2_bias, None, None, None,
                matrix(fc1, 2), matrix(down, 2), None, routing,
            ],
            MICROSOFT, k=a["top_k"], weights_prepacked=0, **activation, **quantized,
        )  # fmt: skip
        replace(stage, node, new, [y])
        return True
    logits = add("Log", [routing])  # -inf is a share of zero, which the kernel leaves out
    fc1_matrix, fc2_matrix = matrix(fc1, 0), matrix(down, 0)
    kernel = [inputs[0], logits, fc1_matrix, fc1_bias, fc2_matrix, fc2_bias]
    shares = add("MoE", kernel, MICROSOFT, k=a["top_k"], **activation)
    last = int64_constant(stage, [-1], "last_axis")
    total = add("ReduceSum", [inputs[1], last], keepdims=1)
    replace(stage, node, new, [add("Mul", [shares, total])])
    return True


def _activation(a: dict[str, Any], *, gated: bool) -> dict[str, Any] | None:
    """Return the kernels' attributes for an activation, or None."""
    kind = a["activation"]
    swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1}
    if not gated:
        if kind == "relu2":
            return {**swiglu, "activation_alpha": _STEEP, "activation_beta": 0.0}
        return {"activation_type": _PLAIN[kind]} if kind in _PLAIN else None
    if kind in _ALPHAS:
        return {**swiglu, "activation_alpha": _ALPHAS[kind], "activation_beta": 0.0}
    if kind == "swiglu_clamped":
        return {**swiglu, "activation_alpha": a["alpha"], "activation_beta": 1.0, "swiglu_limit": a["limit"]}
    return None


def _quantized(fc1: _Stored, fc2: _Stored) -> dict[str, Any] | None:
    """Return QMoE's attributes for a format, or None where it does not compute what the format says."""
    bits, group, rounds = (fc1.a[key] for key in ("bits", "group", "int8_activations"))
    if any(fc2.a[key] != fc1.a[key] for key in ("bits", "group", "int8_activations")):
        return None
    if any(w.tensors[3] is not None or w.a["in_features"] % group for w in (fc1, fc2)):
        return None
    if bits == 8 and not rounds:
        return None
    return {"expert_weight_bits": bits, "block_size": group, "accuracy_level": 4 if rounds else 1}


def _joined(stage: Stage, weights: Sequence[_Stored]) -> _Stored:
    """Return gate and up as one weight, row by row in turn."""
    if len(weights) == 1:
        return weights[0]
    columns = zip(*(weight.tensors for weight in weights), strict=True)
    return _Stored(weights[0].dtype, tuple(_joined_values(stage, column) for column in columns), weights[0].a)


def _joined_values(stage: Stage, values: Sequence[ir.Value | None]) -> ir.Value | None:
    """Return initializers joined row by row in turn, made once for all tensors of their producers."""
    given = [value.name for value in values if value is not None and value.name is not None]
    if len(given) < 2:
        return values[0]
    producers = [stage.producers[name] for name in given]
    modules = [name.rsplit(".", 1)[0] for name in given]
    parent = modules[0].rsplit(".", 1)[0]
    joined = f"{parent}." + "+".join(module.rsplit(".", 1)[-1] for module in modules)
    names = [f"{joined}.{spec.name.rsplit('.', 1)[-1]}" for spec in producers[0].specs]
    if names[0] not in stage.graph.initializers:
        stage.add_producer(InterleavedProducer(producers, names))
    index = next(i for i, spec in enumerate(producers[0].specs) if spec.name == given[0])
    return stage.graph.initializers[names[index]]


def _loop(stage: Stage, node: ir.Node) -> None:
    """Visit only the experts some token chose, each for its own tokens, with the expert's rows gathered."""
    inputs = _given(node)
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    experts, name = a["experts"], node.name or ""
    x, down = inputs[0], inputs[4]
    assert x is not None
    assert down is not None
    down_rows = _stored(down).tensors[0]
    assert down_rows is not None
    assert down_rows.shape is not None
    hidden = int(down_rows.shape[0]) // experts  # type: ignore[arg-type]
    outer, inner = _Nodes(name), _Nodes(f"{name}/each")
    second, last = int64_constant(stage, [1], "index_1"), int64_constant(stage, [-1], "last_axis")
    flat_x = int64_constant(stage, [-1, hidden], f"flat_{hidden}")
    flat_r = int64_constant(stage, [-1, experts], f"flat_{experts}")
    rows, routing = outer.add("Reshape", [x, flat_x]), outer.add("Reshape", [inputs[1], flat_r])
    # The second row of NonZero's pairs are experts.
    hit = outer.add("Unique", [outer.add("Gather", [outer.add("NonZero", [routing]), second], axis=0)])
    start = outer.add("ConstantOfShape", [outer.add("Shape", [rows])])

    step, go_on, so_far = (ir.Value(name=f"{name}/each:{n}") for n in ("step", "go_on", "so_far"))
    step.type, step.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    go_on.type, go_on.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    so_far.type, so_far.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, hidden])
    expert = inner.add("Gather", [hit, step], axis=0)
    column = inner.add("Gather", [routing, expert], axis=1)
    places = inner.add("Transpose", [inner.add("NonZero", [column])], perm=[1, 0])
    mine = inner.add("GatherND", [rows, places])
    share = inner.add("Unsqueeze", [inner.add("GatherND", [column, places]), last])

    def product(v: ir.Value, place: int) -> ir.Value:
        value, bias = inputs[place], inputs[place + 3]
        assert value is not None
        y = _product(stage, outer, inner, experts, expert, v, _stored(value))
        if bias is None:
            return y
        mine_bias = inner.add("Gather", [stage.alias(bias, lambda shape: _split(shape, experts)), expert], axis=0)
        return inner.add("Add", [y, mine_bias])

    up = product(mine, 3)
    gate = None if inputs[2] is None else product(mine, 2)
    mixed = _mix(inner, a, gate, up)
    part = inner.add("Mul", [product(mixed, 4), share])
    total = inner.add("ScatterND", [so_far, places, part], reduction="add")
    still = inner.add("Identity", [go_on])
    still.type, total.type = go_on.type, so_far.type
    body = ir.Graph([step, go_on, so_far], [still, total], nodes=inner.nodes, name=f"{name}/each")
    done = outer.add("Loop", [outer.add("Size", [hit]), None, start], body=body)
    y = outer.add("Reshape", [done, outer.add("Shape", [x])], allowzero=1)
    replace(stage, node, outer.nodes, [y])


class _Nodes:
    """Nodes in the making, named after a path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.nodes: list[ir.Node] = []

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: Any) -> ir.Value:
        """Append a node; returns its first output."""
        name = f"{self._path}/{op_type}_{len(self.nodes)}"
        self.nodes.append(make_node(domain, op_type, inputs, attributes, name=name))
        return self.nodes[-1].outputs[0]


def _product(
    stage: Stage, outer: _Nodes, nodes: _Nodes, experts: int, expert: ir.Value, x: ir.Value, weight: _Stored
) -> ir.Value:
    """The product of x `[tokens, width]` with the matrix of one expert; what all experts share goes to `outer`."""

    def by_expert(value: ir.Value | None) -> ir.Value | None:
        return None if value is None else stage.alias(value, lambda shape: _split(shape, experts))

    if weight.dtype == "decoded":
        rows = weight.a["out_features"] // experts
        firsts = [scalar_constant(stage, n, np.int64, f"scalar_{n}") for n in (0, rows, 1)]
        begin = nodes.add("Mul", [expert, firsts[1]])
        ids = nodes.add("Add", [outer.add("Range", firsts), begin])
        matrix = nodes.add("DecodeRows", [ids, *weight.tensors], EW, **weight.a)
        return nodes.add("FusedMatMul", [x, matrix], MICROSOFT, transB=1)
    stored, *rest = (by_expert(value) for value in weight.tensors)
    if weight.dtype != "codes":
        matrix = nodes.add("Gather", [stored, expert], axis=0)
        if weight.dtype == "float16":
            matrix = nodes.add("Cast", [matrix], to=int(ir.DataType.FLOAT))
        return nodes.add("FusedMatMul", [x, matrix], MICROSOFT, transB=1)
    # MatMulNBits takes weights that are no initializers too, but unpacks them 2 to 5 times as slowly.
    scales, zero_points, offsets = rest
    if weight.half_scales:
        scales = outer.add("Cast", [scales], to=int(ir.DataType.FLOAT))
    bits, group, width = (weight.a[key] for key in ("bits", "group", "in_features"))
    layout = {"bits": bits, "block_size": group, "gather_axis": 0, "quantize_axis": 2}
    matrix = nodes.add("GatherBlockQuantized", [stored, expert, scales, zero_points], MICROSOFT, **layout)
    if width % group:
        ends = [int64_constant(stage, [n], f"slice_{n}") for n in (0, width, -1)]
        matrix = nodes.add("Slice", [matrix, *ends])
    y = nodes.add("FusedMatMul", [x, matrix], MICROSOFT, transB=1)
    if offsets is None:
        return y
    # The offset of a block multiplies the sum of its inputs; widths of stored blocks are whole blocks.
    blocked = int64_constant(stage, [0, width // group, group], f"blocks_{width}_{group}")
    last = int64_constant(stage, [-1], "last_axis")
    sums = nodes.add("ReduceSum", [nodes.add("Reshape", [x, blocked]), last], keepdims=0)
    mine = nodes.add("Gather", [offsets, expert], axis=0)
    return nodes.add("Add", [y, nodes.add("FusedMatMul", [sums, mine], MICROSOFT, transB=1)])


def _split(shape: tuple[int, ...], experts: int) -> tuple[int, ...]:
    """The shape of stacked rows taken apart by expert: `[experts, rows]`, or `[experts, rows, bytes or elements]`."""
    rows, *rest = shape
    return (experts, rows // experts, math.prod(rest)) if rest else (experts, rows // experts)


def _mix(nodes: _Nodes, a: dict[str, Any], gate: ir.Value | None, up: ir.Value) -> ir.Value:
    """The activation, times up where there is a gate."""
    if a["activation"] == "swiglu_clamped":
        assert gate is not None
        high, low, one = (nodes.add("Constant", [], value_float=v) for v in (a["limit"], -a["limit"], 1.0))
        cut = nodes.add("Min", [gate, high])
        glu = nodes.add("QuickGelu", [cut], MICROSOFT, alpha=a["alpha"])
        return nodes.add("Mul", [glu, nodes.add("Add", [nodes.add("Clip", [up, low, high]), one])])
    x, kind = up if gate is None else gate, a["activation"]
    if kind in ("silu", "quick_gelu"):
        act = nodes.add("QuickGelu", [x], MICROSOFT, alpha=1.0 if kind == "silu" else 1.702)
    elif kind == "relu2":
        positive = nodes.add("Relu", [x])
        act = nodes.add("Mul", [positive, positive])
    elif kind in ("relu", "sigmoid", "tanh"):
        act = nodes.add(kind.capitalize(), [x])
    else:
        act = nodes.add("Gelu", [x], approximate="tanh" if kind == "gelu_tanh" else "none")
    return act if gate is None else nodes.add("Mul", [act, up])
