"""The target openvino: its back end, which loads OpenVINO itself only to compile."""

from edgewright.targets.openvino.backend import BACKEND

__all__ = ["BACKEND"]
