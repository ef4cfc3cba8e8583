"""What a stage takes and gives: names, dtypes, shapes, bounds; declared once, kept in the manifest, always checked.

A dimension is an `int` or the name of a symbolic one; `bounds` gives each symbol's smallest and largest value.
This module is shared by the host and the device side and imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Dim = int | str
#: dtypes an input or output may have.
DTYPES = frozenset({"float32", "float16", "bfloat16", "int8", "int32", "int64", "float8_e4m3fn"})
#: dtypes a key/value cache may have.
KV_DTYPES = frozenset({"float32", "float16", "bfloat16", "int8", "float8_e4m3fn"})


@dataclass(frozen=True)
class TensorContract:
    """One input or output: its name, its NumPy dtype name and its shape."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class KVLayer:
    """The key/value cache of one layer: keys `[batch, kv_heads, capacity, head_dim]`, values `[..., value_dim]`.

    `value_dim` None means `head_dim`. `window` is the number of most recent positions a query sees (itself included),
    or None for all of them.
    """

    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int
    head_dim: int
    window: int | None = None
    value_dim: int | None = None


@dataclass(frozen=True)
class StateTensor:
    """A recurrent state of one layer: float32 `[batch, *shape]`, zeros before the first token.

    It always stands after the last token that was fed; unlike a key/value cache it can't be cut back.
    """

    past: str
    present: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StageContract:
    """The interface of one stage.

    `kv_in_place` says that past and present of a layer must be bound to one buffer; otherwise the
    stage copies and the caller swaps. Rows of the cache at and after a sequence's length are unspecified. States are
    never in place. `rope_switch` is the total length beyond which other rope frequencies hold, for all tokens: a cache
    must be filled anew when a sequence crosses it. The input `total_lengths` then says the length to come. A cache of
    int8 or FP8 holds codes, whose scales are in the stage. NumPy arrays of FP8 codes are uint8, of bfloat16 uint16.
    """

    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    kv: tuple[KVLayer, ...] = ()
    kv_dtype: str = "float32"
    kv_in_place: bool = False
    state: tuple[StateTensor, ...] = ()
    rope_switch: int | None = None

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
        contract = cls(
            inputs=tensors(data["inputs"]),
            outputs=tensors(data["outputs"]),
            bounds=bounds,
            kv=tuple(KVLayer(**layer) for layer in data["kv"]),
            kv_dtype=data["kv_dtype"],
            kv_in_place=bool(data["kv_in_place"]),
            state=tuple(StateTensor(s["past"], s["present"], tuple(s["shape"])) for s in data.get("state", ())),
            rope_switch=data.get("rope_switch"),
        )
        contract._check_caches()
        return contract

    def _check_caches(self) -> None:
        """Raise ValueError unless caches and states are inputs and outputs of the shapes they should have."""
        declared = {t.name: (t.dtype, t.shape) for t in (*self.inputs, *self.outputs)}
        wanted: dict[str, tuple[str, tuple[Dim, ...]]] = {}
        if self.kv_dtype not in KV_DTYPES:
            raise ValueError(f"the kv_dtype {self.kv_dtype!r}")
        for layer in self.kv:
            value_dim = layer.head_dim if layer.value_dim is None else layer.value_dim
            for names, width in (
                ((layer.past_key, layer.present_key), layer.head_dim),
                ((layer.past_value, layer.present_value), value_dim),
            ):
                wanted |= dict.fromkeys(names, (self.kv_dtype, ("batch", layer.kv_heads, "capacity", width)))
        for state in self.state:
            wanted |= dict.fromkeys((state.past, state.present), ("float32", ("batch", *state.shape)))
        if self.rope_switch is not None:
            wanted["total_lengths"] = ("int64", ("batch",))
            if not isinstance(self.rope_switch, int) or self.rope_switch < 1:
                raise ValueError(f"the rope_switch {self.rope_switch!r}")
        for name, tensor in wanted.items():
            if declared.get(name) != tensor:
                raise ValueError(f"{name} as {declared.get(name)} where {tensor} is needed")
