"""The files of a run folder that are made of its rows, at the end of a run or again later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewright.bench.records.folder import SUMMARY, TIMING, write_json, write_whole
from edgewright.bench.records.profile import write_genie_profile
from edgewright.bench.records.reader import read_run
from edgewright.bench.records.summary import Summary
from edgewright.bench.records.timing import timing_text
from edgewright.bench.records.trace import write_trace


def write_outputs(folder: Path) -> dict[str, Any]:
    """Write summary, profile, trace and timing from a run's rows; returns the summary. Raises UsageError, OutputError.

    The summary is written first, so that it is there even where the disk is full after it.
    """
    run = read_run(folder)
    if run.env.get("external"):  # its figures are in the device's profiles
        from edgewright.bench.external.outputs import write_external_outputs

        return write_external_outputs(run)
    summary = Summary(run).to_json()
    write_json(folder / SUMMARY, summary)
    write_whole(folder / TIMING, timing_text(summary))
    write_genie_profile(run)
    write_trace(run)
    return summary
