"""How fast is a bundle, and how much memory does it take."""

from edgewright.bench.measure import Figure, Measurement, Plan, measure_bundle
from edgewright.bench.policy import PolicyMeasurement, PolicyPlan, measure_policy

__all__ = ["Figure", "Measurement", "Plan", "PolicyMeasurement", "PolicyPlan", "measure_bundle", "measure_policy"]
