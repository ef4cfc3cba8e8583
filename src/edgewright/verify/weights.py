"""Level `weights`: every shipped tensor against the checkpoint, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.formats import IntFormat, to_blocks
from edgewright.graph import Stage
from edgewright.graph.weights import FloatProducer
from edgewright.progress import Advance
from edgewright.quant.producers import EncodedProducer, ExactProducer, RoundingProducer
from edgewright.verify.shipped import Leaf, ShippedTensors, decode, leaves

#: A rounded value may be this many steps (block scales) from the original: half a step for rounding, up to one where
#: the largest magnitude is clipped by one code, and the least-squares refit of the scale on top.
STEP_BOUND = 2.0
#: The errors of a block may have this RMS in steps; uniform rounding errors have 0.29.
BLOCK_RMS_BOUND = 0.6
#: What another machine's order of summing in float64 may change after rounding to float32.
_LAST_BIT = 2.0**-22
#: What rounding a scale to float16 may change: relatively, and of scales too small to be normal numbers.
_HALF_SCALE, _LARGEST_CODE = 2.0**-10, 448.0


@dataclass(frozen=True)
class WeightsReport:
    """`faults` names each tensor that is wrong and how; `worst` is the tensor with the largest relative RMS error."""

    tensors: int
    exact: int
    faults: tuple[str, ...]
    worst: str
    worst_rms: float

    @property
    def passed(self) -> bool:
        """Whether every tensor is what the checkpoint and the recipe say."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        if self.faults:
            summary = f"{len(self.faults)} of {self.tensors} tensors differ: {'; '.join(self.faults[:3])}"
        else:
            summary = (
                f"{self.tensors} tensors, {self.exact} equal to the checkpoint, largest RMS error "
                f"{self.worst_rms:.3g} of the tensor's RMS ({self.worst or 'none'})"
            )
        return {
            "status": "passed" if self.passed else "failed",
            "summary": summary,
            "tensors": self.tensors,
            "exact": self.exact,
            "faults": list(self.faults),
            "worst": self.worst,
            "worst_rms": float(f"{self.worst_rms:.4g}") if np.isfinite(self.worst_rms) else None,
        }


def check_weights(
    stage: Stage, tensors: ShippedTensors, advance: Advance, *, same_version: bool = True
) -> WeightsReport:
    """Compare the shipped tensors with the weights of `stage`, the lowered stage built anew from the checkpoint.

    Values are bounded independently of how they were made. With `same_version`, this program made the bundle, and codes
    must besides be the very ones it makes; rounding is exact arithmetic, the same on every machine.
    """
    faults: list[str] = []
    count = exact = 0
    worst, worst_rms = "", 0.0
    for leaf in leaves(stage):
        count += 1
        fault, rms = _check(leaf, tensors, same_version) if tensors.holds(leaf) else ("is not in the bundle", np.inf)
        advance(leaf.producer.specs[0].nbytes)
        if fault:
            faults.append(f"{leaf.name} {fault}")
        exact += rms == 0.0
        if rms > worst_rms:
            worst, worst_rms = leaf.name, rms
    return WeightsReport(count, exact, tuple(faults), worst, worst_rms)


def _check(leaf: Leaf, tensors: ShippedTensors, same_version: bool) -> tuple[str | None, float]:
    """Return what is wrong with a leaf, if anything, and its relative RMS error."""
    producer = leaf.producer
    assert isinstance(producer, FloatProducer | RoundingProducer | ExactProducer | EncodedProducer), producer
    weight = producer.weight
    error = total = 0.0
    for start, stop in weight.blocks(1 if isinstance(producer, FloatProducer) else producer.format.row_step):
        original = weight.rows(start, stop)
        arrays = tensors.leaf_rows(leaf, start, stop)
        if isinstance(producer, FloatProducer):
            shipped = arrays[0].astype(np.float32)
            allowed: np.ndarray | float = _half_ulp(original, producer.specs[0].dtype)
            if weight.summed:
                allowed = allowed + _LAST_BIT * np.abs(original)
        else:
            if not np.isfinite(arrays[1].astype(np.float32)).all():
                return f"has a scale that is not finite in rows {start} to {stop}", np.inf
            shipped = decode(leaf, arrays, producer.format, weight.shape[1])
            # Codes taken over unchanged: only the last bit of the sum code * scale + offset may differ.
            allowed = (
                2.0**-20 * np.abs(original).max()
                if isinstance(producer, ExactProducer) and producer.has_offsets
                else 0.0
            )
            if isinstance(producer, RoundingProducer):
                allowed = _rounding(producer, arrays, original, shipped)
            elif leaf.packed is not None and leaf.packed.half:
                allowed = _HALF_SCALE * np.abs(original) + _LARGEST_CODE * 2.0**-25
        difference = np.abs(shipped - original)
        bad = ~(difference <= allowed)
        if bad.any():
            at = [int(i) for i in np.argwhere(bad)[0]]
            row = start + at[0]
            value, wanted = float(shipped[tuple(at)]), float(original[tuple(at)])
            return f"is {value:.4g} where the checkpoint says {wanted:.4g} (row {row})", np.inf
        if same_version and isinstance(producer, RoundingProducer):
            half = leaf.packed is not None and leaf.packed.half
            fault = _other_codes(producer, arrays, start, stop, half=half)
            if fault:
                return fault, np.inf
        error += float(np.square(difference, dtype=np.float64).sum())
        total += float(np.square(original, dtype=np.float64).sum())
    return None, float(np.sqrt(error / total)) if total > 0 else 0.0


def _rounding(
    producer: RoundingProducer, arrays: tuple[np.ndarray, ...], original: np.ndarray, shipped: np.ndarray
) -> np.ndarray:
    """Return the error rounding may have made, element by element; 0 in blocks whose errors are too many."""
    fmt, width = producer.format, original.shape[1]
    if isinstance(fmt, IntFormat):
        steps = np.abs(arrays[1].astype(np.float32))
        rms = np.sqrt(np.square(to_blocks(shipped - original, fmt.group)).mean(axis=2))
        allowed = np.where(rms <= BLOCK_RMS_BOUND * steps + 1e-12, STEP_BOUND * steps + 1e-12, 0.0)
        return np.repeat(allowed, fmt.group, axis=1)[:, :width]
    # Codes of a float element: half the distance to the next number, at most a share of what the block's scale spans.
    number, span = fmt.number, fmt.span(width)  # type: ignore[attr-defined]
    largest = np.abs(to_blocks(original, span)).max(axis=2)
    if fmt.row_step > 1:
        starts = np.arange(0, len(largest), fmt.row_step)
        largest = np.repeat(np.maximum.reduceat(largest, starts, axis=0), fmt.row_step, axis=0)[: len(original)]
    if "scales" in fmt.shared:
        largest = np.full_like(largest, arrays[1][0] * number.largest)
    share = {"int8": 0.55 / 127, "e4m3": 0.09, "e2m1": 0.35}[number.name]
    return np.repeat(share * largest + 1e-12, span, axis=1)[:, :width]


def _other_codes(
    producer: RoundingProducer, arrays: tuple[np.ndarray, ...], start: int, stop: int, *, half: bool = False
) -> str | None:
    """Return what differs from the codes, scales and zero points that rounding gives; scales may differ by an ulp.

    With `half` scales were rounded to float16 on the way.
    """
    made_anew = producer.chunk(start, stop)
    for spec, shipped, made in zip(producer.specs, arrays, made_anew, strict=True):
        kind = spec.name.rsplit(".", 1)[-1]
        if kind in producer.format.shared and start:
            continue  # compared with the first rows
        if shipped.dtype.itemsize == 1:
            shipped, made = shipped.view(np.uint8), made.view(np.uint8)
        elif half:
            made = made.astype(np.float16).astype(made.dtype)
        same = np.isclose(shipped, made, rtol=1e-5, atol=0) if shipped.dtype == np.float32 else shipped == made
        if not same.all():
            at = [int(i) for i in np.argwhere(~same)[0]]
            block = f", block {at[1]}" if len(at) > 1 else ""
            return f"has {kind} that rounding does not give (row {start + at[0]}{block})"
    return None


def _half_ulp(values: np.ndarray, dtype: str) -> np.ndarray | float:
    """Return the rounding error allowed for storing float32 as `dtype`."""
    if dtype == "float32":
        return 0.0
    relative = 2.0**-11 if dtype == "float16" else 2.0**-8
    result: np.ndarray = np.abs(values) * relative + 2.0**-25
    return result
