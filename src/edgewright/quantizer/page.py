"""The report on a quantized checkpoint as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewright.files import write_text
from edgewright.quantizer.report import ModuleReport, worst
from edgewright.report.charts import columns, histogram
from edgewright.report.template import rendered

#: Modules that are marked in the table, and those whose weights are drawn.
WORST, DRAWN = 10, 4


def write_page(
    path: Path,
    recipe_name: str,
    reports: Sequence[ModuleReport],
    record: Mapping[str, Any],
    comparison: Mapping[str, Any] | None = None,
) -> None:
    """Write the page; see `page`. Raises OutputError."""
    write_text(path, page(recipe_name, reports, record, comparison))


def page(
    recipe_name: str,
    reports: Sequence[ModuleReport],
    record: Mapping[str, Any],
    comparison: Mapping[str, Any] | None = None,
    *,
    count: int = WORST,
) -> str:
    """Return the page of the figures of modules, the record of the calibration data (empty without data), and a
    comparison as `edgewright quality --json` prints it. What isn't there is left out; `count` modules are marked.
    """
    bad = worst(reports, count)
    measured = [report for report in reports if report.output_sqnr_db is not None]
    marked = {report.module for report in bad}
    drawn = [(report, histogram({"original": report.histogram[0], "stored": report.histogram[1]}, report.limit))
             for report in bad[:DRAWN]]  # fmt: skip
    return rendered(
        "edgewright.quantizer",
        "report.html",
        wide=True,
        recipe=recipe_name,
        reports=reports,
        marked=marked,
        bytes=sum(report.bytes for report in reports),
        float_bytes=sum(report.float_bytes for report in reports),
        formats=Counter(report.format for report in reports),
        algorithms=Counter(report.algorithm for report in reports),
        activations=Counter(report.activation for report in reports if report.activation),
        dead=[report for report in reports if report.dead_inputs],
        record=record,
        layers=columns(
            [(report.module, report.output_sqnr_db or 0.0) for report in measured],
            [index for index, report in enumerate(measured) if report.module in marked],
        ),
        drawn=drawn,
        comparison=comparison,
        db=_db,
        relative=_relative,
    )


def _db(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _relative(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"
