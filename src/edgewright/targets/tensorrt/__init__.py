"""The target tensorrt: a build plan a stage, executed by whichever builder of TensorRT there is."""

from edgewright.targets.tensorrt.backend import BACKEND, TensorRTBackend

__all__ = ["BACKEND", "TensorRTBackend"]
