"""What a stage takes and gives: names, dtypes, shapes, bounds; declared once, kept in the manifest, always checked.

A dimension is an `int` or the name of a symbolic one; `bounds` gives each symbol's smallest and largest value.
This module is shared by the host and the device side and imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Dim = int | str
#: dtypes an input or output may have.
DTYPES = frozenset({"float32", "float16", "int8", "int32", "int64"})


@dataclass(frozen=True)
class TensorContract:
    """One input or output: its name, its NumPy dtype name and its shape."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class KVLayer:
    """The key/value cache of one layer: `[batch, kv_heads, capacity, head_dim]` for keys and for values.

    `window` is the number of most recent positions a query sees (itself included), or None for all of them.
    """

    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class StageContract:
    """The interface of one stage.

    `kv_in_place` says that past and present of a layer must be bound to one buffer; otherwise the
    stage copies and the caller swaps. Rows of the cache at and after a sequence's length are unspecified.
    """

    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    kv: tuple[KVLayer, ...] = ()
    kv_dtype: str = "float32"
    kv_in_place: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the contract as JSON-compatible values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StageContract:
        """Build a contract from `to_json`'s result; raises KeyError, TypeError or ValueError on another layout."""

        def tensors(items: list[dict[str, Any]]) -> tuple[TensorContract, ...]:
            return tuple(TensorContract(t["name"], t["dtype"], tuple(t["shape"])) for t in items)

        bounds = {name: (int(low), int(high)) for name, (low, high) in data["bounds"].items()}
        if odd := {t["dtype"] for t in (*data["inputs"], *data["outputs"])} - DTYPES:
            raise ValueError(f"the dtype {', '.join(sorted(odd))}")
        return cls(
            inputs=tensors(data["inputs"]),
            outputs=tensors(data["outputs"]),
            bounds=bounds,
            kv=tuple(KVLayer(**layer) for layer in data["kv"]),
            kv_dtype=data["kv_dtype"],
            kv_in_place=bool(data["kv_in_place"]),
        )
