"""`RoundInput`: x `[..., width]` rounded to a narrow format and back, float32, as the linear that follows would see it.

The attribute `format` is int8, fp8 (E4M3), int4, nvfp4, mxfp8 or mxfp4. With `static` = 1 int8 and fp8 have a float32
`scale` `[1]` found by calibration and int8 optionally a `zero_point` int8 `[1]`; nvfp4 then has its global scale in
`scale`. Dynamic scales are made of x, by `scope`: of the whole tensor or of every token, largest magnitude / largest
code; or of blocks of the last axis. NVFP4: blocks of 16, an E4M3 scale under the global one, which is largest magnitude
/ (6 * 448). MX: blocks of 32, a power of two, floor(log2(largest magnitude)) less the element's own largest exponent.

The bodies are QuantizeLinear and DequantizeLinear; with `emulate` = 1 4-bit floats are rounded by arithmetic.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints, scalar
from edgewright.ops.decode import BLOCKS

#: ONNX type and largest code of the formats with one float32 scale.
_PLAIN = {"int8": (ir.DataType.INT8, 127.0), "fp8": (ir.DataType.FLOAT8E4M3FN, 448.0), "int4": (ir.DataType.INT4, 7.0)}
#: The weight format with the same blocks, and the exponent of its largest code.
_NARROW = {"nvfp4": ("nvfp4", 2), "mxfp8": ("mxe4m3", 8), "mxfp4": ("mxe2m1", 2)}
#: The smallest largest magnitude that counts: the scale made of it is no zero.
TINY = 2.0**-126
#: The smallest global scale of NVFP4: times the smallest block scale it is a normal number.
SMALLEST_GLOBAL = 2.0**-117


def round_input(
    g: GraphBuilder,
    x: ir.Value,
    scale: ir.Value | None = None,
    zero_point: ir.Value | None = None,
    *,
    kind: str,
    static: bool,
    scope: str,
) -> ir.Value:
    """Append a `RoundInput` node; returns x's shape."""
    result: ir.Value = g.ew("RoundInput", x, scale, zero_point, format=kind, static=int(static), scope=scope)
    return result


def _plain(call: Call) -> str:
    """One scale, of the tensor or of every token."""
    dtype, largest = _PLAIN[call["format"]]
    if call["static"]:
        zero = len(call.given) > 2 and call.given[2]
        text = "s = Squeeze(scale)\n" + ("z = Squeeze(zero_point)\n" if zero else "")
        more = ", z" if zero else ""
        # A zero point says the type; ONNX Runtime moves both to uint8 where it likes, but not an attribute beside it.
        typed = "" if zero else f"<output_dtype = {int(dtype)}>"
        text += f"q = QuantizeLinear{typed}(x, s{more})\n"
        return text + f"y = DequantizeLinear(q, s{more})\n"
    text = "size = Abs(x)\n" + scalar("tiny", TINY) + scalar("codes", largest)
    if call["scope"] == "tensor":
        text += "top = ReduceMax<keepdims = 0>(size)\nhigh = Max(top, tiny)\ns = Div(high, codes)\n"
        return text + f"q = QuantizeLinear<output_dtype = {int(dtype)}>(x, s)\ny = DequantizeLinear(q, s)\n"
    text += ints("tokens", -1) + ints("last", -1) + "width = Shape<start = -1>(x)\n"
    text += "two = Concat<axis = 0>(tokens, width)\nrows = Reshape(x, two)\n"
    text += "tops = ReduceMax<keepdims = 0>(size, last)\ntop = Reshape(tops, tokens)\n"
    text += "high = Max(top, tiny)\ns = Div(high, codes)\n"
    text += f"q = QuantizeLinear<axis = 0, output_dtype = {int(dtype)}>(rows, s)\n"
    return text + "d = DequantizeLinear<axis = 0>(q, s)\nshape = Shape(x)\ny = Reshape<allowzero = 1>(d, shape)\n"


def _largest_of_blocks(block: int) -> str:
    """Statements that define `size`, x's magnitudes, and `top` `[..., blocks]`, the largest of every block."""
    text = ints("zero", 0) + ints("last", -1) + ints("block", block)
    text += "size = Abs(x)\nwidth = Shape<start = -1>(x)\nless = Neg(width)\nsurplus = Mod(less, block)\n"
    text += "fill = Concat<axis = 0>(zero, surplus)\nfilled = Pad(size, fill, , last)\n"
    # The count is computed: it can't be inferred where x has no rows.
    text += "full = Add(width, surplus)\ncount = Div(full, block)\n"
    text += "lead = Shape<end = -1>(x)\nby_block = Concat<axis = 0>(lead, count, block)\n"
    return text + "blocked = Reshape(filled, by_block)\ntop = ReduceMax<keepdims = 0>(blocked, last)\n"


def _nvfp4_scales(call: Call) -> str:
    """Statements that define `s` `[..., blocks]` of NVFP4: E4M3 under the global scale."""
    text = scalar("code", 6.0) + scalar("none", 0.0) + scalar("one", 1.0) + scalar("smallest", 2.0**-9)
    if call["static"]:
        text += "whole = Squeeze(scale)\n"
    else:
        text += scalar("range", 6.0 * 448.0) + scalar("least", SMALLEST_GLOBAL)
        text += "all = ReduceMax<keepdims = 0>(size)\nwanted = Div(all, range)\nwhole = Max(wanted, least)\n"
    text += "unit_code = Mul(whole, code)\nshare = Div(top, unit_code)\nkept = Max(share, smallest)\n"
    text += "some = Greater(share, none)\nsafe = Where(some, kept, one)\n"
    text += f"narrow = Cast<to = {int(ir.DataType.FLOAT8E4M3FN)}, saturate = 1>(safe)\n"
    return text + "s = DequantizeLinear(narrow, whole)\n"


def _mx_scales(exponent: int) -> str:
    """Statements that define `s` `[..., blocks]` of MX: powers of two, 1 for a block of zeros."""
    text = scalar("none", 0.0) + scalar("one", 1.0) + scalar("own", 2.0**-exponent) + scalar("least", 2.0**-127)
    e8m0, f32 = int(ir.DataType.FLOAT8E8M0), int(ir.DataType.FLOAT)
    # Rounded down before it is divided: a quotient too small to be a normal number could be rounded up.
    text += f'down = Cast<to = {e8m0}, round_mode = "down">(top)\npower = Cast<to = {f32}>(down)\n'
    text += "share = Mul(power, own)\nkept = Max(share, least)\nsome = Greater(top, none)\n"
    text += "safe = Where(some, kept, one)\n"
    text += f'narrow = Cast<to = {e8m0}, round_mode = "down">(safe)\n'
    return text + f"s = Cast<to = {f32}>(narrow)\n"


def _rounded_by_arithmetic() -> str:
    """Statements that round x to E2M1 with the scales `s`: in steps of 0.5 below 2, of 1 below 4, of 2 up to 6."""
    text = "x_filled = Pad(x, fill, , last)\nx_blocked = Reshape(x_filled, by_block)\nwide = Unsqueeze(s, last)\n"
    text += scalar("lowest", -6.0) + scalar("highest", 6.0) + scalar("two", 2.0) + scalar("four", 4.0)
    text += scalar("half", 0.5) + scalar("unit", 1.0)
    text += "v = Div(x_blocked, wide)\nclipped = Clip(v, lowest, highest)\na = Abs(clipped)\n"
    text += "below_2 = Less(a, two)\nbelow_4 = Less(a, four)\nupper = Where(below_4, unit, two)\n"
    text += "grain = Where(below_2, half, upper)\ncounted = Div(clipped, grain)\nwhole_steps = Round(counted)\n"
    text += "codes = Mul(whole_steps, grain)\nback = Mul(codes, wide)\n"
    text += "flat_shape = Concat<axis = 0>(lead, full)\nback_flat = Reshape(back, flat_shape)\n"
    return text + "y = Slice(back_flat, zero, width, last)\n"


def _blocked(call: Call) -> str:
    """Scales by blocks of the last axis."""
    weight_format, exponent = _NARROW[call["format"]]
    block = BLOCKS[weight_format]
    text = _largest_of_blocks(block) + (_nvfp4_scales(call) if call["format"] == "nvfp4" else _mx_scales(exponent))
    if call["format"] != "mxfp8" and call.attributes.get("emulate"):
        return text + _rounded_by_arithmetic()
    dtype = ir.DataType.FLOAT8E4M3FN if call["format"] == "mxfp8" else ir.DataType.FLOAT4E2M1
    axes = f"axis = -1, block_size = {block}"
    text += f"q = QuantizeLinear<{axes}, output_dtype = {int(dtype)}>(x, s)\n"
    return text + f"y = DequantizeLinear<{axes}>(q, s)\n"


def _body(call: Call) -> str:
    return _plain(call) if call["format"] in _PLAIN else _blocked(call)


ROUND_INPUT = Op("RoundInput", ("x", "scale", "zero_point"), ("y",), _body)
