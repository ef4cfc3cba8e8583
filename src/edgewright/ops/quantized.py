"""`QuantLinear`, `QuantEmbedding`: the same maths on integer weights in blocks along the input axis; `Dequantize`: such
a weight as floats, for an op that has no twin of its own.

A weight `[out, in]` is stored as codes of `bits` bits, `group` to a block, low nibble first, in uint8
`[out, blocks, group * bits / 8]`, with scales `[out, blocks]` and, optionally, zero points packed like the
codes in uint8 `[out, ceil(blocks * bits / 8)]`; without them the zero point is 2^(bits - 1). Optional float32 offsets
`[out, blocks]` are added. The last block is padded. value = (code - zero_point) * scale + offset.
Where the attribute `scales` is "float16", which it otherwise is not there, the scales are, and the op widens them.
The attribute `int8_activations` allows a kernel to round x to int8 in blocks of `group`; the reference body does not.
"""

from __future__ import annotations

from edgewright.ops._body import Call, Op, ints, scalar

QUANT_LINEAR_INPUTS = ("x", "codes", "scales", "zero_points", "offsets", "bias")


def _unpack(source: str, result: str, bits: int) -> str:
    """Statements that turn packed bytes `[..., n]` into float codes `[..., n * 8 / bits]` (rank 3 input)."""
    if bits == 8:
        return f"{result} = Cast<to = 1>({source})\n"
    return (
        f'{result}_low = BitwiseAnd({source}, u15)\n{result}_high = BitShift<direction = "RIGHT">({source}, u4)\n'
        f"{result}_l4 = Unsqueeze({result}_low, last)\n{result}_h4 = Unsqueeze({result}_high, last)\n"
        f"{result}_pairs = Concat<axis = -1>({result}_l4, {result}_h4)\n"
        f"{result}_u8 = Reshape({result}_pairs, merged)\n{result} = Cast<to = 1>({result}_u8)\n"
    )


def _dequantize(call: Call, codes: str, scales: str, zero_points: str | None, offsets: str | None) -> str:
    """Statements that define `w` `[rows, in]` from packed tensors of rank 3, 2 and 2."""
    bits, group, width = call["bits"], call["group"], call["in_features"]
    blocks = -(-width // group)
    text = ints("last", -1) + ints("merged", 0, 0, -1) + ints("zero", 0) + ints("axis1", 1)
    text += "u15 = Constant<value = uint8 {15}>()\nu4 = Constant<value = uint8 {4}>()\n"
    text += _unpack(codes, "q", bits)
    if zero_points is None:
        text += scalar("z", 2.0 ** (bits - 1))
    else:
        text += f"z_rank3 = Unsqueeze({zero_points}, axis1)\n" + _unpack("z_rank3", "z_all", bits)
        text += ints("n_blocks", blocks) + ints("axis2", 2)
        text += "z_cut = Slice(z_all, zero, n_blocks, axis2)\n" + ints("z_shape", 0, blocks, 1)
        text += "z = Reshape(z_cut, z_shape)\n"
    if call.attributes.get("scales") == "float16":
        text += f"widened = Cast<to = 1>({scales})\n"
        scales = "widened"
    text += f"centred = Sub(q, z)\ns3 = Unsqueeze({scales}, last)\nscaled = Mul(centred, s3)\n"
    if offsets is None:
        text += "blocked = Identity(scaled)\n"
    else:
        text += f"o3 = Unsqueeze({offsets}, last)\nblocked = Add(scaled, o3)\n"
    text += ints("rows", 0, -1) + "padded = Reshape(blocked, rows)\n"
    return text + ints("width", width) + "w = Slice(padded, zero, width, axis1)\n"


def _linear_body(call: Call) -> str:
    given = (*call.given, False, False, False)
    text = _dequantize(call, "codes", "scales", "zero_points" if given[3] else None, "offsets" if given[4] else None)
    text += "wt = Transpose<perm = [1, 0]>(w)\n"
    return text + ("xw = MatMul(x, wt)\ny = Add(xw, bias)\n" if given[5] else "y = MatMul(x, wt)\n")


def _embedding_body(call: Call) -> str:
    text = ints("one_axis", -1) + "flat_ids = Reshape(ids, one_axis)\n"
    text += "codes_r = Gather<axis = 0>(codes, flat_ids)\nscales_r = Gather<axis = 0>(scales, flat_ids)\n"
    optional: list[str | None] = [None, None]
    for place, name in enumerate(("zero_points", "offsets")):
        if (*call.given, False, False)[3 + place]:
            text += f"{name}_r = Gather<axis = 0>({name}, flat_ids)\n"
            optional[place] = f"{name}_r"
    text += _dequantize(call, "codes_r", "scales_r", *optional)
    text += "shape = Shape(ids)\nfull = Concat<axis = 0>(shape, width)\n"
    return text + "y = Reshape(w, full)\n"


def _dequantize_body(call: Call) -> str:
    given = (*call.given, False, False)
    return _dequantize(call, "codes", "scales", "zero_points" if given[2] else None, "offsets" if given[3] else None)


QUANT_LINEAR = Op("QuantLinear", QUANT_LINEAR_INPUTS, ("y",), _linear_body)
QUANT_EMBEDDING = Op("QuantEmbedding", ("ids", "codes", "scales", "zero_points", "offsets"), ("y",), _embedding_body)
DEQUANTIZE = Op("Dequantize", ("codes", "scales", "zero_points", "offsets"), ("w",), _dequantize_body)
