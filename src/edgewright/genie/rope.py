"""How a model turns positions, in a checkpoint's words and in Genie's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgewright.errors import GenieError

#: Kinds of scaling that the library has, with the names of their figures there and in a checkpoint's config.
_SCALINGS: Mapping[str, Mapping[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor", "low-freq-factor": "low_freq_factor", "high-freq-factor": "high_freq_factor",
        "original-max-position-embeddings": "original_max_position_embeddings",
    },
    "longrope": {
        "factor": "factor", "short-factor": "short_factor", "long-factor": "long_factor",
        "original-max-position-embeddings": "original_max_position_embeddings",
    },
}  # fmt: skip
_PLACES = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Rope:
    """Rotation of `dim` pairs with a base `theta`; `scaling` is the library's block, empty for none."""

    theta: float
    dim: int
    scaling: Mapping[str, Any] = field(default_factory=dict)

    def keys(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what to add to the backend's QnnHtp block, and to the model's block."""
        theta = int(self.theta) if float(self.theta).is_integer() else self.theta
        if not self.scaling:
            return {"pos-id-dim": self.dim, "rope-theta": theta}, {}
        encoding = {"type": "rope", "rope-dim": self.dim, "rope-theta": theta, "rope-scaling": dict(self.scaling)}
        return {}, {"positional-encoding": encoding}


def rope_of(config: Mapping[str, Any], head_dim: int) -> Rope:
    """Return the rotation that a checkpoint's config.json describes, for heads of `head_dim`.

    Raises GenieError where it describes none, several, or one that the library has not.
    """
    inner = config.get("text_config")
    config = inner if isinstance(inner, Mapping) else config
    blocks = [block for block in (config.get(name) for name in _PLACES) if isinstance(block, Mapping)]
    found = {key: value for block in blocks for key, value in block.items() if value is not None}
    if any(isinstance(value, Mapping) for value in found.values()) or config.get("rope_local_base_freq") is not None:
        raise GenieError("The model turns positions in several ways, by layer, and Genie has one: it can't run there.")
    theta = found.get("rope_theta", config.get("rope_theta"))
    if theta is None or not _positive(theta):
        raise GenieError("The model's config.json names no rope_theta: give --rope-theta if it turns positions at all.")
    share = found.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    pairs = head_dim * float(share) / 2 if isinstance(share, int | float) and 0 < share <= 1 else 0.5
    if pairs != int(pairs):
        raise GenieError(f"The model turns {share!r} of {head_dim} dimensions, which are no whole pairs: it can't be.")
    return Rope(float(theta), int(pairs), _scaling(found, config))


def _scaling(found: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return {}
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise GenieError(f"The model scales its positions by {kind!r}, which Genie has not: it has {known}.")
    known_as = _SCALINGS[kind]
    values = {name: found.get(key, config.get(key)) for name, key in known_as.items()}
    if kind == "longrope" and values["factor"] is None:
        longest, original = config.get("max_position_embeddings"), values["original-max-position-embeddings"]
        values["factor"] = longest / original if _positive(longest) and _positive(original) else None
    missing = [known_as[name] for name, value in values.items() if value is None]
    if missing:
        raise GenieError(f"The model's rope scaling {kind!r} lacks {', '.join(missing)}: give the whole config.json.")
    return {"rope-type": kind, **values}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
