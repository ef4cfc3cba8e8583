"""ONNX Runtime, with its reporting of usage events switched off before anything else is asked of it.

Since 1.32 its wheels for Linux collect such events. Everything that needs ONNX Runtime takes it from here.
"""

import onnxruntime as ort

ort.disable_telemetry_events()

__all__ = ["ort"]
