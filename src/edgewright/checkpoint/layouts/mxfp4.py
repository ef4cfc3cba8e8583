"""The layout of gpt-oss: experts in MXFP4, everything else as it was.

Per matrix of all experts: `NAME_blocks` uint8 `[experts, rows, width / 32, 16]`, two codes to a byte, low half first,
and `NAME_scales` uint8 `[experts, rows, width / 32]`, exponents with bias 127. They become `NAME.weight`, the rows of
all experts under each other; which rows are whose is for the family to say. value = code * 2^(scale - 127).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts.listed import left_out, need_converted
from edgewright.checkpoint.layouts.quantization import Leftovers, Quantization
from edgewright.checkpoint.layouts.weights import need_shape
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import CheckpointError
from edgewright.formats import MxFormat, Parts

LAYOUT = "MXFP4"
_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES, _COLUMNS = 16, 32


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read a checkpoint of `quant_method` mxfp4; see `Reader`."""
    listed = left_out(config, LAYOUT, "modules_to_not_convert")
    left = Leftovers(tensors, LAYOUT)
    result: dict[str, StoredTensor] = {}
    for name in [name for name in tensors if name.endswith(_BLOCKS)]:
        base = name.removesuffix(_BLOCKS)
        need_converted(base, listed, LAYOUT)
        for plain in (base, f"{base}.weight"):
            if plain in left.tensors:
                raise CheckpointError(f"The {LAYOUT} checkpoint holds {plain} both plain and quantized.")
        blocks, scales = left.take(name, dtype="uint8"), left.take(f"{base}{_SCALES}", dtype="uint8")
        result[f"{base}.weight"] = _weight(f"{base}.weight", blocks, scales)
    if not result:
        raise CheckpointError(f"The config says that the checkpoint holds {LAYOUT} weights, but it has none.")
    if odd := [name for name in left.tensors if name.endswith(_SCALES)]:
        raise CheckpointError(
            f"The {LAYOUT} checkpoint has scales {odd[0]} that belong to no blocks: take another copy."
        )
    return result | left.tensors, Quantization("mxfp4")


def _weight(name: str, blocks: StoredTensor, scales: StoredTensor) -> EncodedTensor:
    """Return the matrices of all experts as one of `[experts * rows, width]`."""
    sizes = tuple(blocks.shape)
    if len(sizes) != 4 or sizes[3] != _BYTES or 0 in sizes:
        raise CheckpointError(
            f"The tensor {blocks.name} has the shape {list(sizes)} where [experts, rows, blocks, {_BYTES}] is needed: "
            "the checkpoint is damaged, or of another layout."
        )
    experts, rows, count, _ = sizes
    need_shape(scales, sizes[:3])

    def rows_of(tensor: StoredTensor, start: int, stop: int) -> np.ndarray:
        """Return bytes of rows of all experts, uint8 `[stop - start, bytes]`."""
        first, last = start // rows, -(-stop // rows)
        data = tensor.raw(first, last).reshape((last - first) * rows, math.prod(tensor.shape[2:]))
        return np.ascontiguousarray(data[start - first * rows : stop - first * rows])

    def read_rows(start: int, stop: int) -> Parts:
        exponents = rows_of(scales, start, stop)
        return {"codes": rows_of(blocks, start, stop), "scales": exponents.view(ml_dtypes.float8_e8m0fnu)}

    shape = (experts * rows, count * _COLUMNS)
    return EncodedTensor(name, shape, MxFormat("e2m1"), read_rows, nbytes=blocks.nbytes + scales.nbytes)
