"""Ahead-of-time compilation for Qualcomm's HTP: static graphs in codes, context binaries, a Genie folder."""

from edgewright.targets.qnn.backend import QnnBackend

BACKEND = QnnBackend()

__all__ = ["BACKEND", "QnnBackend"]
