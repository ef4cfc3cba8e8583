"""`StateSpace`: the recurrence of Mamba-2, a scalar decay per head over a state of `head_dim` by `state_size`.

x `[batch, seq, heads * head_dim]`, dt `[batch, seq, heads]` (positive, after softplus and limits), rates a `[heads]`
(negative), b and c `[batch, seq, groups * state_size]` with head h in group h // (heads / groups), skip d `[heads]`,
past `[batch, heads, head_dim, state_size]`. h[t] = exp(dt[t] a) h[t-1] + dt[t] x[t] b[t]^T; y[t] = h[t] c[t] + d x[t].
Returns y, shaped like x, and the last h.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints


def state_space(
    g: GraphBuilder,
    x: ir.Value,
    dt: ir.Value,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    d: ir.Value,
    past: ir.Value,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state_size: int,
) -> tuple[ir.Value, ir.Value]:
    """Append a `StateSpace` node; returns y `[batch, seq, heads * head_dim]` and the new past."""
    result: tuple[ir.Value, ir.Value] = g.ew(
        "StateSpace",
        *(x, dt, a, b, c, d, past),
        outputs=2,
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state_size=state_size,
    )
    return result


#: Rows that are computed as one product of matrices: measured best of 32, 64 and 128.
_CHUNK = 64


def _body(call: Call) -> str:
    heads, head_dim, groups, state = call["heads"], call["head_dim"], call["groups"], call["state_size"]
    share = heads // groups
    text = ints("zero", 0) + ints("one", 1) + ints("three", 3) + ints("last", -1) + ints("before_last", -2)
    text += "i2 = Constant<value = int64 {2}>()\ni4 = Constant<value = int64 {4}>()\n"
    text += "below = Constant<value = int64 {-1}>()\nend = Constant<value = int64 {-1}>()\n"
    # Chunks of equal length, [batch, chunks, length, ...], heads as [groups, share] so that a group's b and c
    # broadcast. Rows that fill up the last chunk have dt = 0: they neither fade the state nor add to it.
    text += "seq = Shape<start = 1, end = 2>(x)\n" + ints("longest", _CHUNK) + "length = Min(seq, longest)\n"
    text += "minus = Neg(seq)\nmissing = Mod(minus, length)\n" + ints("nothing", 0, 0, 0, 0)
    text += "pads = Concat<axis = 0>(nothing, missing, zero)\nlead = Concat<axis = 0>(zero, last, length)\n"
    shapes = {"x": (groups, share, head_dim), "dt": (groups, share), "b": (groups, state), "c": (groups, state)}
    for name, shape in shapes.items():
        text += f"{name}_pad = Pad({name}, pads)\n" + ints(f"{name}_rest", *shape)
        text += f"{name}_shape = Concat<axis = 0>(lead, {name}_rest)\n{name}c = Reshape({name}_pad, {name}_shape)\n"
    text += ints("by_group", groups, share) + "rate = Reshape(a, by_group)\nlogs = Mul(dtc, rate)\n"
    # decay, row t and column s: exp of the sum of `logs` over the rows s+1 to t. The sums are made one by one, as
    # differences of one running sum would lose digits, and are at most 0, so nothing overflows.
    text += "logs_t = Transpose<perm = [1, 0, 3, 4, 2]>(logs)\nlogs_col = Unsqueeze(logs_t, last)\n"
    text += "wide = Expand(logs_col, length)\nlater = Trilu<upper = 0>(wide, below)\nsums = CumSum(later, i4)\n"
    text += "decays = Exp(sums)\ndecay = Trilu<upper = 0>(decays)\n"
    # What the rows of a chunk give to one another; from here on the chunks come first, as Scan takes them.
    text += "dt_col = Unsqueeze(dtc, last)\nstep = Mul(xc, dt_col)\n"
    text += "bt = Transpose<perm = [1, 0, 3, 2, 4]>(bc)\nb_col = Transpose<perm = [1, 0, 3, 4, 2]>(bc)\n"
    text += "ct = Transpose<perm = [1, 0, 3, 2, 4]>(cc)\nproduct = MatMul(ct, b_col)\n"
    text += "scores = Unsqueeze(product, three)\nweights = Mul(scores, decay)\n"
    text += "step_t = Transpose<perm = [1, 0, 3, 4, 2, 5]>(step)\ninner = MatMul(weights, step_t)\n"
    text += "inner_t = Transpose<perm = [1, 0, 4, 2, 3, 5]>(inner)\n"
    # The state from chunk to chunk: `kept` of a chunk's inputs reaches its end, `fade` of the state before it.
    text += "decay_end = Gather<axis = 4>(decay, end)\ndecay_row = Unsqueeze(decay_end, before_last)\n"
    text += "step_col = Transpose<perm = [1, 0, 3, 4, 5, 2]>(step)\nkept6 = Mul(step_col, decay_row)\n"
    text += ints("rows", groups, share * head_dim) + "kept_shape = Concat<axis = 0>(zero, zero, rows, length)\n"
    text += "kept = Reshape(kept6, kept_shape)\nfrom_start = CumSum(logs, i2)\nleft = Exp(from_start)\n"
    text += "left_end = Gather<axis = 2>(left, end)\nleft_end_t = Transpose<perm = [1, 0, 2, 3]>(left_end)\n"
    text += "left_end_col = Unsqueeze(left_end_t, last)\n"
    text += ints("dim", head_dim) + "left_rows = Expand(left_end_col, dim)\n"
    text += ints("fade_shape", 0, 0, groups, share * head_dim, 1) + "fade = Reshape(left_rows, fade_shape)\n"
    text += ints("states", 0, groups, share * head_dim, state) + "h0 = Reshape(past, states)\n"
    text += (
        "h, reads = Scan<num_scan_inputs = 4, "
        "body = chunk (float[] h_in, float[] c_t, float[] b_t, float[] kept_t, float[] fade_t)"
        " => (float[] h_out, float[] read) {\n"
        "h_col = Transpose<perm = [0, 1, 3, 2]>(h_in)\nread4 = MatMul(c_t, h_col)\n"
        "faded = Mul(h_in, fade_t)\nadded = MatMul(kept_t, b_t)\nh_sum = Add(faded, added)\n"
        # Scan wants to know how many axes its results have, even where those of the inputs are not known.
        + ints("h_shape", 0, groups, share * head_dim, state)
        + ints("read_shape", 0, groups, -1, share * head_dim)
        + "h_out = Reshape(h_sum, h_shape)\nread = Reshape(read4, read_shape)\n}>(h0, ct, bt, kept, fade)\n"
    )
    text += ints("past_shape", 0, heads, head_dim, state) + "present = Reshape(h, past_shape)\n"
    text += ints("group_count", groups) + ints("row_shape", share, head_dim)
    text += "reads_shape = Concat<axis = 0>(zero, zero, group_count, length, row_shape)\n"
    text += "reads6 = Reshape(reads, reads_shape)\nreads_t = Transpose<perm = [1, 0, 3, 2, 4, 5]>(reads6)\n"
    text += "left_col = Unsqueeze(left, last)\nouter = Mul(reads_t, left_col)\n"
    text += ints("per_head", groups, share, 1) + "d_col = Reshape(d, per_head)\nskip = Mul(xc, d_col)\n"
    text += "both = Add(inner_t, outer)\nyc = Add(both, skip)\n" + ints("flat", 0, -1, heads * head_dim)
    return text + "y_pad = Reshape(yc, flat)\ny = Slice(y_pad, zero, seq, one)\n"


STATE_SPACE = Op("StateSpace", ("x", "dt", "a", "b", "c", "d", "past"), ("y", "present"), _body)
