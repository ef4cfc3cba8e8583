"""TensorRT Edge-LLM: the folder its builder reads, checked node by node, and a stand-in that runs it on the CPU."""

from edgewright.targets.edgellm.backend import BACKEND

__all__ = ["BACKEND"]
