"""The attention plug-in of TensorRT Edge-LLM: what a layer's rope, per-head norms and cache have to be for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgewright.dialects.edgellm.spelling import PLUGINS, Spelling
from edgewright.dialects.edgellm.weights import Weights, is_linear, refuse
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import made_by, module_of

#: Tokens of a page of the cache.
PAGE = 128
#: The inputs of every call that the plug-in reads, before and after the optional ones.
_FIRST = ("query_lengths", "rope_rotary_cos_sin", "past_lengths", "kv_page_table")
_LAST = (
    "query_start_offsets",
    "attention_sequence_lengths",
    "execution_phase_marker",
    "context_sequence_count_carrier",
)
#: What the plug-in's epsilon is where it has no norms.
_NO_EPSILON = 1e-6


@dataclass(frozen=True)
class Layer:
    """A layer's attention: what its node says, the linears before it, and the norms of its heads."""

    node: ir.Node
    linears: tuple[ir.Node, ir.Node, ir.Node]
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    past_key: str
    norms: tuple[ir.Node, ir.Node] | None
    norm_after_rope: bool
    scales: tuple[float, float] | None
    rope: tuple[ir.Value | None, ...]

    @property
    def width(self) -> int:
        """The width of queries, keys and values one beside the other."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def read_layer(stage: Stage, node: ir.Node) -> Layer:
    """Return what an `Attention` node is for the plug-in. Raises UnsupportedFormatError for what it can't do."""
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    inputs = (*node.inputs, *[None] * 5)
    write = made_by(inputs[3], "CacheWrite")
    for wrong, what in (
        (inputs[6] is not None, "sinks beside its scores"),
        (inputs[7] is not None, "a table added to its scores"),
        (a.get("softcap"), "a soft cap of its scores"),
        (a["value_dim"] != a["head_dim"], "values of another width than its keys"),
        (inputs[1] is None and write is None, "another layer's cache"),
        (write is not None and module_of(write) != module_of(node), "another layer's cache"),
    ):
        if wrong:
            raise refuse(node, f"an attention with {what} has no form in this dialect.")
    k, v, past_key = (inputs[1], inputs[2], inputs[3]) if write is None else (*write.inputs[:2], write.inputs[2])
    query, q_norm, after, rope = _head(node, inputs[0], a["head_dim"])
    key, k_norm, k_after, k_rope = _head(node, k, a["head_dim"])
    value = v.producer() if v is not None else None
    if not is_linear(value) or after != k_after or rope != k_rope or (q_norm is None) != (k_norm is None):
        raise refuse(node, "queries, keys and values are made in a way that has no form in this dialect.")
    assert value is not None
    assert past_key is not None
    return Layer(
        node,
        (query, key, value),
        a["heads"],
        a["kv_heads"],
        a["head_dim"],
        float(np.float32(a["scale"])),
        a.get("window"),
        str(past_key.name),
        None if q_norm is None or k_norm is None else (q_norm, k_norm),
        after,
        None if write is None else (_scale(stage, write, 5), _scale(stage, write, 6)),
        rope,
    )


def _head(
    node: ir.Node, x: ir.Value | None, head_dim: int
) -> tuple[ir.Node, ir.Node | None, bool, tuple[ir.Value | None, ...]]:
    """Return the linear behind queries or keys, the norm of their heads, whether it follows the rope, and the rope."""
    norm = made_by(x, "RMSNorm")
    rope = made_by(x if norm is None else norm.inputs[0], "Rope")
    after = norm is not None and rope is not None
    if rope is None:
        raise refuse(node, "a layer without rope has no form in TensorRT Edge-LLM, whose plug-in always turns.")
    a = {name: attribute.value for name, attribute in rope.attributes.items()}
    if a["interleaved"] or a["rotary_dim"] != head_dim:
        raise refuse(node, "a rope of neighbouring pairs, or of a part of a head, has no form in this dialect.")
    source = rope.inputs[0]
    if norm is None:
        norm = made_by(source, "RMSNorm")
        source = source if norm is None else norm.inputs[0]
    if norm is not None and not _is_head_norm(norm, head_dim):
        raise refuse(node, "a norm of queries and keys that is not one of every head has no form in this dialect.")
    linear = source.producer() if source is not None else None
    if linear is None or not is_linear(linear):
        raise refuse(node, "queries and keys that no linear makes have no form in this dialect.")
    return linear, norm, after, tuple(rope.inputs[1:])


def _is_head_norm(norm: ir.Node, head_dim: int) -> bool:
    group, weight = norm.attributes.get("group"), (*norm.inputs, None)[1]
    flat = weight is not None and weight.shape is not None and list(weight.shape) == [head_dim]
    return flat and group is not None and group.value == head_dim


def _scale(stage: Stage, write: ir.Node, place: int) -> float:
    """Return the scale of a cache of FP8 codes."""
    value = write.inputs[place]
    assert value is not None
    if write.attributes["cache"].value != "float8_e4m3fn":
        raise refuse(write, "an int8 cache has no form in TensorRT Edge-LLM: use an FP8 cache, or none.")
    if list(value.shape or ()) != [1]:
        raise refuse(write, "a cache with a scale for every head has no form here: use one scale a layer.")
    return float(stage.weights[str(value.name)].rows(0, 1)[0])


def write_attention(
    spell: Spelling, weights: Weights, layer: Layer, qkv: ir.Value, values: dict[str, ir.Value], number: int
) -> tuple[ir.Value, ir.Value]:
    """Append the plug-in's node over `[tokens, width]`; returns what it computes and the cache after it."""
    module = module_of(layer.node)
    norms: list[ir.Value] = []
    epsilon = _NO_EPSILON
    if layer.norms is not None:
        norms = [weights.vector(norm.inputs[1]) for norm in layer.norms]
        epsilon = layer.norms[0].attributes["epsilon"].value
        if layer.norms[1].attributes["epsilon"].value != epsilon:
            raise refuse(layer.node, "norms of queries and keys with two epsilons have no form in this dialect.")
    inputs = [
        qkv,
        values[f"past_key_values_{number}"],
        *(values[n] for n in _FIRST),
        *norms,
        *(values[n] for n in _LAST),
    ]
    y = spell.node(
        module,
        "AttentionPlugin",
        *inputs,
        domain=PLUGINS,
        outputs=[f"{module}/AttentionPlugin:0", f"present_key_values_{number}"],
        num_q_heads=layer.heads,
        num_kv_heads=layer.kv_heads,
        head_size=layer.head_dim,
        enable_tree_attention=0,
        enable_fp8_kv_cache=int(layer.scales is not None),
        enable_context_mask_selector=0,
        enable_vision_block_attention=0,
        sliding_window_size=layer.window or -1,
        qkv_scales=[1.0, *(layer.scales or (1.0, 1.0))],
        attention_scale=layer.scale,
        skip_softmax_scale_factor=0.0,
        rms_norm_eps=epsilon,
        enable_qk_norm=int(bool(norms)),
        qk_norm_post_rope=int(layer.norm_after_rope),
        enable_kv_shared=0,
        enable_attention_sink=0,
        enable_contiguous_query_swa=0,
        plugin_version="1",
    )
    node = y.producer()
    assert node is not None
    return y, node.outputs[1]


def is_attention(node: ir.Node) -> bool:
    """Tell whether a node is an attention."""
    return node.domain == EW and node.op_type == "Attention"
