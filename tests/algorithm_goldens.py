"""Layers, statistics and other tools' results of tests/goldens/algorithms; tools/goldens says how and with what."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.quant.moments import Moments

FOLDER = Path(__file__).parent / "goldens" / "algorithms"
LAYERS = ("q_proj", "down_proj", "gate_proj")
TOKENS = 2048
_DTYPES = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64}


@dataclass(frozen=True)
class Layer:
    """A weight float32 `[rows, width]`, the statistics of its inputs, inputs held out, and what tools made of it."""

    name: str
    weight: np.ndarray
    moments: Moments
    held_out: np.ndarray
    arrays: dict[str, np.ndarray]
    results: dict[str, dict[str, Any]]

    def error(self, values: np.ndarray) -> float:
        """Return the relative output error on the calibration data of a weight in the place of the original."""
        assert self.moments.second is not None
        second = self.moments.second.astype(np.float64)
        off, whole = (self.weight - values).astype(np.float64), self.weight.astype(np.float64)
        return float(np.einsum("ij,ij->", off @ second, off) / np.einsum("ij,ij->", whole @ second, whole))

    def held_out_error(self, values: np.ndarray) -> float:
        """Return the relative output error on the inputs held out."""
        inputs = self.held_out.astype(np.float64)
        off = np.square(inputs @ (self.weight - values).T.astype(np.float64)).sum()
        return float(off / np.square(inputs @ self.weight.T.astype(np.float64)).sum())


@cache
def layer(name: str) -> Layer:
    """Return a golden layer."""
    data = (FOLDER / f"{name}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    results = json.loads(header.pop("__metadata__")["results"])
    arrays = {}
    for key, entry in header.items():
        first, stop = (8 + size + at for at in entry["data_offsets"])
        arrays[key] = np.frombuffer(data[first:stop], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    weight = arrays["weight"].astype(np.float32)
    width = weight.shape[1]
    second = np.zeros((width, width), np.float32)
    second[np.triu_indices(width)] = arrays["hessian"]
    second += np.triu(second, 1).T
    moments = Moments(name, width, tokens=TOKENS)
    moments.second = second
    moments.magnitude = arrays["mean_abs"].astype(np.float64) * TOKENS
    moments.total = arrays["mean"].astype(np.float64) * TOKENS
    moments.highs = arrays["amax"].astype(np.float32)
    moments.lows = -moments.highs
    return Layer(name, weight, moments, arrays["held_out"], arrays, results)
