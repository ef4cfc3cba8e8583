"""Rope tables: the inverse frequencies of each scaling type, and the cos/sin tables made of them.

Formulas follow the behaviour of transformers 5.24 (`modeling_rope_utils`), in float32 as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.errors import ConfigError
from edgewright.graph import GraphBuilder
from edgewright.graph.weights import ComputedWeight
from edgewright.nn.cache import Cache

Array = np.ndarray


def _plain(dim: int, theta: float) -> Array:
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (1.0 / np.power(np.float64(theta), exponents.astype(np.float64))).astype(np.float32)


def _llama3(freqs: Array, p: Mapping[str, Any]) -> Array:
    original, factor = p["original_max_position_embeddings"], p["factor"]
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    wavelength = 2 * math.pi / freqs
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * freqs / factor + smooth * freqs
    scaled = np.where(wavelength > original / low, freqs / factor, freqs)
    medium = ~(wavelength < original / high) & ~(wavelength > original / low)
    return np.where(medium, blended, scaled).astype(np.float32)


def _yarn(freqs: Array, dim: int, theta: float, p: Mapping[str, Any]) -> tuple[Array, float]:
    factor, original = p["factor"], p["original_max_position_embeddings"]

    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = correction(p.get("beta_fast") or 32), correction(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    mixed: Array = freqs / np.float32(factor) * ramp + freqs * (1 - ramp)

    def mscale(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = p.get("attention_factor")
    if attention is None:
        one, both = p.get("mscale"), p.get("mscale_all_dim")
        attention = mscale(one) / mscale(both) if one and both else mscale()
    result: Array = mixed.astype(np.float32)
    return result, float(attention)


def _longrope(freqs: Array, p: Mapping[str, Any], limit: int | None, *, long: bool) -> tuple[Array, float]:
    original = p["original_max_position_embeddings"]
    factor = p.get("factor")
    if factor is None:
        assert limit is not None, "longrope without factor needs the model's longest context"
        factor = limit / original
    attention = p.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    ext = np.asarray(p["long_factor" if long else "short_factor"], dtype=np.float32)
    result: Array = (freqs.astype(np.float64) / ext).astype(np.float32)
    return result, float(attention)


#: Keys each scaling type needs, and those it may have.
_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "llama3": (
        frozenset({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}),
        frozenset(),
    ),
    "yarn": (
        frozenset({"factor", "original_max_position_embeddings"}),
        frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    ),
    # Only beyond max_position_embeddings does `factor` count, and there the values would depend on how a text is cut
    # into calls. A context is never longer than that here, so the frequencies are the plain ones.
    "dynamic": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "longrope": (
        frozenset({"short_factor", "long_factor", "original_max_position_embeddings"}),
        frozenset({"attention_factor", "factor"}),
    ),
    "proportional": (frozenset(), frozenset({"factor", "partial_rotary_factor"})),
}
_LISTS = ("short_factor", "long_factor")
#: Zero is how a config says that it has none.
_OR_ZERO = ("mscale", "mscale_all_dim")


def check_scaling(scaling: Mapping[str, Any]) -> str:
    """Return the scaling type; raises ConfigError when it is unknown or its keys are not exactly understood."""
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind not in _KEYS:
        raise ConfigError(f"The rope scaling type {kind!r} isn't supported; known types are {', '.join(_KEYS)}.")
    needed, optional = _KEYS[kind]
    given = {key for key, value in scaling.items() if value is not None} - {"rope_type", "type", "rope_theta"}
    if missing := needed - given:
        raise ConfigError(f"Rope scaling {kind!r} lacks {', '.join(sorted(missing))} in the config.")
    if unknown := given - needed - optional:
        raise ConfigError(f"Rope scaling {kind!r} has keys that aren't understood: {', '.join(sorted(unknown))}.")
    for key in given:
        value = scaling[key]
        if key == "truncate":
            fine, wanted = isinstance(value, bool), "true or false"
        elif key in _LISTS:
            fine, wanted = isinstance(value, list) and all(map(_positive, value)), "a list of positive numbers"
        elif key in _OR_ZERO:
            fine, wanted = _positive(value) or (value == 0 and not isinstance(value, bool)), "a positive number or zero"
        else:
            fine, wanted = _positive(value), "a positive number"
        if not fine:
            raise ConfigError(f"Rope scaling {kind!r} has {key} = {value!r} where {wanted} is needed.")
    return kind


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class RopeTable:
    """Cos and sin tables `[positions, rotary_dim / 2]` shared by the layers that use them.

    `scaling` is a config's `rope_scaling` mapping or None; `limit`, needed for longrope without `factor`, is the
    model's own longest context. Longrope has two sets of frequencies: with more positions than the original context,
    the short set's rows come first and the long set's behind them. Raises ConfigError on a scaling that isn't
    understood.
    """

    name: str
    positions: int
    rotary_dim: int
    theta: float
    scaling: Mapping[str, Any] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        scaling = self.scaling or {}
        kind = check_scaling(scaling)
        if kind == "yarn" and self.theta <= 1:
            raise ConfigError(f"Rope scaling 'yarn' needs a rope_theta above 1, not {self.theta}.")
        if self.rotary_dim % 2:
            raise ConfigError(f"The rotary part of a head is {self.rotary_dim} wide, which is odd.")
        if kind == "longrope":
            if scaling["original_max_position_embeddings"] <= 1:
                raise ConfigError("Rope scaling 'longrope' needs an original_max_position_embeddings above 1.")
            for key in _LISTS:
                if len(scaling[key]) != self.rotary_dim // 2:
                    raise ConfigError(
                        f"Rope scaling 'longrope' has {len(scaling[key])} values in {key} where half the rotary "
                        f"width, {self.rotary_dim // 2}, is needed."
                    )
        try:
            with np.errstate(all="raise", under="ignore"):
                self.angles()
        except ArithmeticError:
            raise ConfigError(f"The rope can't be computed with theta {self.theta:g} and {dict(scaling)}.") from None

    @property
    def switch(self) -> int | None:
        """The longest total length that uses the first set of frequencies; None when there is one set."""
        scaling = self.scaling or {}
        if check_scaling(scaling) != "longrope" or self.positions <= scaling["original_max_position_embeddings"]:
            return None
        return int(scaling["original_max_position_embeddings"])

    def angles(self, *, long: bool = False) -> tuple[Array, float]:
        """Return float32 inverse frequencies `[rotary_dim / 2]` and the factor of cos and sin."""
        scaling = self.scaling or {}
        kind = check_scaling(scaling)
        if kind == "proportional":
            turning = int(scaling.get("partial_rotary_factor", 1.0) * self.rotary_dim // 2)
            freqs = _plain(self.rotary_dim, self.theta)
            freqs[turning:] = 0
            return freqs / np.float32(scaling.get("factor", 1.0)), 1.0
        freqs = _plain(self.rotary_dim, self.theta)
        if kind == "linear":
            return freqs / np.float32(scaling["factor"]), 1.0
        if kind == "llama3":
            return _llama3(freqs, scaling), 1.0
        if kind == "yarn":
            return _yarn(freqs, self.rotary_dim, self.theta, scaling)
        if kind == "longrope":
            return _longrope(freqs, scaling, self.limit, long=long)
        return freqs, 1.0

    def values(self, g: GraphBuilder) -> tuple[ir.Value, ir.Value]:
        """Return the cos and sin initializers."""
        first = self.switch or 0
        shape = (first + self.positions, self.rotary_dim // 2)

        def table(function: np.ufunc, start: int, stop: int) -> Array:
            rows = np.arange(start, stop)
            parts = [self._rows(function, rows[rows < first], long=False)] if first else []
            parts.append(self._rows(function, rows[rows >= first] - first, long=bool(first)))
            return np.concatenate(parts)

        cos = ComputedWeight(f"{self.name}.cos", shape, partial(table, np.cos))
        sin = ComputedWeight(f"{self.name}.sin", shape, partial(table, np.sin))
        return g.weight(cos), g.weight(sin)

    def _rows(self, function: np.ufunc, positions: Array, *, long: bool) -> Array:
        freqs, factor = self.angles(long=long)
        turns = positions.astype(np.float32)[:, None] * freqs
        values: Array = (function(turns.astype(np.float64)) * factor).astype(np.float32)
        return values

    def rows(self, g: GraphBuilder, cache: Cache) -> ir.Value:
        """Return the table rows int64 `[batch, seq]` of a call's positions."""
        if self.switch is None:
            return cache.positions
        assert cache.totals is not None
        limit = g.constant(self.switch, np.int64)
        is_long = g.op("Cast", g.op("Greater", cache.totals, limit), to=int(ir.DataType.INT64))
        offset = g.op("Unsqueeze", g.op("Mul", is_long, limit), g.constant([1], np.int64))
        result: ir.Value = g.op("Add", cache.positions, offset)
        return result


def apply_rope(
    g: GraphBuilder, table: RopeTable, x: ir.Value, cache: Cache, *, head_dim: int, interleaved: bool = False
) -> ir.Value:
    """Rotate x `[batch, seq, heads * head_dim]` by the table's rows at this call's positions."""
    cos, sin = table.values(g)
    rows = table.rows(g, cache)
    return ops.rope(g, x, rows, cos, sin, head_dim=head_dim, rotary_dim=table.rotary_dim, interleaved=interleaved)
