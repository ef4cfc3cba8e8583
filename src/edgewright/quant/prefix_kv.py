"""The prefix KV of a robot policy as int8 or FP8 E4M3 codes: the pass over the stages that make and read it.

The prefix stage makes keys and values once a frame, each denoise step reads them. The formats and scales are those of a
language model's cache (`quant.kv`); the prefix's own layers compute with what was not rounded yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.errors import RecipeError
from edgewright.formats.cache import KVFormat, KVScales
from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.flow import input_named
from edgewright.graph.rewrite import module_of
from edgewright.graph.stage import IR_DTYPES
from edgewright.quant.kv import AppliedCache, check_scales, listed, scale_value

#: What the names of keys and values begin with, and what the names of their scales end with.
KEY, VALUE = "prefix_key.", "prefix_value."
_SCALES = {KEY: "k_scale", VALUE: "v_scale"}


@dataclass(frozen=True)
class PrefixLayer:
    """One layer of the prefix KV: its number, the attention module whose keys and values it has, and their heads."""

    index: int
    module: str
    kv_heads: int

    @property
    def tensors(self) -> dict[str, str]:
        """The names of keys and values, by what they begin with."""
        return {start: f"{start}{self.index}" for start in (KEY, VALUE)}


def prefix_layers(prefix: Stage) -> list[PrefixLayer]:
    """Return the layers of the keys and values that a semantic prefix stage gives, in order."""
    outputs = {str(value.name): value for value in prefix.graph.outputs}
    shapes = {tensor.name: tensor.shape for tensor in prefix.contract.outputs}
    layers = []
    for name, value in outputs.items():
        if name.startswith(KEY):
            maker, heads = value.producer(), shapes[name][1]
            assert maker is not None
            assert isinstance(heads, int)
            layers.append(PrefixLayer(int(name.removeprefix(KEY)), module_of(maker), heads))
    return layers


def quantize_prefix(prefix: Stage, denoise: Stage, fmt: KVFormat, scales: Mapping[str, KVScales]) -> list[AppliedCache]:
    """Hand the keys and values of the prefix over as codes, in place in both stages; returns what was done, in order.

    `scales` are keyed by the attention module whose keys and values a layer has: one of the tower that reads the
    prefix or, where the expert's projections of the prefix are made with it, the expert's. Modules of the two stages
    that hand nothing over in this form of the graphs may have scales as well. Raises RecipeError when a layer has no
    scales or such as can't be used, and when scales are for a module that the stages don't have.
    """
    layers = prefix_layers(prefix)
    _check_names([prefix, denoise], layers, fmt, scales)
    for layer in layers:
        check_scales(layer.module, fmt, scales[layer.module], layer.kv_heads)
    for layer in layers:
        of_layer = scales[layer.module]
        for (start, name), array in zip(layer.tensors.items(), (of_layer.key, of_layer.value), strict=True):
            scale = f"{layer.module}.{_SCALES[start]}"
            attributes = {"kv_heads": layer.kv_heads}
            _round(prefix, name, scale_value(prefix, scale, array), {**attributes, "cache": fmt.cache_dtype})
            _read(denoise, name, scale_value(denoise, scale, array), attributes)
    names = {name for layer in layers for name in layer.tensors.values()}
    for stage in (prefix, denoise):
        _change_contract(stage, names, fmt.cache_dtype)
    return [AppliedCache(layer.module, fmt, scales[layer.module]) for layer in layers]


def _check_names(
    stages: Sequence[Stage], layers: Sequence[PrefixLayer], fmt: KVFormat, scales: Mapping[str, KVScales]
) -> None:
    if missing := [layer.module for layer in layers if layer.module not in scales]:
        raise RecipeError(
            f"The keys and values of {listed(missing)} have no scales for {fmt.label}: calibrate the policy, or keep "
            "its prefix KV in float32."
        )
    modules = {module_of(node) for stage in stages for node in stage.graph}
    known = {module.removesuffix(".k_proj") for module in modules if module.endswith(".k_proj")}
    if surplus := [module for module in scales if module not in known]:
        raise RecipeError(
            f"There are scales of the prefix KV for {listed(surplus)}, which the policy's stages don't have: give "
            f"scales for {listed([layer.module for layer in layers])}."
        )


def _round(prefix: Stage, name: str, scale: ir.Value, attributes: Mapping[str, int | str]) -> None:
    """Put the codes in the place of an output; what else reads the output goes on with floats."""
    outputs = prefix.graph.outputs
    place = next(index for index, value in enumerate(outputs) if value.name == name)
    x = outputs[place]
    x.name = f"{name}.float"
    node = make_node(EW, "CacheRound", [x, scale], attributes, outputs=[name], name=f"{name}/CacheRound")
    node.outputs[0].shape = x.shape
    prefix.graph.append(node)
    outputs[place] = node.outputs[0]


def _read(denoise: Stage, name: str, scale: ir.Value, attributes: Mapping[str, int | str]) -> None:
    """Let everything that reads an input read what its codes stand for."""
    codes = input_named(denoise.graph, name)
    node = make_node(EW, "CacheRead", [codes, scale], attributes, name=f"{name}/CacheRead")
    y = node.outputs[0]
    y.shape, y.type = codes.shape, codes.type
    for use in list(codes.uses()):
        if use.node is not node:
            use.node.replace_input_with(use.idx, y)
    denoise.graph.insert_before(next(iter(denoise.graph)), [node])


def _change_contract(stage: Stage, names: set[str], dtype: str) -> None:
    """Give keys and values their dtype, in the contract and in the graph."""

    def changed(tensors: Sequence[TensorContract]) -> tuple[TensorContract, ...]:
        return tuple(dataclasses.replace(t, dtype=dtype) if t.name in names else t for t in tensors)

    for value in (*stage.graph.inputs, *stage.graph.outputs):
        if value.name in names:
            value.type = ir.TensorType(IR_DTYPES[dtype])
    contract = stage.contract
    stage.contract = dataclasses.replace(
        contract, inputs=changed(contract.inputs), outputs=changed(contract.outputs), kv_dtype=dtype
    )
