"""Edgewright: a checkpoint in, a verified bundle for an edge device out, and the runtime that runs it.

Importing this package loads nothing heavy; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewright._version import __version__

if TYPE_CHECKING:
    from edgewright.runtime.llm import LLM
    from edgewright.runtime.sampling import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from edgewright.runtime.llm import LLM

        return LLM
    if name == "SamplingParams":
        from edgewright.runtime.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'edgewright' has no attribute {name!r}")
