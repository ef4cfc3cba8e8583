"""The layout of AutoAWQ, version `gemm`: 4 bits with a zero point per group.

Per quantized module: `qweight` int32 `[width, rows / 8]` and `qzeros` int32 `[groups, rows / 8]`, eight rows to a word
in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits, `scales` `[groups, rows]`. Zero points are stored as they are:
value = (code - zero point) * scale. What AWQ multiplied the inputs by is in the weights before them already.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts.bits import unpack_words
from edgewright.checkpoint.layouts.listed import choice, flag, left_out, need_converted
from edgewright.checkpoint.layouts.modules import Modules, needs_untying
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.layouts.weights import FLOATS, int_weight, json_int, need_matrix, need_shape, stored_array
from edgewright.checkpoint.tensor import StoredTensor, widen
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import Array

LAYOUT = "AWQ"
_SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")
_BITS, _PER_WORD = 4, 8
#: Where in a word the rows 0 to 7 are.
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
_TAKE = "take the unquantized checkpoint."


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read an AutoAWQ checkpoint; see `Reader`."""
    group = _group(config)
    listed = left_out(config, LAYOUT, "modules_to_not_convert")
    modules = Modules(tensors, LAYOUT, _SUFFIXES)
    for module in modules.quantized("qweight"):
        need_converted(module, listed, LAYOUT)
        modules.result[f"{module}.weight"] = _weight(modules, module, group)
    if not modules.result:
        raise CheckpointError(f"The config says that the checkpoint is quantized by {LAYOUT}, but it has no qweight.")
    modules.finish()
    size = "channel" if group is None else f"group {group}"
    return modules.result, Quantization(f"awq gemm (4 bits {size} zero points)", untied=needs_untying(modules.result))


def _group(config: Mapping[str, Any]) -> int | None:
    """Return the columns of a group, None for a row. Raises UnsupportedFormatError on what can't be read."""
    version = choice(config, "version", choice(config, "format", "gemm"))
    backend = choice(config, "backend", "autoawq")
    if str(version).lower() != "gemm" or str(backend).lower() == "llm-awq":
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint is stored in the version {version!r} ({backend}), and only 'gemm' of AutoAWQ can "
            f"be read: {_TAKE}"
        )
    bits = json_int(choice(config, "bits", choice(config, "w_bit", 4)), "bits")
    group = json_int(choice(config, "group_size", choice(config, "q_group_size", 128)), "group_size")
    if bits != _BITS or (group < 1 and group != -1):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has {bits} bits in groups of {group}, which can't be read: {_TAKE}"
        )
    # Without zero points the tool stores the middle code in their place, and its kernels subtract what is stored.
    flag(config, "zero_point", LAYOUT, default=True)
    return None if group == -1 else group


def _weight(modules: Modules, module: str, group: int | None) -> EncodedTensor:
    codes, zeros = (modules.take(f"{module}.{kind}", "int32") for kind in ("qweight", "qzeros"))
    scales = modules.take(f"{module}.scales", FLOATS)
    width, words = need_matrix(codes)
    rows = words * _PER_WORD
    groups = 1 if group is None else -(-width // group)
    need_shape(zeros, (groups, words))
    need_shape(scales, (groups, rows))

    def scale_rows(start: int, stop: int) -> Array:
        return widen(np.ascontiguousarray(stored_array(scales, 0, groups)[:, start:stop].T))

    return int_weight(
        f"{module}.weight",
        (rows, width),
        _BITS,
        group,
        functools.partial(_columns, codes),
        scale_rows,
        functools.partial(_columns, zeros),
        parts=(codes, zeros, scales),
        half_scales=scales.dtype == "float16",
    )


def _columns(tensor: StoredTensor, start: int, stop: int) -> Array:
    """Return what a tensor holds for rows of the weight: uint8 `[rows, tensor rows]`."""
    first, last = start // _PER_WORD, -(-stop // _PER_WORD)
    words = np.ascontiguousarray(stored_array(tensor, 0, tensor.shape[0])[:, first:last])
    count = (last - first) * _PER_WORD
    halves = unpack_words(words, _BITS, count).reshape(len(words), last - first, _PER_WORD)
    in_order = halves[:, :, _PLACES].reshape(len(words), count)
    return np.ascontiguousarray(in_order[:, start - first * _PER_WORD : stop - first * _PER_WORD].T)
