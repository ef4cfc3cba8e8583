"""How an engine is run: what decides what a session computes, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

#: What may be done to a graph at load.
OPTIMIZATIONS = ("disabled", "basic", "all")
#: ONNX Runtime's entry by which threads stop spinning when a run ends. Without any spinning, steps are a third slower.
_STOP_SPINNING = "session.force_spinning_stop"


@dataclass(frozen=True)
class EngineSettings:
    """Settings that were verified and must be used again at run time.

    `optimization` is the graph optimization done at load: disabled, basic or all. `threads` is the default number of
    intra-op threads, 0 for one per physical core; it may be overridden at load, results do not depend on it. `config`
    holds ONNX Runtime session entries.
    """

    optimization: str = "disabled"
    threads: int = 0
    config: Mapping[str, str] = field(default_factory=dict)

    def sharing(self) -> EngineSettings:
        """Return the settings for an engine beside others: its threads leave the cores when a step is over.

        By default they spin for a while, and where all cores are used the next step of another engine then takes half
        as long again; an engine alone loses nothing by leaving (measured with SmolLM2 on two cores).
        """
        return replace(self, config={**self.config, _STOP_SPINNING: "1"})

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON-compatible values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineSettings:
        """Build settings from a manifest; raises KeyError or TypeError on another layout."""
        if data["optimization"] not in OPTIMIZATIONS:
            raise ValueError(f"the optimization {data['optimization']!r}")
        return cls(data["optimization"], int(data["threads"]), {str(k): str(v) for k, v in data["config"].items()})
