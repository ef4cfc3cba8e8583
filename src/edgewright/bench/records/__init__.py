"""The run folder: what is written while a case runs, and what is made of it afterwards, from the files alone."""

from __future__ import annotations

from edgewright.bench.records.folder import (
    CASE,
    DIALOGS,
    ENVIRONMENT,
    EVENTS,
    FIGURES,
    JOBS,
    PAGE,
    PROFILE,
    STEPS,
    SUMMARY,
    TIMING,
    TRACE,
    is_run_folder,
    new_run_folder,
    safe_name,
    write_json,
    write_whole,
)
from edgewright.bench.records.outputs import write_outputs
from edgewright.bench.records.reader import Run, read_run
from edgewright.bench.records.result import EXIT_CODES, RunResult
from edgewright.bench.records.rows import RUN, SOLO, WARMUP, JobRow, StepRow
from edgewright.bench.records.summary import SCHEMA_VERSION, summarize, write_summary
from edgewright.bench.records.timing import tables, timing_text
from edgewright.bench.records.writer import PartRecorder, RunWriter

__all__ = [
    "CASE",
    "DIALOGS",
    "ENVIRONMENT",
    "EVENTS",
    "EXIT_CODES",
    "FIGURES",
    "JOBS",
    "PAGE",
    "PROFILE",
    "RUN",
    "SCHEMA_VERSION",
    "SOLO",
    "STEPS",
    "SUMMARY",
    "TIMING",
    "TRACE",
    "WARMUP",
    "JobRow",
    "PartRecorder",
    "Run",
    "RunResult",
    "RunWriter",
    "StepRow",
    "is_run_folder",
    "new_run_folder",
    "read_run",
    "safe_name",
    "summarize",
    "tables",
    "timing_text",
    "write_json",
    "write_outputs",
    "write_summary",
    "write_whole",
]
