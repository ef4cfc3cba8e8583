"""The weights of linears as TensorRT Edge-LLM reads them: which form a format has, and what a linear becomes then.

Everything is float16 beside its codes. A format that the builder has no form for is refused with the layer's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from edgewright.dialects.edgellm.packing import (
    GROUP,
    Int4Producer,
    Joined,
    Pick,
    Picked,
    first_value,
    halves,
    renamed,
    takes_fragments,
    takes_stripes,
)
from edgewright.dialects.edgellm.spelling import FLOAT, HALF, PLUGINS, TENSORRT, Spelling
from edgewright.errors import UnsupportedFormatError
from edgewright.graph import Producer, Stage, Weight
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import made_by, module_of
from edgewright.graph.weights import ComputedWeight, FloatProducer, StackedProducer
from edgewright.quant.producers import EncodedProducer

#: Formats of inputs that go with each format of weights.
_INPUTS = {"e4m3": "fp8", "nvfp4": "nvfp4", "mxe4m3": "mxfp8", "int8": "int8"}
_MX_BLOCK, _NVFP4_BLOCK = 32, 16


class Source(NamedTuple):
    """What a linear of the semantic graph reads: kind (float16, int4 or a code format), producers, attributes."""

    node: ir.Node
    module: str
    kind: str
    producer: Producer
    attributes: Mapping[str, Any]
    bias: Producer | None

    @property
    def rows(self) -> int:
        return int(self.producer.specs[0].shape[0])


def refuse(node: ir.Node, what: str) -> UnsupportedFormatError:
    """Return the error for a node that has no form in this dialect."""
    return UnsupportedFormatError(f"{module_of(node)}: {what}")


class Weights:
    """Finds the producers of the graph that is lowered, and gives the new one the tensors they become."""

    def __init__(self, stage: Stage, spelling: Spelling, fragments: bool | None) -> None:
        self._stage, self._spell, self._fragments = stage, spelling, fragments
        self._old = stage.producers
        self._sums: dict[tuple[int, int], ir.Value] = {}

    def source(self, node: ir.Node) -> Source:
        """Return what a linear reads. Raises UnsupportedFormatError for formats without a form."""
        module, bias_place = module_of(node), 5 if node.op_type == "QuantLinear" else 2
        bias = self._producer((*node.inputs, *[None] * 6)[bias_place])
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if node.op_type == "QuantLinear":
            self._check_int4(node, attributes)
            return Source(node, module, "int4", self._need(node, node.inputs[1]), attributes, bias)
        decode = made_by(node.inputs[1], "Decode")
        if decode is not None:
            attributes = {name: attribute.value for name, attribute in decode.attributes.items()}
            self._check_codes(node, attributes)
            return Source(node, module, attributes["format"], self._need(node, decode.inputs[0]), attributes, bias)
        cast = made_by(node.inputs[1], "Cast", "")
        value = node.inputs[1] if cast is None else cast.inputs[0]
        return Source(node, module, "float16", self._need(node, value), attributes, bias)

    def _producer(self, value: ir.Value | None) -> Producer | None:
        return None if value is None or value.name is None else self._old.get(value.name)

    def _need(self, node: ir.Node, value: ir.Value | None) -> Producer:
        found = self._producer(value)
        if found is None:
            raise refuse(node, "its weight is computed in the graph, which TensorRT Edge-LLM has no form for.")
        return found

    @staticmethod
    def _check_int4(node: ir.Node, a: Mapping[str, Any]) -> None:
        given = (*node.inputs, None, None)
        if a["bits"] != 4 or a["group"] != GROUP:
            raise refuse(
                node,
                f"int{a['bits']} in groups of {a['group']} has no plug-in of TensorRT Edge-LLM, which reads int4 in "
                f"groups of {GROUP}: use a recipe with {{format: int4, group: {GROUP}}} for it, fp8, nvfp4 or float16.",
            )
        if given[4] is not None:
            raise refuse(node, "int4 codes with offsets have no form here: quantize the original checkpoint instead.")
        if a["in_features"] % GROUP or not takes_stripes(a["out_features"], a["in_features"]):
            raise refuse(
                node,
                f"int4 needs an input of a multiple of {GROUP} and an output of a multiple of 4, not "
                f"{a['in_features']} and {a['out_features']}: keep it in float16.",
            )

    @staticmethod
    def _check_codes(node: ir.Node, a: Mapping[str, Any]) -> None:
        kind, scope = a["format"], a.get("scope")
        if kind not in _INPUTS or (kind == "e4m3" and scope != "tensor") or (kind == "int8" and scope != "channel"):
            raise refuse(
                node,
                f"{kind} weights{f' with a scale for each {scope}' if scope else ''} have no form in TensorRT "
                "Edge-LLM, which reads int4 (groups of 128), fp8 (one scale), nvfp4, mxfp8 and int8-sq: use one of "
                "these recipes.",
            )
        block = {"nvfp4": _NVFP4_BLOCK, "mxe4m3": _MX_BLOCK}.get(kind, 1)
        if a["in_features"] % block:
            raise refuse(node, f"{kind} needs an input of a multiple of {block}, not {a['in_features']}.")
        rounded = made_by(node.inputs[0], "RoundInput")
        if rounded is not None and rounded.attributes["format"].value != _INPUTS[kind]:
            raise refuse(
                node,
                f"{kind} weights with {rounded.attributes['format'].value} inputs have no form here: use a recipe that "
                "rounds both alike, or the weights alone.",
            )

    def vector(self, value: ir.Value | None, dtype: str = "float16") -> ir.Value:
        """Return a vector of the semantic graph (a norm's weight, a bias) as float16."""
        found = self._producer(value)
        assert isinstance(found, FloatProducer), value
        return self.half(found.weight, dtype)

    def half(self, weight: Weight, dtype: str = "float16") -> ir.Value:
        """Return a weight as float16; one initializer a weight."""
        if weight.name not in self._stage.graph.initializers:
            return self._stage.add_producer(FloatProducer(weight, dtype))[0]
        return self._stage.graph.initializers[weight.name]

    def scalar(self, value: ir.Value | None, name: str, dtype: str) -> ir.Value:
        """Return the only number of a `[1]` weight as a scalar."""
        found = self._producer(value)
        assert isinstance(found, FloatProducer), value
        rows = found.weight.rows
        held = (lambda a, b: halves(rows(a, b), name, divides=True)) if dtype == "float16" else rows
        return self._stage.alias(self.half(ComputedWeight(name, (1,), held), dtype), lambda _: ())

    def apply(self, x: ir.Value, source: Source) -> ir.Value:
        """Return x `[tokens, 1, in]` through a linear."""
        spell, module = self._spell, source.module
        if source.kind == "int4":
            y = self._int4(x, source)
        else:
            turned = spell.node(module, "Transpose", self.dense(source), perm=[1, 0])
            y = spell.node(module, "MatMul", x, turned)
        return y if source.bias is None else spell.node(module, "Add", y, self._bias(source))

    def head(self, x: ir.Value, source: Source) -> ir.Value:
        """Return x `[rows, in]` through the head."""
        if source.kind == "int4":
            raise refuse(
                source.node, "an int4 head has no form here, because its input has two axes: keep it in float16 or fp8."
            )
        bias = None if source.bias is None else self._bias(source)
        weight = self.dense(source)
        return self._spell.node(source.module, "Gemm", x, weight, bias, beta=1.0, transB=1, alpha=1.0, transA=0)

    def _bias(self, source: Source) -> ir.Value:
        assert isinstance(source.bias, FloatProducer)
        return self.half(source.bias.weight)

    def dense(self, source: Source) -> ir.Value:
        """Return a weight as float16 `[out, in]`, decoded in the graph where it is codes."""
        spell, module = self._spell, source.module
        if source.kind == "float16":
            assert isinstance(source.producer, FloatProducer), source.producer
            return self.half(source.producer.weight)
        values = self._tensors(source)
        if source.kind == "e4m3":
            return spell.node(module, "DequantizeLinear", *values)
        if source.kind == "mxe4m3":
            attributes = {"axis": -1, "block_size": _MX_BLOCK, "output_dtype": HALF}
            return spell.node(module, "TRT_MXFP8DequantizeLinear", *values, domain=TENSORRT, **attributes)
        if source.kind == "int8":
            return spell.cast(module, spell.node(module, "DequantizeLinear", *values, axis=0), HALF)
        steps = spell.node(module, "DequantizeLinear", *values[1:])
        wide = spell.node(module, "DequantizeLinear", values[0], steps, block_size=_NVFP4_BLOCK, axis=-1)
        return spell.cast(module, wide, HALF)

    def _tensors(self, source: Source) -> tuple[ir.Value, ...]:
        name = f"{source.module}.weight"
        if name in self._stage.graph.initializers:  # a head that is tied to nothing else is written once
            raise refuse(source.node, "two linears read one set of codes, which has no form here.")
        return self._scalars(self._stage.add_producer(coded(source, name)))

    def _scalars(self, values: tuple[ir.Value, ...]) -> tuple[ir.Value, ...]:
        """Return what belongs to a whole weight as scalars, the others as they are."""
        return tuple(
            self._stage.alias(value, lambda _: ()) if list(value.shape or ()) == [1] else value for value in values
        )

    def _int4(self, x: ir.Value, source: Source) -> ir.Value:
        spell, module, a = self._spell, source.module, source.attributes
        fits = takes_fragments(a["out_features"], a["in_features"])
        fragments = fits if self._fragments is None else self._fragments
        if fragments and not fits:
            raise refuse(source.node, "the second int4 plug-in needs sizes that are multiples of 64.")
        folded = len(source.producer.specs) < 3
        if not folded and isinstance(source.producer, EncodedProducer):
            folded = Int4Producer(source.producer, module, fragments=fragments, folded=True).fits()
        producer = Int4Producer(source.producer, module, fragments=fragments, folded=folded)
        values = self._stage.add_producer(producer)
        op_type = "Int4GroupwiseGemmPluginV2" if fragments else "Int4GroupwiseGemmPlugin"
        sizes = {"gemm_n": a["out_features"], "gemm_k": a["in_features"], "group_size": GROUP}
        y = spell.node(module, op_type, x, *values[:2], domain=PLUGINS, **sizes)
        return y if folded else self._corrected(x, y, values[2], source)

    def _corrected(self, x: ir.Value, y: ir.Value, corrections: ir.Value, source: Source) -> ir.Value:
        """Add what zero points make of the sums of inputs, block by block."""
        spell, module, blocks = self._spell, source.module, source.attributes["in_features"] // GROUP
        key = id(x), blocks
        if key not in self._sums:  # linears of one input share its sums
            wide = spell.cast(module, x, FLOAT)
            by_block = spell.reshape(module, wide, -1, 1, blocks, GROUP)
            self._sums[key] = spell.node(module, "ReduceSum", by_block, spell.ints(-1), keepdims=0)
        share = spell.cast(module, spell.node(module, "MatMul", self._sums[key], corrections), HALF)
        return spell.node(module, "Add", y, share)

    def joined(self, sources: list[Source]) -> Source | None:
        """Return q, k and v as one linear, where they are of one form and share what belongs to a whole weight."""
        kinds, biased = {source.kind for source in sources}, {source.bias is not None for source in sources}
        if len(kinds) != 1 or len(biased) != 1 or not kinds <= {"float16", "nvfp4"}:
            return None
        first, module = sources[0], f"{sources[0].module.rsplit('.', 1)[0]}.qkv_proj"
        if kinds == {"nvfp4"}:
            if not self._one_global_scale(sources):
                return None
            named = [coded(source, f"{source.module}.weight") for source in sources]
            names = [spec.name.replace(first.module, module, 1) for spec in named[0].specs]
            producer: Producer = Joined(named, names, shared=[2])
        else:
            producer = self._stacked([source.producer for source in sources], f"{module}.weight")
        biases = [source.bias for source in sources if source.bias is not None]
        bias = self._stacked(biases, f"{module}.bias") if biases else None
        return first._replace(module=module, producer=producer, bias=bias, kind=f"joined {first.kind}")

    @staticmethod
    def _one_global_scale(sources: list[Source]) -> bool:
        return len({bytes(first_value(source.producer, 2)) for source in sources}) == 1

    @staticmethod
    def _stacked(parts: list[Producer], name: str) -> Producer:
        halves = [FloatProducer(part.weight, "float16") for part in parts if isinstance(part, FloatProducer)]
        assert len(halves) == len(parts)
        return StackedProducer(halves, [name])

    def apply_joined(self, x: ir.Value, source: Source) -> ir.Value:
        """Return x through a linear that `joined` made."""
        spell, module = self._spell, source.module
        values = self._scalars(self._stage.add_producer(source.producer))
        weight = values[0]
        if source.kind == "joined nvfp4":
            steps = spell.node(module, "DequantizeLinear", *values[1:])
            wide = spell.node(module, "DequantizeLinear", values[0], steps, block_size=_NVFP4_BLOCK, axis=-1)
            weight = spell.cast(module, wide, HALF)
        y = spell.node(module, "MatMul", x, spell.node(module, "Transpose", weight, perm=[1, 0]))
        return y if source.bias is None else spell.node(module, "Add", y, *self._stage.add_producer(source.bias))

    def rounded(self, x: ir.Value, node: ir.Node) -> ir.Value:
        """Return x as its codes say it, for a `RoundInput`."""
        kind, spell, module = node.attributes["format"].value, self._spell, module_of(node)
        given = (*node.inputs, None, None)
        if kind == "mxfp8":
            attributes = {"axis": -1, "block_size": _MX_BLOCK, "output_dtype": int(ir.DataType.FLOAT8E4M3FN)}
            codes = spell.node(module, "TRT_MXFP8DynamicQuantize", x, domain=TENSORRT, outputs=2, **attributes)
            steps = codes.producer().outputs[1]  # type: ignore[union-attr]
            attributes["output_dtype"] = HALF
            return spell.node(module, "TRT_MXFP8DequantizeLinear", codes, steps, domain=TENSORRT, **attributes)
        if not node.attributes["static"].value or kind not in ("fp8", "int8", "nvfp4") or given[2] is not None:
            raise refuse(
                node,
                f"its inputs are rounded to {kind} with scales that have no form in TensorRT Edge-LLM: use a recipe "
                "with static symmetric ones (fp8, int8-sq, nvfp4) or mxfp8, and calibrate.",
            )
        name = f"{module}.input_scale"
        if kind == "nvfp4":
            return self._rounded_nvfp4(x, module, self.scalar(given[1], name, "float32"), given[1])
        scale = self.scalar(given[1], name, "float16" if kind == "fp8" else "float32")
        dtype = ir.DataType.FLOAT8E4M3FN if kind == "fp8" else ir.DataType.INT8
        codes = spell.node(module, "QuantizeLinear", x, scale, output_dtype=int(dtype))
        back = spell.node(module, "DequantizeLinear", codes, scale)
        return back if kind == "fp8" else spell.cast(module, back, HALF)

    def _rounded_nvfp4(self, x: ir.Value, module: str, scale: ir.Value, old: ir.Value | None) -> ir.Value:
        spell = self._spell
        attributes = {"axis": -1, "block_size": _NVFP4_BLOCK, "scale_type": int(ir.DataType.FLOAT8E4M3FN)}
        codes = spell.node(module, "TRT_FP4DynamicQuantize", x, scale, domain=TENSORRT, outputs=2, **attributes)
        half = self.scalar(old, f"{module}.input_scale.float16", "float16")
        steps = codes.producer().outputs[1]  # type: ignore[union-attr]
        steps = spell.node(module, "DequantizeLinear", steps, half, domain=TENSORRT)
        return spell.node(module, "DequantizeLinear", codes, steps, domain=TENSORRT, axis=-1, block_size=_NVFP4_BLOCK)


def coded(source: Source, name: str) -> Producer:
    """Return the producer of a weight's codes and scales as the builder reads them."""
    specs, base = source.producer.specs, name.removesuffix(".weight")
    codes = Pick(0, renamed(specs[0], name))
    scale = f"{base}.weight_scale"
    if source.kind == "e4m3":
        half = Pick(1, renamed(specs[1], scale, "float16"), lambda a: halves(a, scale, divides=True))
        return Picked(source.producer, [codes, half])
    if source.kind == "mxe4m3":
        return Picked(source.producer, [codes, Pick(1, renamed(specs[1], scale, "uint8"), lambda a: a.view(np.uint8))])
    if source.kind == "int8":
        flat = renamed(specs[1], scale, None, (specs[1].shape[0],))
        return Picked(source.producer, [codes, Pick(1, flat, lambda a: a.reshape(-1))])
    whole = Pick(2, renamed(specs[2], f"{base}.weight_scale_2"))
    return Picked(source.producer, [codes, Pick(1, renamed(specs[1], scale)), whole])


def is_linear(node: ir.Node | None) -> bool:
    """Tell whether a node is a linear."""
    return node is not None and node.domain == EW and node.op_type in ("Linear", "QuantLinear")
