"""The prefix KV of a policy as codes, seen from the float side: what a reference gives and takes they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.contract import StageContract, TensorContract
from edgewright.formats.cache import KVFormat
from edgewright.graph import Stage
from edgewright.quant.kv import cache_record, calibrated_cache
from edgewright.quant.prefix_kv import KEY, prefix_layers, quantize_prefix
from edgewright.runtime.engine import Engine
from edgewright.verify.policy_report import Array

#: Largest share of a tensor's numbers that may be beyond its largest code: scales are for what the data showed, and
#: unlike inputs go beyond it a little.
SATURATED = 0.02
#: How many deviations of seeded numbers the largest code stands for.
_DEVIATIONS = 4.0


@dataclass(frozen=True)
class PrefixCodes:
    """The format of the prefix KV, its scales float32 `[1 or kv_heads, 1, 1]` by tensor, what a manifest says of it."""

    format: KVFormat
    scales: Mapping[str, Array]
    record: Mapping[str, Any]

    def encoded(self, name: str, values: Array) -> Array:
        """Return the codes of keys or values, FP8 ones as bytes."""
        scaled = (values / self.scales[name]).astype(np.float32)
        largest = np.float32(self.format.largest)
        if self.format.dtype == "int8":
            return np.clip(np.rint(scaled), -largest - 1, largest).astype(np.int8)
        return np.clip(scaled, -largest, largest).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)

    def decoded(self, name: str, codes: Array) -> Array:
        """Return what codes stand for, float32."""
        plain = codes if self.format.dtype == "int8" else codes.view(ml_dtypes.float8_e4m3fn)
        values: Array = plain.astype(np.float32) * self.scales[name]
        return values

    def saturated(self, name: str, values: Array) -> float:
        """Return the share of numbers that are beyond the largest code."""
        return float(np.mean(np.abs(values) > self.scales[name] * np.float32(self.format.largest + 0.5)))

    def within(self, seeded: Mapping[str, Array]) -> dict[str, Array]:
        """Return seeded numbers, those of keys and values made so small that codes hold them."""
        size = np.float32(self.format.largest / _DEVIATIONS)
        return {n: a * (self.scales[n] * size) if n in self.scales else a for n, a in seeded.items()}


def hand_over(stages: Mapping[str, Stage], checkpoint: PolicyCheckpoint) -> PrefixCodes | None:
    """Give semantic stages the prefix KV that a checkpoint was calibrated for, in place; None for float32."""
    found = checkpoint.quantization
    if found is None or found.kv_dtype is None:
        return None
    fmt, scales = calibrated_cache(found.kv_dtype, found.kv_scales)
    layers = prefix_layers(stages["prefix"])
    applied = quantize_prefix(stages["prefix"], stages["denoise"], fmt, scales)
    by_tensor = {
        name: np.reshape(scales[layer.module].key if start == KEY else scales[layer.module].value, (-1, 1, 1))
        for layer in layers
        for start, name in layer.tensors.items()
    }
    return PrefixCodes(fmt, by_tensor, cache_record(applied))


class CodedStage:
    """A stage that gives or takes codes, used by one that has floats."""

    def __init__(self, stage: Engine, codes: PrefixCodes) -> None:
        self._stage, self._codes = stage, codes
        contract = stage.contract
        self._contract = dataclasses.replace(
            contract, inputs=self._plain(contract.inputs), outputs=self._plain(contract.outputs)
        )

    def _plain(self, tensors: tuple[TensorContract, ...]) -> tuple[TensorContract, ...]:
        return tuple(dataclasses.replace(t, dtype="float32") if t.name in self._codes.scales else t for t in tensors)

    @property
    def contract(self) -> StageContract:
        """That of the stage with keys and values in float32."""
        return self._contract

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that rounds the inputs as they then are, runs the stage, and reads its codes back."""
        codes, scales = self._codes, self._codes.scales
        given = {n: codes.encoded(n, a) if n in scales else a for n, a in inputs.items()}
        made = {n: codes.encoded(n, np.zeros_like(a)) if n in scales else a for n, a in outputs.items()}
        inner = self._stage.bind(given, made)

        def run() -> None:
            for name in scales.keys() & given.keys():
                np.copyto(given[name], codes.encoded(name, inputs[name]))
            inner()
            for name in scales.keys() & made.keys():
                np.copyto(outputs[name], codes.decoded(name, made[name]))

        return run
