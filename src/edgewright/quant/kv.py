"""The key/value cache as int8 or FP8 E4M3 codes: the format, its scales, and the pass over a stage.

value = code * scale, with one scale for the keys and one for the values of a layer, or of each of its key/value heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.errors import RecipeError
from edgewright.formats.cache import CACHE_CODES, KVFormat, KVScales
from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import module_of
from edgewright.graph.stage import IR_DTYPES
from edgewright.graph.weights import ComputedWeight


@dataclass(frozen=True)
class AppliedCache:
    """What was done to one layer's cache; `readers` are later layers that read it."""

    module: str
    format: KVFormat
    scales: KVScales
    readers: tuple[str, ...] = ()


def quantize_cache(stage: Stage, fmt: KVFormat, scales: Mapping[str, KVScales]) -> list[AppliedCache]:
    """Store every key/value cache of a semantic stage as codes, in place; returns what was done, in graph order.

    `scales` are keyed by the attention module's path, such as `model.layers.3.self_attn`. Layers that read another
    layer's cache read its codes, with its scales; recurrent states stay float32. Raises RecipeError when a layer has no
    scales or such as can't be used, when scales are for a module without a cache, and when no layer has a cache.
    """
    nodes = [node for node in stage.graph if node.domain == EW and node.op_type == "Attention"]
    owners = {module_of(node): node for node in nodes if node.inputs[1] is not None}
    _check_names(owners, fmt, scales)
    for module, node in owners.items():
        check_scales(module, fmt, scales[module], node.attributes["kv_heads"].as_int())
    readers = _readers(nodes)
    applied = []
    for module, node in owners.items():
        values = [scale_value(stage, f"{module}.{name}_scale", getattr(scales[module], part)) for name, part in _PARTS]
        own = readers.get(module, [])
        for reader in own:
            _read(stage, reader, list(reader.inputs[3:5]), values)
        _write(stage, node, fmt, values)
        applied.append(AppliedCache(module, fmt, scales[module], tuple(module_of(reader) for reader in own)))
    _change_contract(stage, fmt.cache_dtype)
    return applied


_PARTS = (("k", "key"), ("v", "value"))


def _check_names(owners: Mapping[str, ir.Node], fmt: KVFormat, scales: Mapping[str, KVScales]) -> None:
    if not owners:
        raise RecipeError(
            f"The model has no key/value cache to store as {fmt.label}: leave the cache out of the recipe."
        )
    if missing := [module for module in owners if module not in scales]:
        raise RecipeError(
            f"The cache of {listed(missing)} has no scales for {fmt.label}: calibrate the model, or keep its cache in "
            "float32."
        )
    if surplus := [module for module in scales if module not in owners]:
        raise RecipeError(
            f"There are cache scales for {listed(surplus)}, where the model has no cache of its own: give scales for "
            f"{listed(list(owners))}."
        )


def listed(names: Sequence[str]) -> str:
    """Spell some names, the rest as a number."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def check_scales(module: str, fmt: KVFormat, scales: KVScales, kv_heads: int) -> None:
    """Refuse scales of another shape or dtype, and such that no code or not every code has a value."""
    largest, smallest = CACHE_CODES[fmt.dtype]
    shape = (kv_heads,) if fmt.per == "head" else (1,)
    limits = np.finfo(np.float32)
    for part in ("key", "value"):
        array = np.asarray(getattr(scales, part))
        if array.shape != shape or array.dtype != np.float32:
            raise RecipeError(
                f"The {part} scales of {module} are {array.dtype} {list(array.shape)} where {fmt.label} needs float32 "
                f"{list(shape)}: calibrate the model for this format."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            wide = array.astype(np.float64)
            bad = ~((wide * smallest >= limits.tiny) & (wide * largest <= limits.max))  # also of NaN
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            where = f" of head {index}" if fmt.per == "head" else ""
            raise RecipeError(
                f"The {part} scale{where} of {module} is {float(array[index]):.4g}, which can't scale {fmt.dtype} "
                "codes: calibrate the model on text that uses the layer, or keep its cache in float32."
            )


def _readers(nodes: Sequence[ir.Node]) -> dict[str, list[ir.Node]]:
    """Return the nodes that read another layer's cache, by the module that writes it; refuses other ones by name."""
    found: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if node.inputs[1] is not None:
            continue
        sources = [value.producer() if value is not None else None for value in node.inputs[3:5]]
        source = sources[0]
        places = [value.index() for value in node.inputs[3:5] if value is not None]
        if source is None or source not in nodes or source is not sources[1] or places != [1, 2]:
            raise RecipeError(
                f"{module_of(node)} reads a cache that no layer before it writes, so that can't be quantized: keep the "
                "cache in float32."
            )
        found.setdefault(module_of(source), []).append(node)
    return found


def scale_value(stage: Stage, name: str, scales: np.ndarray) -> ir.Value:
    """Return the initializer of some scales, which `weights` of a stage has, too."""
    array = np.array(scales, dtype=np.float32)
    return stage.float_value(ComputedWeight(name, array.shape, lambda a, b: array[a:b]))


def _read(stage: Stage, node: ir.Node, caches: Sequence[ir.Value | None], scales: Sequence[ir.Value]) -> None:
    """Put in a node's place one that reads codes and writes nothing."""
    q, _, _, _, _, lengths, sinks, bias = (*node.inputs, None, None)[:8]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    y = node.outputs[0]
    inputs = [q, None, None, *caches, lengths, sinks, bias, *scales]
    new = make_node(EW, "Attention", inputs, attributes, outputs=[str(y.name)], name=node.name or "")
    ir.convenience.replace_nodes_and_values(stage.graph, node, [node], [new], [y], new.outputs)


def _write(stage: Stage, node: ir.Node, fmt: KVFormat, scales: Sequence[ir.Value]) -> None:
    """Put in a node's place one that writes codes and one that reads them."""
    sizes = {name: node.attributes[name].value for name in ("kv_heads", "head_dim", "value_dim")}
    module = module_of(node)
    write = make_node(
        EW,
        "CacheWrite",
        [*node.inputs[1:6], *scales],
        {**sizes, "cache": fmt.cache_dtype},
        outputs=2,
        name=f"{module}/CacheWrite",
    )
    stage.graph.insert_before(node, [write])
    for old, new in zip(node.outputs[1:], write.outputs, strict=True):
        new.name, new.shape, new.type = old.name, old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    _read(stage, node, write.outputs, scales)


def _change_contract(stage: Stage, dtype: str) -> None:
    """Give the caches their dtype, in the contract and in the graph."""
    contract = stage.contract
    names = {name for kv in contract.kv for name in (kv.past_key, kv.past_value, kv.present_key, kv.present_value)}

    def changed(tensors: Sequence[TensorContract]) -> tuple[TensorContract, ...]:
        return tuple(dataclasses.replace(t, dtype=dtype) if t.name in names else t for t in tensors)

    for value in (*stage.graph.inputs, *stage.graph.outputs):
        if value.name in names:
            value.type = ir.TensorType(IR_DTYPES[dtype])
    stage.contract = dataclasses.replace(
        contract, inputs=changed(contract.inputs), outputs=changed(contract.outputs), kv_dtype=dtype
    )


def calibrated_cache(
    dtype: Any, scales: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[KVFormat, dict[str, KVScales]]:
    """Return format and scales of a cache, given those of keys and values as a quantized checkpoint has them."""
    per_head = any(len(key) > 1 for key, _ in scales.values())
    return KVFormat(dtype, "head" if per_head else "tensor"), {name: KVScales(*pair) for name, pair in scales.items()}


def cache_record(applied: Sequence[AppliedCache]) -> dict[str, Any]:
    """Return what a manifest says of the cache: its format, and the scales of each layer."""
    fmt = applied[0].format
    layers = {a.module: {part: [float(x) for x in getattr(a.scales, part)] for _, part in _PARTS} for a in applied}
    return {"dtype": fmt.dtype, "per": fmt.per, "layers": layers}


def cache_of_record(record: Mapping[str, Any]) -> tuple[KVFormat, dict[str, KVScales]]:
    """Return the format and the scales that `cache_record` wrote; raises RecipeError on another layout."""
    try:
        scales = {
            str(module): KVScales(*(np.asarray(layer[part], dtype=np.float32) for _, part in _PARTS))
            for module, layer in record["layers"].items()
        }
        return KVFormat(record["dtype"], record["per"]), scales
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RecipeError("The manifest's record of the cache can't be read: build the bundle again.") from None


__all__ = [
    "AppliedCache",
    "KVFormat",
    "KVScales",
    "cache_of_record",
    "cache_record",
    "calibrated_cache",
    "quantize_cache",
]
