"""How a target spells a graph: one file per dialect, each a function from a stage to a lowered stage."""

from edgewright.dialects import onnxruntime, portable

#: Dialect names and their lowerings.
LOWERINGS = {"portable": portable.lower, "onnxruntime": onnxruntime.lower}

__all__ = ["LOWERINGS", "onnxruntime", "portable"]
