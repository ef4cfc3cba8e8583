"""An embedding table beside the graph: rows are picked and decoded here, and the engine takes them instead of ids.

The file is safetensors, mapped and never read as a whole. It holds the codes as `embedding`, and by format
`embedding_scale`, `embedding_zero_point`, `embedding_offset` and `embedding_global_scale`; the manifest's
`model.embedding` says which format that is. 4-bit codes are pairs in a byte, low half first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.bundle import Manifest
from edgewright.contract import StageContract
from edgewright.errors import BundleError, GenerationError
from edgewright.files import inside

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

#: Name of the sidecar, the engine's input that takes rows, and what a format's parts are called in the file.
SIDECAR = "embedding.safetensors"
INPUT = "inputs_embeds"
TENSORS = {
    "codes": "embedding",
    "scales": "embedding_scale",
    "zero_points": "embedding_zero_point",
    "offsets": "embedding_offset",
    "global_scale": "embedding_global_scale",
}
#: The format's names of dtypes, and the NumPy dtypes of what is mapped.
STORED = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}
_MAPPED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E8M0": "u1"}
_BLOCK, _MX, _NVFP4 = 128, 32, 16
#: Largest header that is read.
_HEADER = 1 << 16

_Shape = tuple[int, ...]
_Layout = dict[str, tuple[str, _Shape]]


class EmbeddingTable:
    """A table of `vocab` rows of `hidden` numbers. Raises BundleError when the file is not what `record` says.

    `record` is the manifest's: `format`, `vocab`, `hidden`, and `multiplier`, which every row is multiplied by.
    """

    def __init__(self, path: Path, record: Mapping[str, Any]) -> None:
        try:
            fmt, self.vocab, self.hidden = record["format"], int(record["vocab"]), int(record["hidden"])
            factor = record["multiplier"]
            self._multiplier = None if factor is None else np.float32(factor)
            wanted = _layout(fmt, self.vocab, self.hidden)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise BundleError(
                "The manifest describes the embedding table in a way this version doesn't know: deploy again."
            ) from None
        self._parts = _mapped(path, wanted)
        self._decode = _decoder(fmt, self.hidden)

    def rows(self, ids: npt.NDArray[np.integer]) -> Floats:
        """Return float32 `[*ids.shape, hidden]` in fresh memory; ids are rows of the table and must be within it."""
        flat = ids.reshape(-1)
        values = self._decode(self._parts, flat)
        if self._multiplier is not None:
            values *= self._multiplier
        return values.reshape(*ids.shape, self.hidden)


def embedding_of(folder: Path, manifest: Manifest, stage: str = "llm") -> EmbeddingTable | None:
    """Return the table beside a bundle's stage, None where it is in the graph.

    Raises BundleError when it is missing, damaged, or not of the engine's sizes.
    """
    contract = manifest.stages[stage].contract
    record, width = manifest.model.get("embedding"), embedding_width(contract)
    if record is None and width is None:
        return None
    if record is None or width is None or not isinstance(record, Mapping):
        raise BundleError("The manifest and the engine differ over where the embedding table is: deploy again.")
    name = f"sidecars/{SIDECAR}"
    if name not in manifest.files:
        raise BundleError(f"The bundle's embedding table ({SIDECAR}) is missing: copy the bundle again.")
    table = EmbeddingTable(inside(folder, name), record)
    if stage != "llm" and table.hidden != width:
        raise BundleError(
            f"The bundle's {SIDECAR} has rows of {table.hidden} where the {stage} stage takes rows of {width}: deploy "
            "again."
        )
    columns = contract.outputs[0].shape[-1] if stage == "llm" else 0
    if table.hidden != width or (isinstance(columns, int) and table.vocab < columns):
        raise BundleError(
            f"The bundle's {SIDECAR} has {table.vocab} rows of {table.hidden} where the engine takes rows of {width} "
            f"and gives {columns} logits: deploy again."
        )
    return table


def embedding_width(contract: StageContract) -> int | None:
    """Return the width of the rows an engine takes, None where it takes token ids."""
    shape = next((tensor.shape for tensor in contract.inputs if tensor.name == INPUT), None)
    return int(shape[-1]) if shape else None


def checked_rows(rows: npt.ArrayLike, batch: int, width: int | None) -> Floats:
    """Return rows that a caller feeds as float32 `[batch, n, width]`; raises GenerationError when they can't be."""
    if width is None:
        raise GenerationError(
            "The bundle's embedding table is inside its graph, so it takes token ids only: deploy with "
            "--embeddings outside."
        )
    try:
        array = np.asarray(rows)
    except ValueError:
        raise GenerationError("Rows of embeddings must be equally many for each sequence.") from None
    if array.ndim == 2 and batch == 1:
        array = array[None]
    if array.ndim != 3 or array.shape[0] != batch or array.shape[1] == 0 or array.shape[2] != width:
        raise GenerationError(
            f"Embeddings of shape {list(np.shape(rows))} don't fit: give rows of {width} numbers for each of {batch}."
        )
    if not np.issubdtype(array.dtype, np.floating):
        raise GenerationError(f"Embeddings must be floating-point numbers, not {array.dtype}.")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        raise GenerationError("The embeddings hold numbers that are not finite, which would spoil the whole dialog.")
    return values


def read_places(path: Path) -> dict[str, tuple[str, _Shape, int, int]]:
    """Return dtype, shape, first byte and length of every tensor of a sidecar; raises BundleError on a damaged one."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            count = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(count, _HEADER)))
        places = {name: _place(entry, 8 + count, size) for name, entry in header.items()}
        if sum(length for _, _, _, length in places.values()) != size - 8 - count:
            raise ValueError("bytes that belong to nothing")
    except OSError as error:
        raise BundleError(
            f"The bundle's {path.name} can't be read ({error.strerror or error}): copy the bundle again."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BundleError(f"The bundle's {path.name} is damaged: copy the bundle again.") from None
    return places


def _place(entry: Any, start: int, size: int) -> tuple[str, _Shape, int, int]:
    """Return one entry of a header; raises ValueError, KeyError or TypeError when it says what can't be."""
    begin, end = entry["data_offsets"]
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or start + end > size:
        raise ValueError("sizes")
    if end - begin != math.prod(shape) * np.dtype(_MAPPED[dtype]).itemsize:
        raise ValueError("another size than its shape has")
    return dtype, shape, start + begin, end - begin


def _mapped(path: Path, wanted: _Layout) -> dict[str, Array]:
    """Return the parts by kind, mapped; raises BundleError that names the first that is not as wanted."""
    places = read_places(path)
    names = {name: kind for kind, name in TENSORS.items()}
    optional = {TENSORS["offsets"]}
    for name in wanted.keys() ^ places.keys():
        if name in wanted and name not in optional:
            raise BundleError(f"The bundle's {path.name} has no tensor {name}: deploy again.")
        if name not in wanted:
            raise BundleError(f"The bundle's {path.name} has the tensor {str(name)[:60]}, which its format lacks.")
    parts = {}
    for name, (dtype, shape, start, _) in places.items():
        if (dtype, shape) != wanted[name]:
            raise BundleError(
                f"The bundle's {path.name} has {name} as {dtype} {list(shape)} where its format needs "
                f"{wanted[name][0]} {list(wanted[name][1])}: deploy again."
            )
        mapped = np.memmap(path, np.dtype(_MAPPED[dtype]), "r", offset=start, shape=shape)
        parts[names[name]] = mapped.view(np.ndarray)
    return parts


def _layout(fmt: Mapping[str, Any], vocab: int, hidden: int) -> _Layout:
    """Return dtype and shape of every tensor of a format; an unknown one raises KeyError, TypeError or ValueError."""
    if vocab < 1 or hidden < 1:
        raise ValueError("sizes")
    if "dtype" in fmt:
        if fmt["dtype"] not in ("float32", "float16", "bfloat16"):
            raise ValueError(fmt["dtype"])
        return {TENSORS["codes"]: (STORED[fmt["dtype"]], (vocab, hidden))}
    if "bits" in fmt:
        return _integer_layout(fmt, vocab, hidden)
    element = fmt["element"]
    if element in ("int8", "e4m3"):
        blocks = -(-hidden // _BLOCK)
        scales = {
            "tensor": (1,),
            "channel": (vocab, 1),
            "block": (-(-vocab // _BLOCK), blocks),
            "row-block": (vocab, blocks),
        }
        codes = "I8" if element == "int8" else "F8_E4M3"
        return {TENSORS["codes"]: (codes, (vocab, hidden)), TENSORS["scales"]: ("F32", scales[fmt["scope"]])}
    group = {"nvfp4": _NVFP4, "mxe4m3": _MX, "mxe2m1": _MX}[element]
    blocks = -(-hidden // group)
    wide = element == "mxe4m3"
    layout: _Layout = {
        TENSORS["codes"]: ("F8_E4M3" if wide else "U8", (vocab, blocks * group // (1 if wide else 2))),
        TENSORS["scales"]: ("F8_E4M3" if element == "nvfp4" else "F8_E8M0", (vocab, blocks)),
    }
    if element == "nvfp4":
        layout[TENSORS["global_scale"]] = ("F32", (1,))
    return layout


def _integer_layout(fmt: Mapping[str, Any], vocab: int, hidden: int) -> _Layout:
    bits, group = fmt["bits"], fmt["group"]
    if bits not in (4, 8) or type(group) is not int or group < 2 or group % 2:
        raise ValueError("bits or group")
    blocks = -(-hidden // group)
    scales = STORED[fmt.get("scales", "float32")]
    if scales not in ("F32", "F16"):
        raise ValueError(scales)
    layout: _Layout = {
        TENSORS["codes"]: ("U8", (vocab, blocks, group * bits // 8)),
        TENSORS["scales"]: (scales, (vocab, blocks)),
        TENSORS["offsets"]: ("F32", (vocab, blocks)),
    }
    if fmt["zero_point"]:
        layout[TENSORS["zero_points"]] = ("U8", (vocab, -(-blocks * bits // 8)))
    return layout


_Parts = Mapping[str, Array]
_Decoder = Callable[[_Parts, Array], Floats]


def _decoder(fmt: Mapping[str, Any], hidden: int) -> _Decoder:
    """Return the function that makes float32 `[n, hidden]` of the rows `[n]` of a format's parts."""
    if "bits" in fmt:
        return lambda parts, ids: _integers(parts, ids, int(fmt["bits"]), hidden)
    if "dtype" in fmt:
        return _half if fmt["dtype"] == "bfloat16" else _floats
    if fmt["element"] in ("int8", "e4m3"):
        return lambda parts, ids: _scaled(parts, ids, str(fmt["element"]), str(fmt["scope"]))
    return lambda parts, ids: _narrow(parts, ids, str(fmt["element"]), hidden)


def _floats(parts: _Parts, ids: Array) -> Floats:
    return parts["codes"][ids].astype(np.float32)


def _half(parts: _Parts, ids: Array) -> Floats:
    """bfloat16 is the upper half of a float32."""
    return (parts["codes"][ids].astype(np.uint32) << 16).view(np.float32)


def _integers(parts: _Parts, ids: Array, bits: int, hidden: int) -> Floats:
    codes, scales = parts["codes"][ids], parts["scales"][ids].astype(np.float32)
    values = (codes if bits == 8 else _nibbles(codes)).astype(np.float32)
    if "zero_points" in parts:
        packed = parts["zero_points"][ids]
        zeros = (packed if bits == 8 else _nibbles(packed))[:, : scales.shape[1], None].astype(np.float32)
    else:
        zeros = np.asarray(1 << (bits - 1), np.float32)
    values = (values - zeros) * scales[:, :, None]
    if "offsets" in parts:
        values += parts["offsets"][ids][:, :, None]
    return _joined(values, hidden)


def _scaled(parts: _Parts, ids: Array, element: str, scope: str) -> Floats:
    codes, scales = parts["codes"][ids], parts["scales"]
    values = codes.astype(np.float32) if element == "int8" else _E4M3[codes]
    if scope == "tensor":
        return np.asarray(values * scales[0], np.float32)
    own = scales[ids // _BLOCK if scope == "block" else ids]
    if scope != "channel":
        own = np.repeat(own, _BLOCK, axis=1)[:, : values.shape[1]]
    return np.asarray(values * own, np.float32)


def _narrow(parts: _Parts, ids: Array, element: str, hidden: int) -> Floats:
    codes, scales = parts["codes"][ids], parts["scales"][ids]
    values = _E4M3[codes] if element == "mxe4m3" else _E2M1[_nibbles(codes)]
    wide = _E4M3[scales] * parts["global_scale"][0] if element == "nvfp4" else _E8M0[scales]
    group = values.shape[1] // wide.shape[1]
    return _joined(values.reshape(len(ids), -1, group) * wide[:, :, None], hidden)


def _joined(blocks: Array, hidden: int) -> Floats:
    """Return `[n, blocks, group]` as rows without the padding of the last block."""
    return np.ascontiguousarray(blocks.reshape(len(blocks), blocks.shape[1] * blocks.shape[2])[:, :hidden], np.float32)


def _nibbles(codes: Array) -> Array:
    """Return 4-bit codes one a byte, the low half of a byte first."""
    result = np.empty((*codes.shape[:-1], 2 * codes.shape[-1]), np.uint8)
    result[..., 0::2] = codes & 0x0F
    result[..., 1::2] = codes >> 4
    return result


def _small_floats(exponents: int, mantissas: int, bias: int) -> Floats:
    """Return what every code of a small float means: sign, exponent, mantissa, subnormals, no infinities."""
    codes = np.arange(1 << (exponents + mantissas))
    exponent, fraction = codes >> mantissas, (codes & ((1 << mantissas) - 1)) / (1 << mantissas)
    sizes = np.where(exponent, np.ldexp(1 + fraction, exponent - bias), np.ldexp(fraction, 1 - bias))
    return np.concatenate([sizes, -sizes]).astype(np.float32)


_E4M3 = _small_floats(4, 3, 7)
_E4M3[[0x7F, 0xFF]] = np.nan
_E2M1 = _small_floats(2, 1, 1)
_E8M0 = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)


def sidecar_header(tensors: Sequence[tuple[str, str, _Shape, int]]) -> bytes:
    """Return the first bytes of a sidecar of tensors (name, dtype, shape, bytes), in the order of their data."""
    entries, cursor = {}, 0
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [cursor, cursor + size]}
        cursor += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
