"""`Decode`: a weight `[rows, width]` as floats, made of codes and scales; `DecodeRows`: rows of one, by id.

Inputs are the tensors that the format stores: codes int8, float8_e4m3fn or float4_e2m1 `[rows, width]`, the last of
them and those of MX padded to whole blocks; scales; for NVFP4 a global scale. The attribute `format` is int8, e4m3,
nvfp4, mxe4m3 or mxe2m1; `scope`, of the first two, says who shares a float32 scale: the tensor `[1]`, a channel
`[rows, 1]`, a block of 128 x 128 `[ceil(rows / 128), ceil(width / 128)]` or a row-block of 128 columns. NVFP4 has a
float8_e4m3fn scale for 16 columns of a row times the float32 `global_scale` `[1]`, MX a float8_e8m0fnu one for 32.
value = code * scale.

The bodies are DequantizeLinear, in two levels for NVFP4. With `emulate` = 1 they are arithmetic that every runtime has
and folds: float4_e2m1 comes as uint8 `[rows, padded / 2]`, low nibble first, and so do, in `DecodeRows`, 8-bit floats
as one uint8 each, because no standard op picks rows of such types. There the standard body decodes the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints, number

#: Columns that share a scale, of the formats that have no scope.
BLOCKS = {"nvfp4": 16, "mxe4m3": 32, "mxe2m1": 32}
#: Columns, and rows of a block, of int8 and e4m3.
BLOCK = 128
#: Formats of 4-bit codes, two to a byte.
FP4 = ("nvfp4", "mxe2m1")
DECODE_FORMATS = ("int8", "e4m3", *BLOCKS)

#: What the codes of E2M1 stand for.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def decode(
    g: GraphBuilder,
    codes: ir.Value,
    scales: ir.Value,
    global_scale: ir.Value | None = None,
    *,
    kind: str,
    scope: str | None = None,
    in_features: int,
    out_features: int,
) -> ir.Value:
    """Append a `Decode` node; returns float32 `[out_features, in_features]`."""
    sizes = {"in_features": in_features, "out_features": out_features}
    result: ir.Value = g.ew("Decode", codes, scales, global_scale, format=kind, scope=scope, **sizes)
    return result


def decode_rows(
    g: GraphBuilder,
    ids: ir.Value,
    codes: ir.Value,
    scales: ir.Value,
    global_scale: ir.Value | None = None,
    *,
    kind: str,
    scope: str | None = None,
    in_features: int,
    out_features: int,
) -> ir.Value:
    """Append a `DecodeRows` node over int64 ids of any shape; returns float32 `[*ids.shape, in_features]`."""
    sizes = {"in_features": in_features, "out_features": out_features}
    result: ir.Value = g.ew("DecodeRows", ids, codes, scales, global_scale, format=kind, scope=scope, **sizes)
    return result


def block_of(call: Call) -> int | None:
    """Return the columns that share a scale, None where a row or the tensor does."""
    if call["format"] in BLOCKS:
        return BLOCKS[call["format"]]
    return BLOCK if "block" in call["scope"] else None


def e4m3_value(code: int) -> float:
    """Return what a code of E4M3 stands for: sign, 4 bits of exponent with bias 7, 3 bits of mantissa."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return math.copysign(size, -1 if code & 128 else 1)


def e8m0_value(code: int) -> float:
    """Return what a code of E8M0 stands for."""
    return math.nan if code == 255 else 2.0 ** (code - 127)


def floats(name: str, values: tuple[float, ...]) -> str:
    """Spell a statement that defines a float32 vector."""
    return f"{name} = Constant<value = float[{len(values)}] {{{', '.join(map(number, values))}}}>()\n"


def pairs_text(source: str, result: str) -> str:
    """Statements that turn bytes `[..., n]` into the floats `[..., n, 2]` their nibbles stand for in E2M1.

    A table of 256 pairs is made of one of 16 numbers, so that a byte is one look-up.
    """
    text = floats("e2m1", E2M1_VALUES) + ints("pair_column", 16, 1) + ints("pair_row", 1, 16)
    text += ints("pair_square", 16, 16) + ints("pair_all", 256, 2) + ints("pair_last", -1)
    text += "e2m1_row = Reshape(e2m1, pair_row)\ne2m1_column = Reshape(e2m1, pair_column)\n"
    text += "lows = Expand(e2m1_row, pair_square)\nhighs = Expand(e2m1_column, pair_square)\n"
    text += "low_ends = Unsqueeze(lows, pair_last)\nhigh_ends = Unsqueeze(highs, pair_last)\n"
    text += "both = Concat<axis = -1>(low_ends, high_ends)\nof_bytes = Reshape(both, pair_all)\n"
    text += f"pair_index = Cast<to = {int(ir.DataType.INT32)}>({source})\n"
    return text + f"{result} = Gather<axis = 0>(of_bytes, pair_index)\n"


def _table(source: str, result: str, table: str) -> str:
    """Statements that look bytes up in a table of 256 floats."""
    text = f"{source}_index = Cast<to = {int(ir.DataType.INT32)}>({source})\n"
    return text + f"{result} = Gather<axis = 0>({table}, {source}_index)\n"


def _e4m3(source: str, result: str) -> str:
    return _table(source, result, "e4m3")


def _cast(source: str, result: str) -> str:
    return f"{result} = Cast<to = {int(ir.DataType.FLOAT)}>({source})\n"


def _row_scales(call: Call, rows: str) -> str:
    """Statements that define `s`, the scales of the rows whose int64 numbers are `rows`, of the scope `block`."""
    text = f"tile = Constant<value = int64 {{{BLOCK}}}>()\ntiles = Div({rows}, tile)\n"
    return text + "s = Gather<axis = 0>(scales, tiles)\n"


def _all_rows(call: Call) -> str:
    text = f"first = Constant<value = int64 {{0}}>()\nstop = Constant<value = int64 {{{call['out_features']}}}>()\n"
    return text + "step = Constant<value = int64 {1}>()\nnumbers = Range(first, stop, step)\n"


def _cut(call: Call, source: str) -> str:
    """Statements that cut the padding of rows off."""
    text = ints("cut_from", 0) + ints("cut_to", call["in_features"]) + ints("cut_axis", 1)
    return text + f"w = Slice({source}, cut_from, cut_to, cut_axis)\n"


def _scaled(call: Call, codes: str, scales: str, values: Callable[[str, str], str]) -> str:
    """Statements that define `w`: `values` of codes `[n, columns]` times scales `[1]`, `[n, 1]` or `[n, blocks]`.

    Codes are put into blocks before they become floats, which are four times as large or more.
    """
    block, width = block_of(call), call["in_features"]
    if block is None:
        return values(codes, "floats") + f"w = Mul(floats, {scales})\n"
    fp4 = call["format"] in FP4
    text = ints("by_block", 0, -1, block // 2 if fp4 else block) + ints("by_row", 0, -1)
    text += ints("new_axes", *((2, 3) if fp4 else (2,)))
    if width % block and call["format"] not in BLOCKS:
        text += values(codes, "unfilled") + ints("fill", 0, 0, 0, -width % block)
        text += "filled = Pad(unfilled, fill)\nblocked = Reshape(filled, by_block)\n"
    else:
        text += f"blocks = Reshape({codes}, by_block)\n" + values("blocks", "blocked")
    text += f"wide = Unsqueeze({scales}, new_axes)\nproducts = Mul(blocked, wide)\n"
    if width % block == 0:
        return text + "w = Reshape(products, by_row)\n"
    return text + "joined = Reshape(products, by_row)\n" + _cut(call, "joined")


def _standard(call: Call) -> str:
    """Statements that define `w` with DequantizeLinear."""
    kind, block = call["format"], block_of(call)
    if kind == "nvfp4":
        text = "whole = Squeeze(global_scale)\ns = DequantizeLinear(scales, whole)\n"
    elif kind in BLOCKS:
        text = f"s = Cast<to = {int(ir.DataType.FLOAT)}>(scales)\n"
    elif call["scope"] == "tensor":
        return "s = Squeeze(scales)\nw = DequantizeLinear(codes, s)\n"
    elif call["scope"] == "channel":
        return ints("flat", -1) + "s = Reshape(scales, flat)\nw = DequantizeLinear<axis = 0>(codes, s)\n"
    elif call["scope"] == "block":
        text = _all_rows(call) + _row_scales(call, "numbers")
    else:
        text = ""
    scale = "s" if text else "scales"
    padded = kind in BLOCKS and call["in_features"] % BLOCKS[kind]
    result = "padded" if padded else "w"
    text += f"{result} = DequantizeLinear<axis = 1, block_size = {block}>(codes, {scale})\n"
    return text + _cut(call, "padded") if padded else text


def _arithmetic(call: Call) -> str:
    """Statements that define `w` without DequantizeLinear, of codes as they are but for 4-bit ones, which are bytes."""
    kind = call["format"]
    text, scales = "", "s"
    if kind == "nvfp4":
        text += _cast("scales", "narrow") + "s = Mul(narrow, global_scale)\n"
    elif kind in BLOCKS:
        text += _cast("scales", "s")
    elif call["scope"] == "block":
        text += _all_rows(call) + _row_scales(call, "numbers")
    else:
        scales = "scales"
    return text + _scaled(call, "codes", scales, pairs_text if kind in FP4 else _cast)


def _decode_body(call: Call) -> str:
    return _arithmetic(call) if call.attributes.get("emulate") else _standard(call)


def _picked_rows(call: Call) -> str:
    """Statements that define `w`, the rows `flat_ids`, of codes that can be gathered: int8, or bytes."""
    kind, scales = call["format"], "s"
    text = "codes_r = Gather<axis = 0>(codes, flat_ids)\n"
    values = pairs_text if kind in FP4 else _cast if kind == "int8" else _e4m3
    if kind in ("e4m3", "mxe4m3", "nvfp4"):
        text += floats("e4m3", tuple(e4m3_value(code) for code in range(256)))
    if kind in BLOCKS:
        text += "scales_r = Gather<axis = 0>(scales, flat_ids)\n"
        if kind == "nvfp4":
            text += _e4m3("scales_r", "narrow") + "s = Mul(narrow, global_scale)\n"
        else:
            text += floats("e8m0", tuple(e8m0_value(code) for code in range(256))) + _table("scales_r", "s", "e8m0")
    elif call["scope"] == "block":
        text += _row_scales(call, "flat_ids")
    elif call["scope"] == "tensor":
        scales = "scales"
    else:
        text += "s = Gather<axis = 0>(scales, flat_ids)\n"
    return text + _scaled(call, "codes_r", scales, values)


def _rows_body(call: Call) -> str:
    if call["format"] != "int8" and not call.attributes.get("emulate"):
        return _standard(call) + "y = Gather<axis = 0>(w, ids)\n"
    text = ints("one_axis", -1) + "flat_ids = Reshape(ids, one_axis)\n" + _picked_rows(call)
    text += ints("row_width", call["in_features"])
    return text + "shape = Shape(ids)\nfull = Concat<axis = 0>(shape, row_width)\ny = Reshape(w, full)\n"


DECODE = Op("Decode", ("codes", "scales", "global_scale"), ("w",), _decode_body)
DECODE_ROWS = Op("DecodeRows", ("ids", "codes", "scales", "global_scale"), ("y",), _rows_body)
