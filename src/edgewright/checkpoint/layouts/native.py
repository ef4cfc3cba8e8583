"""The layout of `edgewright quantize`: lossless for every format, each part of a weight as a tensor of its own.

`config.json` holds `quantization_config` with `quant_method` "edgewright", a version, the format of every quantized
module, what its inputs go through, the dtype of modules that stay floats (`floats`), and the cache's format. Tensors:
`MODULE.weight.PART` for the parts of a format (4-bit floats as bytes, two to each),
`MODULE.input.multiply|scale|zero_point|permutation`, `MODULE.key_scale|value_scale` for attention modules, all other
parameters under their names. The entry of a tied table says what the input of the head goes through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts._native_config import (
    cache_of,
    check_leftovers,
    damaged,
    format_of,
    input_of,
    names_of,
)
from edgewright.checkpoint.layouts.quantization import Leftovers, Quantization
from edgewright.checkpoint.tensor import DTYPES, StoredTensor
from edgewright.checkpoint.text import shown
from edgewright.errors import CheckpointError
from edgewright.formats import BlockFormat, Format, IntFormat, LinearInput, Parts

METHOD = "edgewright"
VERSION = 1
#: Dtypes of modules that stay floats.
FLOATS = ("float32", "float16", "bfloat16")
#: How parts whose numbers take half a byte are stored.
PACKED = {"float4_e2m1": "uint8"}


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read our own layout; see `Reader`."""
    if config.get("version") != VERSION:
        raise CheckpointError(
            f"The checkpoint was quantized by another version of this program (layout {config.get('version')!r}, known "
            f"is {VERSION}): quantize it again."
        )
    left = Leftovers(tensors, METHOD)
    result: dict[str, StoredTensor] = {}
    try:
        modules = {str(name): dict(entry) for name, entry in config["modules"].items()}
        for module, entry in modules.items():
            fmt, shape = format_of(module, entry)
            result[f"{module}.weight"] = _weight(left, module, fmt, shape, entry)
        floats = _floats(left, config.get("floats", {}))
        kv_dtype, scales = cache_of(left, config)
        found = Quantization(
            f"{METHOD} {config['recipe']['name']}",
            canonical=True,
            kv_dtype=kv_dtype,
            kv_scales=scales,
            untied=config.get("untied", False) is True,
            biases=names_of(config, "biases"),
            notes=names_of(config, "notes"),
            record={key: config[key] for key in ("recipe", "origin", "calibration", "taken") if key in config},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(f"quantization_config can't be read ({type(error).__name__} {shown(str(error))})") from None
    check_leftovers(left)
    if odd := {*left.tensors, *floats} & result.keys():
        raise CheckpointError(f"The checkpoint holds {min(odd)} both plain and quantized: quantize it again.")
    return result | floats | left.tensors, found


def _weight(
    left: Leftovers, module: str, fmt: BlockFormat, shape: tuple[int, int], entry: Mapping[str, Any]
) -> EncodedTensor:
    stored: dict[str, StoredTensor] = {}
    specs = dict(fmt.specs(shape))
    if entry.get("offsets") and isinstance(fmt, IntFormat):
        specs["offsets"] = ("float32", specs["scales"][1])
    for kind, (dtype, dims) in specs.items():
        wanted = PACKED.get(dtype, dtype)
        tensor = left.take(f"{module}.weight.{kind}", dtype=wanted)
        size = (*dims[:-1], dims[-1] // 2) if dtype in PACKED else dims
        if tuple(tensor.shape) != size:
            raise CheckpointError(
                f"{tensor.name} has the shape {list(tensor.shape)} where {fmt.label} needs {list(size)}: "
                "the checkpoint's config and tensors disagree."
            )
        stored[kind] = tensor
    through = input_of(left, module, shape[1], entry)
    nbytes = sum(tensor.nbytes for tensor in stored.values())
    return EncodedTensor(
        f"{module}.weight", shape, fmt, reader_of(stored, fmt, shape[0]), nbytes=nbytes, linear_input=through
    )


def _floats(left: Leftovers, entries: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Return the modules that were chosen to be floats, by weight, with dtype and what their inputs go through."""
    found: dict[str, StoredTensor] = {}
    for module, entry in entries.items():
        if entry["dtype"] not in FLOATS:
            raise damaged(f"The float dtype of {module} is none of {', '.join(FLOATS)}")
        tensor = left.take(f"{module}.weight", dtype=FLOATS)
        if len(tensor.shape) != 2:
            raise damaged(f"{tensor.name} is listed among the float modules and is no matrix")
        tensor.kept, tensor.input = entry["dtype"], input_of(left, module, tensor.shape[1], entry)
        found[f"{module}.weight"] = tensor
    return found


def reader_of(stored: Mapping[str, StoredTensor], fmt: BlockFormat, rows: int) -> Any:
    """Return a function that reads runs of rows of parts that are stored as the format has them."""

    def read_rows(start: int, stop: int) -> Parts:
        parts: Parts = {}
        for kind, tensor in stored.items():
            if kind in fmt.shared:
                a, b = 0, tensor.row_count
            elif kind != "codes" and fmt.row_step > 1:
                a, b = start // fmt.row_step, -(-stop // fmt.row_step)
            else:
                a, b = start, stop
            data = np.ascontiguousarray(tensor.raw(a, b)).view(DTYPES[tensor.dtype])
            parts[kind] = data.reshape(b - a, *tensor.shape[1:])
        return parts

    return read_rows


def module_entry(
    fmt: BlockFormat, shape: tuple[int, ...], given: LinearInput | None, *, offsets: bool
) -> dict[str, Any]:
    """Return what the config says of one quantized module."""
    entry: dict[str, Any] = {"format": fmt.to_json(), "shape": list(shape)}
    if offsets:
        entry["offsets"] = True
    if given is not None and given.activation is not None:
        entry["activation"] = given.activation.to_json()
    return entry


def part_bytes(fmt: Format, shape: tuple[int, ...]) -> int:
    """Return the bytes a weight of `shape` takes in a format."""
    total = 0
    for dtype, dims in fmt.specs(shape).values():
        count = math.prod(dims)
        total += count // 2 if dtype in PACKED else count * DTYPES[dtype].itemsize
    return total
