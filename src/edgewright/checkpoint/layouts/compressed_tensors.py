"""The layout of compressed-tensors (llm-compressor): packed integers, W8A8, FP8, NVFP4, MXFP4 and MXFP8.

Per quantized module: `weight_packed` or `weight` with `weight_scale`, and by format `weight_shape`,
`weight_zero_point`, `weight_g_idx`, `weight_global_scale`, `input_scale`, `input_zero_point`, `input_global_scale`;
`k_scale` and `v_scale` of attention modules. Packed codes are unsigned: the signed code plus 2^(bits - 1); zero points
alike, packed along the rows. NVFP4 global scales divide.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts._ct_config import LAYOUT, Args, Config, Scheme, parse
from edgewright.checkpoint.layouts.bits import dense_words, loose_words, unpack_words
from edgewright.checkpoint.layouts.modules import Modules, cache_scales, divided_by, needs_untying
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.layouts.weights import (
    E8M0_DTYPES,
    FLOATS,
    Rows,
    int_weight,
    mx_weight,
    need_matrix,
    need_shape,
    nvfp4_weight,
    scalar,
    scale_rows,
    scaled_weight,
    stored_array,
)
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import ActivationFormat, Array, LinearInput

_SUFFIXES = (
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
)
Tensors = dict[str, StoredTensor]


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read a compressed-tensors checkpoint; see `Reader`."""
    parsed = parse(config)
    modules = Modules(tensors, LAYOUT, _SUFFIXES)
    notes: dict[str, int] = {}
    labels: dict[str, int] = {}
    outputs = False
    for module in modules.quantized("weight_scale", "weight_packed"):
        scheme = parsed.scheme_of(module)
        if scheme is None:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint leaves {module} out, but the file holds it quantized."
            )
        outputs = outputs or scheme.outputs is not None
        modules.result[f"{module}.weight"] = _weight(modules, module, scheme, notes)
        labels[scheme.weights.label] = labels.get(scheme.weights.label, 0) + 1
    modules.need_no_plain(lambda name: parsed.scheme_of(name) is not None, parsed.names)
    cache = parsed.cache
    if outputs and cache is None:
        cache = next(s.outputs for _, s in parsed.groups if s.outputs is not None)
    dtype = None if cache is None else _cache_dtype(cache)
    scales = _cache(modules, cache)
    modules.finish()
    version = config.get("version")
    return modules.result, Quantization(
        f"{LAYOUT}{'' if version is None else f' {version}'} ({', '.join(sorted(labels))})",
        kv_dtype=dtype,
        kv_scales=scales,
        untied=needs_untying(modules.result),
        notes=tuple(f"{count} module{'s' * (count > 1)}: {text}" for text, count in notes.items()),
    )


def _weight(modules: Modules, module: str, scheme: Scheme, notes: dict[str, int]) -> EncodedTensor:
    if scheme.kind == "int":
        return _integers(modules, module, scheme, notes)
    name, args = f"{module}.weight", scheme.weights
    scheme.need_format(module, scheme.kind)
    if not args.symmetric:
        raise UnsupportedFormatError(f"The {LAYOUT} checkpoint has float weights with zero points in {module}.")
    modules.need_zeros(f"{module}.weight_zero_point")
    given = _inputs(modules, module, scheme.inputs, notes)
    if scheme.kind == "nvfp4":
        packed = modules.take(f"{module}.weight_packed", "uint8")
        scale = modules.take(f"{module}.weight_scale", "float8_e4m3fn")
        whole, note = divided_by(scalar(modules.take(f"{module}.weight_global_scale", FLOATS)))
        _count(notes, note)
        return nvfp4_weight(name, packed, scale, whole, linear_input=given)
    if scheme.kind == "mxfp4":
        packed = modules.take(f"{module}.weight_packed", "uint8")
        scale = modules.take(f"{module}.weight_scale", E8M0_DTYPES)
        return mx_weight(name, packed, scale, "e2m1", linear_input=given)
    codes = modules.take(name, "float8_e4m3fn")
    if scheme.kind == "mxfp8":
        scale = modules.take(f"{module}.weight_scale", E8M0_DTYPES)
        return mx_weight(name, codes, scale, "e4m3", linear_input=given)
    rows, width = need_matrix(codes)
    scale = modules.take(f"{module}.weight_scale", FLOATS)
    scope = _scope(module, args)
    return scaled_weight(
        codes, "e4m3", scope, scale_rows(scale, scope, rows, width), parts=(codes, scale), linear_input=given
    )


def _scope(module: str, args: Args) -> str:
    """Return who shares a scale of FP8 or int8 weights."""
    if args.strategy in ("tensor", "channel"):
        return args.strategy
    if (args.strategy == "group" and args.group == 128) or args.block == (1, 128):
        return "row-block"
    if args.strategy == "block" and args.block in (None, (128, 128)):
        return "block"
    raise UnsupportedFormatError(
        f"The {LAYOUT} checkpoint has weights of {args.label}, blocks {args.block}, in {module}, which no format here "
        "holds: take the unquantized checkpoint."
    )


def _integers(modules: Modules, module: str, scheme: Scheme, notes: dict[str, int]) -> EncodedTensor:
    """Return a weight of whole numbers, packed or one to a byte."""
    args = scheme.weights
    if args.strategy not in ("tensor", "channel", "group"):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has weights of {args.label} in {module}, which is unknown."
        )
    take = modules.take if scheme.format == "pack-quantized" else modules.optional
    packed = take(f"{module}.weight_packed", "int32")
    scheme.need_format(module, "int" if packed is None else "int packed")
    if packed is None:
        if args.bits != 8:
            raise UnsupportedFormatError(f"{module} is stored a code a byte, which needs 8 bits, not {args.bits}.")
        stored = modules.take(f"{module}.weight", "int8")
        shape = need_matrix(stored)
        # Flipping the highest bit adds 128.
        codes: Rows = lambda a, b: stored_array(stored, a, b).view(np.uint8) ^ np.uint8(128)  # noqa: E731
    else:
        stored = packed
        shape = _shape(modules, module)
        codes = _packed_codes(packed, args.bits, shape)
    scale = modules.take(f"{module}.weight_scale", FLOATS)
    given = _inputs(modules, module, scheme.inputs, notes)
    order = _order(modules, module, args, shape[1])
    zeros = _zeros(modules, module, args, shape)
    if zeros is None and args.bits > 4 and args.strategy != "group":
        half = np.uint8(1 << (args.bits - 1))
        return scaled_weight(
            stored,
            "int8",
            args.strategy,
            scale_rows(scale, args.strategy, *shape),
            name=f"{module}.weight",
            shape=shape,
            codes=lambda a, b: (codes(a, b) - half).view(np.int8),
            parts=(stored, scale),
            linear_input=given,
        )
    if order is not None:
        given = LinearInput(permutation=order) if given is None else _permuted(given, order)
    group = args.group if args.strategy == "group" else None
    groups = 1 if group is None else -(-shape[1] // group)
    return int_weight(
        f"{module}.weight",
        shape,
        args.bits,
        group,
        codes,
        _int_scales(scale, args, shape[0], groups),
        zeros,
        parts=(stored, scale),
        order=order,
        half_scales=scale.dtype == "float16",
        linear_input=given,
    )


def _permuted(given: LinearInput, order: Array) -> LinearInput:
    return LinearInput(order, given.multiply, given.activation, given.scale, given.zero_point)


def _int_scales(scale: StoredTensor, args: Args, rows: int, groups: int) -> Rows:
    if args.strategy == "tensor":
        value = scalar(scale).reshape(1, 1)
        return lambda a, b: np.repeat(value, b - a, axis=0)
    need_shape(scale, (rows, groups), *([(rows,)] if groups == 1 else []))
    return lambda a, b: scale.rows(a, b).reshape(b - a, groups)


def _shape(modules: Modules, module: str) -> tuple[int, int]:
    """Return the logical shape that a packed weight comes with."""
    tensor = modules.take(f"{module}.weight_shape", ("int64", "int32"))
    need_shape(tensor, (2,))
    rows, width = (int(size) for size in tensor.read())
    if rows < 1 or width < 1:
        raise CheckpointError(f"The tensor {tensor.name} gives the shape {[rows, width]}, which no weight has.")
    return rows, width


def _packed_codes(packed: StoredTensor, bits: int, shape: tuple[int, int]) -> Rows:
    rows, width = shape
    dense, loose = dense_words(width, bits), loose_words(width, bits)
    need_shape(packed, (rows, dense), (rows, loose))
    return lambda a, b: unpack_words(stored_array(packed, a, b), bits, width, dense=packed.shape[1] == dense)


def _zeros(modules: Modules, module: str, args: Args, shape: tuple[int, int]) -> Rows | None:
    """Return the zero points as unsigned codes, or None where there are none; they are read when first asked for."""
    name = f"{module}.weight_zero_point"
    if args.symmetric:
        modules.need_zeros(name)
        return None
    tensor = modules.take(name, ("int32", "int8"))
    rows, width = shape
    groups = -(-width // args.group) if args.strategy == "group" and args.group else 1
    half = 1 << (args.bits - 1)
    if tensor.dtype == "int8":
        if args.strategy == "tensor":
            need_shape(tensor, (1,), (), (1, 1))
        else:
            need_shape(tensor, (rows, groups), *([(rows,)] if groups == 1 else []))
    else:
        need_shape(tensor, (dense_words(rows, args.bits), groups), (loose_words(rows, args.bits), groups))

    @functools.cache
    def whole() -> Array:
        if tensor.dtype == "int8":
            signed = tensor.read().astype(np.int16).reshape(-1, groups) + half
            if (signed < 0).any() or (signed >= 2 * half).any():
                raise CheckpointError(f"The tensor {name} holds zero points that {args.bits} bits can't reach.")
            return np.broadcast_to(signed.astype(np.uint8), (rows, groups))
        dense = tensor.shape[0] == dense_words(rows, args.bits)
        words = np.ascontiguousarray(stored_array(tensor, 0, tensor.shape[0]).T)
        return np.ascontiguousarray(unpack_words(words, args.bits, rows, dense=dense).T)

    return lambda a, b: whole()[a:b]


def _order(modules: Modules, module: str, args: Args, width: int) -> Array | None:
    """Return the columns sorted by group where an activation order was stored, or None where they are sorted."""
    tensor = modules.optional(f"{module}.weight_g_idx", ("int32", "int64"))
    if tensor is None:
        if args.by_group:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint has the actorder group, but {module} has no weight_g_idx."
            )
        return None
    need_shape(tensor, (width,))
    index = tensor.read().astype(np.int64)
    group = args.group if args.strategy == "group" and args.group else width
    if np.array_equal(index, np.arange(width) // group):
        return None
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(width) // group):
        raise CheckpointError(
            f"The tensor {tensor.name} doesn't put {group} columns into each group: the checkpoint is damaged."
        )
    return order


def _count(notes: dict[str, int], note: str | None) -> None:
    if note is not None:
        notes[note] = notes.get(note, 0) + 1


def _inputs(modules: Modules, module: str, args: Args | None, notes: dict[str, int]) -> LinearInput | None:
    """Return what a module's input goes through."""
    names = {kind: f"{module}.input_{kind}" for kind in ("scale", "zero_point", "global_scale")}
    if args is None:
        return None
    static = args.dynamic in (False, "local")
    wide = {("int", 8): "int8", ("int", 4): "int4", ("float", 8): "fp8", ("float", 4): "nvfp4"}.get(
        (args.type, args.bits)
    )
    if wide == "nvfp4" and args.strategy == "tensor_group" and args.group == 16:
        if not static:
            return modules.dynamic(ActivationFormat("nvfp4", static=False, scope="block"))
        whole, note = divided_by(scalar(modules.take(names["global_scale"], FLOATS)))
        del note  # of the inputs' scale; only weights are compared bit for bit
        return LinearInput(activation=ActivationFormat("nvfp4", static=True, scope="block"), scale=whole)
    if args.type == "float" and args.strategy == "group" and args.group == 32 and not static:
        return modules.dynamic(ActivationFormat(f"mxfp{args.bits}", static=False, scope="block"))
    if not static and args.symmetric and wide in ("int8", "int4", "fp8") and args.strategy in ("tensor", "token"):
        return modules.dynamic(ActivationFormat(wide, static=False, scope=args.strategy))
    if not static:
        _count(notes, f"inputs stay floats: the checkpoint's rounding of them ({args.label}, dynamic) isn't done here")
        return None
    if args.strategy != "tensor" or wide not in ("int8", "fp8") or (wide == "fp8" and not args.symmetric):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint rounds the input of {module} to {args.label} with fixed scales, which can't be "
            "done here: take another form of the checkpoint."
        )
    scale, zero = scalar(modules.take(names["scale"], FLOATS)), None
    if args.symmetric:
        modules.need_zeros(names["zero_point"])
    else:
        stored = modules.take(names["zero_point"], "int8")
        need_shape(stored, (), (1,))
        zero = stored.read().reshape(1).astype(np.int8)
    return LinearInput(
        activation=ActivationFormat(wide, static=True, symmetric=zero is None), scale=scale, zero_point=zero
    )


def _cache_dtype(args: Args) -> str:
    if args.bits != 8 or not args.symmetric or args.dynamic or args.strategy not in ("tensor", "attn_head"):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint rounds the cache to {args.label}, which can't be done here: take a checkpoint "
            "with fixed symmetric scales of 8 bits, or without."
        )
    return "int8" if args.type == "int" else "float8_e4m3"


def _cache(modules: Modules, scheme: Args | None) -> dict[str, tuple[Array, Array]]:
    """Return key and value scales by attention module; they are there exactly where a scheme asks for them."""
    if scheme is None:
        return {}
    for side in ("k", "v"):  # the spelling of old files
        for name in modules.named(f"{side}_proj.output_scale"):
            attention = name.removesuffix(f".{side}_proj.output_scale")
            modules.rename(name, f"{attention}.{side}_scale")
            modules.need_zeros(f"{attention}.{side}_proj.output_zero_point")
    return cache_scales(modules, "k_scale", "v_scale", per_head=scheme.strategy == "attn_head")


__all__ = ["Config", "read"]
