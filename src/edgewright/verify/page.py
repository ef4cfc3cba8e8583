"""The report as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.bundle.manifest import Manifest
from edgewright.report.charts import chart
from edgewright.report.template import rendered


def page(name: str, manifest: Manifest, report: Mapping[str, Any]) -> str:
    """Return the page for a report as `Report.to_json` gives it; `name` is the bundle's."""
    place = report.get("localisation")
    charts = {}
    if place is not None:
        charts = {
            "positions": chart(place["errors_by_position"], place["bound"]),
            "layers": chart([[i, value] for i, (_, value) in enumerate(place["errors_by_layer"])], 1.0),
        }
    return rendered(
        "edgewright.verify", "page.html", name=name, manifest=manifest, report=report, place=place, charts=charts
    )
