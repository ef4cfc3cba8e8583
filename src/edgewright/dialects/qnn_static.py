"""What the HTP takes: a graph of the qnn dialect for a fixed number of rows and a fixed context, in standard ops.

The graph is a float one, every tensor of which can have an encoding of its own: no ops but ONNX's, at most four axes,
batch 1. Inputs, after Genie's: `input_ids` int32 `[1, rows]`, `attention_mask` `[1, 1, rows,
context]` of zeros and of a large negative number, rows of the tables of rotation `position_ids_cos` and `_sin`
`[1, 1, rows, half]`, and for each layer `past_key_N_in` `[kv_heads, 1, head_dim, context - rows]` (keys stand in
columns) and `past_value_N_in` `[kv_heads, 1, context - rows, head_dim]`. Outputs: `logits` `[1, rows, vocab]` and the
new rows alone, `past_key_N_out` `[kv_heads, 1, head_dim, rows]`, `past_value_N_out`. A mask's first columns are the
slots of the past, its last ones the new rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edgewright.dialects.qnn import ATTRIBUTES
from edgewright.dialects.qnn_graph import CONVERT, COS, IDS, MASK, SIN, Source, StaticGraph
from edgewright.errors import UnsupportedFormatError
from edgewright.graph.builder import EW

#: What the HTP's 16-bit Sigmoid and Tanh give: scales of 1/65536 and 1/32768, whatever is asked for.
_SIGMOID, _TANH = (0.0, 65535 / 65536), (-1.0, 32767 / 32768)


def spell(
    model: onnx.ModelProto, kv: Sequence[str], *, rows: int, context: int, converted: bool = False
) -> StaticGraph:
    """Return a graph of the qnn dialect for `rows` new tokens a call and a context of `context`.

    `kv` are the names of the dialect's inputs of past keys, in the order of the layers; weights needn't be loaded. With
    `converted` the caches have an encoding of their own, for which a CONVERT stands before them.
    Raises UnsupportedFormatError, which names op and layer, for what has no form.
    """
    spelling = _Spelling(model, list(kv), StaticGraph(rows, context), converted=converted)
    for node in model.graph.node:
        spelling.take(node)
    return spelling.finish([value.name for value in model.graph.output])


class _Spelling:
    """Translates node by node; `names` maps the dialect's values to the graph's."""

    def __init__(self, model: onnx.ModelProto, kv: list[str], graph: StaticGraph, *, converted: bool) -> None:
        self.graph, self.kv, self.converted = graph, kv, converted
        self.names: dict[str, str] = {}
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self.positional = {"past_lengths", "logit_positions"}
        self.decoded: dict[str, Source] = {}
        self.heads: dict[str, str] = {}
        self.names[IDS] = graph.input(IDS, 1, graph.rows)

    def take(self, node: onnx.NodeProto) -> None:
        """Translate one node."""
        attributes = _attributes(node)
        if node.domain == EW:
            rule = getattr(self, f"_{_snake(node.op_type)}", None)
        elif self._counts(node):
            self.positional.update(node.output)
            return
        else:
            rule = getattr(self, f"_{_snake(node.op_type)}", None) if node.op_type in _STANDARD else None
        if rule is None:
            raise self._refused(node, f"the op {node.op_type}")
        rule(node, attributes)

    def finish(self, outputs: Sequence[str]) -> StaticGraph:
        """Name the logits and return the graph, with inputs in a fixed order."""
        graph, made = self.graph, self.names[outputs[0]]
        for node in graph.nodes:
            for names in (node.input, node.output):
                names[:] = ["logits" if name == made else name for name in names]
        graph.shapes["logits"] = graph.shapes.pop(made)
        graph.tied = [(_renamed(a, made), _renamed(b, made)) for a, b in graph.tied]
        graph.fixed = {_renamed(name, made): pair for name, pair in graph.fixed.items()}
        graph.outputs.insert(0, "logits")
        first = {IDS: 0, MASK: 1, COS: 3, SIN: 4}
        graph.inputs.sort(key=lambda name: first.get(name, 2 if name.startswith(MASK) else 5))
        return graph

    def _counts(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node computes with lengths, which the caller does here."""
        if node.op_type == "Shape":
            return True
        known = [name in self.positional or (name in self.stored and _whole(self.stored[name])) for name in node.input]
        return all(known) and node.op_type != "Gather"

    def _refused(self, node: onnx.NodeProto, what: str) -> UnsupportedFormatError:
        where = node.name.rsplit("/", 1)[0]
        return UnsupportedFormatError(
            f"Qualcomm's HTP can't be compiled for: {what} ({where}) has no form there; use another target, such "
            "as cpu."
        )

    def _value(self, node: onnx.NodeProto, name: str) -> str:
        """Return the graph's value, or a constant for an initializer: a number, or a vector of the weight file."""
        if name in self.heads and name not in self.names:
            four = self.heads[name]
            _, heads, rows, width = self.graph.shapes[four]
            flat = self.graph.transpose(four, f"{name}.rows", 0, 2, 1, 3)
            self.names[name] = self.graph.reshape(flat, f"{name}.flat", 1, rows, heads * width)
        if name in self.names:
            return self.names[name]
        tensor = self.stored.get(name)
        if tensor is None:
            raise self._refused(node, f"the value {name}")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            self.graph.sources[name] = Source("vector", node.name.rsplit("/", 1)[0], "", (name,))
            self.graph.shapes[name] = tuple(tensor.dims)
            return name
        array = numpy_helper.to_array(tensor)
        if array.size != 1:
            raise self._refused(node, f"a constant of {array.size} numbers")
        return self.graph.number(float(array.reshape(-1)[0]))

    def _x(self, node: onnx.NodeProto) -> str:
        return self._value(node, node.input[0])

    # Ops of the semantic vocabulary.

    def _embedding(self, node: onnx.NodeProto, a: Mapping[str, Any], place: int = 1) -> None:
        inputs = (*node.input[place:], "", "", "", "")
        rows = self.stored[inputs[0]].dims[0]
        width = a.get("in_features") or self.stored[inputs[0]].dims[1]
        table = f"{node.output[0]}.table"
        self.graph.sources[table] = Source("table", _module(node), node.op_type, tuple(inputs), a)
        self.graph.shapes[table] = (int(rows), int(width))
        ids = self._value(node, node.input[0])
        y = self.graph.add("Gather", [table, ids], node.output[0], (1, self.graph.rows, width), axis=0)
        self.graph.tied.append((table, y))
        self.names[node.output[0]] = y

    _quant_embedding = _decode_rows = _embedding

    def _decode(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        self.decoded[node.output[0]] = Source("linear", _module(node), "Decode", tuple(node.input), a)

    def _round_input(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        # The encoding of 16 bits is finer than what the recipe would round to.
        self.names[node.output[0]] = self._x(node)

    def _linear(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        weight, bias = node.input[1], node.input[2] if len(node.input) > 2 else ""
        decoded = self.decoded.get(weight)
        if decoded is not None:
            rows, source = int(decoded.attributes["out_features"]), decoded
        elif weight in self.stored:
            rows, source = int(self.stored[weight].dims[0]), Source("linear", _module(node), "Linear", (weight,), a)
        else:
            raise self._refused(node, "a product with a weight that is computed")
        self._product(node, source, rows, bias)

    def _quant_linear(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        inputs = (*node.input, "", "", "", "")
        source = Source("linear", _module(node), "QuantLinear", tuple(inputs[1:5]), a)
        self._product(node, source, int(a["out_features"]), inputs[5])

    def _product(self, node: onnx.NodeProto, source: Source, rows: int, bias: str) -> None:
        x, y = self._x(node), node.output[0]
        weight = f"{y}.weight"
        self.graph.sources[weight] = source
        self.graph.shapes[weight] = (self.graph.shapes[x][-1], rows)
        shape = (*self.graph.shapes[x][:-1], rows)
        out = self.graph.add("MatMul", [x, weight], f"{y}.product" if bias else y, shape)
        if bias:
            out = self.graph.add("Add", [out, self._value(node, bias)], y, shape)
        self.names[y] = out

    def _rms_norm(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        self._norm("RMSNormalization", node, a)

    def _layer_norm(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        self._norm("LayerNormalization", node, a)

    def _norm(self, op_type: str, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        x, y = self._x(node), node.output[0]
        whole = self.graph.shapes[x]
        group = a.get("group")
        if group:
            x = self.graph.reshape(x, f"{y}.groups", *whole[:-1], whole[-1] // group, group)
        shape = self.graph.shapes[x]
        parameters = [self._value(node, name) for name in node.input[1:] if name]
        if not parameters:
            parameters = [self._filled(shape[-1], 1.0)]
        if op_type == "LayerNormalization" and len(parameters) == 1:  # the HTP's has both
            parameters.append(self._filled(shape[-1], 0.0))
        inner = f"{y}.normed" if group else y
        out = self.graph.add(op_type, [x, *parameters], inner, shape, axis=-1, epsilon=a["epsilon"])
        self.names[y] = self.graph.reshape(out, y, *whole) if group else out

    def _filled(self, width: int, value: float) -> str:
        name = f"filled_{width}_{value!r}"
        self.graph.constants[name] = np.full(width, value, dtype=np.float32)
        return name

    def _four(self, node: onnx.NodeProto, name: str, width: int) -> str:
        """Return `[1, heads, rows, width]` of a value `[1, rows, heads * width]`."""
        if name not in self.heads:
            x = self._value(node, name)
            heads = self.graph.shapes[x][-1] // width
            split = self.graph.reshape(x, f"{name}.heads", 1, self.graph.rows, heads, width)
            self.heads[name] = self.graph.transpose(split, f"{name}.by_head", 0, 2, 1, 3)
        return self.heads[name]

    def _rope(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        g, y, rotary = self.graph, node.output[0], a["rotary_dim"]
        if node.input[1] not in self.positional:
            raise self._refused(node, "rotation by positions that are no running numbers")
        x = self._four(node, node.input[0], a["head_dim"])
        _, heads, rows, width = g.shapes[x]
        cos, sin = self._tables(node.input[2], node.input[3], rotary // 2)
        parts = [rotary // 2, rotary // 2, *([width - rotary] if width > rotary else [])]
        names = [f"{y}.a", f"{y}.b", f"{y}.rest"][: len(parts)]
        half = (1, heads, rows, rotary // 2)
        if a["interleaved"]:  # pairs come apart as halves and stay so: queries and keys are in one order
            cuts = [(0, rotary, 2), (1, rotary, 2), (rotary, width, 1)]
            for name, (start, stop, step), part in zip(names, cuts, parts, strict=False):
                ends = [g.ints([n]) for n in (start, stop, 3, step)]
                g.moved("Slice", x, ends, name, (1, heads, rows, part))
        else:
            g.nodes.append(onnx.helper.make_node("Split", [x, g.ints(parts)], names, name=f"{y}.split", axis=3))
            for name, part in zip(names, parts, strict=True):
                g.shapes[name] = (1, heads, rows, part)
                g.tied.append((x, name))
        first = g.add("Sub", [g.add("Mul", [names[0], cos], f"{y}.ac", half), g.add("Mul", [names[1], sin],
                      f"{y}.bs", half)], f"{y}.first", half)  # fmt: skip
        second = g.add("Add", [g.add("Mul", [names[1], cos], f"{y}.bc", half), g.add("Mul", [names[0], sin],
                       f"{y}.as", half)], f"{y}.second", half)  # fmt: skip
        turned = [first, second, *names[2:]]
        self.heads[y] = g.add("Concat", turned, f"{y}.turned", (1, heads, rows, width), axis=3)
        g.tied += [(self.heads[y], name) for name in turned]

    def _tables(self, cos: str, sin: str, half: int) -> tuple[str, str]:
        """Return the inputs that take rows of a pair of tables; a second pair has a number."""
        known = [name for name, table in self.graph.tables.items() if name.startswith(COS) and table == cos]
        count = sum(name.startswith(COS) for name in self.graph.tables)
        suffix = known[0].removeprefix(COS) if known else (f"_{count}" if count else "")
        for name, table in ((COS, cos), (SIN, sin)):
            self.graph.tables[name + suffix] = table
            self.graph.input(name + suffix, 1, 1, self.graph.rows, half)
        return COS + suffix, SIN + suffix

    def _mask(self, window: int | None) -> str:
        window = None if window is None or window >= self.graph.context else window
        name = MASK if window is None else f"{MASK}_window_{window}"
        self.graph.windows[name] = window
        return self.graph.input(name, 1, 1, self.graph.rows, self.graph.context)

    def _attention(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        g, y = self.graph, node.output[0]
        heads, kv_heads, width, value_width = a["heads"], a["kv_heads"], a["head_dim"], a["value_dim"]
        rows, group = g.rows, heads // kv_heads
        keys, values = self._cache(node, a)
        q = self._four(node, node.input[0], width)
        q = g.add("Mul", [q, g.number(a["scale"])], f"{y}.scaled", g.shapes[q])
        q = g.reshape(q, f"{y}.grouped", kv_heads, 1, group * rows, width)
        scores = g.add("MatMul", [q, keys], f"{y}.scores", (kv_heads, 1, group * rows, g.context))
        scores = g.reshape(scores, f"{y}.by_head", kv_heads, group, rows, g.context)
        if a.get("softcap"):
            scores = self._capped(scores, f"{y}.capped", a["softcap"])
        shape = g.shapes[scores]
        masked = g.add("Add", [scores, self._mask(a.get("window"))], f"{y}.masked", shape)
        g.masked[masked] = scores
        shares = g.add("Softmax", [masked], f"{y}.shares", shape, axis=-1)
        g.fixed[shares] = (0.0, 1.0)
        shares = g.reshape(shares, f"{y}.by_group", kv_heads, 1, group * rows, g.context)
        mixed = g.add("MatMul", [shares, values], f"{y}.mixed", (kv_heads, 1, group * rows, value_width))
        self.heads[y] = g.reshape(mixed, f"{y}.of_heads", 1, heads, rows, value_width)

    def _cache(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> tuple[str, str]:
        """Return the whole context's keys, in columns, and values; the new ones become outputs."""
        g, layer = self.graph, self.kv.index(node.input[3])
        kv_heads, found = a["kv_heads"], []
        for name, source, width, axis in (
            ("key", node.input[1], a["head_dim"], 3), ("value", node.input[2], a["value_dim"], 2),
        ):  # fmt: skip
            perm = (1, 0, 3, 2) if axis == 3 else (1, 0, 2, 3)
            new = self._four(node, source, width)
            if self.converted:
                new = g.add(CONVERT, [new], f"{name}s_{layer}_new", g.shapes[new])
            new = g.transpose(new, f"past_{name}_{layer}_out", *perm)
            g.outputs.append(new)
            sizes = [kv_heads, 1, width, width]
            sizes[axis] = g.past
            past = g.input(f"past_{name}_{layer}_in", *sizes)
            sizes[axis] = g.context
            found.append(g.add("Concat", [past, new], f"{name}s_{layer}", sizes, axis=axis))
            g.tied += [(past, new), (past, found[-1])]
        return found[0], found[1]

    def _capped(self, x: str, y: str, cap: float) -> str:
        g, shape = self.graph, self.graph.shapes[x]
        part = g.add("Mul", [x, g.number(1 / cap)], f"{y}.part", shape)
        bent = g.add("Tanh", [part], f"{y}.bent", shape)
        g.fixed[bent] = _TANH
        return g.add("Mul", [bent, g.number(cap)], y, shape)

    def _softcap(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        self.names[node.output[0]] = self._capped(self._x(node), node.output[0], a["cap"])

    def _activation(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        self.names[node.output[0]] = self._bent(a["activation"], self._x(node), node.output[0])

    def _gated_activation(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        gate, up = (self._value(node, name) for name in node.input[:2])
        y = node.output[0]
        bent = self._bent(a["activation"], gate, f"{y}.bent")
        self.names[y] = self.graph.add("Mul", [bent, up], y, self.graph.shapes[gate])

    def _bent(self, kind: str, x: str, y: str) -> str:
        """Append an activation. The HTP has one GELU, the exact one; the tanh form differs by less than 0.0005."""
        g, shape = self.graph, self.graph.shapes[x]
        if kind in ("silu", "quick_gelu"):
            part = x if kind == "silu" else g.add("Mul", [x, g.number(1.702)], f"{y}.part", shape)
            gate = g.add("Sigmoid", [part], f"{y}.gate", shape)
            g.fixed[gate] = _SIGMOID
            return g.add("Mul", [x, gate], y, shape)
        if kind == "relu2":
            cut = g.add("Relu", [x], f"{y}.cut", shape)
            return g.add("Mul", [cut, cut], y, shape)
        op_type = {"gelu": "Gelu", "gelu_tanh": "Gelu", "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}[kind]
        return self._alone(op_type, x, y)

    def _alone(self, op_type: str, x: str, y: str) -> str:
        if op_type in ("Sigmoid", "Tanh"):
            self.graph.fixed[y] = _SIGMOID if op_type == "Sigmoid" else _TANH
        return self.graph.add(op_type, [x], y, self.graph.shapes[x])

    # Ops of ONNX's own.

    def _gather(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        if node.input[1] != "logit_positions":
            raise self._refused(node, "the op Gather")
        self.names[node.output[0]] = self._x(node)  # the caller takes the rows it wants

    def _pair(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        inputs = [self._value(node, name) for name in node.input]
        shape = np.broadcast_shapes(*(self.graph.shapes.get(name, (1,)) for name in inputs))
        self.names[node.output[0]] = self.graph.add(node.op_type, inputs, node.output[0], shape)

    _add = _sub = _mul = _div = _pair

    def _single(self, node: onnx.NodeProto, a: Mapping[str, Any]) -> None:
        self.names[node.output[0]] = self._alone(node.op_type, self._x(node), node.output[0])

    _tanh = _sigmoid = _single


_STANDARD = frozenset(["Add", "Sub", "Mul", "Div", "Gather", "Tanh", "Sigmoid"])


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {entry.key: entry.value for entry in node.metadata_props}.get(ATTRIBUTES)
    return dict(json.loads(found)) if found else {}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=S)(?=Norm)", "_", name).lower()


def _module(node: onnx.NodeProto) -> str:
    return str(node.name).rsplit("/", 1)[0]


def _whole(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def _renamed(name: str, old: str) -> str:
    return "logits" if name == old else name
