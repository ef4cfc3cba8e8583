"""Robot policies: observations become arrays, stages run on them, arrays become actions.

Importing this package loads no engine; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewright.runtime.policy.policy import Chunk, Policy

__all__ = ["Chunk", "Policy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'edgewright.runtime.policy' has no attribute {name!r}")
    from edgewright.runtime.policy import policy

    return getattr(policy, name)
