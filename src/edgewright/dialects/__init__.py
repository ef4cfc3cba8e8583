"""How a target spells a graph: one file per dialect, each a function from a stage to a lowered stage."""

from collections.abc import Callable

from edgewright.dialects import onnx_qdq, onnxruntime, portable
from edgewright.graph import Stage

#: Dialect names and their lowerings.
LOWERINGS: dict[str, Callable[[Stage], Stage]] = {
    "portable": portable.lower,
    "onnx-qdq": onnx_qdq.lower,
    "onnxruntime": onnxruntime.lower,
}

__all__ = ["LOWERINGS", "onnx_qdq", "onnxruntime", "portable"]
