"""What the plug-ins of TensorRT Edge-LLM compute, in standard ONNX, in float32 between float16 values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.parser

from edgewright.graph.stage import OPSET

#: The domain of the functions that stand for nodes.
DOMAIN = "stands"
_FLOAT, _HALF, _E4M3 = (int(onnx.TensorProto.DataType.Value(n)) for n in ("FLOAT", "FLOAT16", "FLOAT8E4M3FN"))
#: The score of what a token doesn't see.
_HIDDEN = -1e30


def function(name: str, inputs: Sequence[str], outputs: Sequence[str], text: str) -> onnx.FunctionProto:
    """Return a function of statements."""
    head = f'<opset_import: ["" : {OPSET}], domain: "{DOMAIN}">\n{name} ({", ".join(inputs)}) => ({", ".join(outputs)})'
    return onnx.parser.parse_function(f"{head} {{\n{text}}}")


def _ints(name: str, *values: int) -> str:
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>()\n"


def _scalar(name: str, value: float) -> str:
    return f"{name} = Constant<value = float {{{value!r}}}>()\n"


#: The plug-in's inputs: before and after those that depend on the attributes.
_FIRST = ("qkv", "pool", "query_lengths", "rope", "past", "table")
_NORMS = ("q_gamma", "k_gamma")
_LAST = ("offsets", "totals", "marker", "carrier")


def attention(name: str, a: Mapping[str, Any]) -> onnx.FunctionProto:
    """Return the attention plug-in: rope, norms, the pages' update, and attention over a sequence's own pages.

    qkv float16 `[tokens, width]` of all sequences one behind the other, pool `[2, pages, 128, kv_heads, head]`, whose
    rows `table` `[sequences, 2, n]` counts through: keys first, values from `pages` on. A page's -1 is none. Returns
    float16 `[tokens, heads, head]` and the pool.
    """
    heads, kv_heads, dim = a["num_q_heads"], a["num_kv_heads"], a["head_size"]
    inputs = [*_FIRST, *(_NORMS if a["enable_qk_norm"] else ()), *_LAST]
    text = _ints("widths", heads * dim, kv_heads * dim, kv_heads * dim) + _ints("q_shape", -1, heads, dim)
    text += (
        _ints("k_shape", -1, kv_heads, dim) + _ints("zero", 0) + _ints("one", 1) + _ints("two", 2) + _ints("end", -1)
    )
    text += "i0 = Constant<value = int64 {0}>()\ni1 = Constant<value = int64 {1}>()\n"
    text += "page = Constant<value = int64 {128}>()\n"
    text += f"x = Cast<to = {_FLOAT}>(qkv)\nqf, kf, vf = Split<axis = 1>(x, widths)\n"
    text += "q_0 = Reshape(qf, q_shape)\nk_0 = Reshape(kf, k_shape)\nv_0 = Reshape(vf, k_shape)\n"
    text += "cos_2, sin_2 = Split<axis = 1, num_outputs = 2>(rope)\n"
    text += "cos = Unsqueeze(cos_2, one)\nsin = Unsqueeze(sin_2, one)\n"
    for side in ("q", "k"):
        text += _turned_and_normed(side, a)
    text += _tokens() + _pool(a, kv_heads, dim) + _scores(a, heads, kv_heads, dim)
    return function(name, inputs, ["y", "present"], text)


def _turned_and_normed(side: str, a: Mapping[str, Any]) -> str:
    """Statements that make `q` and `k` of `q_0` and `k_0`."""
    after = bool(a["qk_norm_post_rope"])
    before = a["enable_qk_norm"] and not after
    text, source = "", f"{side}_0"
    if before:
        text += _normed(source, f"{side}_n", side, a)
        source = f"{side}_n"
    target = f"{side}_turned" if a["enable_qk_norm"] and after else side
    text += f"{side}_a, {side}_b = Split<axis = -1, num_outputs = 2>({source})\n"
    text += f"{side}_ac = Mul({side}_a, cos)\n{side}_bs = Mul({side}_b, sin)\n{side}_1 = Sub({side}_ac, {side}_bs)\n"
    text += f"{side}_bc = Mul({side}_b, cos)\n{side}_as = Mul({side}_a, sin)\n{side}_2 = Add({side}_bc, {side}_as)\n"
    text += f"{target} = Concat<axis = -1>({side}_1, {side}_2)\n"
    return text + (_normed(target, side, side, a) if a["enable_qk_norm"] and after else "")


def _normed(source: str, target: str, side: str, a: Mapping[str, Any]) -> str:
    p = f"{side}_rms"
    text = _scalar(f"{p}_e", a["rms_norm_eps"]) + f"{p}_g = Cast<to = {_FLOAT}>({side}_gamma)\n"
    text += f"{p}_s = Mul({source}, {source})\n{p}_m = ReduceMean<keepdims = 1>({p}_s, end)\n"
    text += f"{p}_p = Add({p}_m, {p}_e)\n{p}_r = Sqrt({p}_p)\n{p}_u = Div({source}, {p}_r)\n"
    return text + f"{target} = Mul({p}_u, {p}_g)\n"


def _tokens() -> str:
    """Statements that define, of every token, `seq` its sequence and `at` its position there, and `pages`, int64."""
    text = "t_count = Shape<start = 0, end = 1>(qkv)\nt_n = Squeeze(t_count, zero)\nt = Range(i0, t_n, i1)\n"
    text += "table_l = Cast<to = 7>(table)\npast_l = Cast<to = 7>(past)\noffsets_l = Cast<to = 7>(offsets)\n"
    text += "n_offsets = Shape(offsets_l)\nends = Slice(offsets_l, one, n_offsets, zero)\n"
    text += "t_column = Unsqueeze(t, one)\nended = GreaterOrEqual(t_column, ends)\nended_l = Cast<to = 7>(ended)\n"
    text += "seq = ReduceSum<keepdims = 0>(ended_l, one)\n"
    text += "before = Gather<axis = 0>(past_l, seq)\nstart = Gather<axis = 0>(offsets_l, seq)\n"
    text += "inner = Sub(t, start)\nat = Add(before, inner)\n"
    text += "pages = Gather<axis = 0>(table_l, seq)\npage_at = Div(at, page)\nslot = Mod(at, page)\n"
    return text + "page_column = Unsqueeze(page_at, one)\n"


def _pool(a: Mapping[str, Any], kv_heads: int, dim: int) -> str:
    """Statements that define `flat`, all rows of the pool in float32 after the update, and `present`."""
    fp8 = bool(a["enable_fp8_kv_cache"])
    text = _ints("flat_shape", -1, kv_heads, dim)
    if fp8:
        # One scale for keys and one for values, which are the pool's halves.
        text += _scalar("k_scale", a["qkv_scales"][1]) + _scalar("v_scale", a["qkv_scales"][2])
        text += f"codes = Cast<to = {_FLOAT}>(pool)\nk_codes, v_codes = Split<axis = 0, num_outputs = 2>(codes)\n"
        text += (
            "k_half = Mul(k_codes, k_scale)\nv_half = Mul(v_codes, v_scale)\nwide = Concat<axis = 0>(k_half, v_half)\n"
        )
    else:
        text += f"wide = Cast<to = {_FLOAT}>(pool)\n"
    text += "rows = Reshape(wide, flat_shape)\n"
    for side, place, source in (("k", "i0", "k"), ("v", "i1", "v_0")):
        if fp8:
            text += f"{side}_c = QuantizeLinear<output_dtype = {_E4M3}>({source}, {side}_scale)\n"
            text += f"{side}_r = DequantizeLinear({side}_c, {side}_scale)\n"
        else:
            text += f"{side}_c = Cast<to = {_HALF}>({source})\n{side}_r = Cast<to = {_FLOAT}>({side}_c)\n"
        text += f"{side}_pages = Gather<axis = 1>(pages, {place})\n"
        text += f"{side}_page = GatherElements<axis = 1>({side}_pages, page_column)\n"
        text += f"{side}_flat = Squeeze({side}_page, one)\n{side}_first = Mul({side}_flat, page)\n"
        text += f"{side}_slot = Add({side}_first, slot)\n{side}_index = Unsqueeze({side}_slot, one)\n"
    text += "with_k = ScatterND(rows, k_index, k_r)\nflat = ScatterND(with_k, v_index, v_r)\n"
    text += "pool_shape = Shape(pool)\nafter = Reshape(flat, pool_shape)\n"
    if not fp8:
        return text + f"present = Cast<to = {_HALF}>(after)\n"
    text += "k_after, v_after = Split<axis = 0, num_outputs = 2>(after)\n"
    text += "k_back = Div(k_after, k_scale)\nv_back = Div(v_after, v_scale)\nback = Concat<axis = 0>(k_back, v_back)\n"
    return text + f"present = Cast<to = {_E4M3}, saturate = 1>(back)\n"


def _scores(a: Mapping[str, Any], heads: int, kv_heads: int, dim: int) -> str:
    """Statements that define `y`: every token sees its own sequence's rows up to itself."""
    group, window = heads // kv_heads, a["sliding_window_size"]
    text = _ints("table_axis", 1) + "inside = Range(i0, page, i1)\n"
    for side, place in (("k", "i0"), ("v", "i1")):
        text += f"{side}_table = Gather<axis = 1>(table_l, {place})\n{side}_there = Max({side}_table, i0)\n"
        text += f"{side}_begin = Mul({side}_there, page)\n{side}_column = Unsqueeze({side}_begin, two)\n"
        text += f"{side}_all = Add({side}_column, inside)\n{side}_line = Reshape({side}_all, end)\n"
        text += f"{side}_seen = Gather<axis = 0>(flat, {side}_line)\n"
    # whose row it is, and which one
    text += "all_shape = Shape(k_all)\nn_seq_v = Gather<axis = 0>(all_shape, zero)\nn_seq = Squeeze(n_seq_v, zero)\n"
    text += "n_pages_v = Gather<axis = 0>(all_shape, one)\nn_pages = Squeeze(n_pages_v, zero)\n"
    text += "seq_range = Range(i0, n_seq, i1)\nseq_1 = Unsqueeze(seq_range, one)\nseq_3 = Unsqueeze(seq_1, two)\n"
    text += "owner_3 = Expand(seq_3, all_shape)\nowner = Reshape(owner_3, end)\n"
    text += "page_range = Range(i0, n_pages, i1)\npage_first = Mul(page_range, page)\n"
    text += "page_2 = Unsqueeze(page_first, one)\nwhere_2 = Add(page_2, inside)\n"
    text += "where_3 = Expand(where_2, all_shape)\nwhere = Reshape(where_3, end)\n"
    text += "seq_c = Unsqueeze(seq, one)\nat_c = Unsqueeze(at, one)\nmine = Equal(owner, seq_c)\n"
    text += "old = LessOrEqual(where, at_c)\nsees_0 = And(mine, old)\n"
    if window > 0:
        text += f"width = Constant<value = int64 {{{window}}}>()\nedge = Sub(at_c, width)\n"
        text += "near = Greater(where, edge)\nsees = And(sees_0, near)\n"
    else:
        text += "sees = Identity(sees_0)\n"
    text += _ints("by_head", -1, kv_heads, group, dim) + _ints("together", kv_heads, -1, dim)
    text += "q_4 = Reshape(q, by_head)\nq_t = Transpose<perm = [1, 0, 2, 3]>(q_4)\nq_m = Reshape(q_t, together)\n"
    text += "k_m = Transpose<perm = [1, 2, 0]>(k_seen)\nv_m = Transpose<perm = [1, 0, 2]>(v_seen)\n"
    text += "raw = MatMul(q_m, k_m)\n" + _scalar("scale", a["attention_scale"]) + "scaled = Mul(raw, scale)\n"
    text += "n_rows = Shape(where)\n" + _ints("kv_v", kv_heads) + _ints("group_v", group)
    text += "four = Concat<axis = 0>(kv_v, t_count, group_v, n_rows)\nscores = Reshape(scaled, four)\n"
    text += "sees_t = Unsqueeze(sees, one)\n" + _scalar("hidden", _HIDDEN) + "masked = Where(sees_t, scores, hidden)\n"
    text += "shares = Softmax<axis = -1>(masked)\nthree = Concat<axis = 0>(kv_v, end, n_rows)\n"
    text += "shares_m = Reshape(shares, three)\nmixed = MatMul(shares_m, v_m)\n" + _ints("dim_v", dim)
    text += "out_4 = Concat<axis = 0>(kv_v, t_count, group_v, dim_v)\nm_4 = Reshape(mixed, out_4)\n"
    text += "m_t = Transpose<perm = [1, 0, 2, 3]>(m_4)\ny_f = Reshape(m_t, q_shape)\n"
    return text + f"y = Cast<to = {_HALF}>(y_f)\n"


def _blocked(x: str, block: int) -> str:
    """Statements that define `wide`, x in float32, and `blocks` `[..., n, block]`, and `top` `[..., n]`."""
    text = _ints("last", -1) + _ints("block", block) + _ints("rest", -1)
    text += f"wide = Cast<to = {_FLOAT}>({x})\nlead = Shape<end = -1>(wide)\nwhole = Shape(wide)\n"
    text += "by_block = Concat<axis = 0>(lead, rest, block)\nblocks = Reshape(wide, by_block)\n"
    return text + "size = Abs(blocks)\ntop = ReduceMax<keepdims = 0>(size, last)\n"


def fp4_quantize(name: str) -> onnx.FunctionProto:
    """Return TRT_FP4DynamicQuantize: E2M1 numbers as float16, and an E4M3 scale as float16 for 16 of them.

    A block's scale is E4M3(largest magnitude / 6 / global), the smallest there is where that would be none; its numbers
    are x / (scale * global), to the nearest, ties to the even code.
    """
    text = _blocked("x", 16) + _scalar("six", 6.0) + _scalar("nothing", 0.0) + _scalar("unit", 1.0)
    text += "share = Div(top, six)\nratio = Div(share, global)\n" + _scalar("least", 2.0**-9)
    text += "kept = Max(ratio, least)\n"
    text += f"codes = Cast<to = {_E4M3}, saturate = 1>(kept)\nscales = Cast<to = {_FLOAT}>(codes)\n"
    text += "steps = Mul(scales, global)\nsome = Greater(steps, nothing)\nsafe = Where(some, steps, unit)\n"
    text += "column = Unsqueeze(safe, last)\nv = Div(blocks, column)\n" + _scalar("lowest", -6.0) + _scalar("half", 0.5)
    text += _scalar("two", 2.0) + _scalar("four", 4.0) + "clipped = Clip(v, lowest, six)\na = Abs(clipped)\n"
    text += "small = Less(a, two)\nmiddle = Less(a, four)\ncoarse = Where(middle, unit, two)\n"
    text += "grain = Where(small, half, coarse)\ncounted = Div(clipped, grain)\nrounded = Round(counted)\n"
    text += "numbers = Mul(rounded, grain)\nflat = Reshape(numbers, whole)\n"
    text += f"y = Cast<to = {_HALF}>(flat)\ns = Cast<to = {_HALF}>(scales)\n"
    return function(name, ["x", "global"], ["y", "s"], text)


def mx_quantize(name: str) -> onnx.FunctionProto:
    """Return TRT_MXFP8DynamicQuantize: E4M3 numbers as float16, and a power of two as float32 for 32 of them.

    A block's power is 2^(floor(log2(largest magnitude)) - 8).
    """
    text = _blocked("x", 32) + _scalar("nothing", 0.0) + _scalar("unit", 1.0) + _scalar("own", 2.0**-8)
    text += "some = Greater(top, nothing)\nsafe = Where(some, top, unit)\n"
    text += 'down = Cast<to = 24, round_mode = "down">(safe)\n' + f"power = Cast<to = {_FLOAT}>(down)\n"
    text += "scaled = Mul(power, own)\ns = Where(some, scaled, unit)\ncolumn = Unsqueeze(s, last)\n"
    text += (
        f"v = Div(blocks, column)\ncodes = Cast<to = {_E4M3}, saturate = 1>(v)\nnumbers = Cast<to = {_FLOAT}>(codes)\n"
    )
    text += f"flat = Reshape(numbers, whole)\ny = Cast<to = {_HALF}>(flat)\n"
    return function(name, ["x"], ["y", "s"], text)


def scale_blocks(name: str, block: int, result: int) -> onnx.FunctionProto:
    """Return numbers times the scale of their block along the last axis, in the type `result`."""
    text = _blocked("x", block) + f"s_wide = Cast<to = {_FLOAT}>(s)\ncolumn = Unsqueeze(s_wide, last)\n"
    text += f"scaled = Mul(blocks, column)\nflat = Reshape(scaled, whole)\ny = Cast<to = {result}>(flat)\n"
    return function(name, ["x", "s"], ["y"], text)


def scale_all(name: str) -> onnx.FunctionProto:
    """Return float16 numbers times one float16 scale, in float16."""
    text = f"x_w = Cast<to = {_FLOAT}>(x)\ns_w = Cast<to = {_FLOAT}>(s)\nz = Mul(x_w, s_w)\n"
    return function(name, ["x", "s"], ["y"], text + f"y = Cast<to = {_HALF}>(z)\n")
