"""What a layer keeps between calls, and how it gets at it while the graph is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass(frozen=True)
class KVShape:
    """A layer's key/value cache: heads, widths of keys and values, and the window a query sees (None: everything)."""

    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None


@dataclass
class Cache:
    """One layer's view of the stage: its past tensors by name, and where it puts the present ones.

    `lengths` int64 `[batch]` are the tokens each sequence held before this call, `positions` int64 `[batch, seq]` the
    positions of this call's rows, `totals` int64 `[batch]` the tokens each will hold after the whole append (only
    where a rope table asks for it). Key and value caches are named `key` and `value`, states as the mixer declares.
    """

    lengths: ir.Value
    positions: ir.Value
    totals: ir.Value | None
    past: Mapping[str, ir.Value]
    present: dict[str, ir.Value] = field(default_factory=dict)
