"""What passes work on: stages, their graphs and their lazily read weights."""

from edgewright.graph.builder import GraphBuilder
from edgewright.graph.stage import Stage
from edgewright.graph.weights import Producer, TensorSpec, Weight

__all__ = ["GraphBuilder", "Producer", "Stage", "TensorSpec", "Weight"]
