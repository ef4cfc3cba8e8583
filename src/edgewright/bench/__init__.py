"""How fast is a bundle, and how much memory does it take; and several dialogs at once, in its parts.

Names are imported when they are asked for, so that a help text loads no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewright.bench.measure import Figure, Measurement, Plan, measure_bundle
    from edgewright.bench.policy import PolicyMeasurement, PolicyPlan, measure_policy

__all__ = ["Figure", "Measurement", "Plan", "PolicyMeasurement", "PolicyPlan", "measure_bundle", "measure_policy"]
_POLICY = frozenset({"PolicyMeasurement", "PolicyPlan", "measure_policy"})


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{'policy' if name in _POLICY else 'measure'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
