"""Calibration data: what statistics of a model's activations are collected on, and the record of where it came from."""

from edgewright.calibration.arrays import ArraySamples, text_of
from edgewright.calibration.data import Samples, load_samples
from edgewright.calibration.images import read_image_text
from edgewright.calibration.observations import read_observations
from edgewright.calibration.shards import Shards, read_shards, write_shards

__all__ = [
    "ArraySamples",
    "Samples",
    "Shards",
    "load_samples",
    "read_image_text",
    "read_observations",
    "read_shards",
    "text_of",
    "write_shards",
]
