"""HTML pages that need nothing else: no scripts, no fonts, no network. Everything filled in is escaped."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2

from edgewright._version import __version__
from edgewright.report.charts import short


def rendered(package: str, template: str, /, **values: Any) -> str:
    """Return the page that `template` in a package's folder `data` makes of values.

    It may extend `base.html` and import `plot` from `plot.html`, which draws charts.
    """

    def read(wanted: str) -> str:
        owner = package if wanted == template else "edgewright.report"
        return (resources.files(owner) / "data" / wanted).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(**values, version=__version__, short=short)
