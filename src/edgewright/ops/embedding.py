"""`Embedding`: rows of a table `[vocab, width]` by int64 ids of any shape."""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op


def embedding(g: GraphBuilder, ids: ir.Value, table: ir.Value) -> ir.Value:
    """Append an `Embedding` node; returns `[*ids.shape, width]`."""
    result: ir.Value = g.ew("Embedding", ids, table)
    return result


def _body(call: Call) -> str:
    return "y = Gather<axis = 0>(table, ids)\n"


EMBEDDING = Op("Embedding", ("ids", "table"), ("y",), _body)
