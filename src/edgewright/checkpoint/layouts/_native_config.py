"""Reads what `edgewright quantize` says beside the weights, and trusts none of it: the folder may have been changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewright.checkpoint.layouts.quantization import Leftovers
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import CheckpointError
from edgewright.formats import ActivationFormat, BlockFormat, LinearInput, format_from_json

_INPUT = ("permutation", "multiply", "scale", "zero_point")
_CACHE = ("key_scale", "value_scale")
_CACHE_DTYPES = ("int8", "float8_e4m3")
#: What activations can be rounded to: name, whether their scale is static, and who shares it.
_ROUNDINGS = {
    *((name, static, scope) for name in ("int8", "fp8") for static, scope in ((True, "tensor"), (False, "token"))),
    ("int4", False, "token"),
    ("nvfp4", True, "block"),
    ("mxfp8", False, "block"),
    ("mxfp4", False, "block"),
}


def damaged(what: str) -> CheckpointError:
    """Return the error of a folder that was changed since it was written."""
    return CheckpointError(f"{what}, so the quantized checkpoint is damaged: quantize the original again.")


def format_of(module: str, entry: Mapping[str, Any]) -> tuple[BlockFormat, tuple[int, int]]:
    """Return format and shape `[rows, width]` of a module. Raises CheckpointError, KeyError, TypeError, ValueError."""
    fmt = format_from_json(entry["format"])
    if not isinstance(fmt, BlockFormat):
        raise damaged(f"{module} is listed among the quantized modules with the format {fmt.label}")
    shape = entry["shape"]
    if not isinstance(shape, list) or len(shape) != 2 or any(type(size) is not int or size < 1 for size in shape):
        raise damaged(f"The shape of {module} is not two positive whole numbers")
    return fmt, (shape[0], shape[1])


def input_of(left: Leftovers, module: str, width: int, entry: Mapping[str, Any]) -> LinearInput | None:
    """Take what the inputs of a module go through, `width` elements each. Raises CheckpointError."""
    given = {kind: left.optional(f"{module}.input.{kind}") for kind in _INPUT}
    activation = _activation(module, entry.get("activation"))
    if activation is None and all(tensor is None for tensor in given.values()):
        return None
    scaled, shifted = activation is not None and activation.static, activation is not None and not activation.symmetric
    for kind, needed in (("scale", scaled), ("zero_point", shifted)):
        if (given[kind] is not None) != needed:
            word = "no" if needed else "a"
            label = "none" if activation is None else activation.label
            raise damaged(f"{module} has {word} {kind} of its inputs, and its activations are {label}")
    return LinearInput(
        _values(given["permutation"], "int64", width),
        _values(given["multiply"], "float32", width),
        activation,
        _values(given["scale"], "float32", 1),
        _values(given["zero_point"], "int8", 1),
    )


def _activation(module: str, data: Any) -> ActivationFormat | None:
    if data is None:
        return None
    if isinstance(data, dict) and data.keys() == {"name", "static", "scope", "symmetric"}:
        flags = all(isinstance(data[key], bool) for key in ("static", "symmetric"))
        if flags and (data["name"], data["static"], data["scope"]) in _ROUNDINGS:
            found = ActivationFormat(**data)
            if found.symmetric or (found.name, found.static) == ("int8", True):
                return found
    raise damaged(f"The activations of {module} are none that a recipe can ask for")


def _values(tensor: StoredTensor | None, dtype: str, count: int) -> np.ndarray | None:
    """Return a tensor's values, which must be numbers of the kind its name says."""
    if tensor is None:
        return None
    if tensor.dtype != dtype or tuple(tensor.shape) != (count,):
        raise damaged(f"{tensor.name} is {tensor.dtype} {list(tensor.shape)} and not {dtype} [{count}]")
    values: np.ndarray = tensor.read()
    if dtype == "int64" and not np.array_equal(np.sort(values), np.arange(count)):
        raise damaged(f"{tensor.name} is no permutation of {count} columns")
    if dtype == "float32" and not np.isfinite(values).all():
        raise damaged(f"{tensor.name} holds values that are not finite")
    if dtype == "float32" and tensor.name.endswith("scale") and (values <= 0).any():
        raise damaged(f"{tensor.name} holds a scale that is not positive")
    return values


def cache_of(left: Leftovers, config: Mapping[str, Any]) -> tuple[str | None, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Take the cache's dtype, and key and value scale by attention module. Raises CheckpointError."""
    dtype, modules = config.get("kv_dtype"), names_of(config, "kv_modules")
    if dtype is not None and dtype not in _CACHE_DTYPES:
        raise damaged("The cache's dtype is unknown")
    if (dtype is None) != (not modules):
        raise damaged("The cache has a dtype without scales, or scales without a dtype")
    scales = {}
    for module in modules:
        key, value = (_scale(left.take(f"{module}.{kind}", dtype="float32")) for kind in _CACHE)
        if key.shape != value.shape:
            raise damaged(f"Keys and values of {module} have different numbers of scales")
        scales[module] = key, value
    return dtype, scales


def _scale(tensor: StoredTensor) -> np.ndarray:
    count = tensor.shape[0] if len(tensor.shape) == 1 and tensor.shape[0] else 1
    values = _values(tensor, "float32", count)
    assert values is not None
    return values


def names_of(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of different names. Raises CheckpointError."""
    names = config.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) != len(names):
        raise damaged(f"quantization_config.{key} is no list of names")
    return tuple(names)


def check_leftovers(left: Leftovers) -> None:
    """Refuse tensors that only a quantized module or a quantized cache has, and that the config doesn't name."""
    for name in left.tensors:
        _, _, path = name.rpartition(".weight.") if ".weight." in name else name.rpartition(".input.")
        odd = path in ("codes", "scales") if ".weight." in name else ".input." in name and path in _INPUT
        if odd or name.rpartition(".")[2] in _CACHE:
            raise damaged(f"The tensor {name} belongs to nothing that quantization_config names")
