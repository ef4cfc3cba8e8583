"""How the onnxruntime dialect finds a quantized cache, and spells it: the kernel has scales per tensor or channel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.rewrite import made_by, module_of
from edgewright.graph.weights import ComputedWeight


def own_write(attention: ir.Node) -> ir.Node | None:
    """Return the node that writes the codes an attention reads, when it is of the same module."""
    write = made_by(attention.inputs[3], "CacheWrite")
    return write if write is not None and module_of(write) == module_of(attention) else None


def query_key_value(attention: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return what an attention, or the writer of its codes, has as q, k and v."""
    write = own_write(attention)
    return tuple(attention.inputs[:3]) if write is None else (attention.inputs[0], *write.inputs[:2])


def kernel_formats(write: ir.Node | None) -> dict[str, str | int]:
    """Return the attributes that say how the kernel's cache is quantized; none without a writer of codes."""
    if write is None:
        return {}
    kinds = ["PER_TENSOR" if _is_one(value) else "PER_CHANNEL" for value in write.inputs[5:7]]
    return {"k_quant_type": kinds[0], "v_quant_type": kinds[1], "kv_cache_bit_width": 8}


def kernel_scales(stage: Stage, write: ir.Node | None) -> list[ir.Value | None]:
    """Return the scales as the kernel takes them: `[1]`, or those of heads as `[1, kv_heads, 1, head_dim]`."""
    if write is None:
        return []
    width = write.attributes["head_dim"].as_int()
    return [value if _is_one(value) else _spread(stage, value, width) for value in write.inputs[5:7]]


def _is_one(value: ir.Value | None) -> bool:
    assert value is not None
    assert value.shape is not None
    return list(value.shape) == [1]


def _spread(stage: Stage, value: ir.Value | None, width: int) -> ir.Value:
    assert value is not None
    assert value.name is not None
    weight = stage.weights[value.name]
    heads = weight.shape[0]
    table = np.repeat(weight.rows(0, heads), width).reshape(1, heads, 1, width)
    return stage.float_value(ComputedWeight(f"{value.name}.channels", table.shape, lambda a, b: table[a:b]))
