"""How fast is a bundle, and how much memory does it take."""

from edgewright.bench.measure import Figure, Measurement, Plan, measure_bundle

__all__ = ["Figure", "Measurement", "Plan", "measure_bundle"]
