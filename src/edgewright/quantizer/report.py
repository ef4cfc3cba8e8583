"""What quantizing cost, module by module: figures of weights and of outputs, kept beside the checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint.layouts.native import part_bytes
from edgewright.formats import Array, Format
from edgewright.quant.algorithms import largest
from edgewright.quant.moments import Moments
from edgewright.quantizer.plan import Target

#: Bins of the histograms of weights, over [-limit, limit].
BINS = 64
#: Numbers that are looked at at once, so that a large head costs no further copies of itself.
_PORTION = 1 << 22
#: What stands for an algorithm where none was used.
TAKEN, SHARED, NONE = "taken over", "shared", "none"
#: The file that figures are kept in, in a quantized checkpoint's folder.
REPORT = "quantization_report.json"


@dataclass(frozen=True)
class ModuleReport:
    """Figures of one module: original weights w against what is stored.

    `algorithm` is what was done: the recipe's, what took its place, TAKEN for codes of the checkpoint that were kept,
    SHARED for those of a tied table, NONE for floats. `weight_rmse` is absolute, `weight_sqnr_db` and
    `output_sqnr_db` are 10 log10(signal / error) of weights and of the outputs on the calibration data (None without
    statistics), `cosine` is between the weights. `output_error` is the outputs' error energy over their energy.
    `histogram` counts the original and the stored weights in BINS bins of [-limit, limit]. `bytes` counts a weight that
    two modules share once.
    """

    module: str
    kind: str
    format: str
    algorithm: str
    activation: str | None
    shape: tuple[int, int]
    bytes: int
    float_bytes: int
    weight_rmse: float
    weight_sqnr_db: float | None
    cosine: float
    output_error: float | None
    output_sqnr_db: float | None
    dead_inputs: int
    limit: float
    histogram: tuple[tuple[int, ...], tuple[int, ...]]
    #: The block format the checkpoint stored it in, None for plain numbers.
    stored: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-compatible values."""
        return asdict(self)


def report_from_json(data: Mapping[str, Any]) -> ModuleReport:
    """Return the figures that `to_json` described; raises KeyError or TypeError on anything else."""
    height, width = data["shape"]
    before, after = data["histogram"]
    return ModuleReport(**{**data, "shape": (height, width), "histogram": (tuple(before), tuple(after))})


def read_report(folder: Path) -> tuple[str, tuple[ModuleReport, ...], Mapping[str, Any]] | None:
    """Return a quantized checkpoint's recipe name, figures and record of the data; None where a folder has none."""
    try:
        report = json.loads((folder / REPORT).read_bytes())
        modules = tuple(report_from_json(module) for module in report["modules"])
        config = json.loads((folder / "config.json").read_bytes())
        return str(report["recipe"]), modules, dict(config["quantization_config"].get("calibration") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def measure(
    target: Target, fmt: Format, weight: Array, values: Array, moments: Moments | None, algorithm: str | None = None
) -> ModuleReport:
    """Compare a weight with what is stored of it; `algorithm` says what was done, where it isn't what was asked for."""
    known = moments is not None and moments.second is not None and moments.tokens
    limit = max(largest(weight), 1e-30)
    # Signal, noise, product and energy of the stored weight; energies of the outputs' error and of the outputs.
    sums, energies = np.zeros(4), np.zeros(2)
    counts = np.zeros((2, BINS), np.int64)
    step = max(1, _PORTION // weight.shape[1])
    for start in range(0, len(weight), step):
        w, v = weight[start : start + step], values[start : start + step]
        pairs = ((w, w), (w - v, w - v), (w, v), (v, v))
        sums += [np.einsum("ij,ij->", x, y, dtype=np.float64) for x, y in pairs]
        counts += [np.histogram(part, BINS, (-limit, limit))[0] for part in (w, v)]
        if known and moments is not None:
            energies += [moments.output_error(part) for part in (w - v, w)]
    signal, noise, product, stored = (float(value) for value in sums)
    norms = math.sqrt(signal) * math.sqrt(stored)
    output = None if not known else float(energies[0] / energies[1]) if energies[1] > 0 else 0.0
    activation = target.choice.inputs.format
    return ModuleReport(
        module=target.module,
        kind=target.kind,
        format=fmt.label,
        algorithm=target.choice.algorithm.name if algorithm is None else algorithm,
        activation=None if activation is None or target.inner or target.kind == "embedding" else activation.label,
        shape=target.shape,
        bytes=0 if target.codes_of is not None else part_bytes(fmt, target.shape),
        float_bytes=0 if target.codes_of is not None else 4 * target.shape[0] * target.shape[1],
        weight_rmse=math.sqrt(noise / weight.size),
        weight_sqnr_db=decibels(noise / signal) if signal else None,
        cosine=product / norms if norms else 1.0,
        output_error=output,
        output_sqnr_db=None if output is None else decibels(output),
        dead_inputs=0 if moments is None else int(moments.dead.sum()),
        limit=limit,
        histogram=(tuple(map(int, counts[0])), tuple(map(int, counts[1]))),
        stored=target.stored,
    )


def decibels(relative: float) -> float | None:
    """Return -10 log10 of a relative error; None for none at all."""
    return -10 * math.log10(relative) if relative > 0 else None


def worst(reports: Sequence[ModuleReport], count: int) -> list[ModuleReport]:
    """Return the modules with the largest output error (weight error where there are no statistics)."""

    def loss(report: ModuleReport) -> float:
        ratio = report.output_sqnr_db if report.output_sqnr_db is not None else report.weight_sqnr_db
        return math.inf if ratio is None else ratio

    return sorted(reports, key=loss)[:count]
