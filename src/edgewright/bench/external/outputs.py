"""The files of a run folder that are made of what an external program left there."""

from __future__ import annotations

from typing import Any

from edgewright.bench.external.profiles import write_joined_profile
from edgewright.bench.external.summary import summary_of
from edgewright.bench.external.timing import external_timing
from edgewright.bench.external.trace import write_query_trace
from edgewright.bench.records.folder import SUMMARY, TIMING, write_json, write_whole
from edgewright.bench.records.reader import Run


def write_external_outputs(run: Run) -> dict[str, Any]:
    """Write summary, timing and trace of a run, and a profile where there are several; returns the summary.

    A profile that one process wrote for all dialogs is the device's own file, and stays. Raises OutputError.
    """
    summary = summary_of(run)
    write_json(run.folder / SUMMARY, summary)
    write_whole(run.folder / TIMING, external_timing(summary))
    write_joined_profile(run)
    write_query_trace(run)
    return summary
