"""The figures of quantized modules, against plain NumPy on the data themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from edgewright.formats import FloatFormat, IntFormat
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Algorithm, Choice, Inputs
from edgewright.quantizer.plan import Target
from edgewright.quantizer.report import (
    BINS,
    REPORT,
    ModuleReport,
    decibels,
    measure,
    read_report,
    report_from_json,
    worst,
)

FMT = IntFormat(4, 32, False)


def target(shape: tuple[int, int], name: str = "model.layers.0.mlp.up_proj") -> Target:
    choice = Choice(FMT, Inputs(None), Algorithm("mse"), {})
    return Target(name, "body", "Linear", f"{name}.weight", shape, None, choice, False)


def rounded(weight: np.ndarray) -> np.ndarray:
    return FMT.decode(FMT.encode(weight, {}), weight.shape[1])


@pytest.mark.parametrize(("rows", "width", "seed"), [(7, 33, 0), (1, 5, 1), (40, 96, 2)])
def test_figures_are_those_of_the_data(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, width)).astype(np.float32)
    inputs = rng.standard_normal((50, width)).astype(np.float32) * rng.uniform(0.1, 3, width).astype(np.float32)
    inputs[:, 3] = 0
    moments = Moments("m", width)
    for part in np.split(inputs, (13, 30)):
        moments.add(part)
    values = rounded(weight)
    report = measure(target(weight.shape), FMT, weight, values, moments)

    exact, error = weight.astype(np.float64), weight.astype(np.float64) - values
    outputs, wrong = inputs @ exact.T, inputs @ error.T
    relative = np.square(wrong).sum() / np.square(outputs).sum()
    assert report.weight_rmse == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert report.weight_sqnr_db == pytest.approx(
        10 * np.log10(np.square(exact).sum() / np.square(error).sum()), rel=1e-5
    )
    cosine = (exact * values).sum() / np.linalg.norm(exact) / np.linalg.norm(values)
    assert report.cosine == pytest.approx(cosine, rel=1e-6)
    assert report.output_error == pytest.approx(relative, rel=1e-3)
    assert report.output_sqnr_db == pytest.approx(-10 * np.log10(relative), rel=1e-3)
    assert report.dead_inputs == 1
    blocks = -(-width // 32)
    assert report.bytes == rows * blocks * 16 + rows * blocks * 4
    assert report.float_bytes == 4 * rows * width
    assert report.limit == np.abs(weight).max()
    for counts, array in zip(report.histogram, (weight, values), strict=True):
        inside = np.abs(array) <= report.limit
        assert len(counts) == BINS
        assert sum(counts) == inside.sum()
    assert (report.format, report.algorithm, report.activation) == (FMT.label, "mse", None)


def test_nothing_lost_and_nothing_there() -> None:
    zeros = np.zeros((3, 4), np.float32)
    report = measure(target(zeros.shape), FloatFormat("float32"), zeros, zeros, None)
    assert (report.weight_sqnr_db, report.output_sqnr_db, report.output_error) == (None, None, None)
    assert (report.weight_rmse, report.cosine, report.dead_inputs) == (0.0, 1.0, 0)
    weight = np.eye(3, 4, dtype=np.float32)
    report = measure(target(weight.shape), FloatFormat("float32"), weight, weight, Moments("m", 4))
    assert (report.weight_sqnr_db, report.output_error) == (None, None)  # no tokens were seen
    json.dumps(report.to_json(), allow_nan=False)


def test_decibels() -> None:
    assert decibels(0.001) == pytest.approx(30)
    assert decibels(0) is None
    assert decibels(4.0) == pytest.approx(-10 * math.log10(4))


def plain(module: str, output: float | None, weight: float | None) -> ModuleReport:
    histogram = ((1,) * BINS, (2,) * BINS)
    return ModuleReport(
        module, "body", "int4", "minmax", None, (2, 3), 5, 24, 0.1, weight, 0.99, 0.1, output, 0, 1.5, histogram
    )


def test_the_worst_come_first() -> None:
    found = [plain("a", 20.0, 1.0), plain("b", 10.0, 90.0), plain("c", None, 15.0), plain("d", None, None)]
    assert [report.module for report in worst(found, 3)] == ["b", "c", "a"]
    assert [report.module for report in worst(found, 9)][-1] == "d"


def test_a_report_goes_through_json(tmp_path: Path) -> None:
    report = plain("a", 20.0, 1.0)
    assert report_from_json(json.loads(json.dumps(report.to_json()))) == report
    assert read_report(tmp_path) is None
    (tmp_path / REPORT).write_text(json.dumps({"recipe": "r", "modules": [report.to_json()]}))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"quantization_config": {"calibration": {"sequences": 3}}}))
    assert read_report(tmp_path) == ("r", (report,), {"sequences": 3})
    for damaged in ("[]", "{", '{"quantization_config": 3}'):
        config.write_text(damaged)
        assert read_report(tmp_path) is None
