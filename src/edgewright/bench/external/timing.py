"""`timing.txt` of a run by an external program: the usual tables, and one of what its profiles say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.bench.records.timing import NONE, columns, timing_text

_HEAD = (
    "by the library",
    "load ms",
    "prompt",
    "TTFT ms",
    "prefill tok/s",
    "tokens",
    "decode tok/s",
    "(n-1)/T",
    "alone",
)


def external_timing(summary: Mapping[str, Any]) -> str:
    """Return the text of `timing.txt`; `(n-1)/T` is the decode rate without the library's count of steps."""
    rows = []
    for name, one in summary["dialogs"].items():
        figures, solo = one["genie"], (one["solo"] or {}).get("genie", {})
        rows.append(
            (
                name,
                _mean({"load": one["load_ms"]}, "load"),
                _mean(figures, "num-prompt-tokens"),
                _mean(figures, "time-to-first-token", 1e3),
                _mean(figures, "prompt-processing-rate"),
                _mean(figures, "num-generated-tokens"),
                _mean(figures, "token-generation-rate"),
                _mean(one["recomputed"], "token-generation-rate"),
                _mean(solo, "token-generation-rate"),
            )
        )
    return f"{timing_text(summary)}\n{columns(_HEAD, rows)}\n"


def _mean(figures: Mapping[str, Any], name: str, unit: float = 1) -> str:
    found = figures.get(name)
    return NONE if found is None else f"{found['mean'] / unit:.4g}"
