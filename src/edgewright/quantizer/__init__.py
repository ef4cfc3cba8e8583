"""From a checkpoint to a quantized checkpoint: calibration, algorithms, and what they cost."""

from edgewright.quantizer.driver import Quantized, quantize
from edgewright.quantizer.folder import write_folder

__all__ = ["Quantized", "quantize", "write_folder"]
