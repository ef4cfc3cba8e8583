"""How numbers are stored: formats, the tensors they are made of, and the arithmetic between them and floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.formats.base import BlockFormat, FloatFormat, Format, Grid, Parts, StoredFormat, to_blocks
from edgewright.formats.elements import E2M1, E4M3, ELEMENTS, INT8, Array, Element, pack, unpack
from edgewright.formats.inputs import ACTIVATIONS, ActivationFormat, LinearInput
from edgewright.formats.integer import IntFormat, dequantize, quantize
from edgewright.formats.microscale import MxFormat, Nvfp4Format
from edgewright.formats.rounding import round_input
from edgewright.formats.scaled import SCOPES, ScaledFormat

#: What a recipe may wish for.
Wanted = Format | StoredFormat


def format_from_json(data: Mapping[str, Any]) -> Format:
    """Return the format that `to_json` described; raises KeyError, TypeError or ValueError on anything else."""
    if "dtype" in data:
        if data["dtype"] not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"the dtype {data['dtype']!r}")
        return FloatFormat(data["dtype"])
    if "bits" in data:
        scales = data.get("scales", "float32")
        if data["bits"] not in (4, 8) or data["group"] < 1 or scales not in ("float32", "float16"):
            raise ValueError(f"an integer format of {data['bits']} bits, group {data['group']}, {scales} scales")
        flags = bool(data["zero_point"]), bool(data["int8_activations"])
        return IntFormat(int(data["bits"]), int(data["group"]), *flags, scales)
    kind = data["element"]
    if kind == "nvfp4":
        return Nvfp4Format()
    if kind in ("mxe4m3", "mxe2m1"):
        return MxFormat(kind.removeprefix("mx"))
    if kind not in ("int8", "e4m3") or data["scope"] not in SCOPES:
        raise ValueError(f"the format {dict(data)}")
    return ScaledFormat(kind, data["scope"])


__all__ = [
    "ACTIVATIONS",
    "E2M1",
    "E4M3",
    "ELEMENTS",
    "INT8",
    "SCOPES",
    "ActivationFormat",
    "Array",
    "BlockFormat",
    "Element",
    "FloatFormat",
    "Format",
    "Grid",
    "IntFormat",
    "LinearInput",
    "MxFormat",
    "Nvfp4Format",
    "Parts",
    "ScaledFormat",
    "StoredFormat",
    "Wanted",
    "dequantize",
    "format_from_json",
    "pack",
    "quantize",
    "round_input",
    "to_blocks",
    "unpack",
]
