"""The tensorrt-edge-llm dialect: what NVIDIA's TensorRT Edge-LLM builder reads (the form of its exporter 0.11).

A graph is float16, over tokens of all sequences one behind the other; keys and values are pages of a pool that the
attention plug-in reads and writes; the embedding table stands outside. Every node, name, dtype and weight is the
exporter's own where that computes the same, which the goldens compare; where it would clamp zero points or leave a
window or a rope's scaling out, this one doesn't. What has no form is refused with the layer's name. The model's config
and the table's record are in the graph's metadata, for the builder's `config.json`.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnx_ir as ir

from edgewright.dialects.edgellm.attention import PAGE, Layer, is_attention, read_layer, write_attention
from edgewright.dialects.edgellm.config import builder_config, table_record
from edgewright.dialects.edgellm.spelling import FLOAT, PLUGINS, TENSORRT, Spelling
from edgewright.dialects.edgellm.weights import Weights, is_linear, refuse
from edgewright.errors import ModelError, UnsupportedFormatError
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.outside import EMBEDDINGS, take_table_outside
from edgewright.graph.rewrite import module_of

#: Keys of the graph's metadata.
CONFIG, TABLE = "edgellm.config", "edgellm.embedding"
NAME = "tensorrt-edge-llm"

_TOKENS, _SEQUENCES = "physical_tokens", "num_sequences"


def lower(stage: Stage, *, fragments: bool | None = None) -> Stage:
    """Replace the stage's graph by that of the builder; the stage's contract stays, but for its embedded tokens.

    int4 weights get the second plug-in's layout where their sizes allow it, and the first one's elsewhere; `fragments`
    says which, for all of them. Raises UnsupportedFormatError naming layer and reason for what has no form.
    """
    if stage.loop is not None or not stage.contract.kv or not stage.config:
        raise UnsupportedFormatError(
            f"The {stage.name} stage is no language model with a key/value cache, and TensorRT Edge-LLM has a form for "
            "no other here: use the target tensorrt."
        )
    if stage.contract.state or stage.contract.rope_switch is not None:
        raise UnsupportedFormatError(
            f"A {stage.config.get('model_type')} model, whose layers have a state or whose rope depends on the length, "
            "has no form in the tensorrt-edge-llm dialect: use the target tensorrt."
        )
    if stage.vocabulary:
        raise UnsupportedFormatError(
            "A reduced vocabulary has no form in the tensorrt-edge-llm dialect: deploy with the whole one."
        )
    if stage.outside is None:
        try:
            take_table_outside(stage)
        except ModelError:
            raise UnsupportedFormatError(
                f"TensorRT Edge-LLM looks embeddings up outside its engine, and the token ids of this "
                f"{stage.config.get('model_type')} model are read by more than one table: use the target tensorrt."
            ) from None
    _Lowering(stage, fragments).run()
    used = {node.domain for node in stage.graph}
    stage.opset_imports = {domain: 1 for domain in (PLUGINS, TENSORRT) if domain in used}
    stage.contract = dataclasses.replace(stage.contract, kv_in_place=True)
    return stage


class _Lowering:
    """Builds the new graph from the old one, on demand from the residual stream."""

    def __init__(self, stage: Stage, fragments: bool | None) -> None:
        self.stage, self.old = stage, stage.graph
        self.layers = [read_layer(stage, node) for node in stage.graph if is_attention(node)]
        self.number = {id(layer.node): number for number, layer in enumerate(self.layers)}
        self.heads = [value for value in stage.graph.outputs if value.name == "logits"]
        stage.graph = ir.Graph([], [], nodes=[], name=self.old.name)
        self.spell = Spelling(stage)
        self.weights = Weights(stage, self.spell, fragments)
        stage.producers, stage.aliases = {}, {}
        self.values: dict[str, ir.Value] = {}
        self.done: dict[int, ir.Value] = {}
        self.presents: dict[int, ir.Value] = {}

    def run(self) -> None:
        self._inputs()
        before = self.spell.node("model", "Shape", self.values[EMBEDDINGS], end=1, start=0)
        self.tokens = before
        fed = next(value for value in self.old.inputs if value.name == EMBEDDINGS)
        self.done[id(fed)] = self.spell.node("model", "Unsqueeze", self.values[EMBEDDINGS], self.spell.ints(1))
        for node in self.old:  # a graph is walked in its order, so that no recursion is deep
            if is_attention(node) or (node.op_type == "Add" and not node.domain and self._is_residual(node)):
                self.value(node.outputs[0])
        self._head()
        for number in range(len(self.layers)):
            self._output(self.presents[number], self.values[f"past_key_values_{number}"])
        shapes = builder_config(self.stage, self.layers)
        self.stage.graph.metadata_props[CONFIG] = json.dumps(shapes, sort_keys=True)
        self.stage.graph.metadata_props[TABLE] = json.dumps(table_record(self.stage), sort_keys=True)

    def _inputs(self) -> None:
        assert self.stage.outside is not None
        hidden = int(self.stage.contract.inputs[0].shape[-1])
        dim = self.layers[0].head_dim
        half, wide, i32, i64 = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
        self._input(EMBEDDINGS, half, _TOKENS, hidden)
        for number, layer in enumerate(self.layers):
            kind = half if layer.scales is None else ir.DataType.FLOAT8E4M3FN
            name = f"past_key_values_{number}"
            self._input(name, kind, 2, "num_pages", PAGE, layer.kv_heads, layer.head_dim)
        self._input("rope_rotary_cos_sin", wide, _TOKENS, dim)
        self._input("positions", i32, _TOKENS)
        self._input("query_start_offsets", i32, f"{_SEQUENCES} + 1")
        for name in ("query_lengths", "past_lengths", "attention_sequence_lengths", "state_indices"):
            self._input(name, i32, _SEQUENCES)
        self._input("execution_phase_marker", i32, "execution_phase_extent")
        self._input("context_sequence_count_carrier", i32, "num_context_sequences")
        self._input("kv_page_table", i32, _SEQUENCES, 2, "max_pages_per_seq")
        self._input("logits_indices", i64, _SEQUENCES)

    def _input(self, name: str, dtype: ir.DataType, *shape: int | str) -> None:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.stage.graph.inputs.append(value)
        self.values[name] = value

    def _output(self, value: ir.Value, like: ir.Value) -> None:
        value.shape, value.type = like.shape, like.type
        self.stage.graph.outputs.append(value)

    @staticmethod
    def _is_residual(node: ir.Node) -> bool:
        """Tell an addition of two hidden states from one of positions."""
        return module_of(node) != "positions"

    def value(self, old: ir.Value | None) -> ir.Value:
        """Return the new value that stands for an old one, `[tokens, 1, width]`."""
        assert old is not None
        if id(old) not in self.done:
            node = old.producer()
            if node is None:
                raise UnsupportedFormatError(f"The value {old.name} has no form in the tensorrt-edge-llm dialect.")
            self.done[id(old)] = self._made(node)
        return self.done[id(old)]

    def _made(self, node: ir.Node) -> ir.Value:
        module, spell = module_of(node), self.spell
        kind = (node.domain, node.op_type)
        if is_attention(node):
            return self._attention(self.layers[self.number[id(node)]])
        if is_linear(node):
            return self.weights.apply(self.value(node.inputs[0]), self.weights.source(node))
        if kind == (EW, "RMSNorm") and len(node.inputs) == 2 and node.attributes.get("group") is None:
            weight = self.weights.vector(node.inputs[1])
            return spell.rms_norm(module, self.value(node.inputs[0]), weight, node.attributes["epsilon"].value)
        if kind == (EW, "RoundInput"):
            return self.weights.rounded(self.value(node.inputs[0]), node)
        if kind == (EW, "GatedActivation") and node.attributes["activation"].value == "silu":
            gate, up = (self.value(x) for x in node.inputs)
            return spell.silu_product(module, gate, up)
        if kind == ("", "Add") and not any(x is None or x.is_initializer() for x in node.inputs):
            return spell.node(module, "Add", *(self.value(x) for x in node.inputs))
        if kind == ("", "Mul") and self._is_vector(node.inputs[1]):
            return spell.node(module, "Mul", self.value(node.inputs[0]), self.weights.vector(node.inputs[1]))
        if kind == ("", "Gather"):
            return self._gather(node, module)
        what = f"{node.op_type} {node.attributes['activation'].value}" if "Activation" in node.op_type else node.op_type
        family = self.stage.config.get("model_type")
        raise refuse(node, f"{what} of a {family} model has no form in the tensorrt-edge-llm dialect.")

    def _is_vector(self, value: ir.Value | None) -> bool:
        """Tell a weight for every column from a number for all of them."""
        return value is not None and value.name in self.stage.weights and len(value.shape or ()) == 1

    def _gather(self, node: ir.Node, module: str) -> ir.Value:
        """The rows whose logits are wanted are picked at the end here; columns in another order are picked."""
        x, order = node.inputs
        assert order is not None
        if order.name == "logit_positions":
            return self.value(x)
        if node.attributes["axis"].value != -1 or order.const_value is None:
            raise refuse(node, "a look-up has no form in the tensorrt-edge-llm dialect.")
        name = str(order.name)
        if name not in self.stage.graph.initializers:
            tensor = ir.tensor(order.const_value.numpy().astype(np.int64), name=name)
            self.stage.graph.register_initializer(
                ir.Value(name=name, shape=order.shape, type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
            )
        return self.spell.node(module, "Gather", self.value(x), self.stage.graph.initializers[name], axis=-1)

    def _attention(self, layer: Layer) -> ir.Value:
        module, number = module_of(layer.node), self.number[id(layer.node)]
        qkv = self.spell.reshape(module, self._query_key_value(layer), -1, layer.width)
        y, present = write_attention(self.spell, self.weights, layer, qkv, self.values, number)
        self.presents[number] = present
        width = layer.heads * layer.head_dim
        if width not in self.done:
            one = self.spell.ints(1)
            self.done[width] = self.spell.node("model", "Concat", self.tokens, one, self.spell.ints(width), axis=0)
        return self.spell.node(module, "Reshape", y, self.done[width], allowzero=1)

    def _query_key_value(self, layer: Layer) -> ir.Value:
        sources = [self.weights.source(node) for node in layer.linears]
        if len({id(node.inputs[0]) for node in layer.linears}) == 1:
            joined = self.weights.joined(sources)
            if joined is not None:
                return self.weights.apply_joined(self.value(layer.linears[0].inputs[0]), joined)
        parts = [self.value(node.outputs[0]) for node in layer.linears]
        module = module_of(layer.node)
        if any(source.kind == "int4" for source in sources):
            return self.spell.node(module, "QkvConcatPlugin", *parts, domain=PLUGINS)
        return self.spell.node(module, "Concat", *parts, axis=-1)

    def _head(self) -> None:
        (logits,) = self.heads
        linear = logits.producer()
        if linear is None or not is_linear(linear):
            assert linear is not None
            raise refuse(linear, f"{linear.op_type} after the head has no form in the tensorrt-edge-llm dialect.")
        chain: list[ir.Node] = []
        x = linear.inputs[0]
        while x is not None and (node := x.producer()) is not None and node.op_type == "RoundInput":
            chain.append(node)
            x = node.inputs[0]
        hidden = self.value(x)
        source, spell, module = self.weights.source(linear), self.spell, module_of(linear)
        width = int(self.stage.contract.inputs[0].shape[-1])
        rows = spell.reshape(module, hidden, -1, width)
        wanted = spell.reshape(module, self.values["logits_indices"], -1, allowzero=0)
        picked = spell.node(module, "Gather", rows, wanted, axis=0)
        for node in reversed(chain):
            picked = self.weights.rounded(picked, node)
        wide = spell.cast(module, self.weights.head(picked, source), FLOAT)
        result = spell.reshape(module, wide, -1, source.rows)
        result.name = "logits"
        result.shape, result.type = ir.Shape((_SEQUENCES, source.rows)), ir.TensorType(ir.DataType.FLOAT)
        self.stage.graph.outputs.append(result)


__all__ = ["CONFIG", "NAME", "TABLE", "lower"]
